"""A machine of the local market: a process tree in a folder of its own that nothing but its end can end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path

import pytest

from tests.contracts.providers import TYPE
from tests.providers.support import Bench, bench
from tests.support.live import living
from tests.support.world import LATE_S
from windfall.linux import processes
from windfall.market import BootSecret, BootSpec, MachineEndCause, MachineLifecycle, Order
from windfall.providers.local import machine_folder
from windfall.terms import Seconds
from windfall.wire import boot_data

# A grandchild in a session of its own whose parent is gone, the environment as it was.
DAEMON = "(setsid sleep 99 &) ; (setsid sh -c 'sleep 99' &)"


TYPES = {
    TYPE: {"on_demand": 9000},
    "far": {"on_demand": 9000, "uplink": "5MB/s", "kernel_speed": 0.5, "turn_s": 0.004},
    "slow": {"on_demand": 9000, "speed": 0.25},
}
Markets = Callable[[str], Bench]


@pytest.fixture(scope="module")
def markets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Markets]:
    """One market for each way to hold a machine together, for all tests."""
    with ExitStack() as stack:

        @cache
        def opened(isolation: str) -> Bench:
            made = stack.enter_context(bench(tmp_path_factory.mktemp("market")))
            made.sell(isolation=isolation, types=TYPES)
            return made

        yield opened


@pytest.fixture
def market(markets: Markets) -> Bench:
    """A market of ordinary machines."""
    return markets("auto")


@pytest.fixture
def token(request: pytest.FixtureRequest) -> str:
    """This test's order."""
    return request.node.name


def started(market: Bench, token: str, script: str, *, kind: str = TYPE, **env: str) -> str:
    """Order a machine that runs a script, wait until it says `ready`."""
    (machine_id,) = market.order(token, "sh", "-c", f"{script}; touch ready; sleep 99", kind=kind, **env)
    market.wait_until((market.home(machine_id) / "disk" / "ready").exists, "the script runs")
    return machine_id


@pytest.mark.parametrize(
    ("isolation", "end"),
    [
        *(("auto", end) for end in ("release", "preempt", "init", "process")),
        *(("subreaper", end) for end in ("release", "init")),
    ],
)
def test_everything_dies_with_the_machine(markets: Markets, token: str, isolation: str, end: str) -> None:
    """Grandchildren that left session and parent behind are gone once the listing says that the machine is.

    It is held together by a PID namespace, or by a subreaper where none is allowed.
    """
    either = markets(isolation)
    machine_id = started(either, token, DAEMON)
    life = either.life(machine_id)
    assert len(either_running := _running(either, machine_id)) >= 3

    if end == "release":
        either.provider.release(machine_id)
    elif end == "preempt":
        either.provider.preempt(machine_id, None)
    else:
        os.kill(int(str(life["pid" if end == "init" else "first_pid"])), signal.SIGKILL)
    either.await_life(machine_id, MachineLifecycle.GONE)

    assert _running(either, machine_id) == [], f"of {either_running}"


def _running(market: Bench, machine_id: str) -> list[int]:
    return processes.marked(machine_folder.MACHINE_ID, machine_id)


def test_a_machine_has_a_home_of_its_own(market: Bench, token: str) -> None:
    """Working folder, home and state lie on its disk, temporary files where sockets fit; all go with it, its output stays."""
    each = 'for at in "$PWD" "$HOME" "$XDG_STATE_HOME" "$TMPDIR"; do echo "$at"; echo x > "$at/mark"; done'
    machine_id = started(market, token, each)
    home = market.home(machine_id)

    places = (home / "output.log").read_text().split()
    assert len(places) == 4
    assert all((Path(place) / "mark").exists() for place in places)
    assert all(Path(place).is_relative_to(home / "disk") for place in places[:3])
    assert len(places[3]) < 40
    market.provider.release(machine_id)
    market.await_life(machine_id, MachineLifecycle.GONE)

    assert not (home / "disk").exists()
    assert not Path(places[3]).exists()
    assert (home / "output.log").exists()


def test_a_machine_knows_its_name_and_where_its_notices_are(market: Bench, token: str) -> None:
    """Name, provider, metadata service and limits are in its environment, beside what the order gave; nothing of ours is."""
    os.environ["WINDFALL_TEST_SECRET"] = "of the shell that opened the market"
    try:
        machine_id = started(market, token, "env > env", kind="far", GIVEN="yes")
    finally:
        del os.environ["WINDFALL_TEST_SECRET"]

    text = (market.home(machine_id) / "disk" / "env").read_text()
    env = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    assert env["WINDFALL_MACHINE_ID"] == machine_id
    assert env["WINDFALL_PROVIDER"] == "local"
    assert env["WINDFALL_METADATA_URL"] == market.life(machine_id)["metadata_url"]
    assert (env["WINDFALL_UPLINK"], env["GIVEN"]) == ("5MB/s", "yes")
    assert (boot_data.kernel_speed_of(env), boot_data.turn_s_of(env)) == (0.5, 0.004)
    assert "WINDFALL_TEST_SECRET" not in env


def test_what_a_machine_is_given_is_seen_by_nobody_else(market: Bench, token: str) -> None:
    """The environment of an order is on no command line, in no log and no book, and its file is gone once it runs."""
    secret = "hunter2-and-more"
    machine_id = started(market, token, ":", CREDENTIAL=secret)

    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            lines.append(path.read_bytes())
    assert not any(secret.encode() in line for line in lines)
    assert [path for path, data in living(market.folder).items() if secret.encode() in data] == []
    assert not (market.home(machine_id) / "boot.json").exists()
    assert market.home(machine_id).stat().st_mode & 0o077 == 0
    assert (market.folder / "token").stat().st_mode & 0o077 == 0


def test_shared_memory_goes_with_the_machine(market: Bench, token: str) -> None:
    """What a machine leaves in shared memory is not there for the next one, nor on the host."""
    machine_id = started(market, token, "echo x > /dev/shm/windfall-left; ls /dev/shm > seen")

    assert (market.home(machine_id) / "disk" / "seen").read_text() == "windfall-left\n"
    assert not Path("/dev/shm/windfall-left").exists()


def test_a_command_that_does_not_exist_is_a_broken_machine(market: Bench, token: str) -> None:
    """It ends at once as failed, and its output says why."""
    (machine_id,) = market.order(token, "no-such-command")

    assert market.await_life(machine_id, MachineLifecycle.GONE).cause is MachineEndCause.FAILED
    assert "no-such-command could not be started" in (market.home(machine_id) / "output.log").read_text()


def test_a_machine_outlives_its_market_and_keeps_its_deadline(market: Bench, token: str) -> None:
    """With the market killed, its process goes on; an announced end comes on time and is billed, without any market."""
    machine_id = started(market, token, ":")
    market.provider.preempt(machine_id, Seconds(1.5))

    market.kill_market()
    assert market.lives(machine_id)
    market.wait_until(lambda: market.notice_left_s(machine_id) is not None, "the machine is told")
    market.wait_until(lambda: not market.lives(machine_id), "its deadline comes")
    gone_at = market.clock.wall_time()
    market.pass_time(0.5)

    machine = market.machine(machine_id)
    assert (machine.lifecycle, machine.cause) == (MachineLifecycle.GONE, MachineEndCause.PREEMPTED)
    assert machine.ended is not None
    assert machine.preemption_at is not None
    assert machine.preemption_at - 0.05 <= machine.ended <= machine.preemption_at + LATE_S
    assert abs(machine.ended - gone_at) < LATE_S


def test_a_machine_that_is_shut_down_says_so_and_ends(market: Bench, token: str) -> None:
    """SIGTERM to a machine without a market: its script is told that it has half a minute; the second one ends it."""
    machine_id = started(market, token, "trap '' TERM")
    market.kill_market()
    init = int(str(market.life(machine_id)["pid"]))

    os.kill(init, signal.SIGTERM)
    market.wait_until(lambda: market.notice_left_s(machine_id) is not None, "the machine is told")
    assert 20 < (market.notice_left_s(machine_id) or 0.0) <= 30
    assert market.lives(machine_id)

    os.kill(init, signal.SIGTERM)
    market.wait_until(lambda: not market.lives(machine_id), "it ends")
    assert market.machine(machine_id).cause is MachineEndCause.PREEMPTED


def test_a_slow_machine_gets_its_share_of_the_processor(market: Bench, token: str) -> None:
    """At a quarter of the speed a busy loop is stopped and goes on by turns, children in other sessions included."""
    machine_id = started(market, token, "(setsid sh -c 'while :; do :; done' &)", kind="slow")
    states: set[str] = set()

    def has_been_both() -> bool:
        states.update(_states(market, machine_id))
        return {"T", "R"} <= states

    market.wait_until(has_been_both, "it stands and runs")
    first, began = _processor_s(market, machine_id), time.monotonic()
    market.pass_time(1.0)
    share = (_processor_s(market, machine_id) - first) / (time.monotonic() - began)

    # A busy host gives less, and that is no fault.
    assert 0.0 < share < 0.45
    market.provider.release(machine_id)
    market.await_life(machine_id, MachineLifecycle.GONE)


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _states(market: Bench, machine_id: str) -> set[str]:
    return {_stat(pid)[0] for pid in _running(market, machine_id)}


def _processor_s(market: Bench, machine_id: str) -> float:
    burnt = [_stat(pid)[11:13] for pid in _running(market, machine_id)]
    return sum(int(own) + int(system) for own, system in burnt) / os.sysconf("SC_CLK_TCK")


def test_a_jobs_block_and_secrets_reach_its_machine(market: Bench, token: str, tmp_path: Path) -> None:
    """The block's uplink replaces the type's, secrets are in the machine's environment, and nowhere in its folder."""
    offer = next(offer for offer in market.provider.offers() if offer.machine_type == "far")
    script = f'echo "$WINDFALL_UPLINK $KEY" > {tmp_path}/said; sleep 99'
    spec = BootSpec(
        ("sh", "-c", script), secrets=(BootSecret("KEY", "hush-hush"),), block=(("uplink", "3MB/s"), ("speed", 1.0))
    )

    (machine_id,) = market.provider.order(Order(token, "me", "job", offer, 1, 1), spec).machine_ids

    assert market.await_file(tmp_path / "said") == "3MB/s hush-hush\n"
    left = [path for path in market.home(machine_id).rglob("*") if path.is_file()]
    assert left
    assert not [path for path in left if b"hush-hush" in path.read_bytes()]
