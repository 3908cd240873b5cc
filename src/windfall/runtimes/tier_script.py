"""A user's script as a program of a parameter server: turns go to processes of the script on this machine.

A process of a script is started for each slot, and computes one turn at a time.  What it pulls comes from the turn's table;
what it pushes is kept here until its turn ends, so that of a process that is lost in between nothing counts.

**No turn that has a process waits for another turn.**  A turn first reads no row at all from every part of the state: that
waits until all clocks that it must see are complete, which other turns of this machine may have to compute.  Only then it
takes a process; its script's own pulls wait for machines, but for no turn.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import numpy as np

from windfall.errors import Misuse
from windfall.runtimes.parameter_partition import Rows, Values
from windfall.runtimes.script_process import ScriptCommand, ScriptFailed, ScriptGone, ScriptProcess, ScriptTable
from windfall.runtimes.tier_program import Table, TurnGivenUp

NO_ROWS: Rows = np.empty(0, np.int64)
RESTARTS_MAX = 3
"""Processes that are killed from outside and started again, in all; one more ends the machine."""
CONNECT_WITHIN_S = 600.0
"""How long a script may take to connect: it imports, downloads and builds first."""
CLOSE_WITHIN_S = 30.0
"""How long a script may take to exit once training is over."""
LOOK_AGAIN_S = 0.25
"""How long a turn waits for a process before it leaves its slot to others, and looks whether it is given up."""


class ScriptProgram:
    """`TierProgram` whose turns a script computes; created by `start`.

    It must be ended by `close`, after an error too: threads that compute wait for the script, and this process for them.

    Attributes:
        rows: of the table.
        loop_slots: slots that the `TierLoop` needs, one for each data partition: what computes at once is bounded here.  With
            fewer it works, but a process may have to wait until a turn that has none leaves the loop's slot.
        table: what the script says of it.
    """

    def __init__(self, command: ScriptCommand, slots: int, restarts: int, connect_within_s: float) -> None:
        self._command, self._restarts_left, self._restarts = command, restarts, restarts
        self._connect_within_s = connect_within_s
        # Guards which process is whose; what is said to a process is its holder's affair.
        self._changed = threading.Condition()
        self._closed = False
        self._scripts: list[ScriptProcess] = []
        try:
            for _ in range(slots):
                self._scripts.append(ScriptProcess(command))
            self.table = self._connected(self._scripts[0])
            for script in self._scripts[1:]:
                self._check(self._connected(script))
        except BaseException:
            self.close(0.0)
            raise
        self.rows, self.loop_slots = self.table.rows, command.data

    @classmethod
    def start(
        cls,
        argv: Sequence[str],
        cwd: str,
        environ: Mapping[str, str],
        slots: int,
        data: int,
        *,
        seed: int = 0,
        restarts: int = RESTARTS_MAX,
        connect_within_s: float = CONNECT_WITHIN_S,
    ) -> ScriptProgram:
        """Start a script's processes, and wait until all have connected.

        Args:
            argv: command line of the script.
            cwd: folder in which it runs.
            environ: its environment; a variable for the channel is added.
            slots: how many processes.
            data: how many data partitions there are.
            seed: of the whole training: the same on all machines.
            restarts: how many killed processes are started again.
            connect_within_s: how long they may take to connect.

        Raises:
            Misuse: the script cannot be started, does not connect, or describes different tables.
            ScriptFailed: it ended before it connected.
        """
        return cls(ScriptCommand(argv, cwd, environ, data, seed), slots, restarts, connect_within_s)

    def first(self, rows: Rows) -> Values:
        """Return the first values of rows, from a process that waits for a turn, or for what it pulls.

        Raises:
            ScriptFailed: the script ended.
        """
        while True:
            script = self._taken_to_ask()
            try:
                return script.first(rows)
            except ScriptGone as gone:
                if not script.in_turn:
                    self._replace(script, gone, "while it waited for a turn")
            finally:
                self._give_back(script)

    def load(self, data: int) -> int:
        """Return the data partition's number: its data are the script's affair."""
        return data

    def compute(self, loaded: int, clock: int, table: Table) -> float | None:
        """Let the script compute a turn; if its process is killed meanwhile, begin the turn again in a new one.

        Raises:
            TurnGivenUp: the turn counts nowhere.
            ScriptFailed: the script ended.
        """
        table.pull(NO_ROWS)
        while True:
            script = self._taken_for_turn(table)
            try:
                turn = script.turn(loaded, clock, _AskedMeanwhile(self, script, table))
            except ScriptGone as gone:
                self._replace(script, gone, f"in clock {clock} of data partition {loaded}")
                continue
            finally:
                script.in_turn = False
                self._give_back(script)
            for one in turn.pushed:
                table.push(one.rows, one.values)
            return turn.loss

    def close(self, within_s: float = CLOSE_WITHIN_S) -> None:
        """Tell the script that training is over, and end its processes.

        Args:
            within_s: how long each may take to exit by itself; then it is killed.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for script in self._unused():
            script.over()
        for script in self._scripts:
            script.end(within_s)
        # The thread that waits for one of the others sees that it has ended, and closes it.
        for script in self._unused():
            script.close()

    def _unused(self) -> list[ScriptProcess]:
        with self._changed:
            return [script for script in self._scripts if not script.busy and not script.in_turn]

    def pids(self) -> list[int]:
        """Return the numbers of the script's processes."""
        with self._changed:
            return [script.pid for script in self._scripts]

    # ----------------------------------------------------------------------------------------------------- whose a process is

    def release(self, script: ScriptProcess) -> None:
        """Let others ask a process for first values: it waits for what it pulls."""
        self._give_back(script)

    def hold(self, script: ScriptProcess) -> None:
        """Take a released process back."""
        with self._changed:
            self._changed.wait_for(lambda: not script.busy)
            script.busy = True

    def _taken_for_turn(self, table: Table) -> ScriptProcess:
        """Take a process that has no turn."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._idle() is not None, LOOK_AGAIN_S)
                idle = self._idle()
                if self._closed:
                    raise TurnGivenUp
                if idle is not None:
                    idle.in_turn = idle.busy = True
                    return idle
            # It leaves the slot meanwhile: the turn that has a process may need it to come to the end of its turn.
            table.pull(NO_ROWS)

    def _idle(self) -> ScriptProcess | None:
        return next((script for script in self._scripts if not script.busy and not script.in_turn), None)

    def _taken_to_ask(self) -> ScriptProcess:
        """Take a process that waits for whatever it is sent."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._waiting() is not None)
            waiting = self._waiting()
            if self._closed or waiting is None:
                raise ScriptFailed("the script was ended before it gave the first values")
            waiting.busy = True
            return waiting

    def _waiting(self) -> ScriptProcess | None:
        # One that has died within its turn is replaced by the thread that waits for it there.
        return next((one for one in self._scripts if not one.busy and not (one.in_turn and one.dead)), None)

    def _give_back(self, script: ScriptProcess) -> None:
        with self._changed:
            script.busy = False
            self._changed.notify_all()
            over = self._closed and not script.in_turn and not script.dead
        if over:
            script.over()

    # ---------------------------------------------------------------------------------------------------------- what has ended

    def _replace(self, script: ScriptProcess, gone: ScriptGone, when: str) -> None:
        """Start a process again that was killed.

        Raises:
            TurnGivenUp: all are being ended.
            ScriptFailed: it was not killed, or too often.
        """
        with self._changed:
            if self._closed:
                raise TurnGivenUp
            if gone.status >= 0 or not self._restarts_left:
                raise self._failure(script, gone, when)
            self._restarts_left -= 1
        fresh = ScriptProcess(self._command)
        fresh.busy = True
        with self._changed:
            self._scripts[self._scripts.index(script)] = fresh
            closed = self._closed
        if closed:
            fresh.end(0.0)
            raise TurnGivenUp
        self._check(self._connected(fresh))
        self._give_back(fresh)

    def _connected(self, script: ScriptProcess) -> ScriptTable:
        try:
            return script.connected(self._connect_within_s)
        except ScriptGone as gone:
            raise self._failure(
                script, gone, "before it called windfall.paramserver.connect or wrap", "call it, then loop over turns()"
            ) from None
        except TimeoutError:
            raise Misuse(
                f"{self._name()} has not called windfall.paramserver.connect or wrap within "
                f"{self._connect_within_s:g} s: call it before what takes long"
            ) from None

    def _check(self, table: ScriptTable) -> None:
        if table != self.table:
            raise Misuse(
                f"{self._name()} describes a table of {table.rows} x {table.width} {table.dtype} in one process, and of "
                f"{self.table.rows} x {self.table.width} {self.table.dtype} in another: all must describe the same"
            )

    def _failure(self, script: ScriptProcess, gone: ScriptGone, when: str, remedy: str = "") -> ScriptFailed:
        if gone.status < 0:
            times = self._restarts - self._restarts_left + 1
            return ScriptFailed(
                f"{self._name()} was killed by signal {-gone.status} {when}, and {times} times in all on this machine: look "
                "for what kills it (most often a lack of memory)"
            )
        if gone.status == 0:
            remedy = remedy or "let its loop over server.turns() run to its end"
            return ScriptFailed(f"{self._name()} exited {when}, though training is not over: {remedy}")
        last = f": {script.last_line}" if script.last_line else ""
        return ScriptFailed(f"{self._name()} failed with exit status {gone.status} {when}{last}")

    def _name(self) -> str:
        return f"`{self._command.shown}`"


class _AskedMeanwhile:
    """`Table` of a turn whose process others may ask for first values while it waits for what it pulls."""

    def __init__(self, program: ScriptProgram, script: ScriptProcess, table: Table) -> None:
        self._program, self._script, self._table = program, script, table

    def pull(self, rows: Rows) -> Values:
        self._program.release(self._script)
        try:
            return self._table.pull(rows)
        finally:
            self._program.hold(self._script)

    def push(self, rows: Rows, changes: Values) -> None:
        self._table.push(rows, changes)
