"""What a plan says where machines wait in a queue and hours have no price: when it would start, and what it costs in hours."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

from windfall.units import count_text, duration_text, share_text

_NOW_S = 60.0
"""A start sooner than this is called one at once: a scheduler takes some time for its turn [s]."""


def start_text(plan: Mapping[str, Any], now: float, local: Callable[[float], datetime]) -> str:
    """Return when the chosen offer's first machine would start, and which other offer would start sooner; empty if unknown.

    Args:
        plan: with `starts`, the chosen offer's first.
        now: the current time [s since 1970].
        local: an instant [s since 1970] in the user's zone.
    """
    starts = plan.get("starts") or []
    if not starts:
        return ""
    chosen = next((one for one in starts if _key(one["offer"]) == _key(plan["chosen"]["offer"])), None)
    others = [one for one in starts if one is not chosen]
    soonest = min(others, key=lambda one: one["starts_at"], default=None)
    words = "unknown" if chosen is None else _when(chosen["starts_at"], now, local)
    if soonest is not None and (chosen is None or soonest["starts_at"] < chosen["starts_at"] - _NOW_S):
        offer = soonest["offer"]
        words += f"; {offer['machine_type']} in {offer['zone']} {_when(soonest['starts_at'], now, local)}"
    return f"{words}: {starts[0]['estimate']}"


def _when(at: float, now: float, local: Callable[[float], datetime]) -> str:
    left_s = at - now
    if left_s < _NOW_S:
        return "at once"
    moment, today = local(at), local(now).date()
    day = "" if moment.date() == today else f"{moment:%a %d %b} "
    return f"at {day}{moment:%H:%M}, in {duration_text(round(left_s / 60.0) * 60.0)}"


def _key(offer: Mapping[str, Any]) -> tuple[Any, ...]:
    return offer["provider"], offer["machine_type"], offer["zone"], offer["reliability"]


def rows(plan: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the rows that a plan has for a queue: the start, and where hours cost no money, what preemptions cost."""
    if start := plan.get("start"):
        yield "start", start["says"]
    if is_free(plan) and (words := preemption_text(plan)):
        yield "preemption", words


def is_free(plan: Mapping[str, Any]) -> bool:
    """Return whether the chosen machines' hours cost no money."""
    return not plan["chosen"]["usd_per_hour"]


def free_price(plan: Mapping[str, Any]) -> str:
    """Return what an hour counts where it costs no money."""
    units, machines = plan.get("units"), plan["chosen"]["machines"]
    if units is None:
        return "hours cost nothing"
    amount = units["per_machine_hour"] * machines
    one, several = _names(units["name"])
    return f"hours cost nothing; {amount:.3g} {one if amount == 1 else several} an hour"


def free_cost(plan: Mapping[str, Any], machine_hours: float) -> str:
    """Return what a job costs in hours and in the site's units."""
    return f"{_hours(machine_hours)}{_in_units(plan, machine_hours)}, which cost nothing"


def preemption_text(plan: Mapping[str, Any]) -> str:
    """Return what preemptions cost, in hours and in the site's units; empty if that is unknown or there are none."""
    found = plan.get("preemption")
    if found is None:
        return ""
    over = "the work" if found["work_known"] else f"each {duration_text(found['work_s'])} of work"
    parts = ((found["redo_s"], "done again"), (found["save_s"], "for saves"), (found["restart_s"], "for new machines"))
    shares = ", ".join(f"{duration_text(spent_s)} {what}" for spent_s, what in parts if spent_s > 0.0)
    hours = found["machine_hours"]
    notice = (
        f"; {duration_text(found['notice_s'])} from a preemption's first sign to the end" if found["notice_s"] else ""
    )
    assumed = f" (assumed: {', '.join(found['assumed'])})" if found["assumed"] else ""
    return (
        f"{found['preemptions']:.1f} expected in {over}{assumed}: {share_text(found['share'])} more time ({shares or 'none'}), "
        f"{_hours(hours)}{_in_units(plan, hours)}{notice}"
    )


def _hours(hours: float) -> str:
    return f"{hours:.3g} machine-hour{'' if hours == 1 else 's'}"


def _in_units(plan: Mapping[str, Any], hours: float) -> str:
    units = plan.get("units")
    return "" if units is None else f" ({count_text(round(hours * units['per_machine_hour']), *_names(units['name']))})"


def _names(several: str) -> tuple[str, str]:
    return several.removesuffix("s"), several
