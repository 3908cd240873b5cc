"""Does a script really resume?  What a drill saw, compared, and what was forgotten named in one sentence each.

Three process groups ran the script: one that saved at a step and went on (the continuation, A), and two that were started
from what it saved (B1, B2).  The rule of judgement:

- The state in which the first step after a restore begins comes from the file alone.  It is compared with the state in
  which A began the same step, item by item, bit by bit: what differs there was forgotten.
- What A has and B has not is missing; what B has as A had it before its first step was never restored; as A had it at
  another step, it is stale; what equals A's rounded, lost its precision.
- Whatever may differ by chance (data, random numbers, variables) counts only if B1 and B2 agree with one another: where
  they do not, the script itself is not reproducible, and this is said as a note.
- Random generators count only if something that the training shows differs too: nobody misses what nobody draws.
- A difference that only shows later is judged against the noise floor, the largest difference between B1 and B2.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from windfall.report import drill_effects as effects
from windfall.report import drill_suspects as suspicion
from windfall.report.drill_effects import Look
from windfall.report.drill_trace import Finding, Trace, by_owner, is_zero, same, shown

_AVERAGES = re.compile(r"(^|[^a-z])(ema|avg|average|averaged|shadow|swa|teacher|target|mean)", re.IGNORECASE)
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


def diagnose(a: Sequence[Trace], b1: Sequence[Trace], b2: Sequence[Trace]) -> tuple[Finding, ...]:
    """Return what was forgotten, then notes; of several ranks each thing once.

    Args:
        a: the continuation, a trace a rank.
        b1: the first restored run, the same ranks.
        b2: the second.
    """
    found: list[Finding] = list(_shares(a))
    saved_at = next(trace.saved[0] for trace in a if trace.saved is not None)
    looks = [Look(*three, saved_at) for three in zip(a, b1, b2, strict=True) if three[0].saved is not None]
    for look in looks:
        found += _rank(look)
    if not any(one.forgotten for one in found):
        # What one rank has forgotten shows in the gradients of all: only where nobody has, it is worth a guess.
        for look in looks:
            found += _late(look)
    return _once(found)


def _once(found: Iterable[Finding]) -> tuple[Finding, ...]:
    kept: dict[tuple[str, str], Finding] = {}
    for one in sorted(found, key=lambda one: (not one.forgotten, one.rank)):
        kept.setdefault((one.code, one.sentence.split(":")[0]), one)
    return tuple(kept.values())


def _shares(a: Sequence[Trace]) -> Iterable[Finding]:
    """Every rank must hand over its part, or say that it has none."""
    silent = [trace.rank for trace in a if trace.saved is None]
    if silent:
        yield Finding(
            "one-rank",
            f"saved by some ranks only: rank {silent[0]} handed over nothing, so that no checkpoint would ever be "
            "committed; each rank calls wf.backup(path), or wf.backup(None) if it has no part",
            silent[0],
            a[silent[0]].step,
        )


def _rank(look: Look) -> list[Finding]:
    found = [*_whole(look)]
    if found:
        return found
    for judge in (_modules, _buffers, _optimizers, _schedulers, _objects):
        found += judge(look)
    data = list(_data(look))
    effect = effects.first_effect(look)
    chance = [] if effect is None else _chance(look)
    doubtful = [finding for finding, sure in data if not sure]
    found += [finding for finding, sure in data if sure]
    others = [*found, *(finding for finding, _ in chance)]
    found += _variables(look, effect, others=others, doubtful=bool(doubtful))
    rates = list(effects_of_rates(look, found))
    known = any(one.forgotten for one in (*found, *(finding for finding, _ in chance)))
    if not known and (doubtful or rates) and all(one.step > look.first for one in rates):
        found = _suspected(look, found)
    if not any(one.forgotten for one in found):
        found += doubtful
    found += rates
    judged = any(one.forgotten for one in found)
    found += [finding if always or not judged else _note(finding) for finding, always in chance]
    return found


def _suspected(look: Look, others: Sequence[Finding] = ()) -> list[Finding]:
    """Return the variables that may be why, instead of notes about them, and the other findings."""
    why = [look.finding("variable", _unlike(look, key)) for key in suspicion.suspects(look)]
    told = {one.sentence for one in why}
    return [*why, *(one for one in others if one.sentence not in told)]


def _unlike(look: Look, key: str) -> str:
    entries = " entries" if key.startswith("size:") else ""
    found, expected = shown(look.found[key]), shown(look.expected[key])
    if key.startswith("list:") and look.found[key]["s"] != look.expected[key]["s"]:
        entries = " entries"
        found, expected = (str(record["s"][0]) for record in (look.found[key], look.expected[key]))
    name = key.partition(":")[2]
    return f"`{name}` not restored: step {look.first} begins with {found}{entries}, expected {expected}"


def _note(finding: Finding) -> Finding:
    return Finding(finding.code, finding.sentence, finding.rank, finding.step, forgotten=False)


# ---------------------------------------------------------------------------------------------------- the file as a whole


def _whole(look: Look) -> Iterable[Finding]:
    """Nothing restored at all, or the state of another step."""
    again = min(look.b1.numbers.values(), default=0)
    if look.b1.numbers and not look.b1.begins and again <= look.number(look.saved_at) and not look.b1.has_asked:
        yield look.finding(
            "not-restored",
            f"nothing restored: a restart comes to step {again} again after the checkpoint of step "
            f"{look.number(look.saved_at)}; load $WINDFALL_CHECKPOINT",
        )
        return
    keys = [key for key in look.wrong(("param",)) if key in look.expected]
    if not keys:
        return
    stale = look.as_of(keys)
    if stale == 0 and not look.b1.has_asked:
        yield look.finding(
            "not-restored",
            "nothing restored: the script never asks for its checkpoint (wf.last()), and every restart begins anew",
        )
    elif stale is not None and stale > 0 and stale != look.saved_at:
        yield look.finding(
            "stale",
            f"stale checkpoint: the restored parameters are those of step {look.number(stale)}, "
            f"but the save was at step {look.number(look.saved_at)}: is an older file handed over or loaded?",
        )


# --------------------------------------------------------------------------------------------------------- torch's objects


def _modules(look: Look) -> Iterable[Finding]:
    for (_, owner), keys in by_owner(look.wrong(("param",))).items():
        here = [key for key in keys if key in look.expected]
        every = [key for key in look.expected if key.startswith(f"param:{owner}|")]
        if not here:
            continue
        what = f"{len(here)} of {len(every)} parameters of `{owner}`"
        if (kind := look.all_rounded(here)) is not None:
            yield look.finding("precision", f"precision lost: {what} came back rounded to {kind}{look.example(here)}")
            continue
        why = "as before the first step" if look.as_of(here) == 0 else "not those that were saved"
        code = "model"
        if _AVERAGES.search(owner):
            code, what = "ema", f"averaged weights `{owner}`, {len(here)} of {len(every)}"
        elif len(here) < len(every) and not any(look.expected[key].get("g") for key in here):
            code, what = "frozen", f"frozen layers of `{owner}` ({_names(here)})"
        elif look.b1.loads:
            code, why = "wrapped", f"{why}; {look.b1.loads[0]}"
        yield look.finding(code, f"{what} not restored: {why}{look.example(here)}")


def _buffers(look: Look) -> Iterable[Finding]:
    lost = {owner for _, owner in by_owner(look.wrong(("param",)))}
    for (_, owner), keys in by_owner(look.wrong(("buffer",))).items():
        here = [key for key in keys if key in look.expected]
        if owner in lost or not here:
            continue
        kind = look.all_rounded(here)
        code = "buffers" if kind is None else "precision"
        code = "ema" if code == "buffers" and _AVERAGES.search(owner) else code
        norms = "BatchNorm's running statistics, " if any("running_" in key for key in here) else ""
        yield look.finding(code, f"buffers of `{owner}` not restored: {norms}{_names(here)}{look.example(here)}")


def _optimizers(look: Look) -> Iterable[Finding]:
    for (_, owner), keys in by_owner(look.wrong(("optim",))).items():
        here = [key for key in keys if key in look.expected]
        if not here:
            continue
        states = [key for key in here if "|group" not in key]
        if not states:
            yield look.finding("optimizer", f"settings of `{owner}` not restored: {_settings(look, here)}")
            continue
        kinds = sorted({key.partition("|")[2].rsplit(" ", 1)[0] for key in states})
        if (kind := look.all_rounded([key for key in states if "x" in look.expected[key]])) is not None:
            yield look.finding("precision", f"precision lost: state of `{owner}` came back rounded to {kind}")
        elif all(key not in look.found for key in states):
            yield look.finding(
                "optimizer",
                f"optimizer state not restored: at step {look.first} `{owner}` has no {', '.join(kinds)}"
                f"{look.example(states)}",
            )
        else:
            zero = all(is_zero(look.found.get(key)) for key in states if key in look.found)
            how = "zero" if zero else "not what was saved"
            yield look.finding(
                "optimizer",
                f"optimizer state not restored: {', '.join(kinds)} of `{owner}` is {how}{look.example(states)}",
            )


def _schedulers(look: Look) -> Iterable[Finding]:
    for (_, owner), keys in by_owner(look.wrong(("sched",))).items():
        here = [key for key in keys if key in look.expected and look.a.changes(key)]
        if not here:
            continue
        shift = effects.first_rate(look)
        if shift is not None:
            seen = f"step {shift.step} has lr {shift.found:.4g}, expected {shift.expected:.4g}"
        else:
            seen = look.example(here).removeprefix(" (").removesuffix(")")
        yield look.finding("scheduler", f"scheduler state not restored: {seen} (`{owner}`)")


def _objects(look: Look) -> Iterable[Finding]:
    for (channel, owner), keys in by_owner(look.wrong(("scaler", "state"))).items():
        here = [key for key in keys if key in look.expected and (channel == "scaler" or look.a.changes(key))]
        if here:
            title = "gradient scaler" if channel == "scaler" else "state"
            yield look.finding(channel, f"{title} `{owner}` not restored: {_names(here)}{look.example(here)}")


# --------------------------------------------------------------------------------------------- what may differ by chance


def _data(look: Look) -> Iterable[tuple[Finding, bool]]:
    """Yield how the data differ, and whether that is sure to be the data's: a model is given other things as well."""
    expected, found, again = look.a.data(look.saved_at), look.b1.data(0), look.b2.data(0)
    wrong = {key for key in expected if key in found and not same(expected[key], found[key])}
    if not wrong:
        return
    key = next(key for key in ("data:ids", "data:batch", "data:input") if key in wrong)
    settled = same(found[key], again.get(key))
    if key == "data:batch" and "data:ids" in expected and "data:ids" in found:
        if look.drawn(("rng:python", "rng:numpy", "rng:torch")):
            return
        workers = expected.get("data:workers", {}).get("v") != 0
        what = "randomness of data-loader workers" if workers else "how samples are made is"
        sentence = f"{what} not restored: step {look.first} has the right samples, made differently"
        yield look.judged("worker-seeds" if workers else "data", sentence, settled), False
        return
    if key == "data:input" and look.drawn(tuple(name for name in look.expected if name.startswith("rng:"))):
        return
    known = [number for number in look.a.begins if same(look.a.data(number).get(key), found[key])]
    of = f"those of step {look.number(known[0] + 1)}" if known else "others than the continuation's"
    sentence = f"position in the data not restored: step {look.first} has other samples than expected, {of}"
    yield look.judged("data", sentence, settled), key != "data:input" or bool(known)


def _chance(look: Look) -> list[tuple[Finding, bool]]:
    """Return differences of random generators, and whether something draws from each in most steps."""
    result = []
    moved = any(sure for _, sure in _data(look))
    for key in look.wrong(("rng",)):
        if key not in look.expected or key not in look.found or not look.a.changes(key):
            continue
        name = key.removeprefix("rng:")
        known = name in ("python", "numpy", "torch", "cuda")
        fresh = look.as_of([key])
        if moved and known and fresh is None and look.direct:
            continue  # the loader was begun anew and drew from it
        title = f"random generator of {name}" if known else f"random generator `{name}`"
        why = f"as it was at step {look.number(fresh + 1)}" if fresh is not None else "in another state"
        sentence = f"{title} not restored: step {look.first} begins with it {why}"
        settled = same(look.found[key], look.again.get(key))
        moments = max(len(look.a.history(key)) - 1, 1)
        result.append(
            (
                look.judged(f"{name}-rng" if known else "generator", sentence, settled),
                look.a.changes(key) * 2 >= moments,
            )
        )
    return result


def _variables(
    look: Look, effect: effects.Effect | None, *, others: Sequence[Finding], doubtful: bool
) -> Iterable[Finding]:
    """Judge the script's own variables.

    Arrays that are made anew in each step differ because something else does: without a better sign, only those count
    that are known as averages, or that differ while data and random numbers are right.
    """
    explained = doubtful or any(
        one.code in ("data", "worker-seeds", "generator") or one.code.endswith("-rng") for one in others
    )
    alone = not any(one.forgotten for one in others)
    wrong = [key for key in look.wrong(("value", "array", "list")) if look.lasting(key) and look.a.changes(key)]
    shows = effect is not None or any(not key.startswith("value:") for key in wrong)
    for key in wrong if look.direct else suspicion.causes_first(look, wrong):
        name = key.partition(":")[2]
        code, counts = _weighed(look, key, alone=alone, shows=effect is not None, moves=shows)
        if explained and code == "variable" and not key.startswith("value:"):
            continue
        if "[" in name and not counts and suspicion.carried(look, key) is False:
            continue
        finding = look.judged(code, _unlike(look, key), same(look.found[key], look.again.get(key)))
        yield finding if counts else _note(finding)


def _weighed(look: Look, key: str, *, alone: bool, shows: bool, moves: bool) -> tuple[str, bool]:
    """Return the code of a variable's difference, and whether a resume needs it.

    Where only the end of the first step was seen, arrays may differ because a count does (`moves`: some do).
    """
    channel, _, name = key.partition(":")
    expected, found = look.expected[key], look.found[key]
    if channel == "array" or (channel == "list" and expected["s"] == found["s"]):
        averaged = _AVERAGES.search(name) is not None
        for_show = suspicion.words(name) & suspicion.LOCAL or (suspicion.is_number(expected) and not shows)
        return ("ema" if averaged else "variable"), averaged or (not for_show and (look.direct or alone))
    words = suspicion.words(name)
    if channel == "list" or words & suspicion.LOCAL:
        return "variable", False
    if words & _STRONG or look.off_by_one(key):
        return "counter", True
    if not look.direct and moves and suspicion.counts_steps(look, key):
        return "counter", True
    if words & _COUNTERS or not look.direct:
        return "counter", alone and shows
    return "variable", False


# ------------------------------------------------------------------------------------------------------------- what follows


def effects_of_rates(look: Look, found: Sequence[Finding]) -> Iterable[Finding]:
    """Name a wrong learning rate or step number that nothing found so far explains."""
    codes = {one.code for one in found if one.forgotten}
    shift = effects.first_rate(look)
    if shift is not None and not codes & {"scheduler", "counter", "stale", "not-restored", "step-number"}:
        again = "; it is that of step 1: is it set after loading?" if shift.as_at_first else ""
        seen = f"step {shift.step} has lr {shift.found:.4g}, expected {shift.expected:.4g}"
        sentence = f"learning rate not restored: {seen}{again}"
        yield Finding("lr", sentence, look.a.rank, shift.step)
    expected, number = look.a.numbers.get(look.saved_at), look.b1.numbers.get(0)
    if expected is not None and number is not None and expected != number and not codes & {"stale", "not-restored"}:
        yield look.finding(
            "step-number",
            f"step counter not restored: the first step after a restore is step {number}, expected {expected}",
        )


def _late(look: Look) -> Iterable[Finding]:
    """Name a difference that only showed after the restore."""
    effect = effects.first_effect(look)
    if effect is None:
        return
    # Without an effect, gradients that differ are left over from the step before: a closure has not cleared them yet.
    remainder = effects.remainder(look)
    if remainder is not None and look.accumulates:
        yield look.finding("accumulation", remainder)
    elif why := _suspected(look):
        yield from why
    elif remainder is not None:
        yield look.finding("accumulation", remainder)
    else:
        code = {"data:ids": "data", "data:batch": "data"}.get(effect.key, "unexplained")
        yield look.finding(code, effect.sentence)


def _settings(look: Look, keys: Sequence[str]) -> str:
    some = [
        f"{_names([key])} is {shown(look.found.get(key))}, expected {shown(look.expected[key])}" for key in keys[:3]
    ]
    return "; ".join(some) + (f"; and {len(keys) - 3} more" if len(keys) > 3 else "")


def _names(keys: Sequence[str]) -> str:
    names = [key.partition("|")[2] or key.partition(":")[2] for key in keys]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
