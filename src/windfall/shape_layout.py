"""Words of an elastic training: which machine trains which stage of which pipeline, and what machines report.

A layout is whole: a machine that sees one makes itself so, whichever it saw last.  `core.shape_decisions` writes the next one.
Steps are numbered from 1; a machine that holds step s has the state after s steps, so that 0 is the first state.

**Planned.**  A layout without `step` and `stop` follows the one before at a step boundary: machines train on until all of the
layout before have heard of it, which each step's vote tells them, and leave after the same step.  Moves are of that step.
**Stop.**  A layout with `stop` is not trained.  All machines give up the step that they are in and report `stopped`, with the
states that they hold, which do not change until the next layout.  A machine that meets a broken connection to another one that
trains does so by itself.
**Begin.**  A layout with `step` begins a term: all that it names go to that step, by what they hold and what is moved.
**Wait.**  A layout without stages is not trained: all stop, after the same step if it is planned, and report `stopped`.  What
it moves to the store is saved, of the last step; if it begins a term, of the term's base.

**Terms.**  A machine keeps the number of its term.  Whatever layout it sees, if the layout's term is the next one, it drops the
states that are newer than the layout's `base`, which were taken back; if it has missed a whole term, it drops all that it has.
Nor has it stopped any more; within a term a machine that stopped by itself stays so, whatever is planned.

**Backup.**  No machine finishes step s + 1 before the backup has s, nor a first step in a layout before the backup has what is
moved to it.  A broken connection to it stops nothing: training continues without it until another layout comes.  But one that
gives up for a layout with `stop` says so, and no machine finishes a step without it: it would be two steps ahead.

Source: Parcae (NSDI 2024), live migration and ParcaePS.
"""

from __future__ import annotations

from windfall.structs import Struct, Tagged

VERSION = 1
STORE = ""
"""Name of what is not a machine: as a source the checkpoint of that step in the run's store, of step 0 the first values; as a
target a checkpoint."""


class StagePlace(Tagged, frozen=True):
    """The machine that trains a stage of a pipeline.

    Attributes:
        pipeline, stage: from 0.
        machine: its name.
    """

    pipeline: int
    stage: int
    machine: str


class StateMove(Tagged, frozen=True):
    """State of adjacent layers that a machine lacks: parameters, buffers and the optimiser's states.

    Attributes:
        first, end: of the layers, as in `range`.
        source: machine that sends it; `STORE` if none does.
        target: machine that gets it; `STORE` if it is saved, while all wait.
    """

    first: int
    end: int
    source: str
    target: str


class ShapeLayout(Tagged, frozen=True):
    """A layout.

    Attributes:
        record: number of its record in the run's log, from 1; of two layouts the one with the larger number counts.
        version: from 1; a layout of the same version is the same for machines, by a coordinator that follows.
        coordinator: how many coordinators there have been; machines obey the newest.
        term: how often all went to one step, at the start and after losses.
        base: step at which the term began.
        stages, pipelines: the shape; both 0 while all wait.
        cut: first layer of each stage, and the number of layers; empty while all wait.
        places: of all stages of all pipelines; with `stop` those of the layout that is given up.
        left: machines that train in the layout before and not in this one.
        moves: what is sent before the first step, to machines that train and to the backup.
        step: at which a term begins with this layout; None: it continues, or nothing is trained.
        stop: the layout before is given up at once, without a vote: a machine is lost.
        redone: steps that were trained and are taken back, in all layouts so far.
        checkpoint: newest step that is known to be whole in the store; 0 for none.
        backup: machine that keeps the state of every stage, at most one step behind (ParcaePS); None for none.
        over: the state after the last step is in the store: all end.
        because: what has changed, and why this shape.
    """

    record: int
    version: int
    coordinator: int
    term: int
    base: int
    pipelines: int
    stages: int
    cut: tuple[int, ...]
    places: tuple[StagePlace, ...]
    left: tuple[str, ...]
    moves: tuple[StateMove, ...]
    step: int | None
    stop: bool
    redone: int
    checkpoint: int
    backup: str | None
    because: str
    over: bool = False

    def layers(self, machine: str) -> range:
        """Return the layers that a machine trains; none if it is a spare."""
        for place in self.places:
            if place.machine == machine:
                return range(self.cut[place.stage], self.cut[place.stage + 1])
        return range(0)


class ShapeReport(Struct, frozen=True):
    """What a machine says of itself, all of it, each time.

    Attributes:
        machine: its name.
        reliable: it cannot be preempted; it keeps state, and trains nothing.
        started_s: instant at which it joined [s].
        leaving: its end is announced, or it is to be released.
        number: of its reports, from 1.
        coordinator: the newest that it has seen a layout of; 0 before.
        address: where its peers reach it.
        layers: of the model; 0 before the script has built it.
        term: of the newest layout that it has seen; 0 before.
        layout: version of the newest layout that it has made itself: trains in, is a spare or backup of, or has stopped for.
        stopped: it has given up its step, and waits for a layout; what it holds does not change.
        held: (first layer, end, step) of the states that it has whole, newest last; none that was taken back.
        trained: the newest step that it has finished in this term; its base if none.
        broken: machines to one of which its connection broke in this layout; in a sum over all it is not known to which.
        steps: with which training ends; 0 while not known.
        micro_batches: of a step; 0 while not known.
        step_s: mean time of its newest steps [s].
        moved_s: how long it took to make itself the newest layout [s].
        failure: what the user's program raised; None while nothing.
        ends_in_s: until its announced end; None if none is announced, or not when [s].
    """

    machine: str
    reliable: bool
    started_s: float
    leaving: bool
    number: int
    coordinator: int
    address: str
    layers: int
    term: int
    layout: int
    stopped: bool
    held: tuple[tuple[int, int, int], ...]
    trained: int
    broken: tuple[str, ...] = ()
    steps: int = 0
    micro_batches: int = 0
    step_s: float = 0.0
    moved_s: float = 0.0
    failure: str | None = None
    ends_in_s: float | None = None
