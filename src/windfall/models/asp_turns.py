"""What a profiled training shows, turn by turn, in the order in which turns ended; an iteration of `models.asp` is a turn.

A machine may have several turns under way, so that one moves its data while another one computes.  Its iteration time is
therefore the time from one of its turns' ends to the next one's, and not that from a turn's own begin to its end:

    T_i       mean time between the ends of two turns of machine i
    T_comp    mean computation of its turns, over as many as it computes at once
    network   T_i - T_comp: what transfers take beyond what computing hides

The training loss is what training ends by: the mean over the newest turns of all data partitions.  It lags by half of these: it
counts as the loss after the turn in their middle (`lag`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from windfall.errors import Misuse
from windfall.models.asp import Floats
from windfall.structs import Struct

GAP, COMPUTED, MOVED = 0, 1, 2
"""Columns of `rows_of`: since the machine's last turn [s], computed in it [s], moved in it [MB]."""


class TurnMachine(Struct, frozen=True):
    """A machine that computes.

    Attributes:
        kind: its machine type.
        batch: samples in a turn.
        slots: turns that it computes at once.
    """

    kind: str
    batch: float = 1.0
    slots: int = 1


class TurnRun(Struct, frozen=True, eq=False):
    """A training, one row for each turn.

    Attributes:
        machines: that compute.
        partitions: of the data; each turn is of one.
        machine: of each turn, its place in `machines`.
        data: of each turn, its data partition.
        ended_s: when it ended [s].
        computed_s: what its machine had computed until then, since it started [s].
        moved_mb: what it had pulled and pushed until then [MB].
        loss: of the turn's own batch; not a number where the program says none.
    """

    machines: tuple[TurnMachine, ...]
    partitions: int
    machine: NDArray[np.int64]
    data: NDArray[np.int64]
    ended_s: Floats
    computed_s: Floats
    moved_mb: Floats
    loss: Floats


def mix_text(machines: Sequence[TurnMachine]) -> str:
    """Return machines in words, such as `2 small + 1 large`."""
    kinds = [one.kind for one in machines]
    return " + ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))


def rows_of(run: TurnRun, place: int, warm_up: int = 1) -> Floats:
    """Return what each turn of a machine added: gap, computation and bytes; shape (turns, 3).

    Args:
        run: the training.
        place: of the machine.
        warm_up: its first turns, which are left out; at least 1, as the first one has none before it.
    """
    mine = run.machine == place
    sums = np.column_stack((run.ended_s[mine], run.computed_s[mine], run.moved_mb[mine]))
    return np.diff(sums, axis=0)[max(warm_up, 1) - 1 :]


def iteration_s(run: TurnRun, place: int, warm_up: int = 1) -> float:
    """Return T_i of a machine [s].

    Raises:
        Misuse: it had too few turns.
    """
    rows = rows_of(run, place, warm_up)
    if not len(rows):
        raise Misuse(f"a machine of {mix_text(run.machines)} had no turn after its first {warm_up}: train for longer")
    return float(rows[:, GAP].mean())


def turns_per_s(run: TurnRun, warm_up: int = 1) -> float:
    """Return q, the turns of all machines in a second; raises as `iteration_s`."""
    return float(sum(1.0 / iteration_s(run, place, warm_up) for place in range(len(run.machines))))


def training_losses(run: TurnRun) -> Floats:
    """Return the training loss after each turn; not a number before all data partitions have one.

    Raises:
        Misuse: the program says no losses.
    """
    if not len(run.loss) or bool(np.all(np.isnan(run.loss))):
        raise Misuse(
            "the program says no loss of its turns, and without it nothing can be fitted: let compute return it, or call "
            "server.loss(value) in a script"
        )
    newest, found = np.full(run.partitions, np.nan), np.empty(len(run.loss))
    for turn, (data, loss) in enumerate(zip(run.data, run.loss, strict=True)):
        newest[data] = loss if np.isfinite(loss) else newest[data]
        found[turn] = newest.mean()
    return found


def lag(partitions: int) -> float:
    """Return by how many turns the training loss lags."""
    return (partitions - 1) / 2.0


def turns_to(run: TurnRun, loss: float) -> float | None:
    """Return the turns until the training loss is no larger for the first time; None: it stays above; raises as the losses."""
    reached = np.flatnonzero(training_losses(run) <= loss)
    return int(reached[0]) + 1 - lag(run.partitions) if len(reached) else None


def loss_curve(run: TurnRun) -> tuple[Floats, Floats]:
    """Return turns and the training loss after them, once for each clock: losses in between share most of their turns.

    Raises:
        Misuse: as `training_losses`.
    """
    losses, at = training_losses(run), np.arange(run.partitions - 1, len(run.loss), run.partitions)
    at = at[np.isfinite(losses[at])]
    return (at + 1 - lag(run.partitions)).astype(np.float64), losses[at]
