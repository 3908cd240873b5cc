"""When to request a save from the script: the saving policies, each a pure function of view and estimates.

`policies.policy_registry` has their names.  An entry names one of this module's `SavingPolicy` values, or a scalar rule of
`rules`: from the stall of a save [s] and the mean time to preemption [s] to the interval [s].
"""

from __future__ import annotations

import difflib
import functools
import math
import re
from collections.abc import Callable

from windfall.errors import Misuse
from windfall.events import ComparedValue, Decision
from windfall.models.costs import Costs
from windfall.models.preemption_rates import PreemptionHistory
from windfall.policies import policy_registry
from windfall.policies.checkpointing import rules
from windfall.policies.policy_registry import EVERY as EVERY_NAME
from windfall.policies.policy_registry import PolicyKind
from windfall.structs import Struct
from windfall.terms import Instant, Phase, SaveKind, SaveTable

VERSION = 1
_EVERY = re.compile(rf"{EVERY_NAME}[ :=]+(.+)")
_EVERY_PREFIX = f"{EVERY_NAME}:"
_COUNT = re.compile(r"(\d+) *(?:steps?)?")
_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?) *(?:h|hours?))? *(?:(\d+(?:\.\d+)?) *(?:m|min|minutes?))? *"
                       r"(?:(\d+(?:\.\d+)?) *(?:s|seconds?))?")  # fmt: skip


class RankProgress(Struct, frozen=True):
    """A rank's progress: complete steps, its phase, and how long it has been in that phase [s]."""

    step: int
    phase: Phase
    elapsed_s: float


class SavingView(Struct, frozen=True):
    """The input of the saving policies.

    Attributes:
        policy: canonical name (`parse_policy`).
        running_s: how long this machine has held the run [s].
        ranks: each rank's progress; empty for an insurance save, which does not use it.
        earliest_step: the first step at which all ranks can still save.
        anchor_step: step of the newest save, finished or in progress; intervals count from it.
        base_step: step at which the script was started; None if unknown.
        held: (anchor, step) of the thesis' plan, which is made once per save and then kept.
        remaining_s: until an announced end [s]; None without a notice.
        table: for policy `optimal`; None until one is assigned.
        table_step: the step where the table starts.
    """

    policy: str
    running_s: float
    ranks: tuple[RankProgress, ...]
    earliest_step: int
    anchor_step: int
    base_step: int | None = None
    held: tuple[int, int] | None = None
    remaining_s: float | None = None
    table: SaveTable | None = None
    table_step: int = 0


class Estimates(Struct, frozen=True):
    """The estimates of losses and of the costs of saving."""

    losses: PreemptionHistory
    costs: Costs


class SaveChoice(Struct, frozen=True):
    """The choice of a save: as text for users (`decision`) and as values for the reducer.

    Attributes:
        save_at: the step after which to save; None for no save.
        kind: of that save.
        interval_s: the interval that led to an insurance save [s].
    """

    save_at: int | None
    kind: SaveKind
    decision: Decision
    interval_s: float | None = None


def parse_policy(text: str) -> str:
    """Return the canonical name of a policy as the user wrote it.

    Accepts `adaptive`, `optimal`, `thesis`, `young-daly`, `never`, `every 100 steps`, `every:100`, `every 10m` and
    `every:1h30m`.

    Raises:
        Misuse: it is not a saving policy.
    """
    name = " ".join(text.strip().lower().split())
    known = policy_registry.names(PolicyKind.SAVING)
    if name in known:
        return name
    if every := _EVERY.fullmatch(name):
        return f"{_EVERY_PREFIX}{_parse_every(text, every[1].strip())}"
    near = difflib.get_close_matches(name, (*known, EVERY_NAME), n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise Misuse(f"saving policy {text!r} is unknown: {hint}use {', '.join(known)}, 'every 100 steps' or 'every 10m'")


def _parse_every(text: str, amount: str) -> str:
    if count := _COUNT.fullmatch(amount):
        steps = int(count[1])
        if steps > 0:
            return f"{steps}steps"
    elif (length := _DURATION.fullmatch(amount)) and any(length.groups()):
        hours, minutes, seconds = (float(part or 0.0) for part in length.groups())
        total_s = 3600.0 * hours + 60.0 * minutes + seconds
        if total_s > 0.0:
            return f"{total_s:.12g}s"
    raise Misuse(f"saving policy {text!r} has no valid interval: write 'every 100 steps', 'every 90s' or 'every 10m'")


class SavingPolicy(Struct, frozen=True):
    """A saving policy.

    Attributes:
        insure: chooses the next insurance save.
        learns: whether the first save comes early, to learn what saving costs.
        as_published: whether emergency save and mean step are those of the thesis' Algorithm 1.
        scheduled: whether it follows a table that the controller computes for each machine.
        insures: whether it makes insurance saves at all.
        interval_s: the scalar rule of a policy that is nothing more; None for others.
    """

    insure: Callable[[SavingView, Estimates], SaveChoice]
    learns: bool = False
    as_published: bool = False
    scheduled: bool = False
    insures: bool = True
    interval_s: Callable[[float, float], float] | None = None


@functools.cache
def saving_policy(name: str) -> SavingPolicy:
    """Return a saving policy.

    Args:
        name: canonical (`parse_policy`).

    Raises:
        Misuse: there is none of this name.
    """
    found = policy_registry.load(PolicyKind.SAVING, name.partition(":")[0])
    if isinstance(found, SavingPolicy):
        return found
    return SavingPolicy(functools.partial(_ruled_insurance, found), interval_s=found)


def decide(now: Instant, view: SavingView, estimates: Estimates) -> SaveChoice:
    """Return which save to request from the script.

    With an announced end (`view.remaining_s`) the choice is the emergency save, otherwise the next insurance save.

    Args:
        now: the current time; not used, because all durations are in the view.
        view: the snapshot.
        estimates: losses and costs as observed so far.
    """
    del now  # part of every policy's signature; this one needs durations only
    if view.remaining_s is not None:
        return _emergency(view, view.remaining_s, estimates)
    return _insurance(view, estimates)


# ------------------------------------------------------------------------------------------------------------ emergency


def time_to_step_s(rank: RankProgress, step: int, costs: Costs) -> float:
    """Return how long a rank needs until `step` steps are complete [s], by the 95th percentiles.

    A phase that was never measured counts as finished: there is no better estimate, and trying costs nothing.  Between
    two steps a whole step is counted, because the time since the last one may have been a wait for data.
    """
    step_s = costs.step_p95_s or 0.0
    steps = max(step - rank.step, 0)
    if rank.phase is Phase.BETWEEN or steps == 0:
        return steps * step_s
    phase_s = costs.phase_p95_s(rank.phase) or 0.0
    return rules.time_to_step_s(steps, step_s, phase_s, rank.elapsed_s, rank.phase is Phase.STEP)


def _emergency(view: SavingView, remaining_s: float, estimates: Estimates) -> SaveChoice:
    costs, target = estimates.costs, view.earliest_step
    rationale: tuple[ComparedValue, ...]
    size = costs.state_bytes or 0
    if saving_policy(view.policy).as_published:
        step_s = costs.step_running_mean_s or 0.0
        upload_s = costs.upload_s(size)
        fits = rules.thesis_emergency_fits(step_s, costs.stall_s, upload_s, remaining_s)
        rationale = (_s("T_grace", remaining_s), _s("T_step", step_s), _s("delta", costs.stall_s), _s("beta", upload_s))
    else:
        rest_s = max((time_to_step_s(rank, target, costs) for rank in view.ranks), default=0.0)
        snapshot_s = costs.stalls.p95 or 0.0
        upload_s, commit_s = costs.upload_p95_s(size), costs.commits.p95 or 0.0
        fits = rules.emergency_fits(remaining_s, rest_s, snapshot_s, upload_s, commit_s)
        rationale = (
            _s("remaining", remaining_s),
            _s("rest of phase", rest_s),
            _s("snapshot", snapshot_s),
            _s("upload", upload_s),
            _s("commit", commit_s),
            ComparedValue("state", float(size), "B"),
        )
    attempt = f"emergency save at step {target}"
    refusal = "no emergency save: it would not be committed in time"
    if fits or (not costs.measured and remaining_s > 0.0):
        doubt = "" if costs.measured else " (its cost is unknown: trying anyway)"
        return SaveChoice(
            target, SaveKind.EMERGENCY, Decision(view.policy, VERSION, attempt + doubt, rationale, (refusal,))
        )
    return SaveChoice(None, SaveKind.EMERGENCY, Decision(view.policy, VERSION, refusal, rationale, (attempt,)))


# ------------------------------------------------------------------------------------------------------------ insurance


def _insurance(view: SavingView, estimates: Estimates) -> SaveChoice:
    return saving_policy(view.policy).insure(view, estimates)


def _never_insurance(view: SavingView, estimates: Estimates) -> SaveChoice:
    """Make no insurance saves: only the user's own, and the emergency save, which costs nothing."""
    del estimates
    return _no_insurance(view, f"no insurance saves: the policy is {view.policy}", ())


def _fixed_insurance(view: SavingView, estimates: Estimates) -> SaveChoice:
    """Save every n steps, or every s seconds."""
    steps, interval_s = every(view.policy)
    if steps is not None:
        return _at(view, view.anchor_step + steps, None, (ComparedValue("every", float(steps), "steps"),))
    if estimates.costs.step_mean_s is None:
        return _unmeasured(view)
    return _timed(view, estimates, (interval_s, (_s("every", interval_s),)))


@functools.lru_cache
def every(policy: str) -> tuple[int | None, float]:
    """Return the steps between two saves of a policy `every`, None if it counts seconds; and its interval [s]."""
    amount = policy.removeprefix(_EVERY_PREFIX)
    if amount.endswith("steps"):
        return int(amount.removesuffix("steps")), math.inf
    return None, float(amount.removesuffix("s"))


def every_s(interval_s: float) -> str:
    """Return the canonical name of the policy that saves at this interval [s]."""
    return f"{_EVERY_PREFIX}{interval_s:.12g}s"


def _adaptive_insurance(view: SavingView, estimates: Estimates) -> SaveChoice:
    """Save always, at the corrected interval, the first time early to learn what saving costs."""
    if estimates.costs.step_mean_s is None:
        return _unmeasured(view)
    return _timed(view, estimates, _interval(view, estimates))


def _ruled_insurance(rule: Callable[[float, float], float], view: SavingView, estimates: Estimates) -> SaveChoice:
    """Save at the interval of a scalar rule, whatever the notice."""
    losses, costs = estimates.losses, estimates.costs
    if costs.step_mean_s is None:
        return _unmeasured(view)
    mttp_s = losses.mttp_s(view.running_s)
    rationale = (
        _s(_assumed("delta", known=bool(costs.stalls.values)), costs.stall_s),
        _s(_assumed("mean time to preemption", known=losses.mttp_known), mttp_s),
    )
    return _timed(view, estimates, (rule(costs.stall_s, mttp_s), rationale))


def _unmeasured(view: SavingView) -> SaveChoice:
    return _no_insurance(view, "no insurance save yet: no step has been measured", ())


def _scheduled_insurance(view: SavingView, estimates: Estimates) -> SaveChoice:
    """Save by the table; outside the table the default rule decides, and the decision gives the reason."""
    table, step_s = view.table, estimates.costs.step_mean_s
    if step_s is None:
        return _unmeasured(view)
    done_s = (view.anchor_step - view.table_step) * step_s
    if table is None or not 0.0 <= done_s < table.horizon_s:
        purpose = f", by the default rule: {_no_schedule(table, done_s)}"
        return _timed(view, estimates, _interval(view, estimates), purpose)
    interval_s, rationale = _interval(view, estimates)
    work_s = rules.scheduled_work_s(done_s, table.saves_at_s, table.horizon_s, interval_s)
    rationale = (_s("work done at the last save", done_s), *rationale, _s("step", step_s))
    if not math.isfinite(work_s):
        return _no_insurance(view, "no insurance save: the schedule has none left before the end of the run", rationale)
    step = max(rules.scheduled_step(view.table_step, work_s, step_s), view.anchor_step + 1)
    learn_at = _learning_step(view, estimates.costs, step_s)
    if learn_at is not None and learn_at < step:
        return _at(view, learn_at, work_s - done_s, rationale, " to learn what saving costs")
    rationale = (_s("next save at work done", work_s), *rationale)
    return _at(view, step, work_s - done_s, rationale, f", by the schedule: {table.explanation}")


def _no_schedule(table: SaveTable | None, done_s: float) -> str:
    """Return why a table has no next save."""
    if table is None:
        return "no schedule was made for this machine yet"
    if done_s < 0.0:
        return "the run rolled back past the start of its schedule"
    if table.horizon_s <= 0.0:
        return table.explanation
    return f"the schedule ends after {table.horizon_s:.0f} s of work"


def _timed(
    view: SavingView, estimates: Estimates, interval: tuple[float, tuple[ComparedValue, ...]], purpose: str = ""
) -> SaveChoice:
    """Save at an interval, given with the numbers that led to it."""
    interval_s, rationale = interval
    step_s = estimates.costs.step_mean_s
    assert step_s is not None, "the caller has checked that a step was measured"
    if not math.isfinite(interval_s):
        return _no_insurance(view, "no insurance saves: every expected loss is covered by a notice", rationale)
    step = rules.thesis_insurance_step(view.anchor_step, interval_s, step_s)
    rationale = (*rationale, _s("step", step_s), _s("interval", interval_s))
    learn_at = _learning_step(view, estimates.costs, step_s)
    if learn_at is not None and learn_at < step:
        return _at(view, learn_at, interval_s, rationale, " to learn what saving costs")
    return _at(view, step, interval_s, rationale, purpose)


def _learning_step(view: SavingView, costs: Costs, step_s: float) -> int | None:
    """Return the step of the early save that measures what saving costs; None if there is none.

    Until then the interval uses a guess of the stall, and nothing shows whether an emergency save fits.  There is only
    one early save: a script that does not hand over the requested checkpoint gets the next request at the interval.
    """
    if not saving_policy(view.policy).learns or costs.stalls.values or view.anchor_step != view.base_step:
        return None
    return rules.learning_step(view.anchor_step, step_s)


def _interval(view: SavingView, estimates: Estimates) -> tuple[float, tuple[ComparedValue, ...]]:
    losses, costs = estimates.losses, estimates.costs
    mttp_s = losses.mttp_s(view.running_s)
    needs_s = emergency_needs_s(costs)
    covered, prior = losses.covered(needs_s), losses.prior_covered(needs_s)
    interval_s = rules.estimated_interval_s(
        costs.stall_s,
        mttp_s,
        losses.restart_s,
        costs.to_durable_s,
        losses.preemptions,
        covered,
        losses.prior_losses,
        prior,
    )
    return interval_s, (
        _s(_assumed("stall", known=bool(costs.stalls.values)), costs.stall_s),
        *((_s(_assumed("mean time to preemption", known=losses.mttp_known), mttp_s),) if math.isfinite(mttp_s) else ()),
        ComparedValue("observed losses", losses.preemptions, ""),
        ComparedValue("observed losses covered by a notice", covered, ""),
        ComparedValue("uncovered share of losses, observed", rules.uncovered_share(losses.preemptions, covered), ""),
        ComparedValue("uncovered share of losses, prior", 1.0 - prior / losses.prior_losses, ""),
        _s(_assumed("notice", known=losses.notice_known), losses.notice_s),
        *((_s("emergency save", needs_s),) if needs_s is not None else ()),
        _s(_assumed("restart", known=losses.restart_given_s is not None), losses.restart_s),
        _s("time until committed", costs.to_durable_s),
    )


def _assumed(name: str, *, known: bool) -> str:
    """Return the name of a number, marked as assumed unless it was measured or given."""
    return name if known else f"{name}, assumed"


def cost_inputs(policy: str, estimates: Estimates) -> tuple[float | None, ...]:
    """Return the cost figures that a policy's insurance save depends on.

    While these, the losses, the view's anchor and its table stay the same, and the mean time to preemption is given,
    the policy chooses the same step again, or the earliest possible one if that is later.

    Args:
        policy: canonical name.
        estimates: losses and costs as observed so far.
    """
    if policy.endswith("steps"):
        return ()
    costs = estimates.costs
    return (
        costs.step_running_mean_s if saving_policy(policy).as_published else costs.step_mean_s,
        costs.stall_s,
        costs.upload_s(costs.state_bytes or 0),
        costs.to_durable_s,
        bool(costs.stalls.values),
        costs.measured,
        estimates.losses.covered(needs_s := emergency_needs_s(costs)),
        estimates.losses.prior_covered(needs_s),
    )


def emergency_needs_s(costs: Costs) -> float | None:
    """Return how long an emergency save takes from a notice to its commit [s], by 95th percentiles; None if unknown."""
    if not costs.measured:
        return None
    upload_s = costs.upload_p95_s(costs.state_bytes or 0)
    return (costs.step_p95_s or 0.0) + (costs.stalls.p95 or 0.0) + upload_s + (costs.commits.p95 or 0.0)


def _thesis_insurance(view: SavingView, estimates: Estimates) -> SaveChoice:
    losses, costs = estimates.losses, estimates.costs
    step_s = costs.step_running_mean_s
    if costs.step_mean_s is None or step_s is None:
        return _unmeasured(view)
    upload_s = costs.upload_s(costs.state_bytes or 0)
    grace = (
        _s(_assumed("T_grace", known=losses.notice_known), losses.notice_s),
        _s("T_step", step_s),
        _s("delta", costs.stall_s),
        _s("beta", upload_s),
    )
    if costs.measured and rules.thesis_emergency_fits(step_s, costs.stall_s, upload_s, losses.notice_s):
        return _no_insurance(view, "no insurance save: an emergency save fits the provider's notice", grace)
    mttp_s = losses.mttp_s(view.running_s)
    interval_s = rules.thesis_interval_s(costs.stall_s, mttp_s, losses.restart_s)
    step = rules.thesis_insurance_step(view.anchor_step, interval_s, step_s)
    if view.held is not None and view.held[0] == view.anchor_step:
        step = view.held[1]
    rationale = (
        *grace,
        _s(_assumed("mean time to preemption", known=losses.mttp_known), mttp_s),
        _s(_assumed("R", known=losses.restart_given_s is not None), losses.restart_s),
        _s("tau_opt", interval_s),
    )
    return _at(view, step, interval_s, rationale)


def _at(
    view: SavingView, step: int, interval_s: float | None, rationale: tuple[ComparedValue, ...], purpose: str = ""
) -> SaveChoice:
    target = max(step, view.earliest_step)
    earlier = (f"an earlier save (from step {view.earliest_step})",) if target > view.earliest_step else ()
    decision = Decision(
        view.policy,
        VERSION,
        f"insurance save at step {target}{purpose}",
        (*rationale, ComparedValue("last save", float(view.anchor_step), "step")),
        (*earlier, "no save"),
    )
    return SaveChoice(target, SaveKind.INSURANCE, decision, interval_s)


def _no_insurance(view: SavingView, words: str, rationale: tuple[ComparedValue, ...]) -> SaveChoice:
    return SaveChoice(None, SaveKind.INSURANCE, Decision(view.policy, VERSION, words, rationale, ("insurance save",)))


def _s(name: str, seconds: float) -> ComparedValue:
    return ComparedValue(name, seconds, "s")


ADAPTIVE = SavingPolicy(_adaptive_insurance, learns=True)
OPTIMAL = SavingPolicy(_scheduled_insurance, learns=True, scheduled=True)
THESIS = SavingPolicy(_thesis_insurance, as_published=True)
NEVER = SavingPolicy(_never_insurance, insures=False)
EVERY = SavingPolicy(_fixed_insurance)
