"""What saving costs on this machine: bounded windows of measurements, and what they predict.

All values are immutable: adding a measurement gives a new value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from windfall.terms import Phase

WINDOW = 64
"""How many measurements a window holds; older ones are forgotten, so that estimates follow a changing run."""
DEFAULT_STALL_S = 1.0
"""Time that a save holds the script up, before one was measured [s]."""


@dataclass(frozen=True, slots=True)
class Window:
    """The last `WINDOW` values of a quantity."""

    values: tuple[float, ...] = ()

    def add(self, value: float) -> Window:
        """Return the window with one more value, the oldest forgotten if it is full."""
        return Window((*self.values, value)[-WINDOW:])

    @property
    def mean(self) -> float | None:
        """Arithmetic mean, None without values."""
        return math.fsum(self.values) / len(self.values) if self.values else None

    @property
    def p95(self) -> float | None:
        """The smallest value that at least 95 % of the window do not exceed, None without values."""
        if not self.values:
            return None
        return sorted(self.values)[math.ceil(0.95 * len(self.values)) - 1]


@dataclass(frozen=True, slots=True)
class Costs:
    """Measurements of one machine.

    Attributes:
        step_windows: (steps, mean [s]) of the newest windows of steps.
        step_longest: longest step of each window [s].
        steps: steps measured in all; with `steps_s` [s] the running average of the thesis.
        phases: durations of each uninterruptible phase but steps [s].
        stalls: how long the script stood still for a save [s].
        uploads: (size [B], duration [s]) of the newest points.
        commits: durations of commits [s].
        state_bytes: size of the newest point [B]; None before the first.
    """

    step_windows: tuple[tuple[int, float], ...] = ()
    step_longest: Window = field(default_factory=Window)
    steps: int = 0
    steps_s: float = 0.0
    phases: tuple[tuple[Phase, Window], ...] = ()
    stalls: Window = field(default_factory=Window)
    uploads: tuple[tuple[int, float], ...] = ()
    commits: Window = field(default_factory=Window)
    state_bytes: int | None = None

    def add_steps(self, count: int, mean_s: float, longest_s: float) -> Costs:
        """Return the costs with a window of `count` steps more."""
        assert count > 0, "a window of steps has steps"
        return replace(
            self,
            step_windows=(*self.step_windows, (count, mean_s))[-WINDOW // 4 :],
            step_longest=self.step_longest.add(longest_s),
            steps=self.steps + count,
            steps_s=self.steps_s + count * mean_s,
        )

    def add_phase(self, phase: Phase, duration_s: float) -> Costs:
        """Return the costs with one more duration of a phase."""
        known = dict(self.phases)
        known[phase] = known.get(phase, Window()).add(duration_s)
        return replace(self, phases=tuple(sorted(known.items())))

    def add_stall(self, stall_s: float) -> Costs:
        """Return the costs with one more standstill for a save."""
        return replace(self, stalls=self.stalls.add(stall_s))

    def add_upload(self, size_bytes: int, duration_s: float) -> Costs:
        """Return the costs with the upload of one more point."""
        uploads = (*self.uploads, (size_bytes, duration_s))[-WINDOW // 4 :]
        return replace(self, uploads=uploads, state_bytes=size_bytes)

    def add_commit(self, duration_s: float) -> Costs:
        """Return the costs with one more commit."""
        return replace(self, commits=self.commits.add(duration_s))

    @property
    def step_mean_s(self) -> float | None:
        """Mean step time over the newest windows [s]."""
        count = sum(count for count, _ in self.step_windows)
        return math.fsum(count * mean for count, mean in self.step_windows) / count if count else None

    @property
    def step_running_mean_s(self) -> float | None:
        """T_step = sum of all step times / their number (thesis, Algorithm 1, line 2) [s]."""
        return self.steps_s / self.steps if self.steps else None

    @property
    def step_p95_s(self) -> float | None:
        """95th percentile of the windows' longest steps [s]: an upper bound of the steps' own."""
        return self.step_longest.p95

    def phase_p95_s(self, phase: Phase) -> float | None:
        """Return the 95th percentile of a phase [s], None if it was never measured."""
        if phase is Phase.STEP:
            return self.step_p95_s
        if phase is Phase.SAVE:
            return self.stalls.p95
        return dict(self.phases).get(phase, Window()).p95

    @property
    def stall_s(self) -> float:
        """Mean standstill for a save [s]; `DEFAULT_STALL_S` before one was measured."""
        mean = self.stalls.mean
        return DEFAULT_STALL_S if mean is None else mean

    @property
    def measured(self) -> bool:
        """Whether a save has been measured from standstill to commit on this machine."""
        return bool(self.stalls.values and self.uploads and self.commits.values)

    def upload_s(self, size_bytes: int) -> float:
        """Return the expected duration of an upload [s]: latency + size / rate, 0 before one was measured."""
        latency_s, s_per_byte = _line(self.uploads)
        return latency_s + size_bytes * s_per_byte

    def upload_p95_s(self, size_bytes: int) -> float:
        """Return the duration that 95 % of uploads of this size do not exceed [s]."""
        ratios = Window()
        for size, duration_s in self.uploads:
            expected_s = self.upload_s(size)
            if expected_s > 0.0:
                ratios = ratios.add(duration_s / expected_s)
        return self.upload_s(size_bytes) * max(ratios.p95 or 1.0, 1.0)

    @property
    def to_durable_s(self) -> float:
        """From the begin of a save to its commit, as expected for a state of the last size [s]."""
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
