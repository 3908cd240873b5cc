"""What saving costs on this machine: bounded windows of measurements, and predictions from them.

All values are immutable: adding a measurement returns a new value.
"""

from __future__ import annotations

import math
from functools import cached_property

from windfall.structs import Struct, replace
from windfall.terms import Phase

WINDOW_VALUES = 64
"""How many measurements a window holds; older ones are dropped, so that estimates follow a changing run."""
WINDOW_PAIRS = WINDOW_VALUES // 4
"""The same for pairs of numbers."""
DEFAULT_STALL_S = 1.0
"""Assumed stall of a save before one was measured [s]."""


class Window(Struct, frozen=True, dict=True):
    """The last `WINDOW_VALUES` values of a quantity; its statistics are computed once, on first use."""

    values: tuple[float, ...] = ()

    def add(self, value: float) -> Window:
        """Return the window with one more value, without the oldest if it is full."""
        if self.values.count(value) == WINDOW_VALUES:
            return self
        return Window((*self.values[1 - WINDOW_VALUES :], value))

    @cached_property
    def mean(self) -> float | None:
        """Arithmetic mean, None without values."""
        return math.fsum(self.values) / len(self.values) if self.values else None

    @cached_property
    def p95(self) -> float | None:
        """The smallest value that at least 95 % of the window do not exceed, None without values."""
        if not self.values:
            return None
        return sorted(self.values)[math.ceil(0.95 * len(self.values)) - 1]


class Steps(Struct, frozen=True, dict=True):
    """The newest windows of steps: (how many, their mean [s])."""

    values: tuple[tuple[int, float], ...] = ()

    def add(self, count: int, mean_s: float) -> Steps:
        """Return them with one more window, without the oldest if there are too many."""
        value = count, mean_s
        if self.values.count(value) == WINDOW_PAIRS:
            return self
        return Steps((*self.values[1 - WINDOW_PAIRS :], value))

    @cached_property
    def mean_s(self) -> float | None:
        """Mean time of a step [s], None without steps."""
        count = sum([count for count, _ in self.values])
        return math.fsum([count * mean for count, mean in self.values]) / count if count else None


class Uploads(Struct, frozen=True, dict=True):
    """The newest uploads: (size [B], duration [s])."""

    values: tuple[tuple[int, float], ...] = ()

    def __len__(self) -> int:
        return len(self.values)

    def add(self, size_bytes: int, duration_s: float) -> Uploads:
        """Return them with one more, without the oldest if there are too many."""
        value = size_bytes, duration_s
        if self.values.count(value) == WINDOW_PAIRS:
            return self
        return Uploads((*self.values[1 - WINDOW_PAIRS :], value))

    @cached_property
    def line(self) -> tuple[float, float]:
        """Latency [s] and time per byte [s/B]."""
        return _line(self.values)

    @cached_property
    def slowness(self) -> float:
        """The 95th percentile of actual over expected duration, at least 1."""
        latency_s, s_per_byte = self.line
        expected = [(latency_s + size * s_per_byte, duration_s) for size, duration_s in self.values]
        ratios = Window(tuple([duration_s / expected_s for expected_s, duration_s in expected if expected_s > 0.0]))
        return max(ratios.p95 or 1.0, 1.0)


_EMPTY_WINDOW, _NO_STEPS, _NO_UPLOADS = Window(), Steps(), Uploads()


class Costs(Struct, frozen=True):
    """Measurements of one machine.

    Attributes:
        step_windows: the newest windows of steps.
        step_longest: longest step of each window [s].
        steps: total steps measured; with `steps_s` [s] the running average of the thesis.
        phases: durations of each uninterruptible phase except steps [s].
        stalls: how long saves stalled the script [s].
        uploads: of the newest checkpoints.
        commits: durations of commits [s].
        state_bytes: size of the newest checkpoint [B]; None before the first.
    """

    step_windows: Steps = _NO_STEPS
    step_longest: Window = _EMPTY_WINDOW
    steps: int = 0
    steps_s: float = 0.0
    phases: tuple[tuple[Phase, Window], ...] = ()
    stalls: Window = _EMPTY_WINDOW
    uploads: Uploads = _NO_UPLOADS
    commits: Window = _EMPTY_WINDOW
    state_bytes: int | None = None

    def add_steps(self, count: int, mean_s: float, longest_s: float) -> Costs:
        """Return the costs with one more window of `count` steps.

        A script that saves before it ends a step reports steps of zero length, which do not count for the step time.
        """
        assert count > 0, "a window of steps has steps"
        return replace(
            self,
            step_windows=self.step_windows.add(count, mean_s) if mean_s > 0.0 else self.step_windows,
            step_longest=self.step_longest.add(longest_s),
            steps=self.steps + count,
            steps_s=self.steps_s + count * mean_s,
        )

    def add_phase(self, phase: Phase, duration_s: float) -> Costs:
        """Return the costs with one more duration of a phase."""
        known = dict(self.phases)
        known[phase] = known.get(phase, _EMPTY_WINDOW).add(duration_s)
        return replace(self, phases=tuple(sorted(known.items())))

    def add_stall(self, stall_s: float) -> Costs:
        """Return the costs with one more stall for a save."""
        stalls = self.stalls.add(stall_s)
        return self if stalls is self.stalls else replace(self, stalls=stalls)

    def add_upload(self, size_bytes: int, duration_s: float) -> Costs:
        """Return the costs with the upload of one more checkpoint."""
        uploads = self.uploads.add(size_bytes, duration_s)
        if uploads is self.uploads and size_bytes == self.state_bytes:
            return self
        return replace(self, uploads=uploads, state_bytes=size_bytes)

    def add_commit(self, duration_s: float) -> Costs:
        """Return the costs with one more commit."""
        commits = self.commits.add(duration_s)
        return self if commits is self.commits else replace(self, commits=commits)

    @property
    def step_mean_s(self) -> float | None:
        """Mean step time over the newest windows [s]."""
        return self.step_windows.mean_s

    @property
    def step_running_mean_s(self) -> float | None:
        """T_step = sum of all step times / their number (thesis, Algorithm 1, line 2) [s]."""
        return self.steps_s / self.steps if self.steps else None

    @property
    def step_p95_s(self) -> float | None:
        """95th percentile of the windows' longest steps [s]: an upper bound for single steps."""
        return self.step_longest.p95

    def phase_p95_s(self, phase: Phase) -> float | None:
        """Return the 95th percentile of a phase [s], None if it was never measured."""
        if phase is Phase.STEP:
            return self.step_p95_s
        if phase is Phase.SAVE:
            return self.stalls.p95
        return dict(self.phases).get(phase, _EMPTY_WINDOW).p95

    @property
    def stall_s(self) -> float:
        """Mean stall for a save [s]; `DEFAULT_STALL_S` before one was measured."""
        mean = self.stalls.mean
        return DEFAULT_STALL_S if mean is None else mean

    @property
    def measured(self) -> bool:
        """Whether a save has been measured from stall to commit on this machine."""
        return bool(self.stalls.values and self.uploads.values and self.commits.values)

    def upload_s(self, size_bytes: int) -> float:
        """Return the expected duration of an upload [s]: latency + size / rate, 0 before one was measured."""
        latency_s, s_per_byte = self.uploads.line
        return latency_s + size_bytes * s_per_byte

    def upload_p95_s(self, size_bytes: int) -> float:
        """Return the duration that 95 % of uploads of this size do not exceed [s]."""
        return self.upload_s(size_bytes) * self.uploads.slowness

    @property
    def to_durable_s(self) -> float:
        """Expected time from the start of a save to its commit, for a state of the last size [s]."""
        return self.stall_s + self.upload_s(self.state_bytes or 0) + (self.commits.mean or 0.0)


def _line(uploads: tuple[tuple[int, float], ...]) -> tuple[float, float]:
    """Return latency [s] and time per byte [s/B] of the least-squares line through (size, duration), both >= 0."""
    total_bytes = sum(size for size, _ in uploads)
    if not uploads or total_bytes == 0:
        return (math.fsum(duration for _, duration in uploads) / len(uploads) if uploads else 0.0), 0.0
    count = len(uploads)
    mean_bytes = total_bytes / count
    mean_s = math.fsum(duration for _, duration in uploads) / count
    spread = math.fsum((size - mean_bytes) ** 2 for size, _ in uploads)
    proportional = 0.0, mean_s / mean_bytes
    if spread < (0.05 * mean_bytes) ** 2 * count:
        return proportional
    slope = math.fsum((size - mean_bytes) * (duration - mean_s) for size, duration in uploads) / spread
    latency_s = mean_s - slope * mean_bytes
    if slope <= 0.0 or latency_s < 0.0:
        return proportional
    return latency_s, slope
