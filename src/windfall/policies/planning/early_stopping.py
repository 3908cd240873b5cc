"""Early stopping: which items of a bag are not worth running to their end, by a metric that they report on the way.

Two kinds of rule:

- `MedianRule`: an item stops at a report if its best value so far is worse than the median, over the items that are done, of
  the mean of their values up to the same share of the run.  Needs no model of the curves and no bound.
- `ThresholdRule`: an item stops once its value is beyond a bound: an energy that converged, or one that ran away.

A bag as a whole stops by one of three (`converged`), applied to the metric of the items that are done:

- `ThresholdRule`: one of them is beyond the bound: what was looked for is found.
- `NoGainRule`: a number of them in turn did not improve the best.
- `PrecisionRule`: their mean is known well enough; items must have run in random order, so that they are a fair sample.

The rule that stops a running item also decides whether an item that lost its machine is worth another run
(`worth_restarting`): the reports that it made before the loss are known, and it would report the same ones again.

Source: D. Golovin et al., "Google Vizier: A Service for Black-Box Optimization", KDD 2017, section 3.2 (median stopping rule);
SciSpot (draft 2019), section 4.6, which asks for a rule "based on the energy function" for both purposes and names none.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from windfall.errors import Misuse
from windfall.structs import Struct


class MetricReport(Struct, frozen=True):
    """A value of an item's metric.

    Attributes:
        progress: the share of the item's run at which it was reported, 0 to 1.
        value: of the metric.
    """

    progress: float
    value: float


ReportCurve = Sequence[MetricReport]
"""An item's reports, by rising progress."""


class MedianRule(Struct, frozen=True):
    """The median stopping rule.

    Attributes:
        lower_is_better: whether the metric is minimised.
        from_progress: nothing stops before this share of its run.
        done_min: nothing stops before this number of items is done.
    """

    lower_is_better: bool = True
    from_progress: float = 0.3
    done_min: int = 5


class ThresholdRule(Struct, frozen=True):
    """A bound.

    Attributes:
        bound: of the metric.
        stops_above: whether an item stops above the bound; else below it.
        from_progress: nothing stops before this share of its run.
    """

    bound: float
    stops_above: bool = True
    from_progress: float = 0.0


class NoGainRule(Struct, frozen=True):
    """No gain.

    Attributes:
        items: how many in turn do not improve the best.
        lower_is_better: whether the metric is minimised.
    """

    items: int
    lower_is_better: bool = True


class PrecisionRule(Struct, frozen=True):
    """The standard error of the mean is at most this, in the unit of the metric."""

    standard_error: float


BagStopRule = ThresholdRule | NoGainRule | PrecisionRule
StopRule = MedianRule | ThresholdRule


class StopVerdict(Struct, frozen=True):
    """Whether an item stops, and why."""

    stop: bool
    reason: str


def judge(rule: StopRule, curve: ReportCurve, done: Sequence[ReportCurve]) -> StopVerdict:
    """Return whether an item stops at its newest report.

    Args:
        rule: the rule.
        curve: the item's reports.
        done: reports of the items that ran to their end.

    Raises:
        Misuse: the rule's numbers make no sense.

    Example:
        Items that are done have mean energies of -5, -4 and -3 at half of their runs; one whose lowest is -3.9 there stops.
    """
    if not curve:
        return StopVerdict(False, "it has not reported yet")
    if isinstance(rule, MedianRule):
        return _by_median(rule, curve, done)
    return _by_bound(rule, curve)


def converged(rule: BagStopRule, values: Sequence[float], items_min: int) -> StopVerdict:
    """Return whether a bag needs no more items.

    Args:
        rule: the rule.
        values: the metric of the items that are done, in the order in which they ended.
        items_min: it stops at no fewer items.

    Example:
        Minimised, with a gain expected in any 3 items: 5, 4, 4.2, 4, 4.1 stops, 5, 4, 4.2, 4, 3.9 does not.
    """
    if len(values) < max(items_min, 1):
        return StopVerdict(False, f"too early: {len(values)} of at least {items_min} items are done")
    match rule:
        case ThresholdRule(bound, stops_above):
            value = max(values) if stops_above else min(values)
            side = "above" if stops_above else "below"
            beyond = value > bound if stops_above else value < bound
            return StopVerdict(beyond, f"an item has {value:.6g}, {side} {bound:.6g}" if beyond else f"none is {side}")
        case NoGainRule(items, lower_is_better):
            signed = values if lower_is_better else [-one for one in values]
            best_at = min(range(len(signed)), key=signed.__getitem__)
            since = len(values) - 1 - best_at
            return StopVerdict(since >= items, f"the best, {values[best_at]:.6g}, is that of {since} items before")
        case PrecisionRule(standard_error):
            return _by_precision(standard_error, values)


def _by_precision(wanted: float, values: Sequence[float]) -> StopVerdict:
    count = len(values)
    if count < 2:
        return StopVerdict(False, "one item has no standard error")
    mean = math.fsum(values) / count
    error = math.sqrt(math.fsum((one - mean) ** 2 for one in values) / (count - 1) / count)
    return StopVerdict(error <= wanted, f"the mean of {count} items is {mean:.6g} with a standard error of {error:.3g}")


def worth_restarting(rule: StopRule, curve: ReportCurve, done: Sequence[ReportCurve]) -> StopVerdict:
    """Return whether an item that lost its machine is left, because the rule would stop it at a report it has made already.

    Every report is judged, not the newest alone: items that ended since may have moved the median.  Arguments and errors as
    for `judge`; `stop` of the verdict: it is not worth another run.
    """
    for count in range(1, len(curve) + 1):
        found = judge(rule, curve[:count], done)
        if found.stop:
            return found
    return StopVerdict(False, "no report of it would stop it" if curve else "it has not reported yet")


def _by_median(rule: MedianRule, curve: ReportCurve, done: Sequence[ReportCurve]) -> StopVerdict:
    if not 0.0 <= rule.from_progress <= 1.0 or rule.done_min < 1:
        raise Misuse(
            f"median rule: from a progress of {rule.from_progress:g} with {rule.done_min} items done: a progress is from 0 to "
            "1, and at least 1 item is done"
        )
    now = curve[-1].progress
    means = [statistics.fmean(values) for one in done if (values := [a.value for a in one if a.progress <= now + 1e-9])]
    if now + 1e-9 < rule.from_progress or len(means) < rule.done_min:
        return StopVerdict(False, f"too early: {100.0 * now:.0f} % of its run, {len(means)} items to compare with")
    values = [one.value for one in curve]
    best, median = min(values) if rule.lower_is_better else max(values), statistics.median(means)
    worse = best > median if rule.lower_is_better else best < median
    word = "worse" if worse else "not worse"
    return StopVerdict(
        worse, f"its best, {best:.6g}, is {word} than the median of {len(means)} done items, {median:.6g}"
    )


def _by_bound(rule: ThresholdRule, curve: ReportCurve) -> StopVerdict:
    newest = curve[-1]
    beyond = newest.value > rule.bound if rule.stops_above else newest.value < rule.bound
    stop = beyond and newest.progress + 1e-9 >= rule.from_progress
    side = "above" if rule.stops_above else "below"
    return StopVerdict(
        stop, f"its value, {newest.value:.6g}, is {'' if beyond else 'not '}{side} the bound, {rule.bound:.6g}"
    )
