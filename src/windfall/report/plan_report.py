"""A plan as lines for a terminal of 80 columns.

The code that is uploaded with a job, as its plan shows it: its size, and what it seems to lack.
"""

from __future__ import annotations

import re
import shlex
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from windfall.jobs import DEFAULT_FLEET, DEFAULT_RUNTIME, Job
from windfall.policies import policy_registry
from windfall.policies.layout import runtime_list
from windfall.policies.planning.estimates import NumberBasis, PlanNumberKey
from windfall.policies.planning.offer_notes import fleet_text
from windfall.policies.policy_registry import PolicyKind
from windfall.report import bag_words, fleet_report, queue_report, shape_plan
from windfall.report.code_texts import code_texts
from windfall.report.forecast_report import record_text
from windfall.storage.bundle import PackedBundle
from windfall.units import duration_text, share_text, size_text

_SCRIPT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]*\.(py|sh|jl|R|lua)")
_CALLS = re.compile(rb"\bwindfall\b|\bWINDFALL_")


def code_json(code: PackedBundle | None) -> dict[str, Any] | None:
    """Return a plan's `code` entry as JSON; None if no code is uploaded."""
    if code is None:
        return None
    return {
        "folder": code.folder,
        "files": len(code.paths),
        "size_bytes": code.size_bytes,
        "packed_bytes": len(code.data),
        "digest": code.digest,
    }


def code_line(code: Mapping[str, Any]) -> str:
    """Return the plan's line about the code."""
    count = f"{code['files']} file{'' if code['files'] == 1 else 's'}"
    size = f"{size_text(code['size_bytes'])}, packed {size_text(code['packed_bytes'])}"
    return f"{code['folder']}: {count}, {size}, digest {code['digest'][:12]}"


def code_warnings(run: str, setup: str | None, code: PackedBundle | None, *, saves: bool = True) -> Iterator[str]:
    """Yield warnings about a job's code, for the user to read before approving the job.

    Args:
        run: the job's command, as shell text.
        setup: what each machine runs before it, which may install code too.
        code: the code that is uploaded.
        saves: whether a lost machine costs what was not saved; not so where items run again, or the runtime keeps the state.
    """
    missing = [path for path in _scripts(run) if code is None or path not in code.paths]
    if missing and not setup:
        where = f"which is not in {code.folder}" if code else "but no code is uploaded: set workdir in the job file"
        yield f"run names {', '.join(missing)}, {where}"
    if saves and code is not None and not missing and not _CALLS.search(run.encode()) and not _calls(code):
        yield (
            "the code never calls Windfall: nothing is saved, and the job restarts from scratch after each lost machine; "
            "call wf.step() and wf.backup(path), or `windfall backup` from a shell"
        )


def _scripts(run: str) -> list[str]:
    """Return the relative paths in a command that look like scripts; none if the command changes folder."""
    try:
        tokens = shlex.split(run, comments=True)
    except ValueError:
        return []
    if "cd" in tokens or "git" in tokens:
        return []
    return list(
        dict.fromkeys(token.removeprefix("./") for token in tokens if _SCRIPT.fullmatch(token.removeprefix("./")))
    )


def _calls(code: PackedBundle) -> bool:
    return any(_CALLS.search(text) for text in code_texts(code))


_WIDTH = 79
_LABEL = 12
_TIE = "\u00a0"
"""A space that never breaks a line."""
_SHOWN_S = 0.005
"""Shorter parts of the time are not listed [s]."""
_REFUSED_MAX = 8


def plan_lines(job: Job, plan: Mapping[str, Any], *, whole: bool = False, starts: bool = True) -> Iterator[str]:
    """Yield the lines of a plan.

    Args:
        job: the planned job.
        plan: `policies.planning.job_plan.JobPlan` as JSON, with `odds` if they were calculated (`simulation.plan_odds`).
        whole: include the other offers, and every number with its source.
        starts: whether the job will be started, so that the run's URL is final.
    """
    chosen, fleets = plan["chosen"], plan.get("fleet")
    expected = chosen["expected"]
    yield from _row("job", _head(job, plan))
    yield from _policies(job)
    items = bag_words.rows(job, chosen["offer"] if fleets is None else None)
    for label, words in (*items, ("price", _price(chosen, plan, whole=whole)), *queue_report.rows(plan)):
        yield from _row(label, words)
    if expected is None:
        measure = "" if job.work is None else "; `windfall drill job.yaml` measures them"
        why = bag_words.unknown(job) or (plan.get("shapes") or {}).get("unknown")
        yield from _row("expected", why or f"cost and finish time are unknown{measure}")
    else:
        odds = plan.get("odds")
        spread = "" if queue_report.is_free(plan) else _spread(odds, "cost_usd", lambda usd: f"{_usd(usd)} USD")
        yield from _row("cost", _cost(expected, plan) + spread)
        finish = f"in {duration_text(expected['wall_s'])}, {_preemptions(expected)}"
        yield from _row("finish", finish + _spread(odds, "finish_s", duration_text))
        if odds is not None:
            yield from _row("odds", odds["says"])
        yield from _row("time", _parts(expected))
    if (deadline := plan.get("deadline")) is not None:
        yield from _row("deadline", deadline["says"])
    for label, words in (*shape_plan.rows(plan.get("shapes"), whole=whole), *fleet_report.rows(fleets)):
        yield from _row(label, words)
    known = (("forecasts", record_text(plan.get("track_record"))), ("notice", plan["notice"]))
    for label, words in (*known, ("unknown", _unknown(plan)), ("assumed", _assumed(plan))):
        if words:
            yield from _row(label, words)
    for message in plan["warnings"]:
        yield from _row("warning", message)
    for error in plan.get("provider_errors", ()):
        yield from _row("no answer", f"{error['provider']}: {error['message']}")
    if (code := plan.get("code")) is not None:
        yield from _row("code", code_line(code))
    place, _, _ = job.run_url.rpartition("/")
    yield from _row("run", job.run_url if starts else f"a new folder under {place}")
    if whole:
        yield from _behind(plan)


def _behind(plan: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a plan rests on: how long it holds, the other offers, every number with its source."""
    if holds := _holds(plan):
        yield from _row("holds", holds)
    yield from _others(plan)
    yield from _numbers(plan)


def _row(label: str, text: str) -> list[str]:
    first, rest = f"{label:<{_LABEL}}", " " * _LABEL
    wrapped = textwrap.wrap(
        text, _WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )
    return [line.replace(_TIE, " ") for line in wrapped] or [first]


def _policies(job: Job) -> Iterator[str]:
    """Yield the runtime, with the machines that it needs at the start, and the fleet policy, where they are not the usual."""
    if job.runtime.name != DEFAULT_RUNTIME:
        roles = Counter(slot.role for slot in runtime_list.rules(job.runtime.name).slots(job))
        needs = ", ".join(f"{count} {role}" for role, count in roles.items())
        runtime = _policy(PolicyKind.RUNTIME, job.runtime.name)
        start = "" if bag_words.bag_in(job) else f"; it starts with {needs or 'no machine'}"
        yield from _row("runtime", f"{runtime}{start}")
    if job.fleet != DEFAULT_FLEET:
        yield from _row("fleet", _policy(PolicyKind.FLEET, job.fleet))


def _policy(kind: PolicyKind, name: str) -> str:
    return f"{name}: {policy_registry.described(kind, name)}".removesuffix(": ")


def _head(job: Job, plan: Mapping[str, Any]) -> str:
    chosen, fleets = plan["chosen"], plan.get("fleet")
    count = f"{chosen['machines']} x " if chosen["machines"] > 1 else ""
    most = "" if job.objective.loss is None else "at most "
    work = "" if job.work is None else f"{most}{job.work.amount:g} {job.work.unit}s on "
    for number in plan["numbers"]:
        if number["name"] == PlanNumberKey.WORK and number["basis"] == NumberBasis.DERIVED:  # depends on the machines
            work = f"{number['value']:.0f} {number['unit']} on "
    if fleets is not None:
        return f"{job.name}: {work}{fleet_report.head(fleets)}"
    offer = chosen["offer"]
    size = []
    if offer["cpus"]:
        size.append(f"{offer['cpus']:g} CPU{'' if offer['cpus'] == 1 else 's'}")
    if offer["memory_gib"]:
        size.append(f"{offer['memory_gib']:g} GiB")
    if offer["accelerators"]:
        size.append(f"{offer['accelerators']} x {offer['accelerator']}")
    what = f" ({', '.join(size)})" if size else ""
    return f"{job.name}: {work}{count}{offer['machine_type']} in {offer['zone']}, {_kind(offer)} of {offer['provider']}{what}"


def _kind(offer: Mapping[str, Any]) -> str:
    return "spot" if offer["reliability"] == "transient" else "on-demand"


def _usd(amount: float) -> str:
    if amount >= 100:
        return f"{amount:.2f}"
    return f"{amount:.3g}" if amount >= 0.001 else f"{amount:.6f}"


def _price(chosen: Mapping[str, Any], plan: Mapping[str, Any], *, whole: bool) -> str:
    offer, machines = chosen["offer"], chosen["machines"]
    price = queue_report.free_price(plan) if queue_report.is_free(plan) else f"{_usd(chosen['usd_per_hour'])} USD/h"
    if (fleets := plan.get("fleet")) is not None:
        more = "" if whole else " (`windfall plan --all` shows cheaper and faster fleets)"
        return f"{price}; {fleets['searched']} offers fit{more}"
    if _kind(offer) == "spot" and not queue_report.is_free(plan):
        price += f", on demand {_usd(offer['on_demand_usd_per_hour'] * machines)} USD/h"
    others = len(plan["alternatives"])
    if others and not whole:
        price += (
            f"; {others} other offer{'s' * (others != 1)} qualif{'y' if others != 1 else 'ies'} (`windfall plan --all`)"
        )
    return price


def _cost(expected: Mapping[str, Any], plan: Mapping[str, Any]) -> str:
    if queue_report.is_free(plan) and not expected["cost_usd"]:
        return queue_report.free_cost(plan, expected["machine_hours"])
    saved, baseline = plan["savings_percent"], plan["baseline"]
    hours = f"{expected['machine_hours']:.3g} machine-hour{'' if expected['machine_hours'] == 1 else 's'}"
    cost = f"{_usd(expected['cost_usd'])} USD for {hours}"
    if baseline is None or saved is None:
        return cost
    against = f"{saved:.0f} % less than" if saved >= 0 else f"{-saved:.0f} % more than"
    return f"{cost}, {against} {_usd(baseline['cost_usd'])} USD on demand"


def _spread(odds: Mapping[str, Any] | None, what: str, text: Callable[[float], str]) -> str:
    """Return the median and the 90th percentile."""
    if odds is None or odds[what] is None:
        return ""
    p50, p90 = (text(odds[what][name]).replace(" ", _TIE) for name in ("p50", "p90"))
    return f"; P50{_TIE}{p50} .. P90{_TIE}{p90}"


def _preemptions(expected: Mapping[str, Any]) -> str:
    count = expected["preemptions"]
    return f"{count:.1f} preemptions expected" if count >= 0.05 else "no preemptions expected"


def _parts(expected: Mapping[str, Any]) -> str:
    parts = [
        f"{part['name']} {duration_text(part['duration_s'])}".replace(" ", _TIE)
        for part in expected["parts"]
        if part["duration_s"] >= _SHOWN_S
    ]
    return ", ".join(parts)


def _unknown(plan: Mapping[str, Any]) -> str:
    """Return the unknown numbers, grouped by reason."""
    reasons: dict[str, list[str]] = {}
    for number in plan["numbers"]:
        if number["value"] is None and number["basis"] == "unknown":
            reasons.setdefault(number["detail"], []).append(number["name"])
    return "; ".join(f"{', '.join(names)} ({reason})" for reason, names in reasons.items())


def _assumed(plan: Mapping[str, Any]) -> str:
    """Return the numbers that rest on no measurement, grouped by reason; that of a save counts as unknown above."""
    reasons: dict[str, list[str]] = {}
    for number in plan["numbers"]:
        if number["basis"] == NumberBasis.ASSUMED and number["name"] != PlanNumberKey.SAVE_STALL:
            value = duration_text(number["value"]) if number["unit"] == "s" else share_text(number["value"])
            reasons.setdefault(number["detail"], []).append(f"{number['name']} {value}".replace(" ", _TIE))
    return "; ".join(f"{', '.join(names)} ({reason})" for reason, names in reasons.items())


def _holds(plan: Mapping[str, Any]) -> str:
    """Return how far the chosen offer's price may rise before the next best costs less; empty if that is unknown."""
    fleets = plan.get("fleet")
    if fleets is not None:
        next_one, chosen_usd = fleets["runner_up"], fleets["chosen"]["cost_usd"]
        next_usd = None if next_one is None else next_one["cost_usd"]
        name = "" if next_one is None else fleet_text(next_one["counts"])
    else:
        others, expected = plan["alternatives"], plan["chosen"]["expected"]
        chosen_usd = None if expected is None else expected["cost_usd"]
        next_usd = others[0]["expected"]["cost_usd"] if others and others[0]["expected"] is not None else None
        name = f"{others[0]['offer']['machine_type']} in {others[0]['offer']['zone']}" if others else ""
    if not chosen_usd or next_usd is None or next_usd <= chosen_usd:
        return ""
    return f"until its price rises by {100.0 * (next_usd / chosen_usd - 1.0):.0f} %: then {name} costs less"


def _others(plan: Mapping[str, Any]) -> Iterator[str]:
    yield ""
    if plan.get("fleet") is not None:
        yield from fleet_report.front_lines(plan["fleet"])
    else:
        yield from _offers(plan)
    reasons: dict[str, list[str]] = {}
    for refused in plan["refused"]:
        offer = refused["offer"]
        reasons.setdefault(refused["reason"], []).append(f"{offer['machine_type']} in {offer['zone']}")
    for reason, names in reasons.items():
        shown = ", ".join(names[:_REFUSED_MAX]) + (
            f" and {len(names) - _REFUSED_MAX} more" * (len(names) > _REFUSED_MAX)
        )
        yield from _row("refused", f"{shown}: {reason}")


def _offers(plan: Mapping[str, Any]) -> Iterator[str]:
    yield f"{'offer':<44}{'USD/h':>10}{'USD':>11}{'finish':>14}"
    for candidate in (plan["chosen"], *plan["alternatives"]):
        offer, expected = candidate["offer"], candidate["expected"]
        name = f"{offer['machine_type']} in {offer['zone']}, {_kind(offer)} of {offer['provider']}"
        cost = "unknown" if expected is None else _usd(expected["cost_usd"])
        finish = "unknown" if expected is None else duration_text(expected["wall_s"])
        yield f"{name[:44]:<44}{_usd(candidate['usd_per_hour']):>10}{cost:>11}{finish:>14}"


def _numbers(plan: Mapping[str, Any]) -> Iterator[str]:
    yield ""
    yield "inputs and their sources"
    for number in plan["numbers"]:
        value = "unknown" if number["value"] is None else f"{_plain(number['value'])} {number['unit']}".strip()
        source = number["detail"] if number["basis"] == "unknown" else number["source"]
        yield from textwrap.wrap(
            f"  {number['name']}: {value} ({source})", _WIDTH, subsequent_indent="    ", break_on_hyphens=False
        )


def _plain(value: float) -> str:
    return f"{value:,.0f}".replace(",", " ") if abs(value) >= 1000 or value == int(value) else f"{value:.3g}"
