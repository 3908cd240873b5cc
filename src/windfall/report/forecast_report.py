"""What a run came to beside its forecast, as lines of `windfall cost JOB` and as JSON; and the record of earlier forecasts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from windfall.fleet import TERMINAL
from windfall.jobs import ForecastBasis
from windfall.models.forecast_scores import pinball
from windfall.policies.planning.forecasts import ForecastOutcome
from windfall.structs import plain
from windfall.units import duration_text

_INDENT = " " * 12


def lines(found: ForecastOutcome) -> Iterator[str]:
    """Yield what the plan promised and what happened; nothing if it promised nothing."""
    promised = found.forecast
    if promised is None:
        return
    if promised.basis is ForecastBasis.EXPECTED:
        parts = [] if not promised.expected_cost_usd else [_usd(promised.expected_cost_usd)]
        parts += [] if promised.expected_finish_s is None else [duration_text(promised.expected_finish_s)]
        if parts:
            yield f"forecast    {', '.join(parts)} expected; P50 and P90 were not computed"
        return
    rows = [
        (promised.cost_p50_usd, promised.cost_p90_usd, found.cost_usd, found.cost_inside, _usd),
        (promised.finish_p50_s, promised.finish_p90_s, found.finish_s, found.finish_inside, duration_text),
    ]
    label = "forecast    "
    for p50, p90, actual, inside, text in rows:
        if p50 is None or not p90:
            continue
        yield f"{label}{text(p50)} P50, {text(p90)} P90{_happened(found, actual, text, inside=inside)}"
        label = _INDENT
    if found.phase in TERMINAL and not found.ended_by_itself:
        why = "a user resumed it" if found.resumed else f"it {_ENDS.get(found.phase.value, 'did not end by itself')}"
        yield f"{_INDENT}not scored: {why}"


_ENDS = {"failed": "failed", "stopped": "was stopped"}


def _happened(
    found: ForecastOutcome, actual: float | None, text: Callable[[float], str], *, inside: bool | None
) -> str:
    if actual is None:
        return ""
    if inside is None:
        return f"; {'came to' if found.phase in TERMINAL else 'so far'} {text(actual)}"
    return f"; actual {text(actual)}: {'inside' if inside else 'above'} P90"


def _usd(amount: float) -> str:
    """Write dollars with the digits that a plan shows."""
    if amount >= 100:
        return f"{amount:.0f} USD"
    return f"{amount:.3g} USD" if amount >= 0.001 else f"{amount:.6f} USD"


def as_json(found: ForecastOutcome) -> dict[str, Any] | None:
    """Return the forecast and its score as data; None without a forecast.

    The pinball losses are in the unit of what was forecast, and null where nothing is scored.
    """
    promised = found.forecast
    if promised is None:
        return None
    cost = (found.cost_inside, found.cost_usd, promised.cost_p50_usd, promised.cost_p90_usd)
    finish = (found.finish_inside, found.finish_s, promised.finish_p50_s, promised.finish_p90_s)
    return {
        **plain(promised),
        "scored": found.ended_by_itself and promised.finish_p90_s is not None,
        "actual_cost_usd": found.cost_usd,
        "actual_finish_s": found.finish_s,
        "cost": _scores(*cost),
        "finish": _scores(*finish),
    }


def _scores(inside: bool | None, actual: float | None, p50: float | None, p90: float | None) -> dict[str, Any] | None:
    if inside is None or actual is None or p50 is None or p90 is None:
        return None
    return {"inside_p90": inside, "pinball_p50": pinball(actual, p50, 0.5), "pinball_p90": pinball(actual, p90, 0.9)}


def record_text(record: Mapping[str, Any] | None) -> str:
    """Return how the last runs compare with their forecasts, for a plan; empty if none is scored."""
    if record is None:
        return ""
    runs = record["runs"]
    parts = [
        f"{record[f'{what}_inside']} of {record[f'{what}_runs']} inside P90 of {what}"
        for what in ("cost", "finish")
        if record[f"{what}_runs"]
    ]
    left_out, was = record["left_out"], "was" if record["left_out"] == 1 else "were"
    apart = f"; not counted: {left_out} that failed, {was} stopped or {was} resumed" if left_out else ""
    return f"your last {f'{runs} runs' if runs != 1 else 'run'}: {', '.join(parts)}{apart}"
