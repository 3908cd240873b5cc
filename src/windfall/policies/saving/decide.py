"""When to ask the script for a save: the policies by name, each a pure function of view and beliefs.

`adaptive` (default)  insurance always, at the corrected interval, the first one early, to learn what saving costs;
                      emergency save iff it is committed in time
`optimal`             insurance as the table says that the controller made for this machine; without one, beyond its end
                      and behind its begin as `adaptive`; emergency save as `adaptive`
`thesis`              Algorithm 1 exactly
`young-daly`          insurance at sqrt(2 delta MTTP) whatever the notice; emergency save as `adaptive`
`every:<n>steps`      insurance every n steps; emergency save as `adaptive`
`every:<s>s`          insurance every s seconds; emergency save as `adaptive`
`never`               no insurance: only the user's own saves, and the emergency save, which costs nothing
"""

from __future__ import annotations

import difflib
import functools
import math
import re

from windfall.errors import Misuse
from windfall.events import Because, Decision
from windfall.models.costs import Costs
from windfall.models.losses import Losses
from windfall.policies.saving import rules
from windfall.records import value
from windfall.terms import Instant, Phase, SaveKind, SaveTable

VERSION = 1
_NAMES = ("adaptive", "optimal", "thesis", "young-daly", "never")
_LEARNING = ("adaptive", "optimal")
"""Policies whose first save comes early."""
_EVERY = re.compile(r"every[ :=]+(.+)")
_COUNT = re.compile(r"(\d+) *(?:steps?)?")
_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?) *(?:h|hours?))? *(?:(\d+(?:\.\d+)?) *(?:m|min|minutes?))? *"
                       r"(?:(\d+(?:\.\d+)?) *(?:s|seconds?))?")  # fmt: skip


@value
class Standing:
    """Where a rank stands: complete steps, what it is doing, and for how long already [s]."""

    step: int
    phase: Phase
    elapsed_s: float


@value
class SavingView:
    """What the saving policies look at.

    Attributes:
        policy: canonical name (`parse_policy`).
        life_s: how long this machine has held the run [s].
        ranks: where each rank stands; empty for an insurance save, which does not look at it.
        earliest_step: the first step at which all ranks can still be asked to save.
        anchor_step: step of the newest save that is made or under way; intervals count from it.
        base_step: step at which the script was started; None if unknown.
        held: (anchor, step) of the thesis' plan, which is made once per save and then kept.
        remaining_s: until an announced end [s]; None without an announcement.
        table: for policy `optimal`; None as long as none was given.
        table_step: where the table begins.
    """

    policy: str
    life_s: float
    ranks: tuple[Standing, ...]
    earliest_step: int
    anchor_step: int
    base_step: int | None = None
    held: tuple[int, int] | None = None
    remaining_s: float | None = None
    table: SaveTable | None = None
    table_step: int = 0


@value
class Beliefs:
    """Models with their parameters."""

    losses: Losses
    costs: Costs


@value
class Choice:
    """A decision in words for people (`decision`) and in values for the reducer.

    Attributes:
        save_at: the step after which to save; None for no save.
        kind: of that save.
        interval_s: the interval behind an insurance save [s].
    """

    save_at: int | None
    kind: SaveKind
    decision: Decision
    interval_s: float | None = None


def parse_policy(text: str) -> str:
    """Return the canonical name of a policy as the user wrote it.

    Accepts `adaptive`, `optimal`, `thesis`, `young-daly`, `never`, `every 100 steps`, `every:100`, `every 10m`, `every:1h30m`.

    Raises:
        Misuse: nothing of the kind.
    """
    wanted = " ".join(text.strip().lower().split())
    if wanted in _NAMES:
        return wanted
    if every := _EVERY.fullmatch(wanted):
        return f"every:{_parse_every(text, every[1].strip())}"
    near = difflib.get_close_matches(wanted, (*_NAMES, "every"), n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise Misuse(f"saving policy {text!r} is unknown: {hint}use {', '.join(_NAMES)}, 'every 100 steps' or 'every 10m'")


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


def decide(now: Instant, view: SavingView, beliefs: Beliefs) -> Choice:
    """Return what to ask the script for.

    With an announced end (`view.remaining_s`) the choice is the emergency save, otherwise the next insurance save.

    Args:
        now: the present instant; only quoted, all lengths of time are in the view.
        view: the snapshot.
        beliefs: losses and costs as learnt so far.
    """
    del now  # part of every policy's signature; this one needs lengths of time only
    if view.remaining_s is not None:
        return _emergency(view, view.remaining_s, beliefs)
    return _insurance(view, beliefs)


# ------------------------------------------------------------------------------------------------------------ emergency


def time_to_step_s(rank: Standing, step: int, costs: Costs) -> float:
    """Return how long a rank needs until `step` steps are complete [s], by the 95th percentiles.

    A phase that was never measured counts as over: nothing better is known, and trying costs nothing.  Between two
    steps a whole step is counted, because the time since the last one may have been a wait for data.
    """
    step_s = costs.step_p95_s or 0.0
    steps = max(step - rank.step, 0)
    if rank.phase is Phase.BETWEEN or steps == 0:
        return steps * step_s
    phase_s = costs.phase_p95_s(rank.phase) or 0.0
    return rules.time_to_step_s(steps, step_s, phase_s, rank.elapsed_s, rank.phase is Phase.STEP)


def _emergency(view: SavingView, remaining_s: float, beliefs: Beliefs) -> Choice:
    costs, target = beliefs.costs, view.earliest_step
    because: tuple[Because, ...]
    size = costs.state_bytes or 0
    if view.policy == "thesis":
        step_s = costs.step_running_mean_s or 0.0
        upload_s = costs.upload_s(size)
        fits = rules.thesis_emergency_fits(step_s, costs.stall_s, upload_s, remaining_s)
        because = (_s("T_grace", remaining_s), _s("T_step", step_s), _s("delta", costs.stall_s), _s("beta", upload_s))
    else:
        rest_s = max((time_to_step_s(rank, target, costs) for rank in view.ranks), default=0.0)
        snapshot_s = costs.stalls.p95 or 0.0
        upload_s, commit_s = costs.upload_p95_s(size), costs.commits.p95 or 0.0
        fits = rules.emergency_fits(remaining_s, rest_s, snapshot_s, upload_s, commit_s)
        because = (
            _s("remaining", remaining_s),
            _s("rest of phase", rest_s),
            _s("snapshot", snapshot_s),
            _s("upload", upload_s),
            _s("commit", commit_s),
            Because("state", float(size), "B"),
        )
    attempt = f"emergency save at step {target}"
    refusal = "no emergency save: it would not be committed in time"
    if fits or (not costs.measured and remaining_s > 0.0):
        doubt = "" if costs.measured else " (its cost is not known yet: trying anyway)"
        return Choice(target, SaveKind.EMERGENCY, Decision(view.policy, VERSION, attempt + doubt, because, (refusal,)))
    return Choice(None, SaveKind.EMERGENCY, Decision(view.policy, VERSION, refusal, because, (attempt,)))


# ------------------------------------------------------------------------------------------------------------ insurance


def _insurance(view: SavingView, beliefs: Beliefs) -> Choice:
    if view.policy == "never":
        return _no_insurance(view, "no insurance saves: the user wants none", ())
    steps = _every_steps(view.policy)
    if steps is not None:
        return _at(view, view.anchor_step + steps, None, (Because("every", float(steps), "steps"),))
    if beliefs.costs.step_mean_s is None:
        return _no_insurance(view, "no insurance save yet: no step has been measured", ())
    if view.policy == "thesis":
        return _thesis_insurance(view, beliefs)
    if view.policy == "optimal":
        return _scheduled_insurance(view, beliefs, beliefs.costs.step_mean_s)
    return _timed_insurance(view, beliefs, beliefs.costs.step_mean_s)


@functools.lru_cache
def _every_steps(policy: str) -> int | None:
    if policy.startswith("every:") and policy.endswith("steps"):
        return int(policy.removeprefix("every:").removesuffix("steps"))
    return None


def _scheduled_insurance(view: SavingView, beliefs: Beliefs, step_s: float) -> Choice:
    """Save as the table says; where it says nothing the default rule decides, and the decision says why."""
    table = view.table
    done_s = (view.anchor_step - view.table_step) * step_s
    if table is None or not 0.0 <= done_s < table.known_s:
        return _timed_insurance(view, beliefs, step_s, f", by the default rule: {_no_schedule(table, done_s)}")
    interval_s, because = _interval(view, beliefs)
    work_s = rules.scheduled_work_s(done_s, table.saves_at_s, table.known_s, interval_s)
    because = (_s("work done at the last save", done_s), *because, _s("step", step_s))
    if not math.isfinite(work_s):
        return _no_insurance(view, "no insurance save: the schedule has none before the end of the run", because)
    step = max(rules.scheduled_step(view.table_step, work_s, step_s), view.anchor_step + 1)
    learn_at = _learning_step(view, beliefs.costs, step_s)
    if learn_at is not None and learn_at < step:
        return _at(view, learn_at, work_s - done_s, because, " to learn what saving costs")
    because = (_s("next save at work done", work_s), *because)
    return _at(view, step, work_s - done_s, because, f", by the schedule: {table.says}")


def _no_schedule(table: SaveTable | None, done_s: float) -> str:
    """Return why a table does not say when to save next."""
    if table is None:
        return "no schedule was made for this machine yet"
    if done_s < 0.0:
        return "the run has fallen back behind the begin of its schedule"
    if table.known_s <= 0.0:
        return table.says
    return f"the schedule ends after {table.known_s:.0f} s of work"


def _timed_insurance(view: SavingView, beliefs: Beliefs, step_s: float, purpose: str = "") -> Choice:
    interval_s, because = _interval(view, beliefs)
    if not math.isfinite(interval_s):
        return _no_insurance(view, "no insurance saves: no loss is expected that a notice does not cover", because)
    step = rules.thesis_insurance_step(view.anchor_step, interval_s, step_s)
    because = (*because, _s("step", step_s), _s("interval", interval_s))
    learn_at = _learning_step(view, beliefs.costs, step_s)
    if learn_at is not None and learn_at < step:
        return _at(view, learn_at, interval_s, because, " to learn what saving costs")
    return _at(view, step, interval_s, because, purpose)


def _learning_step(view: SavingView, costs: Costs, step_s: float) -> int | None:
    """Return the step of the save that is made early because nothing is known of its cost; None if there is none.

    Until then the interval rests on a guess of the standstill, and whether an emergency save fits on nothing at all.
    Once only: a script that does not hand over what it was asked for is asked again at the interval.
    """
    if view.policy not in _LEARNING or costs.stalls.values or view.anchor_step != view.base_step:
        return None
    return rules.learning_step(view.anchor_step, step_s)


def _interval(view: SavingView, beliefs: Beliefs) -> tuple[float, tuple[Because, ...]]:
    losses, costs = beliefs.losses, beliefs.costs
    if view.policy.startswith("every:"):
        interval_s = float(view.policy.removeprefix("every:").removesuffix("s"))
        return interval_s, (_s("every", interval_s),)
    mttp_s = losses.mttp_s(view.life_s)
    if view.policy == "young-daly":
        return rules.young_interval_s(costs.stall_s, mttp_s), (
            _s(_assumed("delta", known=bool(costs.stalls.values)), costs.stall_s),
            _s(_assumed("MTTP", known=losses.mttp_known), mttp_s),
        )
    needs_s = emergency_needs_s(costs)
    covered, said = losses.covered(needs_s), losses.said_covered(needs_s)
    interval_s = rules.believed_interval_s(
        costs.stall_s,
        mttp_s,
        losses.restart_s,
        costs.to_durable_s,
        losses.preemptions,
        covered,
        losses.said_losses,
        said,
    )
    return interval_s, (
        _s(_assumed("stall", known=bool(costs.stalls.values)), costs.stall_s),
        *((_s(_assumed("MTTP", known=losses.mttp_known), mttp_s),) if math.isfinite(mttp_s) else ()),
        Because("losses that came", losses.preemptions, ""),
        Because("of them covered by a notice", covered, ""),
        Because("uncovered share of losses, by what came", rules.uncovered_share(losses.preemptions, covered), ""),
        Because("uncovered share of losses, by what is said", 1.0 - said / losses.said_losses, ""),
        _s(_assumed("notice", known=losses.notice_known), losses.notice_s),
        *((_s("an emergency save needs", needs_s),) if needs_s is not None else ()),
        _s(_assumed("restart", known=losses.restart_given_s is not None), losses.restart_s),
        _s("time to durable", costs.to_durable_s),
    )


def _assumed(name: str, *, known: bool) -> str:
    """Name a number that nobody measured or told as what it is."""
    return name if known else f"{name}, assumed"


def rests_on(policy: str, beliefs: Beliefs) -> tuple[float | None, ...]:
    """Return the numbers of the costs on which the insurance save of a policy rests.

    As long as these, the losses, the view's anchor and its table stay the same, and the mean time to preemption is
    given, the policy chooses the same step again, or the earliest possible one if that is later.

    Args:
        policy: canonical name.
        beliefs: losses and costs as learnt so far.
    """
    if policy.endswith("steps"):
        return ()
    costs = beliefs.costs
    return (
        costs.step_running_mean_s if policy == "thesis" else costs.step_mean_s,
        costs.stall_s,
        costs.upload_s(costs.state_bytes or 0),
        costs.to_durable_s,
        bool(costs.stalls.values),
        costs.measured,
        beliefs.losses.covered(needs_s := emergency_needs_s(costs)),
        beliefs.losses.said_covered(needs_s),
    )


def emergency_needs_s(costs: Costs) -> float | None:
    """Return what an emergency save takes, slow as saves are at times, from a notice to its commit [s]; None: unknown."""
    if not costs.measured:
        return None
    upload_s = costs.upload_p95_s(costs.state_bytes or 0)
    return (costs.step_p95_s or 0.0) + (costs.stalls.p95 or 0.0) + upload_s + (costs.commits.p95 or 0.0)


def _thesis_insurance(view: SavingView, beliefs: Beliefs) -> Choice:
    losses, costs = beliefs.losses, beliefs.costs
    step_s = costs.step_running_mean_s
    assert step_s is not None, "the caller has seen a measured step"
    upload_s = costs.upload_s(costs.state_bytes or 0)
    grace = (
        _s(_assumed("T_grace", known=losses.notice_known), losses.notice_s),
        _s("T_step", step_s),
        _s("delta", costs.stall_s),
        _s("beta", upload_s),
    )
    if costs.measured and rules.thesis_emergency_fits(step_s, costs.stall_s, upload_s, losses.notice_s):
        return _no_insurance(view, "no insurance save: an emergency save fits the provider's notice", grace)
    mttp_s = losses.mttp_s(view.life_s)
    interval_s = rules.thesis_interval_s(costs.stall_s, mttp_s, losses.restart_s)
    step = rules.thesis_insurance_step(view.anchor_step, interval_s, step_s)
    if view.held is not None and view.held[0] == view.anchor_step:
        step = view.held[1]
    because = (
        *grace,
        _s(_assumed("MTTP", known=losses.mttp_known), mttp_s),
        _s(_assumed("R", known=losses.restart_given_s is not None), losses.restart_s),
        _s("tau_opt", interval_s),
    )
    return _at(view, step, interval_s, because)


def _at(
    view: SavingView, step: int, interval_s: float | None, because: tuple[Because, ...], purpose: str = ""
) -> Choice:
    target = max(step, view.earliest_step)
    decision = Decision(
        view.policy,
        VERSION,
        f"insurance save at step {target}{purpose}",
        (*because, Because("last save", float(view.anchor_step), "step")),
        (f"not before step {view.earliest_step}", "no save"),
    )
    return Choice(target, SaveKind.INSURANCE, decision, interval_s)


def _no_insurance(view: SavingView, words: str, because: tuple[Because, ...]) -> Choice:
    return Choice(None, SaveKind.INSURANCE, Decision(view.policy, VERSION, words, because, ("insurance save",)))


def _s(name: str, seconds: float) -> Because:
    return Because(name, seconds, "s")
