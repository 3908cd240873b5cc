"""What an elastic training has measured of itself, from the posts of its machines, and from how long changes of shape took.

Single numbers are noisy: a machine is busy with something else, a first pass builds things.  So of each number the newest few
posts of all machines are kept, and their median counts.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from windfall.models.measured_profile import link_of
from windfall.shape_layout import STORE, ShapeLayout, ShapeReport
from windfall.shape_measurements import (
    ChangeMeasurement,
    LayerMeasurement,
    MachineMeasurement,
    ShapeMeasurements,
    StepMeasurement,
)
from windfall.structs import Struct

KEPT = 9
"""Newest posts of which the median counts."""
KEPT_CHANGES = 40


class _ChangeUnderWay(Struct, frozen=True):
    """A change that machines make: the shape before, and those who trained before and after."""

    before: tuple[int, int]
    layout: ShapeLayout
    stay: frozenset[str]


class ShapeMeter:
    """Takes in what is measured.

    Args:
        layout: the newest one; how long it took is not measured.
        known: what an earlier coordinator has stored; None for nothing.

    Attributes:
        found: medians of all that was measured; None while nothing was.
    """

    def __init__(self, layout: ShapeLayout, known: ShapeMeasurements | None = None) -> None:
        self.found = known
        self._posts: dict[str, MachineMeasurement] = {}
        self._model: tuple[int, int, int] | None = None
        self._layers: list[deque[LayerMeasurement]] = []
        self._states: deque[float] = deque(maxlen=KEPT)
        self._links: deque[tuple[float, float]] = deque(maxlen=KEPT)
        self._steps: dict[tuple[int, int], deque[float]] = {}
        self._changes: deque[ChangeMeasurement] = deque(maxlen=KEPT_CHANGES)
        self._change: _ChangeUnderWay | None = None
        self._trained = layout
        self._memory_bytes = 0.0
        if known is not None:
            self._begin(len(known.layers), known.batch, known.micro_batch)
            for kept, layer in zip(self._layers, known.layers, strict=True):
                kept.extend([layer] if layer is not None else [])
            self._states.append(float(known.states))
            self._links.extend([(known.latency_s, known.bytes_per_s)] if known.bytes_per_s else [])
            self._steps = {(one.pipelines, one.stages): deque([one.step_s], KEPT) for one in known.steps}
            self._changes.extend(known.changes)
            self._memory_bytes = known.memory_bytes

    # ---------------------------------------------------------------------------------------------------------------- posts

    def take(self, posts: Iterable[MachineMeasurement]) -> None:
        """Take in the newest posts of machines; one that is known already changes nothing."""
        new = [post for post in posts if self._posts.get(post.machine) != post]
        for post in new:
            self._posts[post.machine] = post
            self._take(post)
        if new:
            self._summarise()

    def _begin(self, layers: int, batch: int, micro_batch: int) -> None:
        self._model = (layers, batch, micro_batch)
        self._layers = [deque(maxlen=KEPT) for _ in range(layers)]

    def _forget(self) -> None:
        """Forget what was measured of another model."""
        for kept in (self._states, self._links, self._steps, self._changes):
            kept.clear()
        self._memory_bytes = 0.0

    def _take(self, post: MachineMeasurement) -> None:
        model = (post.of, post.batch, post.micro_batch)
        if not (0 <= post.first <= post.first + len(post.layers) <= post.of and 0 < post.micro_batch <= post.batch):
            return
        if model != self._model:
            if self._model is not None:
                self._forget()
            self._begin(*model)
        for number, layer in enumerate(post.layers, post.first):
            if layer.forward_s + layer.backward_s > 0.0:
                self._layers[number].append(layer)
        parameters = sum(layer.parameters for layer in post.layers)
        if parameters:
            self._states.append(post.state_numbers / parameters)
        if post.step_s > 0.0:
            self._steps.setdefault((post.pipelines, post.stages), deque(maxlen=KEPT)).append(post.step_s)
        if post.memory_bytes > 0.0:
            self._memory_bytes = min(self._memory_bytes or post.memory_bytes, post.memory_bytes)
        link = link_of(post.transfers)
        if link is not None:
            self._links.append(link)

    # -------------------------------------------------------------------------------------------------------------- changes

    def take_layout(self, layout: ShapeLayout) -> None:
        """Take in that a layout follows: if it is of training, how long it takes is measured by `take_reports`."""
        self._change = None
        if layout.stop or layout.over:
            return
        before, self._trained = self._trained, layout
        if not layout.stages:
            return
        was, will = ({place.machine for place in one.places} for one in (before, layout))
        stay, shape = frozenset(was & will), (before.pipelines, before.stages)
        # What comes from the store comes with its speed, and layers that are cut differently in a shape that stays move between
        # all its stages: neither says anything of other changes.
        stored = any(move.source == STORE for move in layout.moves) and bool(layout.step)
        recut = shape == (layout.pipelines, layout.stages) and before.cut != layout.cut
        self._change = None if stored or recut else _ChangeUnderWay(shape, layout, stay)

    def take_reports(self, reports: Mapping[str, ShapeReport]) -> None:
        """Take in how long machines took to make the newest layout, once all that train have.

        Who joined has waited for the others: of those who trained before, the slowest counts; at the start the last to come.
        """
        change = self._change
        if change is None:
            return
        placed = [reports.get(place.machine) for place in change.layout.places]
        made = [one for one in placed if one is not None and one.layout == change.layout.version]
        if len(made) < len(placed):
            return
        stayed_s = [one.moved_s for one in made if one.machine in change.stay]
        seconds = max(stayed_s) if stayed_s else min(one.moved_s for one in made)
        self._change = None
        if seconds > 0.0:
            shape = (change.layout.pipelines, change.layout.stages)
            self._changes.append(ChangeMeasurement(*change.before, *shape, seconds))
            self._summarise()

    # -------------------------------------------------------------------------------------------------------------- medians

    def _summarise(self) -> None:
        layers, batch, micro_batch = self._model or (0, 0, 0)
        links = list(self._links)
        self.found = ShapeMeasurements(
            batch=batch,
            micro_batch=micro_batch,
            layers=tuple(_median_layer(self._layers[number]) for number in range(layers)),
            states=round(statistics.median(self._states)) if self._states else 0,
            memory_bytes=self._memory_bytes,
            latency_s=statistics.median(latency_s for latency_s, _ in links) if links else 0.0,
            bytes_per_s=statistics.median(rate for _, rate in links) if links else 0.0,
            steps=tuple(
                StepMeasurement(*shape, statistics.median(step_s)) for shape, step_s in sorted(self._steps.items())
            ),
            changes=tuple(self._changes),
        )


def _median_layer(kept: Sequence[LayerMeasurement]) -> LayerMeasurement | None:
    if not kept:
        return None

    def median(value: Callable[[LayerMeasurement], float]) -> float:
        return statistics.median(value(one) for one in kept)

    return LayerMeasurement(
        forward_s=median(lambda one: one.forward_s),
        backward_s=median(lambda one: one.backward_s),
        update_s=median(lambda one: one.update_s),
        # Sizes differ only with the last micro-batch of an epoch, and the largest one must fit.
        sent_bytes=max(one.sent_bytes for one in kept),
        held_bytes=max(one.held_bytes for one in kept),
        parameters=kept[-1].parameters,
    )
