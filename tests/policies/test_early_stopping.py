"""Early stopping: the median rule, a bound, and an item that lost its machine."""

from __future__ import annotations

import pytest

from windfall.errors import Misuse
from windfall.policies.planning.early_stopping import (
    MedianRule,
    MetricReport,
    NoGainRule,
    PrecisionRule,
    ThresholdRule,
    converged,
    judge,
    worth_restarting,
)


def curve(*values: float) -> tuple[MetricReport, ...]:
    """Reports at each tenth."""
    return tuple(MetricReport((place + 1) / 10.0, value) for place, value in enumerate(values))


DONE = [curve(*[-level] * 10) for level in (5.0, 4.0, 3.0)]


def test_the_median_rule_stops_what_is_worse_than_the_median_of_running_means() -> None:
    """Medians by hand: means -5, -4, -3; a best of -3.9 stops, one of -4.1 runs on, one of -4 is not worse."""
    rule = MedianRule(from_progress=0.3, done_min=3)

    assert judge(rule, curve(-1.0, -3.9, -2.0), DONE).stop
    assert not judge(rule, curve(-4.1, -1.0, -1.0), DONE).stop
    assert not judge(rule, curve(-4.0, -4.0, -4.0), DONE).stop
    assert judge(rule, curve(-1.0, -3.9, -2.0), DONE).reason == (
        "its best, -3.9, is worse than the median of 3 done items, -4"
    )


def test_means_are_taken_up_to_the_same_share_of_the_run() -> None:
    """Done items that improved late compare by their early values."""
    late = [curve(0.0, 0.0, 0.0, *[-9.0] * 7)] * 3

    assert not judge(MedianRule(done_min=3), curve(-1.0, -1.0, -1.0), late).stop
    assert judge(MedianRule(done_min=3), curve(*[-1.0] * 10), late).stop


def test_nothing_stops_too_early() -> None:
    """Before its share of the run, and with too few done items."""
    assert not judge(MedianRule(done_min=3), curve(9.0, 9.0), DONE).stop
    assert not judge(MedianRule(done_min=4), curve(9.0, 9.0, 9.0), DONE).stop
    assert "too early" in judge(MedianRule(done_min=4), curve(9.0), DONE).reason
    assert not judge(MedianRule(), (), DONE).stop


def test_larger_is_better_where_declared() -> None:
    """The mirror image of minimising."""
    done = [curve(*[level] * 10) for level in (3.0, 4.0, 5.0)]

    assert judge(MedianRule(lower_is_better=False, done_min=3), curve(1.0, 3.9, 1.0), done).stop
    assert not judge(MedianRule(lower_is_better=False, done_min=3), curve(1.0, 4.1, 1.0), done).stop


def test_a_bound_from_either_side() -> None:
    """An energy that ran away, one that converged."""
    assert judge(ThresholdRule(100.0), curve(1.0, 101.0), []).stop
    assert not judge(ThresholdRule(100.0), curve(101.0, 99.0), []).stop
    assert judge(ThresholdRule(-5.0, stops_above=False), curve(-5.1), []).stop
    assert not judge(ThresholdRule(100.0, from_progress=0.5), curve(101.0), []).stop


def test_an_item_that_lost_its_machine_is_judged_by_all_its_reports() -> None:
    """Good at last but bad at 30 %: it would be stopped there again; good throughout, or silent: it runs again."""
    rule = MedianRule(done_min=3)

    assert worth_restarting(rule, curve(-1.0, -1.0, -1.0, -9.0), DONE).stop
    assert not judge(rule, curve(-1.0, -1.0, -1.0, -9.0), DONE).stop
    assert not worth_restarting(rule, curve(-9.0, -9.0, -9.0, -9.0), DONE).stop
    assert not worth_restarting(rule, (), DONE).stop


@pytest.mark.parametrize("rule", [MedianRule(from_progress=1.5), MedianRule(done_min=0)])
def test_rules_that_make_no_sense_are_refused(rule: MedianRule) -> None:
    """One sentence."""
    with pytest.raises(Misuse, match="median rule: "):
        judge(rule, curve(1.0), DONE)


def test_a_bag_stops_once_something_is_found() -> None:
    """By any item so far, from a number of items on."""
    assert converged(ThresholdRule(-5.0, stops_above=False), [1.0, -6.0, 2.0], 3).stop
    assert not converged(ThresholdRule(-5.0, stops_above=False), [1.0, -6.0], 3).stop
    assert not converged(ThresholdRule(-5.0, stops_above=False), [1.0, -5.0, 2.0], 3).stop
    assert converged(ThresholdRule(5.0), [9.0, 1.0], 1).reason == "an item has 9, above 5"


def test_a_bag_stops_without_a_gain() -> None:
    """The best is three items old; equal values are no gain."""
    assert converged(NoGainRule(3), [5.0, 4.0, 4.2, 4.0, 4.1], 1).stop
    assert not converged(NoGainRule(3), [5.0, 4.0, 4.2, 4.0, 3.9], 1).stop
    assert converged(NoGainRule(2, lower_is_better=False), [4.0, 5.0, 4.0, 5.0], 1).stop


def test_a_bag_stops_once_its_mean_is_known() -> None:
    """By hand: 1, 2, 3, 4 have a standard deviation of 1.291, a quarter of them 0.6455 of standard error."""
    assert converged(PrecisionRule(0.6455), [1.0, 2.0, 3.0, 4.0], 2).stop
    assert not converged(PrecisionRule(0.6454), [1.0, 2.0, 3.0, 4.0], 2).stop
    assert not converged(PrecisionRule(9.0), [1.0], 1).stop
