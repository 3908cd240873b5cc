"""Scenario, trial state and scalar rules (`policies.checkpointing.rules`) as the kernels compile them.

The kernels are a second, compiled implementation of the workers' and the driver's decisions; the agreement tests
(`tests/simulation/test_agreement.py`) hold them equal to the event engine, which runs the reducers themselves.  Only the
scalar rules are shared code.  All data are plain arrays and tuples of numbers, so that a kernel is compiled once and not
for each job.

The rows that the kernels pass to each other: one per trial, with its stage and the data that the next kernel needs.

A row starts as zeros, with `LAST` -1 and `KNOWN` from the scenario.  Its first columns are the outcomes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from types import FunctionType
from typing import Any, Final, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from windfall.models.preemption_rates import PreemptionHistory
from windfall.policies.checkpointing import rules
from windfall.policies.policy_registry import KernelCode
from windfall.simulation import random_draws
from windfall.simulation.sampling import Floats, pack, within
from windfall.simulation.scenario import Scenario

NEVER: Final = int(KernelCode.NEVER)
EVERY_STEPS: Final = int(KernelCode.EVERY_STEPS)
EVERY_S: Final = int(KernelCode.EVERY_S)
ADAPTIVE: Final = int(KernelCode.ADAPTIVE)
YOUNG: Final = int(KernelCode.YOUNG)
THESIS: Final = int(KernelCode.THESIS)
OPTIMAL: Final = int(KernelCode.OPTIMAL)
INJECTED: Final = int(KernelCode.INJECTED)

part: Final[Any] = functools.partial(njit, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""Compile for other compiled functions alone, without an entry point for Python: that halves the compile time."""


def _calling(rule: Callable[..., float], **others: Any) -> Any:
    """Compile a rule that calls other rules, with the compiled ones in their place."""
    assert isinstance(rule, FunctionType), "rules are plain functions"
    return part(FunctionType(rule.__code__, {**rule.__globals__, **others}, rule.__name__))


insurance_step: Final[Any] = part(rules.thesis_insurance_step)
thesis_interval_s: Final[Any] = part(rules.thesis_interval_s)
thesis_fits: Final[Any] = part(rules.thesis_emergency_fits)
young_interval_s: Final[Any] = part(rules.young_interval_s)
adaptive_interval_s: Final[Any] = part(rules.adaptive_interval_s)
estimated_interval_s: Final[Any] = _calling(
    rules.estimated_interval_s,
    adaptive_interval_s=adaptive_interval_s,
    uncovered_share=part(rules.uncovered_share),
    longest_interval_s=_calling(rules.longest_interval_s, prior_too_costly=part(rules.prior_too_costly)),
)
fits: Final[Any] = part(rules.emergency_fits)
scheduled_work_s: Final[Any] = part(rules.scheduled_work_s)
scheduled_step: Final[Any] = part(rules.scheduled_step)
learning_step: Final[Any] = part(rules.learning_step)
time_to_step_s: Final[Any] = part(rules.time_to_step_s)
agreed_step: Final[Any] = part(rules.agreed_step)
worth_moving: Final[Any] = part(rules.worth_moving)
release_margin_s: Final[Any] = part(rules.release_margin_s)
releases_now: Final[Any] = part(rules.releases_now)
must_yield: Final[Any] = part(rules.must_yield)


class KernelPlan(NamedTuple):
    """A policy in numbers.

    Attributes:
        policy: `NEVER`, ..., `INJECTED`.
        every: of `EVERY_STEPS` [steps] or `EVERY_S` [s].
        unit: steps in a unit of the schedule.
        flat, offsets: the schedule: work done at its saves, in units, of a machine that starts with j units left from
            `offsets[j]` to `offsets[j + 1]`.
    """

    policy: int
    every: float = math.inf
    unit: int = 1
    flat: tuple[float, ...] = ()
    offsets: tuple[int, ...] = ()


class KernelTables(NamedTuple):
    """Data too long for a record.

    Attributes:
        values: of the lifetimes (`sampling.PackedLifetimes`).
        flat, offsets: of the schedule, as in `KernelPlan`.
    """

    values: Floats
    flat: Floats
    offsets: NDArray[np.int64]


class KernelMachines(NamedTuple):
    """The machines of a trial, a row or an entry for each slot: `kernel_machines` describes a row.

    Attributes:
        slots: lengths of time.
        numbers: how many machines each slot had before its present one.
        tables: of the lifetimes.
    """

    slots: Floats
    numbers: NDArray[np.int64]
    tables: KernelTables


_F: Final = "f8"
_I: Final = "i8"
_B: Final = "?"
WORLD: Final[Any] = np.dtype(
    [
        ("steps", _I), ("machines", _I),
        ("step_low", _F), ("step_high", _F), ("stall_low", _F), ("stall_high", _F), ("upload_low", _F),
        ("upload_high", _F), ("allocate_low", _F), ("allocate_high", _F), ("prepare_low", _F), ("prepare_high", _F),
        ("kind", _I), ("length_s", _F), ("start_s", _F), ("notice_s", _F), ("announced_share", _F), ("at_notice", _B),
        ("ends_at_notice", _B),
        ("policy", _I), ("every", _F), ("unit", _I),
        ("mttp_s", _F), ("restart_s", _F), ("costs_known", _B),
        ("grace_s", _F), ("grace_given", _B), ("prior_losses", _F), ("prior_announced", _F), ("learns", _B),
    ],
    align=True,
)  # fmt: skip
"""A scenario as numbers; names as in `Scenario`, `WorkerEstimates`, `KernelPlan`.

`grace_s`: the stated notice, or the provider's usual one; `prior_losses`, `prior_announced`: its weight, and how many
of these come with a notice.
"""

NONE: Final = -1
TRAINING: Final = 0
STALLED: Final = 1
STILL: Final = 2
"""State of the ranks: steps; stalled for a save; stalled after the last save."""

STATE: Final[Any] = np.dtype(
    [
        # the trial
        ("key", "u8"), ("step_s", _F), ("stall_s", _F), ("upload_s", _F), ("offset_s", _F),
        ("now", _F), ("redo_s", _F), ("save_s", _F), ("allocate_s", _F), ("prepare_s", _F), ("billed_s", _F),
        ("preemptions", _I), ("committed", _I), ("losses", _I), ("announced", _I),
        ("known", _B), ("done", _B), ("stuck", _B), ("saves", _I), ("last", _I),
        # the interval of training: `phase` since `since`, when `step` steps were complete
        ("started", _F), ("released", _F), ("interval_save_s", _F), ("base", _I), ("phase", _I), ("since", _F), ("step", _I),
        # the worker
        ("interval_s", _F), ("estimate_key", _I), ("estimated_s", _F),
        ("table", _I), ("table_end", _I), ("anchor", _I), ("pending", _I), ("emergency", _B),
        ("held", _I), ("held_step", _I), ("measured", _B), ("stalls", _B), ("uploads", _B), ("commits", _B),
        # checkpoints
        ("active", _I), ("active_step", _I), ("active_last", _B), ("commit_at", _F), ("active_since", _F),
        ("queued", _I), ("queued_step", _I), ("queued_last", _B),
        # the end of the interval
        ("end_at", _F), ("noticed", _B), ("deadline", _F), ("leave_at", _F), ("counted", _B),
    ],
    align=True,
)  # fmt: skip
"""The state of a trial: a record that the compiled functions change in place.

`last`: the last lost machine, where there is only one at a time.  `losses`, `announced`: of the run; workers learn from them.
`estimated_s`: the interval by the estimates; valid while `estimate_key` is the set of known costs.
`active`, `queued`: places in the log, or `NONE`; `*_last`: whether the commit of that checkpoint releases the run.
"""


def numbers_of(scenario: Scenario, plan: KernelPlan) -> tuple[Any, KernelTables]:
    """Return a scenario as numbers: a record of `WORLD`, and its tables."""
    kind, values, length_s, start_s = pack(scenario.lifetimes)
    estimates = scenario.estimates
    losses = PreemptionHistory(
        scenario.provider, share_given=estimates.unannounced_share, notice_given_s=estimates.notice_s
    )
    w = np.zeros(1, WORLD)
    for name in ("step", "stall", "upload", "allocate", "prepare"):
        length = getattr(scenario, f"{name}_s")
        w[f"{name}_low"], w[f"{name}_high"] = length.low_s, length.high_s
    for name in ("steps", "machines", "notice_s", "announced_share"):
        w[name] = getattr(scenario, name)
    for name in ("mttp_s", "restart_s", "costs_known", "learns"):
        w[name] = getattr(estimates, name)
    for name in ("policy", "every", "unit"):
        w[name] = getattr(plan, name)
    w["kind"], w["length_s"], w["start_s"] = kind, length_s, start_s
    w["at_notice"], w["ends_at_notice"] = scenario.successor_at_notice, scenario.lifetime_ends_at_notice
    w["grace_s"], w["grace_given"] = losses.notice_s, estimates.notice_s is not None
    w["prior_losses"], w["prior_announced"] = losses.prior_losses, losses.prior_covered(-1.0)
    flat, offsets = np.array(plan.flat, dtype=np.float64), np.array(plan.offsets, dtype=np.int64)
    return w[0], KernelTables(np.ascontiguousarray(values, dtype=np.float64), flat, offsets)


# mypy: disable-error-code="no-untyped-def"


OUTCOMES: Final = 7
"""Finish, billed, redo, save, allocate, prepare [s], preemptions: as in `outcomes.Trials`."""
COMMITTED: Final = 7
LAST: Final = 8
KNOWN: Final = 9
STAGE: Final = 10
"""Newest stored step; the last lost machine, where there is only one at a time; whether save costs are known; the stage."""
LOSSES: Final = 11
ANNOUNCED: Final = 12
"""Losses of the run, and those with a notice."""
COLUMNS: Final = 13
JUMPING, WALKING, OVER, STUCK, REFUSED = 0.0, 1.0, 2.0, 3.0, 4.0
"""Stages: continue in `kernel_alone`; in `kernel_trial`; over; too many machines; the policy gave no interval."""


def rows_of(trials: int, costs_known: bool, stage: float) -> Floats:
    """Return rows of trials that have not started."""
    rows: Floats = np.zeros((trials, COLUMNS))
    rows[:, LAST], rows[:, KNOWN], rows[:, STAGE] = -1.0, costs_known, stage
    return rows


@part(forceinline=True)
def draw(w, s):
    """Draw the values that a trial draws once."""
    s.step_s = within(w.step_low, w.step_high, s.key, random_draws.STEP, 0)
    s.stall_s = within(w.stall_low, w.stall_high, s.key, random_draws.STALL, 0)
    s.upload_s = within(w.upload_low, w.upload_high, s.key, random_draws.UPLOAD, 0)
    s.offset_s = w.start_s
    if math.isnan(w.start_s):
        s.offset_s = w.length_s * random_draws.uniform(s.key, random_draws.OFFSET, 0)


@part(inline="always")
def read(s, rows, place):
    """Load a trial's state from its row."""
    s.now, s.billed_s, s.redo_s, s.save_s = rows[place, 0], rows[place, 1], rows[place, 2], rows[place, 3]
    s.allocate_s, s.prepare_s, s.preemptions = rows[place, 4], rows[place, 5], int(rows[place, 6])
    s.committed, s.last, s.known = int(rows[place, COMMITTED]), int(rows[place, LAST]), rows[place, KNOWN] != 0.0
    s.losses, s.announced = int(rows[place, LOSSES]), int(rows[place, ANNOUNCED])
    s.done, s.stuck, s.saves, s.released = False, False, 0, 0.0


@part(inline="always")
def write(s, rows, place, stage):
    """Store a trial's state in its row."""
    rows[place, 0], rows[place, 1], rows[place, 2], rows[place, 3] = s.now, s.billed_s, s.redo_s, s.save_s
    rows[place, 4], rows[place, 5], rows[place, 6] = s.allocate_s, s.prepare_s, s.preemptions
    rows[place, COMMITTED], rows[place, LAST], rows[place, KNOWN] = s.committed, s.last, s.known
    rows[place, LOSSES], rows[place, ANNOUNCED] = s.losses, s.announced
    rows[place, STAGE] = stage
