"""What the kernels know of a scenario, the state of a trial, and the rules of `policies.saving.rules`, compiled as they stand.

All of it is plain arrays and tuples of numbers, so that a kernel is compiled once and not for each job.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from windfall.models.losses import habit
from windfall.policies.saving import rules
from windfall.simulation.sampling import Floats, pack
from windfall.simulation.scenario import Scenario

NEVER: Final = 0
EVERY_STEPS: Final = 1
EVERY_S: Final = 2
ADAPTIVE: Final = 3
YOUNG: Final = 4
THESIS: Final = 5
OPTIMAL: Final = 6
INJECTED: Final = 7

insurance_step: Final = njit(rules.thesis_insurance_step)
thesis_interval_s: Final = njit(rules.thesis_interval_s)
thesis_fits: Final = njit(rules.thesis_emergency_fits)
young_interval_s: Final = njit(rules.young_interval_s)
adaptive_interval_s: Final = njit(rules.adaptive_interval_s)
fits: Final = njit(rules.emergency_fits)
scheduled_work_s: Final = njit(rules.scheduled_work_s)
scheduled_step: Final = njit(rules.scheduled_step)
learning_step: Final = njit(rules.learning_step)
time_to_step_s: Final = njit(rules.time_to_step_s)
agreed_step: Final = njit(rules.agreed_step)
worth_moving: Final = njit(rules.worth_moving)
leave_margin_s: Final = njit(rules.leave_margin_s)
too_late: Final = njit(rules.too_late)
must_yield: Final = njit(rules.must_yield)


class World(NamedTuple):
    """A scenario in numbers; names as in `Scenario` and `Believed`.

    Attributes:
        step_s, stall_s, upload_s, allocate_s, prepare_s: (low, high).
        kind, values, length_s, start_s: the lives, as `sampling.Packed`.
        policy: `NEVER`, ..., `INJECTED`.
        every: of `EVERY_STEPS` [steps] or `EVERY_S` [s].
        grace_s: the notice that the provider usually gives [s].
        unit: steps in a unit of the schedule.
        flat, offsets: of the schedule: work done at its saves, in units, of a machine that begins with j units left from
            `offsets[j]` to `offsets[j + 1]`.
    """

    steps: int
    machines: int
    step_s: tuple[float, float]
    stall_s: tuple[float, float]
    upload_s: tuple[float, float]
    allocate_s: tuple[float, float]
    prepare_s: tuple[float, float]
    kind: int
    values: Floats
    length_s: float
    start_s: float
    notice_s: float
    announced_share: float
    successor_at_notice: bool
    policy: int
    every: float
    mttp_s: float
    restart_s: float
    unannounced_share: float
    costs_known: bool
    grace_s: float
    unit: int
    flat: Floats
    offsets: NDArray[np.int64]


class Plan(NamedTuple):
    """A policy in numbers; fields as in `World`."""

    policy: int
    every: float = math.inf
    unit: int = 1
    flat: tuple[float, ...] = ()
    offsets: tuple[int, ...] = ()


def world_of(scenario: Scenario, plan: Plan) -> World:
    """Return a scenario in numbers."""
    kind, values, length_s, start_s = pack(scenario.lives)
    believed = scenario.believed
    ranges = (scenario.step_s, scenario.stall_s, scenario.upload_s, scenario.allocate_s, scenario.prepare_s)
    pairs = [(float(each.low_s), float(each.high_s)) for each in ranges]
    return World(
        steps=scenario.steps,
        machines=scenario.machines,
        step_s=pairs[0],
        stall_s=pairs[1],
        upload_s=pairs[2],
        allocate_s=pairs[3],
        prepare_s=pairs[4],
        kind=kind,
        values=np.ascontiguousarray(values, dtype=np.float64),
        length_s=float(length_s),
        start_s=float(start_s),
        notice_s=float(scenario.notice_s),
        announced_share=float(scenario.announced_share),
        successor_at_notice=scenario.successor_at_notice,
        policy=plan.policy,
        every=float(plan.every),
        mttp_s=float(believed.mttp_s),
        restart_s=float(believed.restart_s),
        unannounced_share=float(believed.unannounced_share),
        costs_known=believed.costs_known,
        grace_s=float(habit(scenario.provider).notice_s),
        unit=plan.unit,
        flat=np.array(plan.flat, dtype=np.float64),
        offsets=np.array(plan.offsets, dtype=np.int64),
    )


NONE: Final = -1
TRAINING: Final = 0
STALLED: Final = 1
STILL: Final = 2
"""What the ranks do: steps; standing still for a save; standing still after the last one."""

_F: Final = "f8"
_I: Final = "i8"
_B: Final = "?"
STATE: Final[Any] = np.dtype(
    [
        # the trial
        ("step_s", _F), ("stall_s", _F), ("upload_s", _F), ("offset_s", _F),
        ("now", _F), ("redo_s", _F), ("save_s", _F), ("allocate_s", _F), ("prepare_s", _F), ("billed_s", _F),
        ("preemptions", _I), ("late", _I), ("committed", _I), ("known", _B), ("done", _B), ("stuck", _B), ("saves", _I),
        # the spell: `phase` since `since`, when `step` steps were complete
        ("begun", _F), ("spell_save_s", _F), ("base", _I), ("phase", _I), ("since", _F), ("step", _I),
        # the worker
        ("interval_s", _F), ("table", _I), ("table_end", _I), ("anchor", _I), ("pending", _I), ("emergency", _B),
        ("held", _I), ("held_step", _I), ("measured", _B), ("stalls", _B), ("uploads", _B), ("commits", _B),
        # points
        ("active", _I), ("active_step", _I), ("active_last", _B), ("commit_at", _F), ("active_begun", _F),
        ("queued", _I), ("queued_step", _I), ("queued_last", _B),
        # the end of the spell
        ("outer", _F), ("noticed", _B), ("deadline", _F), ("leave_at", _F), ("leaving", _B), ("counted", _B),
    ]
)  # fmt: skip
"""The state of a trial: a row of numbers that the compiled functions change in place.

`active`, `queued` are places in the log, or `NONE`; `*_last` says whether a point's commit lets the run go.
"""
