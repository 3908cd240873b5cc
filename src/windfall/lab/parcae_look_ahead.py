"""Where looking ahead pays: plans of several look-aheads beside the fastest shape of now, on Parcae's trace and on others.

Plans are those of the policy that a live training asks (`shape_policy.decide`), with the costs that it plans with.  Every
change is charged its exact mean cost, of every stage.  The default was chosen on the other traces, though with the figures of
Parcae's beside them; that trace has no part in `LOSES` and `PAYS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from windfall.lab import parcae_elsewhere as elsewhere
from windfall.lab import parcae_published as paper
from windfall.lab.parcae_elsewhere import OtherTrace
from windfall.lab.parcae_replay import GuardedForecasts, planned_on_average, staying
from windfall.lab.parcae_tables import ParcaeModel, kept_model
from windfall.lab.published_rows import Options, Progress, PublishedRow, unprinted
from windfall.models.shape_costs import BoundedCosts, PublishedCosts
from windfall.policies.shapes.liveput import Programme
from windfall.simulation.shape_replay import deciding, play

PLACE: Final = "Parcae, looking ahead"
P3: Final = "Parcae's p3"
FOLLOWING: Final = "as far as counts last"
LOOKS: Final[Mapping[str, int | None]] = {
    "12 intervals": 12,
    "24 intervals": 24,
    "48 intervals": 48,
    "96 intervals": 96,
    FOLLOWING: None,
}
"""Look-aheads by name; None: `look_ahead_of`, the default."""
BOTH: Final = "12 intervals, last value or ARIMA"
METHOD: Final = "liveput with now and last value, over the fastest shape of now with migration; every stage charged"
NOT_PRINTED: Final = "not in the paper"
PAYS, LOSES, WORST = "models and traces where it pays", "models and traces where it loses", "its worst"


def look_ahead(options: Options, progress: Progress) -> tuple[PublishedRow, ...]:
    """Return what looking ahead gains over the fastest shape of now, by trace, model and look-ahead, and a summary."""
    if options.folder is None:
        return ()
    folder, rows = Path(options.folder), []
    others = elsewhere.other_traces(folder)
    gained: dict[str, list[tuple[float, float, float]]] = {look: [] for look in (*LOOKS, BOTH)}
    for name in paper.MODELS if others else ():
        model = kept_model(folder, name, every_stage=True)
        for trace in (*others, OtherTrace(P3, model.counts)):
            progress(f"{name} on {trace.name}")
            for look, found in _gains(model, trace, options.seed).items():
                rows.append(_gain(f"{trace.name}, {name}", look, found))
                if trace.name != P3:
                    gained[look].append(found)
    for look, found_all in gained.items():
        if found_all:
            rows += _summary(look, found_all)
    return tuple(sorted(rows, key=lambda row: row.item))


def _gains(model: ParcaeModel, trace: OtherTrace, seed: int) -> dict[str, tuple[float, float, float]]:
    """Return the gain of each look-ahead with its interval [%]; none if the trace never has machines enough."""
    charged, planned = PublishedCosts(model.times, model.speeds), BoundedCosts(model.times, model.speeds)
    now = play(trace.counts, charged, lambda seen: model.speeds.best(seen.now)).samples
    if not sum(now):
        return {}
    least = min(shape.machines for shape in model.speeds.samples_per_s)
    choices = {name: deciding(planned, look) for name, look in LOOKS.items()} | {
        BOTH: planned_on_average(planned, (staying, GuardedForecasts(least)), Programme.ONE_MAXIMUM)
    }
    return {
        name: elsewhere.gain_pct(play(trace.counts, charged, choice).samples, now, seed)
        for name, choice in choices.items()
    }


def _gain(item: str, look: str, found: tuple[float, float, float]) -> PublishedRow:
    gain, low, high = found
    return unprinted(
        PLACE, item, f"more samples, {look}", unit="%", ours=gain, method=METHOD,
        reason=f"{NOT_PRINTED}; 95 % by hours: {low:.2f} to {high:.2f}",
    )  # fmt: skip


def _summary(look: str, found: list[tuple[float, float, float]]) -> list[PublishedRow]:
    counts = {
        PAYS: sum(low > _ZERO_PCT for _, low, _ in found),
        LOSES: sum(high < -_ZERO_PCT for _, _, high in found),
    }
    rows = [
        unprinted(PLACE, f"all other traces, {look}", quantity, unit=f"of {len(found)}", ours=float(count), method=METHOD,
                  reason=f"{NOT_PRINTED}; the interval of 95 % lies on one side of 0")
        for quantity, count in counts.items()
    ]  # fmt: skip
    worst = min(gain for gain, _, _ in found)
    rows.append(
        unprinted(PLACE, f"all other traces, {look}", WORST, unit="%", ours=worst, method=METHOD, reason=NOT_PRINTED)
    )
    return rows


_ZERO_PCT: Final = 0.005
"""A gain that is written as 0.00 % is none."""
