"""What a change of shape costs: seconds in which no step is trained, by which machines are left.

Symbols: a shape of D pipelines and P stages becomes D' and P'; r_s survivors hold stage s; S_s bytes of state of stage s (its
parameters, in fp32, and the optimiser's states of the same size); t(b) time to send b bytes to another machine.

    nothing lost, nothing changed                        0
    same depth P' = P, min r_s >= D'    intra-stage      groups + start
    same depth, a stage is short        inter-stage      max over short stages of t(S_s), or the sum over lost ones if longer,
                                                         + restart
    other depth                         repartition      t(what survivors lack) + [D' > 1] max over new stages of t(S'_s)
                                                         + restart

    restart = groups + start + build of the stage (+ rendezvous + extra, if machines are added)

Machines are added if D' P' > D P - n, with n lost of all N, spares among them.  A stage is short if r_s < D'; its state is
sent once, stages in parallel.  A lost stage (r_s = 0) comes from a redundant copy, one after another; of the last stage one
survivor does not count, because the copy is at its machine.  In a repartition each new stage is placed at the survivor that
lacks the fewest of its parameters, first stage first.

**A switch.**  The published program charges what the survivor of the *last* new stage lacks, because it overwrites a sum.
`every_stage` charges the sum, and whole a stage for which no survivor is left.  That is what Windfall uses.

Source: Parcae (NSDI 2024), its public program (commit efedee7e); the measured times are the authors', and data.
"""

from __future__ import annotations

import bisect
import functools
import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from windfall.errors import Misuse
from windfall.models.shapes import Floats, Shape
from windfall.structs import Struct

PARAMETER_BYTES = 4
"""Bytes of an fp32 number."""


class LinkTimes(Struct, frozen=True):
    """How long a message takes, measured: linear in between, proportional above.

    Attributes:
        sizes_bytes: ascending [bytes].
        times_s: of each size [s].
    """

    sizes_bytes: tuple[float, ...]
    times_s: tuple[float, ...]

    def __post_init__(self) -> None:
        """Check the table.

        Raises:
            Misuse: it is empty, of two lengths, or its sizes do not ascend.
        """
        sizes = self.sizes_bytes
        if not sizes or len(sizes) != len(self.times_s):
            raise Misuse(f"a link with {len(sizes)} sizes and {len(self.times_s)} times: write a time for each size")
        if any(low >= high for low, high in itertools.pairwise(sizes)):
            raise Misuse("the sizes of a link's table do not ascend: sort them, each once")

    def seconds(self, size_bytes: float) -> float:
        """Return the time of one message [s]."""
        sizes, times = self.sizes_bytes, self.times_s
        place = bisect.bisect_left(sizes, size_bytes)
        if place == 0:
            return times[0]
        if place == len(sizes):
            return size_bytes / sizes[-1] * times[-1]
        low, high = sizes[place - 1], sizes[place]
        return times[place - 1] + (times[place] - times[place - 1]) * (size_bytes - low) / (high - low)


def even_cut(layers: int, stages: int) -> tuple[int, ...]:
    """Return the published cut: (layers - 1) / stages each, the first one more; the rest from the last but one backwards.

    As many stages as layers, for which the published rule leaves the last one nothing, have one each.

    Example:
        50 layers in 6 stages are cut at 0, 9, 17, 25, 33, 42, 50.

    Raises:
        Misuse: there are fewer layers than stages.
    """
    if not 1 <= stages <= layers:
        raise Misuse(f"{layers} layers in {stages} stages: write at least one stage, and no more than there are layers")
    if stages == layers:
        return tuple(range(layers + 1))
    each, rest = divmod(layers - 1, stages)
    sizes = [each + (place == 0) + (stages - 1 - rest <= place < stages - 1) for place in range(stages)]
    return tuple(itertools.accumulate(sizes, initial=0))


class GroupTimes(Struct, frozen=True):
    """How long communication groups take to form: a sum of three rules, of which a profile uses one.

    Pairs are (when machines are added, when they are not).

    Attributes:
        common_s: once [s].
        per_group_s: for each of the D + P + 1 + D P groups [s].
        per_machine_s: for each of the D P machines [s].
        by_pipelines_s: (least number of pipelines, seconds), ascending; empty: 0 [s].
        adding_factor: by which the last is longer when machines are added.
    """

    common_s: float
    per_group_s: tuple[float, float] = (0.0, 0.0)
    per_machine_s: tuple[float, float] = (0.0, 0.0)
    by_pipelines_s: tuple[tuple[int, float], ...] = ()
    adding_factor: float = 1.0

    def seconds(self, shape: Shape, *, adding: bool) -> float:
        """Return the time for a shape [s]."""
        case = 0 if adding else 1
        groups = shape.pipelines + shape.stages + 1 + shape.machines
        step_s = max((step for step in self.by_pipelines_s if step[0] <= shape.pipelines), default=(0, 0.0))[1]
        return (
            self.common_s
            + groups * self.per_group_s[case]
            + shape.machines * self.per_machine_s[case]
            + step_s * (self.adding_factor if adding else 1.0)
        )


class MigrationTimes(Struct, frozen=True):
    """The measured times of a model, and how its layers are cut.

    Attributes:
        link: between two machines.
        groups: communication groups.
        start_s: of a process [s].
        rendezvous_s: only when machines are added [s].
        extra_s: the same, such as for data [s].
        build_s: of the stage that a machine gets, by number of stages [s].
        parameters: of each layer.
        cuts: by number of stages: the first layer of each stage, and the number of layers.
        states: optimiser's numbers per parameter.
        every_stage: the switch above.
    """

    link: LinkTimes
    groups: GroupTimes
    start_s: float
    rendezvous_s: float
    extra_s: float
    build_s: Mapping[int, float]
    parameters: tuple[float, ...]
    cuts: Mapping[int, tuple[int, ...]]
    states: int = 2
    every_stage: bool = True

    def __post_init__(self) -> None:
        """Check the cuts.

        Raises:
            Misuse: the stages of a cut are not all of the layers.
        """
        for stages, cut in self.cuts.items():
            ascending = all(low < high for low, high in itertools.pairwise(cut))
            if len(cut) != stages + 1 or cut[0] != 0 or cut[-1] != len(self.parameters) or not ascending:
                raise Misuse(
                    f"{len(self.parameters)} layers in {stages} stages are cut at {list(cut)}: write {stages + 1} ascending "
                    f"places from 0 to {len(self.parameters)}, so that each stage has a layer"
                )

    def cut(self, stages: int) -> tuple[int, ...]:
        """Return where the layers are cut.

        Raises:
            Misuse: no cut is known for this number of stages.
        """
        if stages not in self.cuts or stages not in self.build_s:
            raise Misuse(
                f"{stages} stages: there are cuts and build times for {', '.join(map(str, sorted(self.cuts)))}"
            )
        return self.cuts[stages]

    def state_s(self, parameters: float) -> float:
        """Return how long the state of these parameters takes to another machine [s]."""
        return self.link.seconds(parameters * (1 + self.states) * PARAMETER_BYTES)

    def stage_parameters(self, stages: int) -> tuple[float, ...]:
        """Return the parameters of each stage."""
        cut = self.cut(stages)
        return tuple(sum(self.parameters[low:high]) for low, high in itertools.pairwise(cut))

    def restart_s(self, shape: Shape, *, adding: bool) -> float:
        """Return groups, start and build, and what adding machines takes [s]."""
        self.cut(shape.stages)
        joining_s = self.rendezvous_s + self.extra_s if adding else 0.0
        return joining_s + self.groups.seconds(shape, adding=adding) + self.start_s + self.build_s[shape.stages]

    def intra_s(self, shape: Shape) -> float:
        """Return what spares and replicas that take a place cost: no state moves [s]."""
        return self.groups.seconds(shape, adding=False) + self.start_s

    def lacking(self, old: int, new: int) -> Floats:
        """Return the parameters of each new stage that a machine of each old stage lacks, by (new, old)."""
        return _lacking(self.parameters, self.cut(old), self.cut(new))

    def placed_s(self, lacked: Sequence[float]) -> float:
        """Return how long the new stages' missing parameters take, by the switch [s]."""
        if self.every_stage:
            return self.state_s(sum(lacked))
        return self.state_s(lacked[-1] if lacked else 0.0)


@functools.cache
def _lacking(parameters: tuple[float, ...], was: tuple[int, ...], will: tuple[int, ...]) -> Floats:
    """Return what is lacked; each number is a sum in the order of the layers, so that equal ones are equal to the last bit."""
    return np.array(
        [
            [
                sum(parameters[layer] for layer in range(*new) if not old[0] <= layer < old[1])
                for old in itertools.pairwise(was)
            ]
            for new in itertools.pairwise(will)
        ],
        np.float64,
    ).reshape(len(will) - 1, len(was) - 1)
