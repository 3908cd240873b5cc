"""The fleets of a plan as lines for a terminal, where the job can use more or fewer machines."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from windfall.policies.planning.offer_notes import fleet_text
from windfall.units import duration_text

_NAME = 42


def head(fleets: Mapping[str, Any]) -> str:
    """Return all machines of the chosen fleet, those that keep the state safe included."""
    text = fleet_text(fleets["chosen"]["counts"])
    if fleets["reliable"] is None:
        return text
    return f"{text}, and {fleet_text([(fleets['reliable'], fleets['reliable_machines'])])} for the state"


def rows(fleets: Mapping[str, Any] | None) -> Iterator[tuple[str, str]]:
    """Yield label and text of the fleet's risk and of the other fleets; nothing for a plan without fleets."""
    if fleets is None:
        return
    yield "risk", fleets["risk"]
    for label, name in (("runner-up", "runner_up"), ("on demand", "on_demand")):
        fleet = fleets[name]
        if fleet is not None:
            without = f"without {fleets['chosen']['counts'][0][0][1]}: " if name == "runner_up" else ""
            yield label, f"{without}{fleet_text(fleet['counts'])}; {_course(fleet)}"


def front_lines(fleets: Mapping[str, Any]) -> Iterator[str]:
    """Yield the table of the fleets of which none is both cheaper and faster than another; of unknown work, what it costs."""
    unknown = any(fleet["cost_usd"] is None for fleet in fleets["front"])
    heads = f"{'USD per core-hour of work':>37}" if unknown else f"{'USD P50 .. P90':>18}{'finish P50 .. P90':>19}"
    yield f"{'fleet':<{_NAME}}{heads}"
    for fleet in fleets["front"]:
        *above, last = textwrap.wrap(fleet_text(fleet["counts"]), _NAME - 1, break_on_hyphens=False)
        yield from above
        values = f"{_pair(fleet, 'cost_usd'):>18}{_pair(fleet, 'finish_s'):>19}" if not unknown else ""
        yield f"{last:<{_NAME}}{values or _usd(fleet['usd_per_work_core_hour']).rjust(37)}"


def _course(fleet: Mapping[str, Any]) -> str:
    if fleet["cost_usd"] is None:
        return f"{fleet['usd_per_work_core_hour']:.3g} USD per core-hour of work"
    return f"{_usd(fleet['cost_usd'])} USD, {duration_text(fleet['finish_s'])}"


def _pair(fleet: Mapping[str, Any], what: str) -> str:
    odds = fleet.get("odds")
    value = fleet[what] if odds is None or odds[what] is None else None
    values: Sequence[float] = [value] if value is not None else [odds[what]["p50"], odds[what]["p90"]]  # type: ignore[index]
    texts = [_hours(one) if what == "finish_s" else _usd(one) for one in values]
    return " .. ".join(texts)


def _usd(amount: float) -> str:
    return f"{amount:.0f}" if amount >= 100.0 else f"{amount:.3g}"


def _hours(duration_s: float) -> str:
    return f"{duration_s / 3600.0:.3g} h" if duration_s >= 3600.0 else f"{duration_s / 60.0:.3g} min"
