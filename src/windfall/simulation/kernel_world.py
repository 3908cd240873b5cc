"""What the kernels know of a scenario, the state of a trial, and the rules of `policies.saving.rules`, compiled as they stand.

All of it is plain arrays and tuples of numbers, so that a kernel is compiled once and not for each job.
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

from windfall.models.losses import Losses
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

part: Final[Any] = functools.partial(njit, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""Compiled for other compiled functions alone, without a face for Python: that halves the time to compile."""


def _calling(rule: Callable[..., float], **others: Any) -> Any:
    """Compile a rule that calls others: it is given the compiled ones in their place."""
    assert isinstance(rule, FunctionType), "rules are plain functions"
    return part(FunctionType(rule.__code__, {**rule.__globals__, **others}, rule.__name__))


insurance_step: Final[Any] = part(rules.thesis_insurance_step)
thesis_interval_s: Final[Any] = part(rules.thesis_interval_s)
thesis_fits: Final[Any] = part(rules.thesis_emergency_fits)
young_interval_s: Final[Any] = part(rules.young_interval_s)
adaptive_interval_s: Final[Any] = part(rules.adaptive_interval_s)
believed_interval_s: Final[Any] = _calling(
    rules.believed_interval_s,
    adaptive_interval_s=adaptive_interval_s,
    uncovered_share=part(rules.uncovered_share),
    longest_interval_s=_calling(rules.longest_interval_s, hearsay_harms=part(rules.hearsay_harms)),
)
fits: Final[Any] = part(rules.emergency_fits)
scheduled_work_s: Final[Any] = part(rules.scheduled_work_s)
scheduled_step: Final[Any] = part(rules.scheduled_step)
learning_step: Final[Any] = part(rules.learning_step)
time_to_step_s: Final[Any] = part(rules.time_to_step_s)
agreed_step: Final[Any] = part(rules.agreed_step)
worth_moving: Final[Any] = part(rules.worth_moving)
leave_margin_s: Final[Any] = part(rules.leave_margin_s)
lets_go: Final[Any] = part(rules.lets_go)
must_yield: Final[Any] = part(rules.must_yield)


class Plan(NamedTuple):
    """A policy in numbers.

    Attributes:
        policy: `NEVER`, ..., `INJECTED`.
        every: of `EVERY_STEPS` [steps] or `EVERY_S` [s].
        unit: steps in a unit of the schedule.
        flat, offsets: the schedule: work done at its saves, in units, of a machine that begins with j units left from
            `offsets[j]` to `offsets[j + 1]`.
    """

    policy: int
    every: float = math.inf
    unit: int = 1
    flat: tuple[float, ...] = ()
    offsets: tuple[int, ...] = ()


class Tables(NamedTuple):
    """What is too long for a record: `values` of the lives (`sampling.Packed`), `flat` and `offsets` of the schedule."""

    values: Floats
    flat: Floats
    offsets: NDArray[np.int64]


class Machines(NamedTuple):
    """The machines of a trial, a row or an entry for each slot: `kernel_machines` says what is in a row.

    Attributes:
        slots: lengths of time.
        numbers: how many machines there were before the present one.
        tables: of the lives.
    """

    slots: Floats
    numbers: NDArray[np.int64]
    tables: Tables


_F: Final = "f8"
_I: Final = "i8"
_B: Final = "?"
WORLD: Final[Any] = np.dtype(
    [
        ("steps", _I), ("machines", _I),
        ("step_low", _F), ("step_high", _F), ("stall_low", _F), ("stall_high", _F), ("upload_low", _F),
        ("upload_high", _F), ("allocate_low", _F), ("allocate_high", _F), ("prepare_low", _F), ("prepare_high", _F),
        ("kind", _I), ("length_s", _F), ("start_s", _F), ("notice_s", _F), ("announced_share", _F), ("at_notice", _B),
        ("to_notice", _B),
        ("policy", _I), ("every", _F), ("unit", _I),
        ("mttp_s", _F), ("restart_s", _F), ("costs_known", _B),
        ("grace_s", _F), ("grace_given", _B), ("said_losses", _F), ("said_announced", _F), ("learns", _B),
    ],
    align=True,
)  # fmt: skip
"""A scenario in numbers; names as in `Scenario`, `Believed`, `Plan`.  `grace_s`: the notice that was told, or the provider's
usual one; `said_losses`, `said_announced`: what it weighs, and for how many of these a notice is promised."""

NONE: Final = -1
TRAINING: Final = 0
STALLED: Final = 1
STILL: Final = 2
"""What the ranks do: steps; standing still for a save; standing still after the last one."""

STATE: Final[Any] = np.dtype(
    [
        # the trial
        ("key", "u8"), ("step_s", _F), ("stall_s", _F), ("upload_s", _F), ("offset_s", _F),
        ("now", _F), ("redo_s", _F), ("save_s", _F), ("allocate_s", _F), ("prepare_s", _F), ("billed_s", _F),
        ("preemptions", _I), ("committed", _I), ("losses", _I), ("announced", _I),
        ("known", _B), ("done", _B), ("stuck", _B), ("saves", _I), ("last", _I),
        # the spell: `phase` since `since`, when `step` steps were complete
        ("begun", _F), ("let_go", _F), ("spell_save_s", _F), ("base", _I), ("phase", _I), ("since", _F), ("step", _I),
        # the worker
        ("interval_s", _F), ("belief", _I), ("believed_s", _F),
        ("table", _I), ("table_end", _I), ("anchor", _I), ("pending", _I), ("emergency", _B),
        ("held", _I), ("held_step", _I), ("measured", _B), ("stalls", _B), ("uploads", _B), ("commits", _B),
        # points
        ("active", _I), ("active_step", _I), ("active_last", _B), ("commit_at", _F), ("active_begun", _F),
        ("queued", _I), ("queued_step", _I), ("queued_last", _B),
        # the end of the spell
        ("end_at", _F), ("noticed", _B), ("deadline", _F), ("leave_at", _F), ("counted", _B),
    ],
    align=True,
)  # fmt: skip
"""The state of a trial: a record that the compiled functions change in place.

`last`: which machine was lost last, where there is but one.  `losses`, `announced`: of the run, by which machines learn.
`believed_s`: the interval by what is believed, as long as what is known is that of `belief`.
`active`, `queued` are places in the log, or `NONE`; `*_last` says whether a point's commit lets the run go.
"""


def numbers_of(scenario: Scenario, plan: Plan) -> tuple[Any, Tables]:
    """Return a scenario in numbers: a record of `WORLD`, and its tables."""
    kind, values, length_s, start_s = pack(scenario.lives)
    believed = scenario.believed
    said = Losses(scenario.provider, share_given=believed.unannounced_share, notice_given_s=believed.notice_s)
    w = np.zeros(1, WORLD)
    for name in ("step", "stall", "upload", "allocate", "prepare"):
        length = getattr(scenario, f"{name}_s")
        w[f"{name}_low"], w[f"{name}_high"] = length.low_s, length.high_s
    for name in ("steps", "machines", "notice_s", "announced_share"):
        w[name] = getattr(scenario, name)
    for name in ("mttp_s", "restart_s", "costs_known", "learns"):
        w[name] = getattr(believed, name)
    for name in ("policy", "every", "unit"):
        w[name] = getattr(plan, name)
    w["kind"], w["length_s"], w["start_s"] = kind, length_s, start_s
    w["at_notice"], w["to_notice"] = scenario.successor_at_notice, scenario.life_to_notice
    w["grace_s"], w["grace_given"] = said.notice_s, believed.notice_s is not None
    w["said_losses"], w["said_announced"] = said.said_losses, said.said_covered(-1.0)
    flat, offsets = np.array(plan.flat, dtype=np.float64), np.array(plan.offsets, dtype=np.int64)
    return w[0], Tables(np.ascontiguousarray(values, dtype=np.float64), flat, offsets)
