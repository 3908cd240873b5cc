"""Machines that come or leave together count together, those that stay do so all along, and a loss waits for nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence

from windfall.core.bulk_watch import BulkWatch
from windfall.structs import replace
from windfall.tier_layout import TierMachine

R, A, B = TierMachine("r", True), TierMachine("a", False), TierMachine("b", False)


def names(watch: BulkWatch, machines: Sequence[TierMachine], now_s: float) -> str:
    """Return the names of those that count; in capitals, those that leave."""
    counted = watch.counted(machines, now_s)
    return "".join(sorted(one.name.upper() if one.leaving else one.name for one in counted))


def test_those_that_are_there_at_first_count_at_once() -> None:
    """And nothing is awaited then."""
    watch = BulkWatch(1.0)
    assert names(watch, [R, A], 0.0) == "ar"
    assert watch.settles_in_s(0.0) == math.inf


def test_one_that_comes_counts_once_no_other_has_followed_for_a_while() -> None:
    """The other begins the while again."""
    watch = BulkWatch(1.0)
    names(watch, [R], 0.0)

    assert names(watch, [R, A], 5.0) == "r"
    assert watch.settles_in_s(5.25) == 0.75
    assert names(watch, [R, A, B], 5.5) == "r"
    assert names(watch, [R, A, B], 6.25) == "r"
    assert names(watch, [R, A, B], 6.5) == "abr"


def test_an_endless_stream_of_machines_does_not_keep_the_first_one_waiting_for_ever() -> None:
    """Four times the while is all it waits."""
    watch, machines = BulkWatch(1.0), [R]
    names(watch, machines, 0.0)
    for number in range(8):
        machines = [*machines, TierMachine(str(number), False)]
        counted = names(watch, machines, 10.0 + number / 2)
        assert counted == "r", number
    assert "0" in names(watch, machines, 14.0)


def test_one_that_leaves_counts_as_before_until_it_is_known_which_others_do() -> None:
    """A notice is longer than that while."""
    watch = BulkWatch(1.0)
    names(watch, [R, A, B], 0.0)

    assert names(watch, [R, replace(A, leaving=True), B], 5.0) == "abr"
    both = [R, replace(A, leaving=True), replace(B, leaving=True)]
    assert names(watch, both, 5.5) == "abr"
    assert names(watch, both, 6.5) == "ABr"


def test_a_loss_counts_at_once_and_all_that_came_or_left_with_it() -> None:
    """What the lost machine had must go where there is one."""
    watch = BulkWatch(1.0)
    names(watch, [R, A], 0.0)
    names(watch, [R, A, B], 5.0)

    assert names(watch, [R, B], 5.1) == "br"
    assert watch.settles_in_s(5.1) == math.inf
