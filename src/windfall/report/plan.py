"""A plan as lines for a terminal of 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from windfall.jobs import Job
from windfall.report.code import code_line
from windfall.units import duration_text

_WIDTH = 79
_LABEL = 12
_TIE = "\u00a0"
"""A space at which no line is broken."""
_SHOWN_S = 0.005
"""Parts of the time that are shorter are not named [s]."""
_REFUSED_MAX = 8


def plan_lines(job: Job, plan: Mapping[str, Any], *, whole: bool = False, starts: bool = True) -> Iterator[str]:
    """Yield the lines of a plan.

    Args:
        job: what is planned.
        plan: `policies.planning.Plan` as JSON; with `odds`, if they were calculated (`cli.odds`).
        whole: with the other offers, and every number with its source.
        starts: whether the job will be started, so that its run's place will be.
    """
    chosen = plan["chosen"]
    expected = chosen["expected"]
    yield from _row("job", _head(job, chosen))
    yield from _row("price", _price(chosen, plan, whole=whole))
    if expected is None:
        yield from _row("expected", "cost and finish are unknown")
    else:
        odds = plan.get("odds")
        yield from _row("cost", _cost(expected, plan) + _spread(odds, "cost_usd", lambda usd: f"{_usd(usd)} USD"))
        finish = f"in {duration_text(expected['wall_s'])}, {_preemptions(expected)}"
        yield from _row("finish", finish + _spread(odds, "finish_s", duration_text))
        if odds is not None:
            yield from _row("odds", odds["says"])
        yield from _row("time", _parts(expected))
    yield from _row("notice", plan["notice"])
    if unknown := _unknown(plan):
        yield from _row("unknown", unknown)
    for sentence in plan["warnings"]:
        yield from _row("warning", sentence)
    for trouble in plan.get("troubles", ()):
        yield from _row("no answer", f"{trouble['provider']}: {trouble['sentence']}")
    if (code := plan.get("code")) is not None:
        yield from _row("code", code_line(code))
    place, _, _ = job.run_url.rpartition("/")
    yield from _row("run", job.run_url if starts else f"in a folder of its own under {place}")
    if whole:
        yield from _others(plan)
        yield from _numbers(plan)


def _row(label: str, text: str) -> list[str]:
    first, rest = f"{label:<{_LABEL}}", " " * _LABEL
    wrapped = textwrap.wrap(
        text, _WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )
    return [line.replace(_TIE, " ") for line in wrapped] or [first]


def _head(job: Job, chosen: Mapping[str, Any]) -> str:
    count = f"{chosen['machines']} x " if chosen["machines"] > 1 else ""
    work = "" if job.work is None else f"{job.work.amount:g} {job.work.unit}s on "
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
    price = f"{_usd(chosen['usd_per_hour'])} USD/h"
    if _kind(offer) == "spot":
        price += f", on demand {_usd(offer['on_demand_usd_per_hour'] * machines)} USD/h"
    others = len(plan["alternatives"])
    if others and not whole:
        price += f"; {others} other offer{'s' * (others != 1)} would do (`windfall plan --all`)"
    return price


def _cost(expected: Mapping[str, Any], plan: Mapping[str, Any]) -> str:
    saved, twin = plan["savings_percent"], plan["twin"]
    hours = f"{expected['machine_hours']:.3g} machine-hour{'' if expected['machine_hours'] == 1 else 's'}"
    cost = f"{_usd(expected['cost_usd'])} USD for {hours}"
    if twin is None or saved is None:
        return cost
    against = f"{saved:.0f} % less than" if saved >= 0 else f"{-saved:.0f} % more than"
    return f"{cost}, {against} {_usd(twin['cost_usd'])} USD on demand"


def _spread(odds: Mapping[str, Any] | None, what: str, text: Callable[[float], str]) -> str:
    """Return the middle and the tenth worst of what may come."""
    if odds is None or odds[what] is None:
        return ""
    p50, p90 = (text(odds[what][name]).replace(" ", _TIE) for name in ("p50", "p90"))
    return f"; P50{_TIE}{p50} .. P90{_TIE}{p90}"


def _preemptions(expected: Mapping[str, Any]) -> str:
    count = expected["preemptions"]
    return f"{count:.1f} preemptions expected" if count >= 0.05 else "hardly a preemption expected"


def _parts(expected: Mapping[str, Any]) -> str:
    told = [
        f"{part['name']} {duration_text(part['duration_s'])}".replace(" ", _TIE)
        for part in expected["parts"]
        if part["duration_s"] >= _SHOWN_S
    ]
    return ", ".join(told)


def _unknown(plan: Mapping[str, Any]) -> str:
    """Say what is not known, things with the same reason together."""
    reasons: dict[str, list[str]] = {}
    for number in plan["numbers"]:
        if number["value"] is None and number["source"].startswith("unknown: "):
            reasons.setdefault(number["source"].removeprefix("unknown: "), []).append(number["name"])
    return "; ".join(f"{', '.join(names)} ({reason})" for reason, names in reasons.items())


def _others(plan: Mapping[str, Any]) -> Iterator[str]:
    yield ""
    yield f"{'offer':<44}{'USD/h':>10}{'USD':>11}{'finish':>14}"
    for candidate in (plan["chosen"], *plan["alternatives"]):
        offer, expected = candidate["offer"], candidate["expected"]
        name = f"{offer['machine_type']} in {offer['zone']}, {_kind(offer)} of {offer['provider']}"
        cost = "unknown" if expected is None else _usd(expected["cost_usd"])
        finish = "unknown" if expected is None else duration_text(expected["wall_s"])
        yield f"{name[:44]:<44}{_usd(candidate['usd_per_hour']):>10}{cost:>11}{finish:>14}"
    reasons: dict[str, list[str]] = {}
    for refused in plan["refused"]:
        offer = refused["offer"]
        reasons.setdefault(refused["reason"], []).append(f"{offer['machine_type']} in {offer['zone']}")
    for reason, names in reasons.items():
        shown = ", ".join(names[:_REFUSED_MAX]) + (
            f" and {len(names) - _REFUSED_MAX} more" * (len(names) > _REFUSED_MAX)
        )
        yield from _row("refused", f"{shown}: {reason}")


def _numbers(plan: Mapping[str, Any]) -> Iterator[str]:
    yield ""
    yield "all this rests on"
    for number in plan["numbers"]:
        value = "unknown" if number["value"] is None else f"{_plain(number['value'])} {number['unit']}".strip()
        source = number["source"].removeprefix("unknown: ")
        yield from textwrap.wrap(
            f"  {number['name']}: {value} ({source})", _WIDTH, subsequent_indent="    ", break_on_hyphens=False
        )


def _plain(value: float) -> str:
    return f"{value:,.0f}".replace(",", " ") if abs(value) >= 1000 or value == int(value) else f"{value:.3g}"
