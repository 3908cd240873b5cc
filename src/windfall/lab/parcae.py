"""Parcae, replicated: costs of migrations, forecasts, what its simulator trains, and its cost table.

The measured tables are the authors', read from `--data`; without them only what follows from printed numbers is computed.
Judged beside the published policies is one of Windfall's: it plans with the machines of now, and with their number for the
intervals to come, which is what is known when it decides.

Source:
    `parcae_published`, `parcae_tables`.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from windfall.lab import parcae_elsewhere as elsewhere
from windfall.lab import parcae_published as paper
from windfall.lab.parcae_look_ahead import look_ahead
from windfall.lab.parcae_policies import ROUNDING_PCT, played, policies
from windfall.lab.parcae_tables import kept_model, read
from windfall.lab.published_rows import (
    Options,
    PaperFigure,
    PaperPart,
    Progress,
    PublishedRow,
    cannot,
    compared,
    unprinted,
)
from windfall.models import count_forecasts as forecasts
from windfall.models.migration_costs import migration_cost
from windfall.models.shapes import Shape
from windfall.models.survivors import pipelines_left

PAPER: Final = paper.PAPER
COST_PCT: Final = 2.0
FIRST: Final = 15
"""The first interval that was forecast in the published scores."""


def _folder(options: Options) -> Path | None:
    return None if options.folder is None else Path(options.folder)


# ------------------------------------------------------------------------------------------------- what needs no tables


def _example(options: Options, progress: Progress) -> tuple[PublishedRow, ...]:
    del options, progress
    rows = []
    for (pipelines, stages), rate, printed in paper.EXAMPLE:
        shape = Shape(pipelines, stages)
        for lost, published in enumerate(printed):
            left = pipelines_left(shape, shape.machines, lost)
            ours = sum(float(chance) * count * rate for count, chance in enumerate(left))
            rows.append(
                compared(f"{PAPER}, slides, liveput", f"shape {shape}, {lost} lost", "liveput", unit="samples/s",
                         published=published, ours=ours, tolerance_pct=ROUNDING_PCT,
                         method="exact distribution of whole pipelines; matches to rounding")
            )  # fmt: skip
    return tuple(rows)


def _headline(options: Options, progress: Progress) -> tuple[PublishedRow, ...]:
    del options, progress
    rows = []
    for place, (system, printed) in enumerate(zip(paper.SYSTEMS, paper.HEADLINES, strict=False)):
        ratios = [found for cells in paper.RATIOS.values() for cell in cells if (found := cell[place]) is not None]
        rows.append(
            compared(f"{PAPER}, abstract", f"Parcae and {system}", "times cheaper", unit="", published=printed,
                     ours=statistics.mean(ratios), tolerance_pct=0.5,
                     method="plain mean of the ratios that the cost table prints; matches within 0.5 %")
        )  # fmt: skip
    return tuple(rows)


# -------------------------------------------------------------------------------------------------------------- costs


def _migrations(options: Options, progress: Progress) -> tuple[PublishedRow, ...]:
    folder = _folder(options)
    if folder is None:
        return (
            cannot(
                f"{PAPER}, migrations", "GPT-2", "key and shape pairs", unit="", published=903.0, reason=paper.NO_DATA
            ),
        )
    golden = read(folder, "migration_cost_golden.json")["models"]
    rows = []
    for name, key in paper.MODELS.items():
        progress(f"Parcae's migrations of {name}")
        model, whole = kept_model(folder, name), kept_model(folder, name, every_stage=True)
        for case, targets in golden[key].items():
            machines, pipelines, stages, _, lost = map(int, case.split(","))
            source = Shape(pipelines, stages)
            shapes = [Shape(*map(int, target.split("x"))) for target in targets]
            last, every = (
                [migration_cost(times, source, machines, lost, shape) for shape in shapes]
                for times in (model.times, whole.times)
            )
            item, place = f"{name}, {lost} of {machines} lost, from {source}", f"{PAPER}, migrations"
            for column, quantity in enumerate(("mean", "least", "most")):
                ours = [1e3 * (one.mean_s, one.least_s, one.most_s)[column] for one in last]
                rows.append(
                    compared(place, item, f"{quantity} cost of {len(shapes)} shapes, summed", unit="ms",
                             published=sum(values[column] for values in targets.values()), ours=sum(ours),
                             tolerance_pct=ROUNDING_PCT, method="all sets of lost machines; matches to rounding",
                             reason="the rules of the cost model differ")
                )  # fmt: skip
            rows.append(
                unprinted(place, item, "the same, every stage charged", unit="ms", ours=sum(1e3 * one.mean_s for one in every),
                          reason="the published program charges the last stage alone, as it overwrites a sum",
                          method="all sets of lost machines; what Windfall charges")
            )  # fmt: skip
    return tuple(rows)


# ---------------------------------------------------------------------------------------------------------- forecasts


def _fresh(history: Sequence[int]) -> tuple[int, ...]:
    return forecasts.guarded_arima(
        history, paper.AHEAD, forecasts.Damping(), least=paper.LEAST, most=paper.MOST
    )[0]  # fmt: skip


def sticking() -> Callable[[Sequence[int]], tuple[int, ...]]:
    """Return Parcae's forecast with damping that stays from one call to the next."""
    held = [forecasts.Damping()]

    def forecast(history: Sequence[int]) -> tuple[int, ...]:
        found, held[0] = forecasts.guarded_arima(history, paper.AHEAD, held[0], least=paper.LEAST, most=paper.MOST)
        return found

    return forecast


def scored(counts: Sequence[int], forecast: Callable[[Sequence[int]], Sequence[float]]) -> float:
    """Return the mean normalised L1 of forecasts of all windows, each from the counts before it."""
    ends = range(FIRST, len(counts) - paper.AHEAD)
    errors = []
    for start in ends:
        truth = counts[start : start + paper.AHEAD]
        guessed = forecast(counts[start - paper.HISTORY : start])
        errors.append(sum(abs(guess - true) for guess, true in zip(guessed, truth, strict=True)) / sum(truth))
    return statistics.mean(errors)


def _forecasts(options: Options, progress: Progress) -> tuple[PublishedRow, ...]:
    folder, place = _folder(options), f"{PAPER}, forecasts, 12 intervals ahead"
    quantity = "normalised L1"
    if folder is None:
        return tuple(
            cannot(place, name, quantity, unit="", published=published, reason=paper.NO_DATA)
            for name, published in paper.L1.items()
        )
    progress("Parcae's forecasts")
    counts = kept_model(folder, "GPT-2").counts
    window = lambda history: (statistics.mean(history),) * paper.AHEAD  # noqa: E731 - one expression, used once
    last = lambda history: forecasts.last_value(history, paper.AHEAD)  # noqa: E731 - the same
    made = dict(zip(paper.L1, (_fresh, last, window), strict=True))
    rows = [
        compared(place, name, quantity, unit="", published=published, ours=scored(counts, made[name]), tolerance_pct=0.1,
                 method="windows of the p3 trace; matches within 0.1 %")
        for name, published in paper.L1.items()
    ]  # fmt: skip
    rows.append(
        compared(place, "Parcae's ARIMA, damping stays", quantity, unit="", published=paper.L1_AS_RUN,
                 ours=scored(counts, sticking()), tolerance_pct=0.5,
                 method="windows of the p3 trace in turn, no losses drawn; matches within 0.5 %",
                 reason="the published score has losses drawn without seed")
    )  # fmt: skip
    rows[0] = rows[0].placed(PaperFigure.PARCAE_FORECASTS)
    golden = read(folder, "predictor.json")["golden_examples_fresh_predictor_no_poisson_rule"]
    equal = sum(list(_fresh(one["history"])) == one["final_N"] for one in golden)
    rows.append(
        compared(place, "Parcae's ARIMA, examples", "forecasts that are equal", unit="", published=float(len(golden)),
                 ours=float(equal), tolerance_pct=0.0, method="all 12 counts of each example",
                 reason="the rules of the forecast differ")
    )  # fmt: skip
    return tuple(rows)


# -------------------------------------------------------------------------------------------------------- other traces


WHOLE: Final = "mean of all traces"


def _elsewhere(options: Options, progress: Progress) -> tuple[PublishedRow, ...]:
    """Return the errors of forecasts on other traces; on these, and not on Parcae's, the one that plans use was chosen."""
    folder, rows, place = _folder(options), [], f"{PAPER}, forecasts on other traces"
    errors: dict[str, list[float]] = {}
    for trace in elsewhere.other_traces(folder) if folder is not None else ():
        progress(f"forecasts on {trace.name}")
        for name, forecast in elsewhere.candidates(max(trace.counts)).items():
            errors.setdefault(name, []).append(elsewhere.error_share(trace.counts, forecast))
            rows.append(_unprinted_error(place, trace.name, name, errors[name][-1]))
    return (*rows, *(_unprinted_error(place, WHOLE, name, statistics.mean(found)) for name, found in errors.items()))


def _unprinted_error(place: str, trace: str, forecast: str, ours: float) -> PublishedRow:
    return unprinted(
        place,
        f"{forecast}, {trace}",
        "error, of all machines",
        unit="",
        ours=ours,
        method="12 minutes ahead, every 6 minutes",
        reason="not in the paper; it judges which forecast is used",
    )


# ---------------------------------------------------------------------------------------------------------- cost table


def _usd(folder: Path, name: str, policy: str, segment: str) -> float:
    """Return what a policy costs with every held machine paid at the spot price [1e-6 USD per image or token]."""
    model, interval = kept_model(folder, name), paper.SEGMENTS[segment]
    found = played(folder, name, policy, interval)
    held_s = sum(model.counts[slice(*interval)]) * paper.INTERVAL_S
    return 1e6 * held_s / 3_600.0 * paper.SPOT_USD / (sum(found.samples) * model.units)


ON_THEIRS: Final = "measured on 32 machines in the authors' cloud account, the reliable machine for states billed too"
NOT_VARUNA: Final = (
    "a restart in the simulator is not Varuna: no step is computed again, and it begins with the interval"
)
OTHER_BATCHES: Final = "Bamboo's public step times are of other batches and at most 4 pipelines"


def _table(options: Options, progress: Progress) -> tuple[PublishedRow, ...]:
    folder, rows, unit = _folder(options), [], "1e-6 USD"
    for name, cells in paper.COST.items():
        progress(f"Parcae's cost table, {name}")
        for segment, (on_demand, varuna, bamboo, parcae) in cells.items():
            place, quantity = f"{PAPER}, cost table, {name}", "cost of an image or a token"
            if bamboo is not None:
                rows.append(
                    cannot(place, f"{segment}, Bamboo", quantity, unit=unit, published=bamboo, reason=OTHER_BATCHES)
                )
            printed = {"on demand": on_demand, "Varuna": varuna, "Parcae": parcae}
            for system, published in printed.items():
                if published is None:
                    continue
                if folder is None:
                    rows.append(
                        cannot(
                            place,
                            f"{segment}, {system}",
                            quantity,
                            unit=unit,
                            published=published,
                            reason=paper.NO_DATA,
                        )
                    )
                    continue
                ours, reason, method = _cell(folder, name, system, segment)
                rows.append(
                    compared(place, f"{segment}, {system}", quantity, unit=unit, published=published, ours=ours,
                             tolerance_pct=max(COST_PCT, 100.0 * 0.005 / published), reason=reason,
                             method=f"{method}; matches within {COST_PCT:g} % or half of the last digit")
                )  # fmt: skip
    return tuple(rows)


def _cell(folder: Path, name: str, system: str, segment: str) -> tuple[float, str, str]:
    """Return the cost of a system, why it may differ, and how it was computed."""
    model = kept_model(folder, name)
    if system == "on demand":
        rate = model.speeds.rate(model.speeds.best(paper.MOST)) * model.units
        usd = 1e6 * paper.MOST * paper.ON_DEMAND_USD / 3_600.0 / rate
        return usd, "", "32 machines at 3.06 USD/h in the fastest shape"
    if system == "Varuna":
        return _usd(folder, name, paper.CHECKPOINTS, segment), NOT_VARUNA, "restart from a checkpoint, 0.91 USD/h"
    return _usd(folder, name, paper.PERSISTING, segment), ON_THEIRS, "liveput, now and last value, 0.91 USD/h"


PARTS: Final = {
    "example": PaperPart(_example),
    "headline": PaperPart(_headline),
    "migrations": PaperPart(_migrations),
    "forecasts": PaperPart(_forecasts),
    "policies": PaperPart(policies),
    "costs": PaperPart(_table),
    "elsewhere": PaperPart(_elsewhere),
    "look-ahead": PaperPart(look_ahead, by_name_only=True),
}
