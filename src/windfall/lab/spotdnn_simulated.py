"""spotDNN's profiling on a simulated cluster as rows: fitted constants beside true ones, predictions beside long runs.

The column of published numbers has those of the simulated cluster here.

Source: spotDNN (IWQoS 2023), sections III and V-D; the cluster is `simulation.asp_cluster`, which shares no formula with
the model.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from windfall.lab import spotdnn_profile as profiles
from windfall.lab.published_rows import Options, Progress, PublishedRow, RowVerdict, cannot, compared, unprinted

LOSS = 3.5
"""That predictions are for: within what three epochs of training show."""
_KINDS = (
    ("one gamma1", 11.7, "one gamma1 gives each cluster another start, and all start at one loss"),
    ("one start", 11.7, "the loss in the queue slows with the size of the cluster, but not as sqrt(n)"),
    ("samples/s", 6.9, "equations 8 and 9 are a straight line in sqrt(n) through what is a queue"),
)
"""Words of a quantity, within what it matches [%] (the paper's largest errors, Figures 6 and 5b), why it differs."""


def rows(options: Options, progress: Progress) -> tuple[PublishedRow, ...]:
    """Return fitted constants beside true ones, and predictions beside runs; none without trials.

    Args:
        options: its seed is that of the cluster.
        progress: receives what is being computed.
    """
    if options.trials == 0:
        return ()
    rng = np.random.default_rng(options.seed)
    progress("profiling of a simulated cluster")
    fits = profiles.fitted_profile(rng)
    progress("predictions beside runs of a simulated cluster")
    predicted = (*profiles.speed_rows(fits, rng), *profiles.loss_rows(fits, rng, loss=LOSS))
    return (*(_constant(row) for row in profiles.constant_rows(fits)), *(_prediction(row) for row in predicted))


def _constant(row: profiles.ConstantRow) -> PublishedRow:
    source = "simulated cluster, constants"
    interval = f"{row.fitted.value:.4g}, 95 % interval {row.fitted.low:.4g} to {row.fitted.high:.4g}"
    if row.true is None:
        return unprinted(source, row.constant, "fitted", unit=row.unit, ours=row.fitted.value,
                         reason=f"{interval}; {row.reason}", method="the profile of section V-D")  # fmt: skip
    method = "the profile of section V-D; published is the true constant; matches if the 95 % interval holds it"
    made = compared(source, row.constant, "fitted", unit=row.unit, published=row.true, ours=row.fitted.value,
                    tolerance_pct=0.0, method=method)  # fmt: skip
    verdict = RowVerdict.MATCH if row.covered else RowVerdict.DIFFERS
    reason = "" if row.covered else f"{interval}; {row.reason}" if row.reason else interval
    return dataclasses.replace(made, verdict=verdict, reason=reason)


def _prediction(row: profiles.PredictionRow) -> PublishedRow:
    source = "simulated cluster, predictions"
    item = "+".join(f"{count} {shape.name}" for count, shape in zip(row.plan, profiles.TYPES, strict=True) if count)
    if row.predicted is None:
        return cannot(source, item, row.quantity, unit="", published=row.simulated,
                      reason="the fitted floor lies above this loss")  # fmt: skip
    within_pct, reason = next((limit, why) for words, limit, why in _KINDS if words in row.quantity)
    return compared(
        source,
        item,
        row.quantity,
        unit="",
        published=row.simulated,
        ours=row.predicted,
        tolerance_pct=within_pct,
        method=f"published is a long run; matches within {within_pct:g} %, the paper's largest error",
        reason=reason if row.within_bound else f"{reason}; and it is beyond n_upper, where spotDNN buys nothing",
    )
