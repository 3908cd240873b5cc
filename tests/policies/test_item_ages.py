"""Whether a machine gets the next item of a bag, by its age and the law of its kind's lifetimes."""

from __future__ import annotations

import math

import numpy as np
import pytest

from windfall.fleet import AgeWeighed, Lifetime
from windfall.models.lifetimes import model_selection
from windfall.policies.checkpointing import live_schedules
from windfall.policies.checkpointing.live_schedules import ProviderFit
from windfall.policies.replacement import item_ages
from windfall.policies.replacement.age_requests import AgeRequest, is_due
from windfall.policies.replacement.retirement import GAIN_MIN
from windfall.structs import replace
from windfall.terms import Seconds, WallTime

H = 3600.0
NOW = WallTime(1e9)
START_S = 120.0
YOUNG = AgeRequest("m-1", "sim", "m4", "a", Seconds(300.0), Seconds(H), Seconds(60.0), Seconds(60.0))
"""A machine of five minutes, items of an hour, and two minutes until a new machine runs one."""


def fit(ends_s: list[float], families: tuple[str, ...]) -> ProviderFit:
    """What the installation believes after machines that were taken at these ages."""
    rows = []
    for number, end_s in enumerate(ends_s):
        started = WallTime(NOW - 40.0 * 86_400.0 + 600.0 * number)
        ended = WallTime(started + end_s)
        rows.append(Lifetime(f"x{number}", "sim", "m4", "a", started, ended, preempted=True, announced=False))
    chosen = tuple(pair for pair in model_selection.FAMILIES if pair[0] in families)
    return live_schedules.fit_provider(rows, NOW, "sim", chosen)


@pytest.fixture(scope="module")
def bathtub() -> ProviderFit:
    """A third is lost within the first two hours, and all others at their limit of a day."""
    chance = np.random.default_rng(3)
    ends_s = [
        chance.exponential(H) if chance.uniform() < 0.35 else 23.5 * H + chance.uniform(0.0, H / 2.0)
        for _ in range(120)
    ]
    return fit([max(end_s, 60.0) for end_s in ends_s], ("exponential", "piecewise"))


@pytest.fixture(scope="module")
def memoryless() -> ProviderFit:
    """Lost after four hours on average, at any age alike."""
    chance = np.random.default_rng(4)
    return fit([float(chance.exponential(4.0 * H)) for _ in range(200)], ("exponential",))


def kept(found: AgeWeighed) -> bool:
    """Whether `retirement` leaves the machine."""
    assert found.fresh_s > 0.0, "the law is trusted"
    return 1.0 - found.fresh_s / found.reuse_s <= GAIN_MIN


@pytest.mark.parametrize(
    ("age_h", "stays"),
    [(0.1, True), (1.0, True), (8.0, True), (20.0, True), (22.0, True), (23.3, False), (23.9, False)],
)
def test_an_hour_of_work_is_given_to_a_machine_unless_its_day_is_nearly_over(
    bathtub: ProviderFit, *, age_h: float, stays: bool
) -> None:
    """Young ones are lost as often as a new one would be, and run already; at 23.3 h the item would be lost."""
    assert kept(item_ages.weigh(replace(YOUNG, age_s=Seconds(age_h * H)), bathtub)) is stays


def test_what_is_compared_is_the_time_until_the_item_is_done(bathtub: ProviderFit) -> None:
    """Past its infancy a machine is hardly ever lost; a new one takes its start, g, and the losses of young machines.

    The rate of these in the first two hours is 4.36e-5 /s, and g + (1 / rate + g) (e^(rate T) - 1) = 4038 s.
    """
    found = item_ages.weigh(replace(YOUNG, age_s=Seconds(8.0 * H)), bathtub)

    assert found.reuse_s == pytest.approx(H, rel=0.02)
    assert found.fresh_s == pytest.approx(4038.0, rel=0.002)


def test_long_items_are_kept_from_old_machines_earlier(bathtub: ProviderFit) -> None:
    """Six hours of work are no longer begun at 20 h, where one hour still is."""
    old = replace(YOUNG, age_s=Seconds(20.0 * H), item_s=Seconds(6.0 * H))

    assert not kept(item_ages.weigh(old, bathtub))
    assert kept(item_ages.weigh(replace(old, item_s=Seconds(H)), bathtub))


@pytest.mark.parametrize("age_h", [0.1, 1.0, 4.0, 12.0, 20.0])
def test_a_machine_that_does_not_age_is_never_retired(memoryless: ProviderFit, age_h: float) -> None:
    """By the exponential law a new machine is as good as an old one, and costs its start."""
    found = item_ages.weigh(replace(YOUNG, age_s=Seconds(age_h * H)), memoryless)

    assert kept(found)
    assert found.fresh_s - found.reuse_s >= START_S - 1.0


def test_without_a_trusted_law_nothing_is_said(bathtub: ProviderFit) -> None:
    """Too few losses, none at all, or an age that no machine has reached."""
    nothing = (0.0, 0.0)
    few = fit([H] * 5, ("exponential",))
    none = fit([], ("exponential",))
    ancient = replace(YOUNG, age_s=Seconds(30.0 * H))

    for request, known in ((YOUNG, few), (YOUNG, none), (ancient, bathtub)):
        found = item_ages.weigh(request, known)
        assert (found.reuse_s, found.fresh_s) == nothing


def test_a_machine_that_cannot_last_for_the_item_has_a_finite_number(bathtub: ProviderFit) -> None:
    """The fact is journalled, and JSON has no infinity."""
    found = item_ages.weigh(replace(YOUNG, age_s=Seconds(23.0 * H), item_s=Seconds(30.0 * H)), bathtub)

    assert math.isfinite(found.reuse_s)
    assert math.isfinite(found.fresh_s)


def test_a_machine_is_weighed_four_times_an_item_and_no_more_often_than_every_five_minutes() -> None:
    """Short items are not worth it; a changed time of an item is."""
    before = AgeWeighed("m-1", Seconds(H), Seconds(2.0 * H))

    assert is_due(H, 2.0 * H, None)
    assert not is_due(H, 30.0, None)
    assert [is_due(H + later_s, 2.0 * H, before) for later_s in (900.0, 1800.0)] == [False, True]
    assert is_due(H + 1.0, 3.0 * H, before)
    assert not is_due(H + 200.0, 600.0, replace(before, item_s=Seconds(600.0)))
