"""The local market's daemon: killed at any moment it forgets nothing that was promised and bills what is true."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest

from tests.contracts.providers import TYPE, ZONE, LocalWorld
from tests.providers.support import OWNER, Bench, bench
from windfall.errors import Misuse, ProviderDenied, ProviderUnreachable
from windfall.linux import processes
from windfall.linux.clock import SystemClock
from windfall.market import BootSpec, MachineEndCause, MachineLifecycle, Order
from windfall.providers.local import machine_folder, market_database
from windfall.providers.local.local_provider import LocalProvider
from windfall.providers.local.market_daemon import ADDRESS, LOCK
from windfall.providers.local.market_database import MarketDatabase
from windfall.structs import replace
from windfall.terms import Seconds, WallTime

CENT = 0.01


def daemons(market: LocalWorld) -> list[int]:
    """The processes that are this market."""
    name = f"windfall.providers.local.market_daemon\0{market.folder}\0".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = path.read_bytes()
        except OSError:
            continue
        if name in text and processes.started_at(int(path.parent.name)) is not None:
            found.append(int(path.parent.name))
    return found


def is_free(lock: Path) -> bool:
    """Whether nobody holds a lock: a process that is killed has it until its last thread is gone."""
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def test_the_market_opens_when_it_is_needed_and_once(market: Bench) -> None:
    """Eight callers at once find one daemon."""
    callers = [LocalProvider(str(market.folder), market.clock) for _ in range(8)]
    threads = [threading.Thread(target=caller.offers) for caller in callers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for caller in callers:
        assert caller.offers()
        caller.close()

    assert len(daemons(market)) == 1


@pytest.mark.slow
def test_a_second_daemon_leaves_the_first_alone(market: Bench) -> None:
    """Started by hand on a folder that has a market, it ends at once, and the first goes on."""
    market.provider.offers()
    before = daemons(market)

    command = [sys.executable, "-m", "windfall.providers.local.market_daemon", str(market.folder)]
    done = subprocess.run(command, capture_output=True, timeout=30, check=False)

    assert (done.returncode, done.stderr) == (0, b"")
    assert daemons(market) == before
    assert market.provider.offers()


@pytest.mark.parametrize("damage", ["garbage", "locked"])
def test_a_plan_reads_a_closed_market_without_writing(tmp_path: Path, damage: str) -> None:
    """What cannot be read is a provider that does not answer; what another process holds is read all the same."""
    with contextlib.closing(MarketDatabase(tmp_path)) as database:
        database.opened_at(WallTime(1.0))
    path = tmp_path / market_database.FILE
    other = sqlite3.connect(path, isolation_level=None)
    if damage == "garbage":
        other.close()
        path.write_bytes(b"not a database, but long enough to have a header" * 100)
    else:
        other.execute("BEGIN IMMEDIATE")
    before = path.read_bytes()
    caller = LocalProvider(str(tmp_path), SystemClock(), start=False)
    if damage == "garbage":
        with pytest.raises(ProviderUnreachable, match="cannot read"):
            caller.offers()
    else:
        assert caller.offers()
    assert path.read_bytes() == before


def test_a_closed_market_is_not_opened_by_who_may_not(market: Bench) -> None:
    """Without leave to start it, offers and quotas follow from the configuration; other calls say that it is closed."""
    caller = LocalProvider(str(market.folder), market.clock, start=False)
    closed = [replace(offer, quoted_at=WallTime(0.0)) for offer in caller.offers()]

    with pytest.raises(ProviderUnreachable, match="is closed"):
        caller.list("anyone")
    closed_quotas = caller.quota("anyone")
    assert caller.capabilities().preempts
    assert [replace(offer, quoted_at=WallTime(0.0)) for offer in market.provider.offers()] == closed
    assert [replace(offer, quoted_at=WallTime(0.0)) for offer in caller.offers()] == closed
    assert market.provider.quota("anyone") == closed_quotas != ()
    caller.close()


def test_a_market_that_never_was_open_is_opened_for_no_question_about_machines(market: Bench) -> None:
    """A controller asks every provider for machines and charges; on a cluster's login node that starts no daemon."""
    assert (market.provider.list("anyone"), market.provider.charges("anyone", "7").cursor) == ((), "7")
    assert daemons(market) == []

    (machine_id,) = market.order("t-1", "sleep", "60")
    assert market.machine(machine_id).token == "t-1"
    assert len(daemons(market)) == 1


def test_the_market_closes_when_nobody_needs_it(market: Bench) -> None:
    """Without machines and callers it ends by itself, not while a machine runs; the next call finds everything."""
    market.sell(idle_exit=0.3)
    (machine_id,) = market.order("order", "sleep", "99")
    market.await_life(machine_id, MachineLifecycle.RUNNING)
    market.pass_time(0.7)
    assert len(daemons(market)) == 1

    market.provider.release(machine_id)
    market.wait_until(lambda: daemons(market) == [], "the market closes")

    market.sell(idle_exit=60.0)  # the next one must not close before this slow caller has asked
    assert market.machine(machine_id).cause is MachineEndCause.RELEASED


def test_a_closing_market_takes_away_no_address_but_its_own(market: Bench) -> None:
    """In a folder made again another daemon may be open before the old one has seen it."""
    market.sell(idle_exit=0.3)
    market.provider.offers()
    another = {"url": "http://127.0.0.1:1", "pid": 1}
    machine_folder.write(market.folder, ADDRESS, another)

    market.wait_until(lambda: daemons(market) == [], "the market closes")

    assert machine_folder.read(market.folder, ADDRESS) == another
    (market.folder / ADDRESS).unlink()


def test_a_call_on_which_the_market_closes_is_answered_by_the_next(market: Bench) -> None:
    """Its order was taken, its answer lost with the daemon: the caller has the machine, and only that one."""

    class Closing(httpx.HTTPTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            response = super().handle_request(request)
            if request.url.path == "/order" and len(closed) == 0:
                closed.extend(daemons(market))
                os.kill(closed[0], signal.SIGKILL)
                market.wait_until(lambda: is_free(market.folder / LOCK), "the market closes")
                response.close()
                raise httpx.ReadError("Connection reset by peer")
            return response

    closed: list[int] = []
    caller = LocalProvider(str(market.folder), market.clock, transport=Closing())
    offer = next(offer for offer in caller.offers() if offer.machine_type == TYPE)
    answer = caller.order(Order("order", OWNER, "job", offer, 1, 1), BootSpec(("sleep", "99"), ()))
    assert len(closed) == 1
    assert answer.machine_ids == tuple(machine.machine_id for machine in caller.list(OWNER))
    assert len(answer.machine_ids) == 1
    caller.close()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_market_that_closes_all_the_time_answers_every_call(market: Bench) -> None:
    """Two callers, each about as long apart as the market stays: some of their calls meet it as it closes."""
    market.sell(idle_exit=0.01)
    market.provider.offers()
    said = []

    def calls(seed: int) -> None:
        caller, chance = LocalProvider(str(market.folder), market.clock), random.Random(seed)
        for _ in range(60):
            market.pass_time(chance.uniform(0.2, 0.3))
            said.append(caller.offers())
        caller.close()

    threads = [threading.Thread(target=calls, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(said) == 120


def test_whoever_deletes_the_folder_ends_market_and_machines(tmp_path: Path) -> None:
    """Nothing of a market goes on without its folder."""
    with bench(tmp_path / "market") as market:
        (machine_id,) = market.order("order", "sleep", "99")
        market.wait_until(lambda: market.lives(machine_id), "it runs")

        market.folder.rename(tmp_path / "elsewhere")

        market.wait_until(lambda: daemons(market) == [], "the market ends")
        market.wait_until(lambda: not market.lives(machine_id), "the machine ends")


def test_the_file_is_read_again_and_a_wrong_one_changes_nothing(market: Bench) -> None:
    """Capacity taken away is felt by the next order; a mistake is noted in the log, and the market goes on as before."""
    market.sell(capacity={"default": 5, "small/zone-a": 0})
    assert market.order("one", "sleep", "99") == ()

    (market.folder / "market.yaml").write_text("capacity: many\n")
    assert market.order("two", "sleep", "99") == ()
    assert "capacity" in (market.folder / "market.log").read_text()


def test_a_market_can_rehearse_wrong_credentials(market: Bench) -> None:
    """With `deny` every call is refused as if the credentials were wrong."""
    market.provider.offers()
    market.sell(deny=True)

    def is_denied() -> bool:
        try:
            market.provider.offers()
        except ProviderDenied:
            return True
        return False

    market.wait_until(is_denied, "it refuses")


def test_a_wrong_file_is_reported_by_the_call_that_opens(market: Bench) -> None:
    """A market that cannot open says what is wrong in its file."""
    (market.folder / "market.yaml").write_text("capacty: 5\n")

    with pytest.raises(Misuse, match=r"market\.yaml: unknown key 'capacty'; did you mean 'capacity'\?"):
        market.provider.offers()


def test_a_promise_is_kept_by_the_next_market(tmp_path: Path) -> None:
    """Killed between order and start, the market starts the machine in its next life, once."""
    with bench(tmp_path / "market", delay_s=0.5) as market:
        (machine_id,) = market.order("order", "sh", "-c", "echo started; sleep 99")
        market.kill_market()
        market.pass_time(0.6)
        assert not market.lives(machine_id)

        market.await_life(machine_id, MachineLifecycle.RUNNING)
        assert market.await_file(market.home(machine_id) / "output.log") == "started\n"


def test_an_order_that_did_not_become_durable_leaves_nothing(market: Bench) -> None:
    """A folder without its row, which a killed market may leave, is gone with the next one and never becomes a machine."""
    machine_folder.prepare(market.folder / "machines" / "m-0123456789ab", {"argv": ["sleep", "99"], "env": {}})

    market.provider.offers()

    assert list((market.folder / "machines").iterdir()) == []
    assert market.provider.list(OWNER) == ()


@pytest.mark.parametrize("death", ["init", pytest.param("process", marks=pytest.mark.slow)])
def test_a_death_while_the_market_is_closed_is_billed_to_its_end(market: Bench, death: str) -> None:
    """Whatever dies while nobody sells costs what it ran, to the cent, however late the next market finds it."""
    (machine_id,) = market.order("order", "sh", "-c", "echo $$ > pid; sleep 99")
    market.await_file(market.home(machine_id) / "disk" / "pid")
    life, started = market.life(machine_id), market.await_life(machine_id, MachineLifecycle.RUNNING).started
    market.kill_market()
    market.pass_time(0.7)

    (victim,) = [int(str(life["pid"]))] if death == "init" else processes.descendants(int(str(life["first_pid"])))[:1]
    os.kill(victim, signal.SIGKILL)
    killed_at = market.clock.wall_time()
    market.wait_until(lambda: not market.lives(machine_id), "it is gone")
    market.pass_time(0.5)

    machine = market.await_life(machine_id, MachineLifecycle.GONE)
    assert machine.cause is (MachineEndCause.FAILED if death == "init" else MachineEndCause.STOPPED)
    assert machine.started == started
    assert killed_at - 0.8 <= machine.ended <= killed_at + 0.5
    assert market.billed_usd() == pytest.approx(machine.ended - started, abs=CENT)
    assert market.billed_usd() == pytest.approx(market.metered_usd(OWNER), abs=CENT)


@pytest.mark.slow
def test_the_next_market_reports_an_end_as_the_last_one_did(market: Bench) -> None:
    """The end of a machine whose init was killed is the same whether the market saw it or came later."""
    first, second = market.order("order", "sleep", "99", count=2)
    for machine_id in (first, second):
        market.await_life(machine_id, MachineLifecycle.RUNNING)
    market.pass_time(0.5)
    market.breaks(first)
    seen = market.await_life(first, MachineLifecycle.GONE)

    market.kill_market()
    market.breaks(second)
    market.pass_time(0.5)

    assert market.machine(first) == seen
    assert market.await_life(second, MachineLifecycle.GONE).cause is MachineEndCause.FAILED
    assert market.billed_usd() == pytest.approx(market.metered_usd(OWNER), abs=CENT)


@pytest.mark.slow
def test_an_init_that_ignores_a_release_is_killed(market: Bench) -> None:
    """A stopped init does not keep a released machine alive."""
    (machine_id,) = market.order("order", "sleep", "99")
    market.await_life(machine_id, MachineLifecycle.RUNNING)
    os.kill(int(str(market.life(machine_id)["pid"])), signal.SIGSTOP)

    market.provider.release(machine_id)

    assert market.await_life(machine_id, MachineLifecycle.GONE).cause is MachineEndCause.RELEASED
    assert not market.lives(machine_id)


@pytest.mark.parametrize(
    ("seed", "orders"),
    [(1, 5), *(pytest.param(seed, 15, marks=pytest.mark.slow) for seed in range(2, 8))],
)
def test_a_market_killed_again_and_again_keeps_its_database_right(market: Bench, seed: int, orders: int) -> None:
    """With kill -9 of the daemon at random moments: one machine for each token, all listed, the bill right to the cent."""
    rng, over = random.Random(seed), threading.Event()

    def murder() -> None:
        while not over.wait(rng.uniform(0.05, 0.9)):
            market.kill_market()

    killer = threading.Thread(target=murder)
    killer.start()
    bought: dict[str, tuple[str, ...]] = {}
    try:
        for number in range(orders):
            token = f"order-{number}"
            market.wait_until(lambda token=token: _tries(market, bought, token), f"{token} is answered")
            if rng.random() < 0.5:
                market.wait_until(lambda token=token: _releases(market, bought[token][0]), "it is released")
    finally:
        over.set()
        killer.join()

    listed = {machine.machine_id: machine for machine in market.provider.list(OWNER)}
    assert sorted(listed) == sorted(machine_id for ids in bought.values() for machine_id in ids)
    assert sorted(machine.token for machine in listed.values()) == sorted(bought)
    for machine_id in listed:
        market.provider.release(machine_id)
    for machine_id in listed:
        market.await_life(machine_id, MachineLifecycle.GONE)
        assert not market.lives(machine_id)
    assert market.billed_usd() == pytest.approx(market.metered_usd(OWNER), abs=CENT)


def _tries(market: Bench, bought: dict[str, tuple[str, ...]], token: str) -> bool:
    try:
        bought[token] = market.order(token, "sleep", "99")
    except ProviderUnreachable:
        return False
    return True


def _releases(market: Bench, machine_id: str) -> bool:
    try:
        market.provider.release(machine_id)
    except ProviderUnreachable:
        return False
    return True


def test_what_ended_is_forgotten_but_not_its_token(market: Bench) -> None:
    """After a while an ended machine is not listed and its folder is gone; its token still buys nothing, its bill stays."""
    (machine_id,) = market.order("order", "sleep", "99")
    market.await_life(machine_id, MachineLifecycle.RUNNING)
    market.provider.release(machine_id)
    market.await_life(machine_id, MachineLifecycle.GONE)

    market.sell(forget_after=0.5)
    market.wait_until(lambda: market.provider.list(OWNER) == (), "it is forgotten")
    market.wait_until(lambda: not market.home(machine_id).exists(), "its folder is gone")

    assert market.order("order", "sleep", "99") == (machine_id,)
    assert market.provider.list(OWNER) == ()
    assert [line.machine_id for line in market.provider.charges(OWNER, "").charges if line.settled] == [machine_id]


def test_a_machine_whose_folder_was_deleted_has_failed(market: Bench) -> None:
    """Without its folder a machine ends, and the market goes on."""
    (machine_id,) = market.order("order", "sleep", "99")
    market.wait_until(lambda: market.lives(machine_id), "it runs")
    market.await_life(machine_id, MachineLifecycle.RUNNING)

    market.home(machine_id).rename(market.folder / "elsewhere")

    assert market.await_life(machine_id, MachineLifecycle.GONE).cause is MachineEndCause.FAILED
    market.wait_until(lambda: not market.lives(machine_id), "nothing of it runs")


def test_of_two_announced_ends_the_earlier_one_counts(market: Bench) -> None:
    """A second, later preemption does not put off the first one; an earlier one hastens it."""
    first, second = market.order("order", "sleep", "99", count=2)
    for machine_id in (first, second):
        market.await_life(machine_id, MachineLifecycle.RUNNING)
    asked_at = market.clock.wall_time()

    for machine_id, notices in ((first, (1.0, 60.0)), (second, (60.0, 1.0))):
        for notice_s in notices:
            market.provider.preempt(machine_id, Seconds(notice_s))

    for machine_id in (first, second):
        gone = market.await_life(machine_id, MachineLifecycle.GONE)
        assert asked_at + 0.9 < gone.ended < asked_at + 30.0


def test_neither_an_edit_nor_a_death_of_the_market_changes_what_past_time_cost(market: Bench) -> None:
    """Prices are doubled in the file while a machine runs, and the daemon is killed: listing and bill keep the old times."""
    place = f"{TYPE}/{ZONE}"
    billing = {"price": "in-effect", "lag": 0.2}
    points = [[second, 1800 + 600 * (second % 3)] for second in range(60)]
    market.sell(prices={"points": {place: points}}, billing=billing)
    (machine_id,) = market.order("order", "sleep", "99")
    market.wait_until(lambda: len(market.machine(machine_id).price_changes) >= 2, "the price has moved")
    before = market.machine(machine_id).price_changes
    edited_after = market.clock.wall_time()

    market.sell(prices={"points": {place: [[0, 7200]]}}, billing=billing)
    market.wait_until(lambda: market.machine(machine_id).price_now_usd_per_hour == 7200.0, "the edit counts")
    edited_before = market.clock.wall_time()
    market.kill_market()
    market.provider.release(machine_id)
    gone = market.await_life(machine_id, MachineLifecycle.GONE)

    assert gone.price_changes[: len(before)] == before
    assert edited_after <= gone.price_changes[-1].since <= edited_before
    assert gone.started is not None
    assert gone.ended is not None
    spent, since, usd = 0.0, gone.started, gone.price_usd_per_hour
    for change in gone.price_changes:
        spent += max(change.since - since, 0.0) / 3600.0 * usd
        since, usd = max(change.since, since), change.usd_per_hour
    spent += (gone.ended - since) / 3600.0 * usd
    assert market.billed_usd() == pytest.approx(spent, abs=1e-6)
    assert market.provider.capabilities().price_floats
