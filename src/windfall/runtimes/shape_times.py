"""What a machine of an elastic training measures while it trains: times of its layers, what they hold, and transfers."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

KEPT = 64
"""Newest times of a layer, of which the median counts."""
KEPT_TRANSFERS = 8
"""Newest transfers of each power of two of bytes."""
OFTEN_UNTIL, SELDOM_EVERY = 10, 50
"""On an accelerator the first steps of a layout are measured, then one of these many: to measure, it must be waited for."""


class LayerTimes:
    """How long layers take for a micro-batch: medians of all but the first, which builds things.

    Args:
        layers: modules, in order.
        device: on which they compute.

    Attributes:
        output_bytes: of each layer.
        held_bytes: what each keeps from its forward pass to its backward pass; 0 before that was measured.
    """

    def __init__(self, layers: Iterable[Any], device: Any) -> None:
        modules = list(layers)
        self._s: list[tuple[deque[float], deque[float]]] = [(deque(maxlen=KEPT), deque(maxlen=KEPT)) for _ in modules]
        self._n = [[0, 0] for _ in modules]
        self._device = torch.device(device)
        self._waits, self._steps = self._device.type == "cuda", 0
        self._updates_s: deque[float] = deque(maxlen=KEPT)
        self._update_s = 0.0
        self.output_bytes = [0] * len(modules)
        self.held_bytes = [0] * len(modules)
        self._own = {one.data_ptr() for module in modules for one in (*module.parameters(), *module.buffers())}
        self._seen: set[int] | None = None
        self._held_known = False

    def next_step(self) -> None:
        """Say that a step begins."""
        # The first update builds the optimizer's states.
        if self._steps > 1 and self._update_s:
            self._updates_s.append(self._update_s)
        self._steps, self._update_s = self._steps + 1, 0.0

    @property
    def _measures(self) -> bool:
        return not self._waits or self._steps <= OFTEN_UNTIL or self._steps % SELDOM_EVERY == 0

    @contextmanager
    def timed(self, layer: int, part: int, clock: Any) -> Iterator[None]:
        """Measure what is done inside: part 0 forward, 1 backward; `clock` returns seconds."""
        if not self._measures:
            yield
            return
        self._wait()
        began_s = clock()
        yield
        self._wait()
        self.add(layer, part, clock() - began_s)

    @contextmanager
    def updating(self, clock: Any) -> Iterator[None]:
        """Measure what is done inside as part of the step's update."""
        if not self._measures:
            yield
            return
        self._wait()
        began_s = clock()
        yield
        self._wait()
        self._update_s += clock() - began_s

    @property
    def update_s(self) -> float:
        """Median time of a step's update; 0 before there is one [s]."""
        return statistics.median(self._updates_s) if self._updates_s else 0.0

    def _wait(self) -> None:
        if self._waits:
            torch.cuda.synchronize(self._device)

    def add(self, layer: int, part: int, seconds: float) -> None:
        """Add a time: part 0 forward, 1 backward."""
        if self._n[layer][part]:
            self._s[layer][part].append(seconds)
        self._n[layer][part] += 1

    def medians(self, part: int) -> list[float]:
        """Return the median time of each layer; 0 before there is one [s]."""
        return [statistics.median(times[part]) if times[part] else 0.0 for times in self._s]

    # --------------------------------------------------------------------------------------------- what a micro-batch holds

    @contextmanager
    def holding(self, layer: int) -> Iterator[None]:
        """Count what a layer's forward pass keeps, in one micro-batch: the second, in which nothing is built any more."""
        if self._held_known or self._n[layer][0] != 1:
            yield
            return
        if self._seen is None:
            self._seen = set(self._own)
        seen = self._seen

        def pack(value: Any) -> Any:
            self._count(layer, value, seen)
            return value

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
            yield

    def output(self, layer: int, tensors: Iterable[Any]) -> None:
        """Take in a layer's output, which is kept too."""
        self.output_bytes[layer] = 0
        for one in tensors:
            self.output_bytes[layer] += one.numel() * one.element_size()
            if self._seen is not None:
                self._count(layer, one, self._seen)

    def passed(self) -> None:
        """Say that a micro-batch has gone through all layers."""
        if self._seen is not None:
            self._held_known, self._seen = True, None

    def _count(self, layer: int, value: Any, seen: set[int]) -> None:
        place = value.data_ptr()
        if place not in seen:
            seen.add(place)
            self.held_bytes[layer] += value.numel() * value.element_size()


class TransferTimes:
    """How long messages took from the moment in which the sender was known to have begun."""

    def __init__(self) -> None:
        self._found: dict[int, deque[tuple[int, float]]] = {}

    def add(self, size_bytes: int, seconds: float) -> None:
        """Add a transfer."""
        self._found.setdefault(size_bytes.bit_length(), deque(maxlen=KEPT_TRANSFERS)).append((size_bytes, seconds))

    def pairs(self) -> tuple[tuple[int, float], ...]:
        """Return (bytes, seconds) of the newest of each size."""
        return tuple(pair for size in sorted(self._found) for pair in self._found[size])
