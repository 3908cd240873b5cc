"""`wf.Executor`: calls on machines, with the futures of `concurrent.futures`; what goes wrong is said in one sentence."""

from __future__ import annotations

import concurrent.futures
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

import windfall as wf
from tests.house.source import ROOT
from tests.live.rig import Rig
from tests.support.live import eventually
from windfall.bags import Bag, ItemEnd, ItemState
from windfall.cli import executor_calls
from windfall.cli.executor import Executor
from windfall.cli.executor_calls import PARAMETERS, RemoteCalls
from windfall.errors import Misuse
from windfall.linux.clock import SystemClock
from windfall.runtimes.item_dispatcher import ItemDispatcher, read_records
from windfall.sdk import remote_call
from windfall.storage import object_stores, store_operations
from windfall.wire import environment

HERE = {"infra": "local"}


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """An installation with a controller; whatever lives in it ends with it."""
    made = Rig(tmp_path_factory.mktemp("executor") / "rig")
    made.start_controller()
    yield made
    made.close()


@pytest.fixture(scope="module")
def executor(rig: Rig) -> Iterator[Executor]:
    """An executor whose machine is there."""
    with Executor(HERE, name="quick", state=rig.state) as made:
        yield made


# ------------------------------------------------------------------------------------------------------ a live executor


@pytest.mark.real
def test_results_come_as_those_of_a_local_pool(executor: Executor) -> None:
    """`map` keeps the order, keyword arguments arrive, `as_completed` of either module yields each future once."""

    def power(x: int, y: int = 2) -> int:
        return x**y

    futures = [executor.submit(power, 2, y=number) for number in range(3)]

    assert {future.result() for future in wf.as_completed(futures)} == {1, 2, 4}
    assert set(concurrent.futures.as_completed(futures)) == set(futures)
    assert list(executor.map(power, [5, 3, 4])) == [25, 9, 16]


@pytest.mark.real
def test_a_call_that_raises_fails_alone_and_shows_where(executor: Executor) -> None:
    """Its exception is raised here with the traceback of the machine as its cause; it ran once, and others are not touched."""

    def divide(x: int) -> float:
        return 1 / x

    def kill_itself() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    futures = [executor.submit(divide, number) for number in (0, 4)]
    killed, unpicklable = executor.submit(kill_itself), executor.submit(threading.Lock)

    error = futures[0].exception()
    assert isinstance(error, ZeroDivisionError)
    assert "return 1 / x" in str(error.__cause__)
    assert "remote_call" not in str(error.__cause__)
    assert futures[1].result() == 0.25
    assert str(killed.exception()) == "the command was ended by SIGKILL"
    assert "returned a lock, which cannot be pickled" in str(unpicklable.exception())


# ------------------------------------------------------------------------------------------------------------- by itself


@pytest.fixture
def calls(tmp_path: Path) -> Iterator[tuple[RemoteCalls, Callable[[], ItemDispatcher]]]:
    """The client's side of a bag with its dispatcher, and no machine; a call of the second is a turn."""
    url, clock = str(tmp_path / "run"), SystemClock()
    bag = Bag(0, PARAMETERS, (), 1, shuffled=False, grows=True, retries_max=0)
    store = object_stores.open_store(url)
    made, dispatcher = RemoteCalls(store, clock, bag, lambda: None), ItemDispatcher(clock, bag, lambda: "n")

    def turn() -> ItemDispatcher:
        store_operations.run(dispatcher.turn(), store, clock)
        return dispatcher

    made.start()
    yield made, turn
    made.stop()
    eventually(lambda: turn().table.closed, "the bag is over")
    made.join(10.0)


def test_what_is_cancelled_before_a_machine_has_it_never_runs(
    calls: tuple[RemoteCalls, Callable[[], ItemDispatcher]],
) -> None:
    """Its item is discarded, the others wait for a machine; a stopped executor cancels them too, and takes no more."""
    remote, turn = calls
    futures = [remote.add(abs, (number,), {}) for number in range(4)]
    eventually(lambda: turn().table.items == 4, "all calls are items")

    assert futures[1].cancel()
    eventually(lambda: turn().table.state(1) is ItemState.DISCARDED, "the item is discarded")
    assert [turn().table.state(item) for item in (0, 2, 3)] == [ItemState.QUEUED] * 3

    remote.stop()
    eventually(lambda: turn().table.closed, "the bag is over")
    remote.join(10.0)
    assert all(future.cancelled() for future in futures)
    with pytest.raises(RuntimeError, match="after the executor was shut down"):
        remote.add(abs, (1,), {})


def test_what_cannot_be_sent_is_refused_at_once(
    calls: tuple[RemoteCalls, Callable[[], ItemDispatcher]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arguments and functions that cannot be pickled, or are too large, are refused in one sentence."""
    remote, _ = calls
    lock = threading.Lock()
    with pytest.raises(Misuse, match=r"the arguments of abs cannot be pickled .*: pass plain data"):
        remote.add(abs, (lock,), {})
    with pytest.raises(Misuse, match=r"the function .*lambda> cannot be pickled"):
        remote.add(lambda: lock, (), {})
    monkeypatch.setattr(executor_calls, "CALL_BYTES_MAX", 1000)
    with pytest.raises(Misuse, match=r"pickled, the arguments of len would be 2.* kB, more than 1 kB: store the data"):
        remote.add(len, (b"x" * 2000,), {})


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"resources": {"infra": "mars"}}, "Executor: resources.infra names the unknown provider mars"),
        ({"resources": {"cpu": 1}}, "Executor: resources.cpu is an unknown key; did you mean cpus?"),
        ({"num_nodes": 0}, "Executor: num_nodes must be at least 1, not 0"),
        ({"retries": "two"}, "Executor(retries=...) must be a number of at least 0, not 'two'"),
        ({"workdir": "/no/such"}, "Executor: workdir must be a folder, but /no/such does not exist"),
        ({"resources": "bag.yaml"}, "bag.yaml:2:1: bag is not for an Executor, which has calls as items; remove it"),
    ],
)
def test_bad_arguments_are_named(
    given: dict[str, Any], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong argument, key or file is named before anything starts."""
    monkeypatch.chdir(tmp_path)
    Path("bag.yaml").write_text("run: echo {{T}}\nbag: {parameters: {T: [1]}}\n")

    with pytest.raises(Misuse, match=re.escape(sentence)):
        Executor(state=tmp_path / "state", **given)
    assert not (tmp_path / "state").exists()


def test_a_machine_with_another_python_says_so(tmp_path: Path) -> None:
    """The bytecode of a function runs on no other Python, so the call is refused in a sentence, not with a crash."""
    (tmp_path / "f").write_bytes(b"2.7\n" + cloudpickle.dumps(lambda: 1))
    (tmp_path / "c").write_bytes(pickle.dumps(((), {})))
    own = {environment.CALL_INPUTS: str(tmp_path), environment.CALL_CODE: str(tmp_path)}
    line = [sys.executable, "-P", "-m", "windfall.sdk.remote_call", "f", "c", "0", "1000"]

    done = subprocess.run(line, cwd=tmp_path, env={**os.environ, **own}, capture_output=True, text=True, check=False)

    kind, reason = pickle.loads((tmp_path / remote_call.RESULT).read_bytes())
    assert (done.returncode, kind) == (1, remote_call.REFUSED)
    assert reason.startswith("the call was submitted by Python 2.7, and the machine has Python 3.")


# ------------------------------------------------------------------------------------------------------------------ slow

CLIENT = """
import sys, time
import windfall as wf
def wait(s):
    time.sleep(s)
with wf.Executor({"infra": "local"}, name="gone", state=sys.argv[1], client_silent_s=3) as ex:
    futures = [ex.submit(wait, 600) for _ in range(6)]
    while not any(future.running() for future in futures):
        time.sleep(0.05)
    print(ex.job_id, flush=True)
"""


def _client(rig: Rig) -> tuple[subprocess.Popen[str], str]:
    """Start a script whose calls take forever; return it once they run, and the job's id."""
    line = [sys.executable, "-c", CLIENT, str(rig.state)]
    process = subprocess.Popen(line, env=rig.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize(("how", "phase"), [(signal.SIGKILL, "failed"), (signal.SIGINT, "done")])
def test_without_its_client_the_bag_ends(rig: Rig, how: signal.Signals, phase: str) -> None:
    """A client that is killed is missed within its time, one that is interrupted says so; no machine bills on."""
    process, job_id = _client(rig)
    process.send_signal(how)
    _, printed = process.communicate(timeout=30)
    assert process.returncode == -how, printed

    ended = rig.ended(job_id, 40.0)
    assert ended["phase"] == phase
    rig.until(lambda: all(stay.ended is not None for stay in rig.stays(job_id)), "no machine is left")


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.timeout(400)
def test_two_hundred_calls_survive_their_machines(rig: Rig, tmp_path: Path) -> None:
    """Machines vanish every few seconds without notice: each result is right, and a call ran once for each lease at most."""

    def cube(x: int, log: str) -> int:
        with open(log, "a") as file:
            file.write(f"{x}\n")
        time_module = __import__("time")
        time_module.sleep(0.2)
        if x == 77:
            raise KeyError(x)
        return x**3

    log = tmp_path / "log"
    with Executor(HERE, name="storm", num_nodes=2, state=rig.state, inject="mttp=6s,seed=4", client_silent_s=30) as ex:
        futures = [ex.submit(cube, number, str(log)) for number in range(200)]
        found = {number: future.exception() or future.result() for number, future in enumerate(futures)}
        job_id = ex.job_id

    assert isinstance(found.pop(77), KeyError)
    assert found == {number: number**3 for number in range(200) if number != 77}
    records = object_stores.open_reader(rig.run_url(job_id)).run(read_records(0))
    leases = Counter(item for record in records for leased in record.leased for item in leased.items)
    ran = Counter(map(int, log.read_text().split()))
    assert all(1 <= ran[item] <= leases[item] for item in range(200))
    failed = [one for record in records for _, one in record.outcomes if one.end is not ItemEnd.DONE]
    assert [one.lease.item for one in failed] == [77], "what raised is not tried again"
    assert len(rig.stays(job_id)) > 4, "machines vanished"


@pytest.mark.real
@pytest.mark.slow
def test_the_verbs_of_a_bag_know_an_executor(rig: Rig) -> None:
    """`ps` shows its calls, `logs` what one printed, `results` all; a failed call is submitted again, not run again."""

    def speak(x: int) -> int:
        print("x is", x)
        return 1 // x

    with Executor(HERE, name="verbs", state=rig.state) as made:
        futures = [made.submit(speak, number) for number in (1, 0)]
        assert futures[0].result() == 1
        assert isinstance(futures[1].exception(), ZeroDivisionError)

    def say(*words: str) -> tuple[int, str]:
        line = [sys.executable, "-m", "windfall.cli.main", *words, "--state", str(rig.state)]
        done = subprocess.run(line, env=rig.environment(), capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stdout + done.stderr

    page = say("ps", made.job_id)[1]
    assert "items     2: 1 done, 1 failed; all items have ended" in page
    assert "retry-failed" not in page
    assert "failed    1 item, such as 1: the command ended with exit code 1:" in page
    assert say("logs", f"{made.job_id}/0") == (0, "x is 1\n")
    assert len(say("results", made.job_id, "--all")[1].splitlines()) == 3
    code, refused = say("retry-failed", made.job_id)
    assert (code, "submit those that failed to a new one" in refused) == (2, True)


@pytest.mark.real
@pytest.mark.slow
def test_the_pages_example_prints_what_the_page_says(rig: Rig, tmp_path: Path) -> None:
    """The script of the how-to, as it is written there."""
    page = (ROOT / "docs/howto/executor.md").read_text("utf-8")
    script, shown = re.search(r"```python\n(.*?)```", page, re.DOTALL), re.search(r"```text\n(.*?)```", page, re.DOTALL)
    assert script is not None
    assert shown is not None
    (tmp_path / "sweep.py").write_text(script[1])
    own = rig.environment() | {"XDG_STATE_HOME": str(rig.folder)}

    done = subprocess.run(
        [sys.executable, "sweep.py"], cwd=tmp_path, env=own, capture_output=True, text=True, timeout=90, check=False
    )

    assert (done.stdout, done.returncode) == (shown[1], 0), done.stderr
