"""Scripts on a parameter server in tiers: real processes, on machines that are threads."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from tests.tiers.in_scripts import SCRIPTS, ScriptCluster, played, started
from tests.tiers.in_threads import DATA
from tests.tiers.least_squares import LeastSquares
from windfall.errors import Misuse
from windfall.linux.processes import started_at
from windfall.runtimes.parameter_partition import Rows, Values
from windfall.runtimes.script_process import ScriptFailed
from windfall.runtimes.tier_program import TurnGivenUp
from windfall.runtimes.tier_script import ScriptProgram

pytestmark = pytest.mark.real
LEAST_SQUARES, MISTAKES = SCRIPTS / "least_squares_script.py", SCRIPTS / "mistakes_script.py"
CLOCKS = 30


async def undisturbed(cluster: ScriptCluster) -> None:
    """Nothing happens."""
    del cluster


async def t1_lost(cluster: ScriptCluster) -> None:
    """A machine vanishes with its scripts."""
    await cluster.until(5)
    cluster.lose("t1")


def test_a_script_on_any_number_of_machines_computes_what_one_process_does_bit_for_bit() -> None:
    """With bound 0."""
    cluster = played(["r1", "t1"], partial(started, LEAST_SQUARES, "0"), undisturbed, clocks=CLOCKS)

    assert np.array_equal(cluster.values(), LeastSquares(DATA).alone(CLOCKS))


def test_losing_a_machine_with_its_scripts_changes_no_bit() -> None:
    """It is one of two that serve, so all go back to the newest common clock."""
    cluster = played(["r1", "t1", "t2"], partial(started, LEAST_SQUARES, "0.005"), t1_lost, clocks=CLOCKS)

    assert cluster.layouts[-1].version > 1
    assert np.array_equal(cluster.values(), LeastSquares(DATA).alone(CLOCKS))


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed: pip install 'windfall[torch]'")
def test_a_wrapped_torch_model_ends_bit_for_bit_the_same_when_a_machine_is_lost() -> None:
    """Adam's moments, BatchNorm's statistics, the schedule and dropout belong to the data partition."""
    start = partial(started, SCRIPTS / "small_cnn_script.py")

    alone = played(["r1"], start, undisturbed, clocks=12)
    lost = played(["r1", "t1"], start, t1_lost, clocks=12)

    assert lost.layouts[-1].version > 1
    assert np.array_equal(alone.values(), lost.values())


def test_a_loop_with_one_slot_trains_though_more_turns_wait_than_there_are_processes() -> None:
    """A turn that waits for a process leaves the loop's slot to the one that has it."""
    start = partial(started, LEAST_SQUARES, "0")

    cluster = played(["r1"], start, undisturbed, clocks=3, loop_slots=1)

    assert np.array_equal(cluster.values(), LeastSquares(DATA).alone(3))


def test_a_killed_process_is_started_again_and_its_turn_begins_again() -> None:
    """What it had pushed counts nowhere."""

    async def story(cluster: ScriptCluster) -> None:
        for clock in (3, 8):
            await cluster.until(clock)
            os.kill(cluster.programs["r1"].pids()[0], signal.SIGKILL)

    cluster = played(["r1"], partial(started, LEAST_SQUARES, "0.005"), story, clocks=CLOCKS)

    assert np.array_equal(cluster.values(), LeastSquares(DATA).alone(CLOCKS))


def test_with_a_bound_a_stopped_process_blocks_the_others_at_exactly_the_bound() -> None:
    """They compute `staleness` clocks more than it, and no more; once it runs again, training ends."""
    staleness = 2

    async def story(cluster: ScriptCluster) -> None:
        await cluster.until(3)
        stopped = cluster.programs["t1"].pids()[0]
        os.kill(stopped, signal.SIGSTOP)
        begun = await _settled(cluster)
        assert max(begun) - min(begun) == staleness + 1
        os.kill(stopped, signal.SIGCONT)

    played(["r1", "t1", "t2"], partial(started, LEAST_SQUARES, "0.005"), story, clocks=CLOCKS, staleness=staleness)


async def _settled(cluster: ScriptCluster) -> list[int]:
    """Return the clock that each data partition has begun, once none has begun another one for a second."""
    begun: list[int] = []
    since = time.monotonic()
    while time.monotonic() < since + 1.0:
        turns = [turn for machine in cluster.machines.values() for turn in machine.member.worker._turns.values()]
        if begun != (now := [turn.push.clock for turn in turns]):
            begun, since = now, time.monotonic()
        await asyncio.sleep(0.05)
    return begun


# --------------------------------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("mistake", "error", "words"),
    [
        ("exits", ScriptFailed, "exited before it called windfall.paramserver.connect"),
        ("raises before it connects", ScriptFailed, "failed with exit status 1 before .*: RuntimeError: no data"),
        ("sleeps", Misuse, "has not called windfall.paramserver.connect or wrap within 1 s"),
        ("dtype", ScriptFailed, "Misuse: a table of int64: give dtype float32 or float64"),
        ("two tables", Misuse, r"a table of \d+ x 2 float32 in one process, and of \d+ x 2 float32 in another"),
    ],
)
def test_a_script_that_does_not_connect_is_an_error_at_its_start(
    mistake: str, error: type[Exception], words: str
) -> None:
    """None of its processes is left."""
    with pytest.raises(error, match=words):
        started(MISTAKES, mistake, slots=2, within_s=1.0 if mistake == "sleeps" else 60.0)


def test_a_command_that_does_not_exist_is_an_error_that_names_it() -> None:
    """Nothing has started."""
    with pytest.raises(Misuse, match=r"cannot start `.*no_such_python"):
        ScriptProgram.start(["no_such_python", "train.py"], ".", {}, 1, DATA)


IN_TURN = "in clock 3 of data partition 0"


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        ("raises", f"failed with exit status 1 {IN_TURN}: IndexError: list index out of range"),
        ("exit", f"failed with exit status 7 {IN_TURN}"),
        ("leaves", f"exited {IN_TURN}, though training is not over: let its loop over server.turns"),
        (
            "nan",
            f"failed with exit status 1 {IN_TURN}: .*Misuse: the change of row 4 is not finite: push finite numbers",
        ),
        ("infinite", "the change of row 4 is not finite"),
        ("too large for float32", "the change of row 4 is not finite"),
        ("outside", "Misuse: row 12 is not in the table: its rows are 0 to 11"),
        ("below", "Misuse: row -1 is not in the table: its rows are 0 to 11"),
        ("fractions", r"rows are float64 of shape \(1,\): give a flat list of whole numbers"),
        ("narrow", r"changes have shape \(2, 3\): push shape \(2, 2\)"),
        ("nested", "clock 3 of data partition 0 is under way"),
        ("kills itself", f"was killed by signal 9 {IN_TURN}, and 2 times in all"),
        ("no turn", "no turn is under way"),
        ("connects twice", "or it has connected before"),
        ("first", r"first\(rows\) returned shape \(4, 3\) for 4 rows: it must return \(4, 2\)"),
    ],
)
def test_a_script_that_fails_ends_its_machine_with_one_error(mistake: str, words: str) -> None:
    """It says what ended, where, and what the script said last."""
    with pytest.raises(ScriptFailed, match=words):
        played(["r1"], partial(started, MISTAKES, mistake, restarts=1), undisturbed, clocks=5)


# ------------------------------------------------------------------------------------------------------- without a cluster


class OneTable:
    """`Table` of one process.

    Attributes:
        values: of the table.
        given_up: calls of pull, from which on the turn is given up.
    """

    def __init__(self, values: Values) -> None:
        self.values, self.given_up = values, 1000

    def pull(self, rows: Rows) -> Values:
        """Return values of rows."""
        self.given_up -= 1
        if self.given_up < 0:
            raise TurnGivenUp
        found: Values = self.values[rows]
        return found

    def push(self, rows: Rows, changes: Values) -> None:
        """Add to rows."""
        self.values[rows] += changes


def test_each_call_does_what_it_says(capfd: pytest.CaptureFixture[str]) -> None:
    """Rows in any order and twice, arrays that are one's own, chance of a turn, a turn that ends early."""
    program = started(SCRIPTS / "calls_script.py")
    table = OneTable(program.first(np.arange(6)))
    for clock in (1, 2, 3):
        program.compute(program.load(2), clock, table)
    program.close()

    assert np.array_equal(table.values, np.arange(6)[:, None] + np.full((6, 2), 30))
    assert "to its end" in capfd.readouterr().out


@pytest.mark.parametrize("pulls", [0, 1, 2])
def test_a_turn_that_is_given_up_ends_without_an_error_in_the_script_and_changes_nothing(pulls: int) -> None:
    """Whichever call finds it out; the process takes the next turn as if nothing had been."""
    program = started(LEAST_SQUARES, "0")
    table = OneTable(program.first(np.arange(12)))
    table.given_up = pulls
    if pulls < 2:
        with pytest.raises(TurnGivenUp):
            program.compute(0, 1, table)
        assert not table.values.any()
    table.given_up = 1000
    program.compute(0, 1, table)
    program.close()

    assert table.values.all()


def test_what_is_not_finite_in_a_turn_that_is_given_up_is_no_error() -> None:
    """A script cannot know that what it computed with was not the table's."""
    program = started(MISTAKES, "nan of what it pulled")
    table = OneTable(program.first(np.arange(12)))
    table.given_up = 1
    with pytest.raises(TurnGivenUp):
        program.compute(0, 3, table)
    table.given_up = 1000
    program.compute(0, 4, table)
    with pytest.raises(ScriptFailed, match="the change of row 0 is not finite"):
        program.compute(0, 3, table)
    program.close()


def test_a_turn_that_must_wait_for_another_one_leaves_the_only_process_to_it() -> None:
    """Clock 2 of one data partition may read nothing before clock 1 of the other one is complete."""
    program = started(LEAST_SQUARES, "0")
    complete, waits = threading.Event(), threading.Event()

    class AfterTheOther(OneTable):
        def pull(self, rows: Rows) -> Values:
            waits.set()
            assert complete.wait(60)
            return super().pull(rows)

    first, second = OneTable(np.zeros((12, 1))), AfterTheOther(np.zeros((12, 1)))
    later = threading.Thread(target=program.compute, args=(0, 2, second))
    later.start()
    assert waits.wait(10)
    earlier = threading.Thread(target=program.compute, args=(1, 1, first))
    earlier.start()
    earlier.join(10)
    done = not earlier.is_alive()
    complete.set()
    later.join(10)
    earlier.join(10)
    program.close()

    assert done
    assert first.values.all()
    assert second.values.all()


def test_first_values_are_given_while_the_only_process_waits_for_what_it_pulls() -> None:
    """A part may need them to answer just that pull."""
    program = started(LEAST_SQUARES, "0")
    found: list[Values] = []

    class NeedsFirst(OneTable):
        def pull(self, rows: Rows) -> Values:
            if len(rows):
                thread = threading.Thread(target=lambda: found.append(program.first(np.arange(3))), daemon=True)
                thread.start()
                thread.join(10)
                assert found
            return super().pull(rows)

    program.compute(0, 1, NeedsFirst(np.zeros((12, 1))))
    program.close()

    assert [values.shape for values in found] == [(3, 1)]


def test_closing_ends_a_process_in_the_midst_of_a_turn_and_all_that_it_started(tmp_path: Path) -> None:
    """It sleeps for an hour, and so does its child."""
    program = started(SCRIPTS / "sleeping_script.py", str(tmp_path / "pids"))
    computed: list[type[BaseException] | None] = []

    def compute() -> None:
        try:
            program.compute(0, 1, OneTable(np.zeros((2, 1))))
            computed.append(None)
        except TurnGivenUp as error:
            computed.append(type(error))

    computing = threading.Thread(target=compute)
    computing.start()
    pids = _written(tmp_path / "pids")
    program.close(0.1)
    computing.join(10)

    assert computed == [TurnGivenUp]
    assert pids[0] == program.pids()[0]
    _wait_until_ended(pids)


IN_A_SHELL = ["sh", "-c", '"$@"; exit $?', "sh"]


@pytest.mark.parametrize("shell", [[], IN_A_SHELL], ids=["alone", "in a shell"])
def test_a_script_ends_with_the_process_of_its_machine(tmp_path: Path, shell: list[str]) -> None:
    """The machine is killed while the script sleeps, and no call would notice."""
    code = (
        "import os, sys, numpy as np; from windfall.runtimes.tier_script import ScriptProgram\n"
        "class Table:\n    def pull(self, rows): return np.zeros((len(rows), 1))\n"
        "program = ScriptProgram.start(sys.argv[1:], '.', dict(os.environ), 1, 4); program.compute(0, 1, Table())"
    )
    script = [sys.executable, str(SCRIPTS / "sleeping_script.py"), str(tmp_path / "pids")]
    machine = subprocess.Popen([sys.executable, "-c", code, *shell, *script])
    pids = _written(tmp_path / "pids")
    machine.kill()
    machine.wait()

    _wait_until_ended(pids)


def test_a_script_that_is_killed_within_a_shell_counts_as_killed() -> None:
    """The shell exits with 128 more than the signal's number."""
    argv = [*IN_A_SHELL, sys.executable, str(MISTAKES), "kills itself"]
    program = ScriptProgram.start(argv, ".", dict(os.environ), 1, DATA, restarts=1)
    with pytest.raises(ScriptFailed, match=f"was killed by signal 9 {IN_TURN}, and 2 times in all"):
        program.compute(0, 3, OneTable(np.zeros((12, 2))))
    program.close()


def _written(path: Path) -> list[int]:
    """Wait for a file with pids."""
    limit = time.monotonic() + 60
    while not path.exists() and time.monotonic() < limit:
        time.sleep(0.02)
    return [int(pid) for pid in path.read_text().split()]


def _wait_until_ended(pids: list[int]) -> None:
    limit = time.monotonic() + 10
    while any(started_at(pid) for pid in pids):
        assert time.monotonic() < limit, f"{pids} are still there"
        time.sleep(0.02)


def test_the_script_side_loads_numpy_and_nothing_else_that_is_heavy() -> None:
    """Torch comes with `wrap` alone."""
    code = "import sys, json, numpy.typing; before = set(sys.modules); import windfall.paramserver"
    code += "; print(json.dumps(sorted(set(sys.modules) - before)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = json.loads(result.stdout)

    assert {name.split(".")[0] for name in loaded} <= sys.stdlib_module_names | {"windfall"}
    assert not set(loaded) & {"asyncio", "multiprocessing", "subprocess", "inspect", "logging"}
