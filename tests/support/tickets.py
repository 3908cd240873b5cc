"""A toy runtime that needs all of the frame: machines of two roles take numbers from a counter (`ticket_counter`).

A clerk, on a machine that cannot be preempted, hands out numbers; takers, on machines that can, do them, each by itself.
Two takers are a gang.  The fleet policy `queue` lets the takers rise and fall with the numbers left, the prices and a
tide, and lets old machines go by choice.  Both are registered as another package would do it, by entry points.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import EntryPoint
from typing import Any
from unittest.mock import patch

from msgspec import field

from tests.support import ticket_training
from windfall.errors import Misuse
from windfall.events import ComparedValue, Decision
from windfall.fleet import Slot
from windfall.jobs import Job, Resources, RuntimeSpec, Work
from windfall.models import asp
from windfall.policies import policy_registry
from windfall.policies.acquisition.fleet_policy import (
    FleetEstimates,
    FleetMachine,
    FleetTarget,
    FleetView,
    MachineDrain,
)
from windfall.policies.layout.membership import ALONE
from windfall.policies.layout.runtime_list import Placement, RuntimeRules, Scaling
from windfall.policies.policy_registry import GROUPS, PolicyKind
from windfall.structs import Struct
from windfall.terms import Instant, Reliability, Unit

NAME, POLICY = "tickets", "queue"
CLERK, TAKER = "clerk", "taker"
CLERK_SLOT = Slot("clerk", CLERK, Reliability.RELIABLE)


class QueueSettings(Struct, frozen=True):
    """The settings of a job of tickets.

    Attributes:
        numbers: how many there are to do.
        takers_max: how many takers besides the gang.
        numbers_per_taker: a taker more for so many numbers left.
        price_max: of a taker [USD/h]; above it there is only one, and no gang.
        tide_s: the takers are one fewer in every second stretch of this length, the gang rests in every third.
        pair_from: the gang is there while more numbers than this are left.
        age_max_s: an older machine is let go by choice [s].
        leave_s: how long it may take to leave [s].
        core_s: how long a core takes for a number [s]; 0 if that is unknown.
        loss_scale: of a training whose iterations the numbers are (`ticket_training`); 0 if they are none.
        loss_goal: with which it is over, before all numbers are done.
        work_s: how long a taker on each machine type takes for a number of it [s].
    """

    numbers: int = 60
    takers_max: int = 3
    numbers_per_taker: int = 10
    price_max: float = math.inf
    tide_s: float = 60.0
    pair_from: int = 20
    age_max_s: float = 150.0
    leave_s: float = 120.0
    core_s: float = 0.0
    loss_scale: float = 0.0
    loss_goal: float = 0.0
    work_s: Mapping[str, float] = field(default_factory=dict)


def settings(job: Job) -> QueueSettings:
    """Return a job's settings."""
    return QueueSettings(**job.runtime.settings)


def job(job_id: str, given: QueueSettings, **more: object) -> Job:
    """Return a job of tickets."""
    chosen = {name: getattr(given, name) for name in given.__struct_fields__ if getattr(given, name) != math.inf}
    spec = RuntimeSpec(NAME, chosen)
    return Job(job_id, job_id, "ada", "memory://run", ("take",), (Resources(),), runtime=spec, fleet=POLICY, **more)  # type: ignore[arg-type]


LOSS_FLOOR = 0.1
"""The loss that no number of tickets goes below."""


def work_to_loss(job: Job) -> Work:
    """Return the numbers to do until a loss: after n of them it is 0.1 + 9 / n; in a training, those of one worker."""
    if scale := settings(job).loss_scale:
        model = ticket_training.model(scale, dict(settings(job).work_s))
        one = [1] + [0] * (len(model.types) - 1)
        return Work(float(asp.iterations_for(model, one, job.objective.loss or 0.0)), Unit.STEP)
    above = (job.objective.loss or 0.0) - LOSS_FLOOR
    if above <= 0.0:
        raise Misuse(f"objective.loss {job.objective.loss:g} is never reached: the loss stays above {LOSS_FLOOR:g}")
    return Work(9.0 / above, Unit.STEP)


def _scaling(given: QueueSettings) -> Scaling:
    speed = 1.0 / given.core_s if given.core_s else None
    return Scaling(1, given.takers_max, TAKER, reliable=1, reliable_role=CLERK, work_per_core_s=speed)


def _assignment(given: QueueSettings, slot: Slot, placed: Mapping[str, Placement]) -> dict[str, Any]:
    """Return where the clerk is, and how long a taker takes for a number of a training."""
    told: dict[str, Any] = {"clerk": next((one.address for one in placed.values() if one.role == CLERK), "")}
    if slot.wants and given.work_s:
        told["work_s"] = given.work_s[slot.wants[0][1]]
    return told


RULES = RuntimeRules(
    NAME,
    "numbers from a counter, each done once",
    (CLERK, TAKER),
    lambda _: (CLERK_SLOT, Slot("taker-0", TAKER, Reliability.TRANSIENT)),
    lambda _: ALONE,
    live="tests.support.tickets_live:open_runtime",
    program="tests.support.tickets_program",
    assign=lambda job, slot, placed: _assignment(settings(job), slot, placed),
    reliable_roles=(CLERK,),
    scaling=lambda job: _scaling(settings(job)),
    work_to_loss=work_to_loss,
    training=lambda job: ticket_training.model(settings(job).loss_scale, dict(settings(job).work_s)),
)


# ----------------------------------------------------------------------------------------------------------- the policy


def queue(view: FleetView, estimates: FleetEstimates) -> FleetTarget:
    """Return the fleet for the numbers that are left."""
    del estimates
    given = settings(view.job)
    left = given.numbers - (0 if view.progress is None else int(view.progress.done.amount))
    price = min(
        (one.price_usd_per_hour for one in view.offers if one.reliability is Reliability.TRANSIENT), default=0.0
    )
    takers, paired = _wish(given, left, price, view.now)
    needs = _needs(view, takers, paired=paired)
    tide = math.floor(view.now / given.tide_s) + 1
    decision = None
    if needs is not view.needs:
        numbers = (ComparedValue("numbers left", left, ""), ComparedValue("price", price, "USD/h"))
        choice = f"{takers} takers{' and a pair' if paired else ''}"
        decision = Decision(POLICY, 1, choice, numbers, (f"{len(view.needs)} slots as before",))
    releases = _releases(view, given)
    ages = [one.started + given.age_max_s for one in view.machines() if one.started is not None]
    wake_s = min(tide * given.tide_s, *(old for old in ages if old > view.now), math.inf)
    return FleetTarget(needs, releases, wake_at=Instant(wake_s), decision=decision)


def _wish(given: QueueSettings, left: int, price: float, now: float) -> tuple[int, bool]:
    """Return how many takers to have besides the gang, and whether to have the gang."""
    if price > given.price_max:
        return 1, False
    tide = math.floor(now / given.tide_s)
    takers = min(math.ceil(left / given.numbers_per_taker), given.takers_max) - tide % 2
    return max(takers, 1), left > given.pair_from and tide % 3 != 2


def _needs(view: FleetView, takers: int, *, paired: bool) -> tuple[Slot, ...]:
    """Return the slots; the very same object if they are the ones that there are."""
    single = [slot for slot in view.needs if slot.role == TAKER and not slot.gang]
    pair = [slot for slot in view.needs if slot.gang]
    stamp = int(1000 * view.now)  # the id of a slot is never used again, and a policy remembers nothing
    new = [Slot(f"taker-{stamp}-{n}", TAKER, Reliability.TRANSIENT) for n in range(takers - len(single))]
    gang = f"pair-{stamp}"
    if paired and not pair:
        pair = [Slot(f"{gang}-{n}", TAKER, Reliability.TRANSIENT, gang=gang) for n in range(2)]
    needs = (CLERK_SLOT, *single[:takers], *new, *(pair if paired else []))
    return view.needs if needs == view.needs else needs


def _releases(view: FleetView, given: QueueSettings) -> tuple[MachineDrain, ...]:
    """Let the oldest machine go if it is too old, one at a time."""
    machines: Sequence[FleetMachine] = view.machines()
    if any(one.ends_at is not None for one in machines):
        return ()
    old = [
        one for one in machines if one.ready and one.started is not None and view.now >= one.started + given.age_max_s
    ]
    if not old:
        return ()
    oldest = min(old, key=lambda one: (one.started, one.machine_id))
    return (MachineDrain(oldest.machine_id, Instant(view.now + given.leave_s), "it is old"),)


# ------------------------------------------------------------------------------------------------------ the registration

_POINTS = {
    GROUPS[PolicyKind.RUNTIME]: EntryPoint(NAME, f"{__name__}:RULES", GROUPS[PolicyKind.RUNTIME]),
    GROUPS[PolicyKind.FLEET]: EntryPoint(POLICY, f"{__name__}:queue", GROUPS[PolicyKind.FLEET]),
}


@contextmanager
def installed() -> Iterator[None]:
    """Register runtime and policy, as if a package with their entry points were installed."""
    caches = (policy_registry.entries, policy_registry.load)
    for cache in caches:
        cache.cache_clear()
    with patch.object(policy_registry, "entry_points", lambda group: [_POINTS[group]]):
        yield
    for cache in caches:
        cache.cache_clear()
