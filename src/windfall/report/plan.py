"""A plan as lines for a terminal of 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from windfall.jobs import Job
from windfall.units import duration_text, size_text

_WIDTH = 79
_LABEL = 12


def plan_lines(job: Job, plan: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a plan.

    Args:
        job: what is planned.
        plan: `policies.planning.Plan` as JSON.
    """
    chosen = plan["chosen"]
    offer = chosen["offer"]
    count = f"{chosen['machines']} x " if chosen["machines"] > 1 else ""
    work = "" if job.work is None else f"{job.work.amount:g} {job.work.unit}s on "
    yield from _row("job", f"{job.name}: {work}{count}{_kind(offer)}")
    yield from _row("price", _price(chosen, plan))
    expected = chosen["expected"]
    if expected is None:
        yield from _row("expected", "cost and finish are unknown")
    else:
        yield from _row("cost", _cost(expected, plan))
        yield from _row(
            "finish", f"in {duration_text(expected['wall_s'])}, {expected['preemptions']:.1f} preemptions expected"
        )
        yield from _row("time", _parts(expected))
    yield from _row("notice", plan["notice"])
    for sentence in plan["unknown"]:
        yield from _row("unknown", sentence)
    for sentence in plan["warnings"]:
        yield from _row("warning", sentence)
    for trouble in plan.get("troubles", ()):
        yield from _row("no answer", f"{trouble['provider']}: {trouble['sentence']}")
    yield from _row("run", job.run_url)


def _row(label: str, text: str) -> list[str]:
    first, rest = f"{label:<{_LABEL}}", " " * _LABEL
    return textwrap.wrap(
        text, _WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    ) or [first]


def _kind(offer: Mapping[str, Any]) -> str:
    kind = "spot" if offer["reliability"] == "transient" else "on-demand"
    memory = size_text(round(offer["memory_gib"] * 2**30)) if offer["memory_gib"] else ""
    accelerators = f", {offer['accelerators']} x {offer['accelerator']}" if offer["accelerators"] else ""
    size = f" ({offer['cpus']:g} CPUs, {memory}{accelerators})" if offer["cpus"] else ""
    return f"{offer['provider']} {offer['machine_type']} in {offer['zone']}, {kind}{size}"


def _price(chosen: Mapping[str, Any], plan: Mapping[str, Any]) -> str:
    offer = chosen["offer"]
    machines = chosen["machines"]
    others = len(plan["alternatives"])
    more = f"; {others} other offers would do" if others else ""
    twin = offer["on_demand_usd_per_hour"] * machines
    return f"{chosen['usd_per_hour']:.4g} USD/h, {twin:.4g} USD/h on demand{more}"


def _cost(expected: Mapping[str, Any], plan: Mapping[str, Any]) -> str:
    saved = plan["savings_percent"]
    twin = plan["twin"]
    against = "" if twin is None or saved is None else f", {saved:.0f} % less than {twin['cost_usd']:.4g} USD on demand"
    return f"{expected['cost_usd']:.4g} USD for {expected['machine_hours']:.3g} machine-hours{against}"


def _parts(expected: Mapping[str, Any]) -> str:
    told = [
        f"{part['name']} {duration_text(part['duration_s'])}" for part in expected["parts"] if part["duration_s"] > 0
    ]
    return ", ".join(told)
