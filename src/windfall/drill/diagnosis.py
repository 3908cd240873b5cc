"""Whether a script really resumes: compares a drill's traces and names each thing that was not restored.

Three process groups run the script: one saves at a step and continues (the continuation, A), and two start from that
save (B1, B2).  The rules:

- The state at the start of the first step after a restore comes only from the checkpoint.  It is compared with A's state
  at the start of the same step, item by item, bit by bit: a difference means that the item was not restored.
- An item that A has and B lacks is missing.  An item that equals A's before its first step was never restored; one that
  equals A's at another step is stale; one that equals A's value rounded has lost precision.
- Items that may differ by chance (data, random numbers, variables) count only if B1 and B2 agree.  If they do not, the
  script itself is not reproducible, and the drill reports a note.
- Random generators count only if a visible result of training differs too: an unused generator does no harm.
- A difference that only shows later is judged against the noise floor, the largest difference between B1 and B2 in the same
  kind of result or in losses and parameters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from windfall.drill import effects
from windfall.drill import suspects as suspicion
from windfall.drill.drill_trace import Finding, ScriptTrace, by_owner, is_zero, same, shown
from windfall.drill.effects import RankComparison

_AVERAGES = re.compile(r"(^|[^a-z])(ema|avg|average|averaged|shadow|swa|teacher|target|mean)", re.IGNORECASE)
_ACCUMULATION = "gradient accumulation not restored"
_STRONG = frozenset({"epoch", "epochs", "best", "seen", "global", "patience", "episode", "total"})
_COUNTERS = frozenset(
    {
        "step",
        "steps",
        "iter",
        "iters",
        "iteration",
        "iterations",
        "it",
        "update",
        "updates",
        "count",
        "counter",
        "round",
    }
    | {"samples", "tokens", "batches", "examples", "micro", "temperature", "beta", "baseline"}
)


def diagnose(a: Sequence[ScriptTrace], b1: Sequence[ScriptTrace], b2: Sequence[ScriptTrace]) -> tuple[Finding, ...]:
    """Return what was not restored, then notes; a finding of several ranks comes once.

    Args:
        a: the continuation, one trace per rank.
        b1: the first restored run, the same ranks.
        b2: the second restored run, the same ranks.
    """
    found: list[Finding] = list(_shares(a))
    saved_at = next(trace.saved[0] for trace in a if trace.saved is not None)
    comparisons = [
        RankComparison(*three, saved_at) for three in zip(a, b1, b2, strict=True) if three[0].saved is not None
    ]
    for comparison in comparisons:
        found += _rank(comparison)
    if not any(one.forgotten for one in found):
        # An error of one rank shows in every rank's gradients: look for late effects only if no rank has a finding.
        for comparison in comparisons:
            found += _late(comparison)
    return _once(found)


def _once(found: Iterable[Finding]) -> tuple[Finding, ...]:
    kept: dict[tuple[str, str], Finding] = {}
    for one in sorted(found, key=lambda one: (not one.forgotten, one.rank)):
        kept.setdefault((one.code, one.subject), one)
    return tuple(kept.values())


def _shares(a: Sequence[ScriptTrace]) -> Iterable[Finding]:
    """Yield a finding if a rank neither handed over a shard nor said that it has none."""
    silent = [trace.rank for trace in a if trace.saved is None]
    if silent:
        yield Finding(
            "one-rank",
            "saved by some ranks only",
            f"rank {silent[0]} handed over nothing, so no checkpoint would ever be committed; call wf.backup(path) on each "
            "rank, or wf.backup(None) on a rank without a shard",
            silent[0],
            a[silent[0]].step,
        )


def _rank(comparison: RankComparison) -> list[Finding]:
    found = [*_whole(comparison)]
    if found:
        return found
    for judge in (_modules, _buffers, _optimizers, _schedulers, _objects):
        found += judge(comparison)
    data = list(_data(comparison))
    effect = effects.first_effect(comparison)
    chance = [] if effect is None else _chance(comparison)
    doubtful = [finding for finding, sure in data if not sure]
    found += [finding for finding, sure in data if sure]
    others = [*found, *(finding for finding, _ in chance)]
    found += _variables(comparison, effect, others=others, doubtful=bool(doubtful))
    rates = list(effects_of_rates(comparison, found))
    known = any(one.forgotten for one in (*found, *(finding for finding, _ in chance)))
    if not known and (doubtful or rates) and all(one.step > comparison.first for one in rates):
        found = _suspected(comparison, found)
    if not any(one.forgotten for one in found):
        found += doubtful
    found += rates
    judged = any(one.forgotten for one in found)
    found += [finding if always or not judged else _note(finding) for finding, always in chance]
    return found


def _suspected(comparison: RankComparison, others: Sequence[Finding] = ()) -> list[Finding]:
    """Return the variables that may be the cause, instead of notes about them, and the other findings."""
    causes = [
        comparison.finding("variable", f"{_name(key)} not restored", _difference(comparison, key))
        for key in suspicion.suspects(comparison)
    ]
    subjects = {one.subject for one in causes}
    return [*causes, *(one for one in others if one.subject not in subjects)]


def _name(key: str) -> str:
    return f"`{key.partition(':')[2]}`"


def _difference(comparison: RankComparison, key: str) -> str:
    entries = " entries" if key.startswith("size:") else ""
    found, expected = shown(comparison.found[key]), shown(comparison.expected[key])
    if key.startswith("list:") and comparison.found[key]["s"] != comparison.expected[key]["s"]:
        entries = " entries"
        found, expected = (str(record["s"][0]) for record in (comparison.found[key], comparison.expected[key]))
    return f"step {comparison.first} starts with {found}{entries}, expected {expected}"


def _note(finding: Finding) -> Finding:
    return replace(finding, forgotten=False)


# ---------------------------------------------------------------------------------------------------- the file as a whole


def _whole(comparison: RankComparison) -> Iterable[Finding]:
    """Yield a finding if nothing at all was restored, or the state of another step."""
    again = min(comparison.b1.numbers.values(), default=0)
    if (
        comparison.b1.numbers
        and not comparison.b1.begins
        and again <= comparison.number(comparison.saved_at)
        and not comparison.b1.has_asked
    ):
        yield comparison.finding(
            "not-restored",
            "nothing restored",
            f"a restart reaches step {again} again after the checkpoint of step "
            f"{comparison.number(comparison.saved_at)}; load $WINDFALL_CHECKPOINT",
        )
        return
    keys = [key for key in comparison.wrong(("param",)) if key in comparison.expected]
    if not keys:
        return
    stale = comparison.as_of(keys)
    if stale == 0 and not comparison.b1.has_asked:
        yield comparison.finding(
            "not-restored",
            "nothing restored",
            "the script never asks for its checkpoint (wf.last()), so every restart starts from scratch",
        )
    elif stale is not None and stale > 0 and stale != comparison.saved_at:
        yield comparison.finding(
            "stale",
            "stale checkpoint",
            f"the restored parameters are those of step {comparison.number(stale)}, but the save was at step "
            f"{comparison.number(comparison.saved_at)}: is an older file handed over or loaded?",
        )


# --------------------------------------------------------------------------------------------------------- torch's objects


def _modules(comparison: RankComparison) -> Iterable[Finding]:
    for (_, owner), keys in by_owner(comparison.wrong(("param",))).items():
        here = [key for key in keys if key in comparison.expected]
        every = [key for key in comparison.expected if key.startswith(f"param:{owner}|")]
        if not here:
            continue
        what = f"{len(here)} of {len(every)} parameters of `{owner}`"
        if (kind := comparison.all_rounded(here)) is not None:
            yield comparison.finding(
                "precision", "precision lost", f"{what} came back rounded to {kind}{comparison.example(here)}"
            )
            continue
        reason = "as before the first step" if comparison.as_of(here) == 0 else "not those that were saved"
        code = "model"
        if _AVERAGES.search(owner):
            code, what = "ema", f"averaged weights `{owner}`, {len(here)} of {len(every)}"
        elif len(here) < len(every) and not any(comparison.expected[key].get("g") for key in here):
            code, what = "frozen", f"frozen layers of `{owner}` ({_names(here)})"
        elif comparison.b1.loads:
            code, reason = "wrapped", f"{reason}; {comparison.b1.loads[0]}"
        yield comparison.finding(code, f"{what} not restored", f"{reason}{comparison.example(here)}")


def _buffers(comparison: RankComparison) -> Iterable[Finding]:
    lost = {owner for _, owner in by_owner(comparison.wrong(("param",)))}
    for (_, owner), keys in by_owner(comparison.wrong(("buffer",))).items():
        here = [key for key in keys if key in comparison.expected]
        if owner in lost or not here:
            continue
        kind = comparison.all_rounded(here)
        code = "buffers" if kind is None else "precision"
        code = "ema" if code == "buffers" and _AVERAGES.search(owner) else code
        norms = "BatchNorm's running statistics, " if any("running_" in key for key in here) else ""
        yield comparison.finding(
            code, f"buffers of `{owner}` not restored", f"{norms}{_names(here)}{comparison.example(here)}"
        )


def _optimizers(comparison: RankComparison) -> Iterable[Finding]:
    for (_, owner), keys in by_owner(comparison.wrong(("optim",))).items():
        here = [key for key in keys if key in comparison.expected]
        if not here:
            continue
        states = [key for key in here if "|group" not in key]
        if not states:
            yield comparison.finding("optimizer", f"settings of `{owner}` not restored", _settings(comparison, here))
            continue
        kinds = sorted({key.partition("|")[2].rsplit(" ", 1)[0] for key in states})
        if (kind := comparison.all_rounded([key for key in states if "x" in comparison.expected[key]])) is not None:
            yield comparison.finding("precision", "precision lost", f"state of `{owner}` came back rounded to {kind}")
        elif all(key not in comparison.found for key in states):
            yield comparison.finding(
                "optimizer",
                "optimizer state not restored",
                f"at step {comparison.first} `{owner}` has no {', '.join(kinds)}{comparison.example(states)}",
            )
        else:
            zero = all(is_zero(comparison.found.get(key)) for key in states if key in comparison.found)
            how = "zero" if zero else "not what was saved"
            yield comparison.finding(
                "optimizer",
                "optimizer state not restored",
                f"{', '.join(kinds)} of `{owner}` is {how}{comparison.example(states)}",
            )


def _schedulers(comparison: RankComparison) -> Iterable[Finding]:
    for (_, owner), keys in by_owner(comparison.wrong(("sched",))).items():
        here = [key for key in keys if key in comparison.expected and comparison.a.changes(key)]
        if not here:
            continue
        shift = effects.first_rate(comparison)
        if shift is not None:
            seen = f"step {shift.step} has lr {shift.found:.4g}, expected {shift.expected:.4g}"
        else:
            seen = comparison.example(here).removeprefix(" (").removesuffix(")")
        yield comparison.finding("scheduler", "scheduler state not restored", f"{seen} (`{owner}`)")


def _objects(comparison: RankComparison) -> Iterable[Finding]:
    for (channel, owner), keys in by_owner(comparison.wrong(("scaler", "state"))).items():
        here = [
            key for key in keys if key in comparison.expected and (channel == "scaler" or comparison.a.changes(key))
        ]
        if here:
            title = "gradient scaler" if channel == "scaler" else "state"
            yield comparison.finding(
                channel, f"{title} `{owner}` not restored", f"{_names(here)}{comparison.example(here)}"
            )


# --------------------------------------------------------------------------------------------- what may differ by chance


def _data(comparison: RankComparison) -> Iterable[tuple[Finding, bool]]:
    """Yield how the data differ, and whether the data are certainly the cause: a model has other inputs too."""
    expected, found, again = comparison.a.data(comparison.saved_at), comparison.b1.data(0), comparison.b2.data(0)
    wrong = {key for key in expected if key in found and not same(expected[key], found[key])}
    if not wrong:
        return
    key = next(key for key in ("data:ids", "data:batch", "data:input") if key in wrong)
    settled = same(found[key], again.get(key))
    if key == "data:batch" and "data:ids" in expected and "data:ids" in found:
        if comparison.drawn(("rng:python", "rng:numpy", "rng:torch")):
            return
        workers = expected.get("data:workers", {}).get("v") != 0
        what = "randomness of data-loader workers" if workers else "randomness of samples"
        detail = f"step {comparison.first} has the right samples, made differently"
        yield comparison.judged("worker-seeds" if workers else "data", what, detail, settled=settled), False
        return
    if key == "data:input" and comparison.drawn(tuple(name for name in comparison.expected if name.startswith("rng:"))):
        return
    known = [number for number in comparison.a.begins if same(comparison.a.data(number).get(key), found[key])]
    of = f"those of step {comparison.number(known[0] + 1)}" if known else "none of the continuation's"
    detail = f"step {comparison.first} has other samples than expected, {of}"
    finding = comparison.judged("data", "position in the data", detail, settled=settled)
    yield finding, key != "data:input" or bool(known)


def _chance(comparison: RankComparison) -> list[tuple[Finding, bool]]:
    """Return differences of random generators, and whether the script draws from each in most steps."""
    result = []
    moved = any(sure for _, sure in _data(comparison))
    for key in comparison.wrong(("rng",)):
        if key not in comparison.expected or key not in comparison.found or not comparison.a.changes(key):
            continue
        name = key.removeprefix("rng:")
        known = name in ("python", "numpy", "torch", "cuda")
        fresh = comparison.as_of([key])
        if moved and known and fresh is None and comparison.direct:
            continue  # the loader was restarted and drew from it
        title = f"random generator of {name}" if known else f"random generator `{name}`"
        reason = f"as it was at step {comparison.number(fresh + 1)}" if fresh is not None else "in another state"
        detail = f"step {comparison.first} starts with it {reason}"
        settled = same(comparison.found[key], comparison.again.get(key))
        moments = max(len(comparison.a.history(key)) - 1, 1)
        result.append(
            (
                comparison.judged(f"{name}-rng" if known else "generator", title, detail, settled=settled),
                comparison.a.changes(key) * 2 >= moments,
            )
        )
    return result


def _variables(
    comparison: RankComparison, effect: effects.Effect | None, *, others: Sequence[Finding], doubtful: bool
) -> Iterable[Finding]:
    """Judge the script's own variables.

    Arrays that each step computes again differ because something else does.  Without better evidence, arrays count only
    if their name says that they are averages, or if they differ while data and random numbers are right.
    """
    explained = doubtful or any(
        one.code in ("data", "worker-seeds", "generator") or one.code.endswith("-rng") for one in others
    )
    alone = not any(one.forgotten for one in others)
    wrong = [
        key
        for key in comparison.wrong(("value", "array", "list"))
        if comparison.lasting(key) and comparison.a.changes(key)
    ]
    shows = effect is not None or any(not key.startswith("value:") for key in wrong)
    for key in wrong if comparison.direct else suspicion.causes_first(comparison, wrong):
        name = key.partition(":")[2]
        code, counts = _weighed(comparison, key, alone=alone, shows=effect is not None, moves=shows)
        if explained and code == "variable" and not key.startswith("value:"):
            continue
        if "[" in name and not counts and suspicion.carried(comparison, key) is False:
            continue
        settled = same(comparison.found[key], comparison.again.get(key))
        finding = comparison.judged(code, _name(key), _difference(comparison, key), settled=settled)
        yield finding if counts else _note(finding)


def _weighed(comparison: RankComparison, key: str, *, alone: bool, shows: bool, moves: bool) -> tuple[str, bool]:
    """Return the code of a variable's difference, and whether a resume needs it.

    If only the end of the first step was seen, arrays may differ because a counter does (`moves`: some do).
    """
    channel, _, name = key.partition(":")
    expected, found = comparison.expected[key], comparison.found[key]
    if channel == "array" or (channel == "list" and expected["s"] == found["s"]):
        averaged = _AVERAGES.search(name) is not None
        for_show = suspicion.words(name) & suspicion.LOCAL or (suspicion.is_number(expected) and not shows)
        return ("ema" if averaged else "variable"), averaged or (not for_show and (comparison.direct or alone))
    words = suspicion.words(name)
    if channel == "list" or words & suspicion.LOCAL:
        return "variable", False
    if words & _STRONG or comparison.off_by_one(key):
        return "counter", True
    if not comparison.direct and moves and suspicion.counts_steps(comparison, key):
        return "counter", True
    if words & _COUNTERS or not comparison.direct:
        return "counter", alone and shows
    return "variable", False


# ------------------------------------------------------------------------------------------------------------- what follows


def effects_of_rates(comparison: RankComparison, found: Sequence[Finding]) -> Iterable[Finding]:
    """Yield a wrong learning rate or step number that no other finding explains."""
    codes = {one.code for one in found if one.forgotten}
    shift = effects.first_rate(comparison)
    if shift is not None and not codes & {"scheduler", "counter", "stale", "not-restored", "step-number"}:
        again = "; it is that of step 1: is it set after loading?" if shift.as_at_first else ""
        seen = f"step {shift.step} has lr {shift.found:.4g}, expected {shift.expected:.4g}"
        yield Finding("lr", "learning rate not restored", f"{seen}{again}", comparison.a.rank, shift.step)
    expected, number = comparison.a.numbers.get(comparison.saved_at), comparison.b1.numbers.get(0)
    if expected is not None and number is not None and expected != number and not codes & {"stale", "not-restored"}:
        yield comparison.finding(
            "step-number",
            "step counter not restored",
            f"the first step after a restore is step {number}, expected {expected}",
        )


def _late(comparison: RankComparison) -> Iterable[Finding]:
    """Yield a difference that only shows after the restore."""
    effect = effects.first_effect(comparison)
    if effect is None:
        return
    # Without an effect, differing gradients are left over from the step before, and a closure has not cleared them yet.
    remainder = effects.remainder(comparison)
    if remainder is not None and comparison.accumulates:
        yield comparison.finding("accumulation", _ACCUMULATION, remainder)
    elif reason := _suspected(comparison):
        yield from reason
    elif remainder is not None:
        yield comparison.finding("accumulation", _ACCUMULATION, remainder)
    else:
        code = {"data:ids": "data", "data:batch": "data"}.get(effect.key, "unexplained")
        yield comparison.finding(code, effect.subject, effect.detail)


def _settings(comparison: RankComparison, keys: Sequence[str]) -> str:
    some = [
        f"{_names([key])} is {shown(comparison.found.get(key))}, expected {shown(comparison.expected[key])}"
        for key in keys[:3]
    ]
    return "; ".join(some) + (f"; and {len(keys) - 3} more" if len(keys) > 3 else "")


def _names(keys: Sequence[str]) -> str:
    names = [key.partition("|")[2] or key.partition(":")[2] for key in keys]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
