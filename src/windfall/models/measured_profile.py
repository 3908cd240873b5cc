"""From what an elastic training has measured of itself to the profile that its shapes are chosen by.

**Steps.**  The schedule of the layers' measured passes, the link, sums of gradients and updates give a step's time in any
shape; what a step takes beside them (data, the vote) is the median of what the shapes that were trained took longer.  A shape
that was trained has the time that was measured.

**Changes.**  Of each kind of change the median counts for plans, and the 90th percentile where a change must fit into what is
left of a notice:

    kept    same depth, no pipeline more: another machine takes a place   groups
    added   same depth, more pipelines                                    groups + build + joining + state of the largest stage
    deeper  another number of stages                                      groups + build + the whole state

so that, with medians of what is measured, build = deeper - groups - state and joining = added - groups - build - state, none
less than 0.  Before a kind was measured its term is that of the profile; before any, all changes are free, and at the start no
other shape has to be paid for.
"""

from __future__ import annotations

import enum
import itertools
import math
import statistics
from collections.abc import Sequence
from typing import Final

from windfall.models.elastic_profile import ElasticProfile, ElasticTraining
from windfall.models.migrations import LinkTimes
from windfall.models.pipeline_profile import LayerProfile, PipelineProfile, cut_of, needed_bytes, step_s
from windfall.models.shapes import IDLE, Shape, ShapeSpeeds
from windfall.shape_measurements import ChangeMeasurement, ShapeMeasurements
from windfall.structs import replace

NUMBER_BYTES: Final = 4
_GIGA: Final = 1e9
_SMALL: Final = 64.0
"""By how much smaller than the largest a message is that shows the latency."""


class ChangeKind(enum.Enum):
    """Kinds of changes, which take differently long."""

    START = "start"
    KEPT = "kept"
    ADDED = "added"
    DEEPER = "deeper"


def kind_of(before: Shape, after: Shape) -> ChangeKind:
    """Return the kind of a change from one shape to another."""
    if before == IDLE:
        return ChangeKind.START
    if before.stages != after.stages:
        return ChangeKind.DEEPER
    return ChangeKind.ADDED if after.pipelines > before.pipelines else ChangeKind.KEPT


def link_of(transfers: Sequence[tuple[int, float]]) -> tuple[float, float] | None:
    """Return (latency [s], bytes per second) of a link; None if nothing was sent.

    The latency is the median time of small messages; the rate is that of the large ones, latency taken off.

    Example:
        (8 bytes, 1 ms) and (1e6 bytes, 11 ms): 1 ms and 1e8 bytes/s.
    """
    sent = [(size, seconds) for size, seconds in transfers if size > 0 and seconds > 0.0]
    if not sent:
        return None
    largest = max(size for size, _ in sent)
    small_s = [seconds for size, seconds in sent if size * _SMALL <= largest]
    rates = [
        size / max(seconds - (statistics.median(small_s) if small_s else 0.0), seconds / 10.0)
        for size, seconds in sent
        if 2 * size >= largest
    ]
    return (statistics.median(small_s) if small_s else 0.0), statistics.median(rates)


def measured_profile(found: ShapeMeasurements) -> ElasticProfile | None:
    """Return the profile of a training whose layers were all measured; None while one was not."""
    layers = [
        LayerProfile(
            one.forward_s,
            one.backward_s,
            float(one.sent_bytes),
            float(one.held_bytes),
            float(one.parameters),
            one.update_s,
        )
        for one in found.layers
        if one is not None
    ]
    if not layers or len(layers) < len(found.layers):
        return None
    pipeline = PipelineProfile(
        layers=tuple(layers),
        batch=found.batch,
        micro_batch=found.micro_batch,
        link=LinkTimes((1.0, _GIGA), (0.0, 0.0)),
        memory_bytes=math.inf,
        states=found.states,
    )
    profile = with_link_and_memory(ElasticProfile(pipeline), found)
    longer_s = [
        max(one.step_s - step_s(profile.pipeline, Shape(one.pipelines, one.stages)), 0.0)
        for one in found.steps
        if one.stages <= len(layers)
    ]
    return replace(
        profile,
        pipeline=replace(profile.pipeline, beside_s=statistics.median(longer_s) if longer_s else 0.0),
    )


def with_link_and_memory(profile: ElasticProfile, found: ShapeMeasurements) -> ElasticProfile:
    """Return a profile with the measured link and memory where it does not say them.

    A shape that was trained fits, whatever the memory of the machines seems to be.
    """
    pipeline = profile.pipeline
    if pipeline.link.seconds(_GIGA) == 0.0 and found.bytes_per_s > 0.0:
        times_s = [found.latency_s + size / found.bytes_per_s for size in (1.0, _GIGA)]
        pipeline = replace(pipeline, link=LinkTimes((1.0, _GIGA), tuple(times_s)))
    if math.isinf(pipeline.memory_bytes) and found.memory_bytes > 0.0:
        trained = [Shape(one.pipelines, one.stages) for one in found.steps]
        held = [needed_bytes(pipeline, shape) for shape in trained if shape.stages <= len(pipeline.layers)]
        pipeline = replace(pipeline, memory_bytes=max([found.memory_bytes, *held]))
    return replace(profile, pipeline=pipeline)


def with_changes(profile: ElasticProfile, changes: Sequence[ChangeMeasurement]) -> ElasticProfile:
    """Return a profile whose changes take as long as those that were measured."""
    kept_s = seconds_of(ChangeKind.KEPT, changes) or seconds_of(ChangeKind.START, changes)
    groups_s = statistics.median(kept_s) if kept_s else profile.groups_s + profile.start_s
    build_s, joining_s = profile.build_s, profile.rendezvous_s
    deeper = [
        one.seconds - groups_s - _state_s(profile, one)
        for one in changes
        if _kind(one) is ChangeKind.DEEPER and _fits(profile, one)
    ]
    if deeper:
        build_s = max(statistics.median(deeper), 0.0)
    added = [
        one.seconds - groups_s - build_s - _state_s(profile, one)
        for one in changes
        if _kind(one) is ChangeKind.ADDED and _fits(profile, one)
    ]
    if added:
        joining_s = max(statistics.median(added), 0.0)
    return replace(profile, groups_s=groups_s, start_s=0.0, build_s=build_s, rendezvous_s=joining_s)


def seconds_of(kind: ChangeKind, changes: Sequence[ChangeMeasurement]) -> list[float]:
    """Return how long the changes of a kind took, oldest first [s]."""
    return [one.seconds for one in changes if _kind(one) is kind]


def notice_s(before: Shape, after: Shape, changes: Sequence[ChangeMeasurement], planned_s: float) -> float | None:
    """Return the 90th percentile of how long a change takes; None before any was measured [s].

    Of a kind that was never seen it is what a plan charges, times the largest ratio of a percentile to a median of other kinds.

    Args:
        before: the shape until then.
        after: the shape from then on.
        changes: that were measured.
        planned_s: what a plan charges [s].
    """
    own = seconds_of(kind_of(before, after), changes)
    if own:
        return ninetieth_percentile(own)
    seen = [found for kind in ChangeKind if (found := seconds_of(kind, changes))]
    return planned_s * max(ninetieth_percentile(found) / statistics.median(found) for found in seen) if seen else None


def ninetieth_percentile(seconds: Sequence[float]) -> float:
    """Return the 90th percentile: the smallest time that nine of ten do not exceed; of fewer the longest."""
    return sorted(seconds)[math.ceil(0.9 * len(seconds)) - 1]


def _kind(change: ChangeMeasurement) -> ChangeKind:
    before, after = (
        Shape(change.pipelines_before, change.stages_before),
        Shape(change.pipelines, change.stages),
    )
    return kind_of(before, after)


def _fits(profile: ElasticProfile, change: ChangeMeasurement) -> bool:
    return change.stages == 1 or change.stages < len(profile.pipeline.layers)


def _state_s(profile: ElasticProfile, change: ChangeMeasurement) -> float:
    """Return how long the state that a change moves takes, as plans charge it [s]."""
    pipeline = profile.pipeline
    cut = cut_of(pipeline, change.stages)
    parameters = [layer.parameters for layer in pipeline.layers]
    stages = [sum(parameters[low:high]) for low, high in itertools.pairwise(cut)]

    def seconds(numbers: float) -> float:
        return pipeline.link.seconds(numbers * (1 + pipeline.states) * NUMBER_BYTES)

    if _kind(change) is ChangeKind.DEEPER:
        return seconds(sum(stages)) + (seconds(max(stages)) if change.pipelines > 1 else 0.0)
    return seconds(max(stages))


def with_measured_steps(training: ElasticTraining, found: ShapeMeasurements) -> ElasticTraining:
    """Return a training whose throughput, in the shapes that were trained, is what was measured."""
    rates = dict(training.speeds.samples_per_s)
    for one in found.steps:
        shape = Shape(one.pipelines, one.stages)
        if shape in rates and one.step_s > 0.0:
            rates[shape] = found.batch / one.step_s
    return replace(training, speeds=ShapeSpeeds(rates))
