"""An item that lost a machine: expected costs, their order, and a bag in which each action wins."""

from __future__ import annotations

import math

import numpy as np
import pytest

from windfall.errors import Misuse
from windfall.lab.bag_simulation import BagPolicy, BagScene, MachineReuse, play
from windfall.models.exact.makespan import SurvivalTable, tabulate
from windfall.policies.replacement.item_recovery import (
    BagShare,
    GangTime,
    ItemLoss,
    RecoveryAction,
    RecoveryOption,
    choose,
)
from windfall.structs import replace

H, MIN = 3600.0, 60.0
SMALLER, REPLENISH, DISCARD = RecoveryAction
FAR = BagShare(whole=100.0, target=0.9, done=10.0, running=15.0)
"""A bag that is far from its target."""


def memoryless(mean_h: float) -> SurvivalTable:
    return tabulate(lambda ages_s: -ages_s / (mean_h * H), until_s=60.0 * H, cell_s=60.0)


def bathtub() -> SurvivalTable:
    """A third is lost with a mean of an hour, the rest at 24 h."""

    def log_survival(ages_s: np.ndarray) -> np.ndarray:
        alive = np.where(ages_s >= 24.0 * H, 0.0, 0.67 + 0.33 * np.exp(-ages_s / H))
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(alive))

    return tabulate(log_survival, until_s=25.0 * H, cell_s=60.0)


def loss(**given: object) -> ItemLoss:
    """A job of 15 min on two machines, 20 min on one; one is left, of half an hour."""
    known = ItemLoss((GangTime(2, 15 * MIN), GangTime(1, 20 * MIN)), (30 * MIN,), 0.24, memoryless(10.0), 120.0)
    return replace(known, **given)


def option(item: ItemLoss, share: BagShare, action: RecoveryAction) -> RecoveryOption:
    return next(one for one in choose(item, share).options if one.action is action)


def played(item: ItemLoss, ages_s: list[float], runtime_s: float, wait_s: float) -> tuple[float, float]:
    """Mean cost and time of 40,000 items, machine by machine; nothing shared with the formulas but the rule they state."""
    random, wanted, runs = np.random.default_rng(11), item.times[0], 40_000
    alive, ages_of = item.lifetimes.survival, item.lifetimes.cell_s * np.arange(len(item.lifetimes.survival))

    def left_s(ages: list[float], count: int) -> np.ndarray:
        now = np.interp(ages, ages_of, alive)
        return np.asarray(
            (np.interp(-random.uniform(size=(count, len(ages))) * now, -alive, ages_of) - ages).min(axis=1)
        )

    time_s, machine_s = runs * wait_s, runs * wait_s * len(item.ages_s)
    ages, needed_s, running = ages_s, runtime_s, runs
    while running:
        lasts_s = left_s(ages, running)
        ran_s, lost = float(np.minimum(lasts_s, needed_s).sum()), int((lasts_s < needed_s).sum())
        time_s += ran_s + lost * item.wait_s
        machine_s += ran_s * len(ages) + lost * (len(ages) - 1) * item.wait_s
        ages, needed_s, running = [0.0] * wanted.machines, wanted.runtime_s - item.saved_s, lost
    return machine_s / runs * item.usd_per_hour / H, time_s / runs


@pytest.mark.parametrize(
    ("table", "age_s"), [(memoryless(2.0), 30 * MIN), (bathtub(), 6 * H)], ids=["memoryless", "bathtub"]
)
def test_expected_cost_and_time_are_those_of_items_played(table: SurvivalTable, age_s: float) -> None:
    """Within 1 % of 40,000 items: replenished with a save, and on one machine; past infancy the age counts."""
    item = loss(lifetimes=table, saved_s=5 * MIN, ages_s=(age_s,))
    again, alone = option(item, FAR, REPLENISH), option(item, FAR, SMALLER)

    assert (again.usd, again.done_s) == pytest.approx(played(item, [age_s + 120.0, 0.0], 10 * MIN, 120.0), rel=0.01)
    assert (alone.usd, alone.done_s) == pytest.approx(played(item, [age_s], 20 * MIN, 0.0), rel=0.01)


@pytest.mark.parametrize("saved_s", [0.0, 5 * MIN])
def test_processors_of_one_machine_are_lost_together_and_none_waits(saved_s: float) -> None:
    """Within 1 % of 40,000 items: four processors for 15 min, two for 20 min; a save spares the same share on both."""
    table = memoryless(2.0)
    item = ItemLoss(
        (GangTime(4, 15 * MIN), GangTime(2, 20 * MIN, 60.0)), (), 0.06, table, 120.0, saved_s, on_one=True
    )  # fmt: skip
    left = 1.0 - saved_s / (15 * MIN)

    def one_machine(processors: int, runtime_s: float, wait_s: float) -> tuple[float, float]:
        """Of `played` on one machine the first run costs `processors`, all later ones four."""
        first_usd, again_usd, time_s = 0.0, 0.0, 0.0
        random, runs = np.random.default_rng(12), 40_000
        lasts_s = random.exponential(7200.0, runs)
        first_usd += float(np.minimum(lasts_s, runtime_s).sum()) * processors
        time_s += runs * wait_s + float(np.minimum(lasts_s, runtime_s).sum())
        running = int((lasts_s < runtime_s).sum())
        while running:
            lasts_s, whole_s = random.exponential(7200.0, running), 15 * MIN * left
            time_s += running * 120.0 + float(np.minimum(lasts_s, whole_s).sum())
            again_usd += float(np.minimum(lasts_s, whole_s).sum()) * 4
            running = int((lasts_s < whole_s).sum())
        return (first_usd + again_usd) / runs * 0.06 / H, time_s / runs

    again, smaller = option(item, FAR, REPLENISH), option(item, FAR, SMALLER)
    assert (again.usd, again.done_s) == pytest.approx(one_machine(4, 15 * MIN * left, 120.0), rel=0.01)
    assert (smaller.usd, smaller.done_s) == pytest.approx(one_machine(2, 20 * MIN * left, 60.0), rel=0.01)
    assert smaller.machines == 2


def test_without_losses_the_costs_are_arithmetic() -> None:
    """0.24 USD/h: 20 machine-minutes alone are 0.08; two for 15 min after a wait of 2 min, with one paid, are 0.128."""
    item = loss(lifetimes=memoryless(1e6))

    assert option(item, FAR, SMALLER).usd == pytest.approx(0.08, rel=1e-4)
    assert option(item, FAR, REPLENISH).usd == pytest.approx(0.128, rel=1e-4)
    assert option(item, FAR, DISCARD).usd == pytest.approx(0.128, rel=1e-4)
    assert option(item, FAR, REPLENISH).done_s == pytest.approx(17 * MIN, rel=1e-4)


def test_the_least_cost_in_time_wins() -> None:
    """Alone is cheaper; with 18 minutes left only both are in time, and the reason says what would be cheaper."""
    free, bound = choose(loss(), FAR), choose(loss(time_left_s=18 * MIN), FAR)

    assert (free.chosen.action, free.chosen.machines) == (SMALLER, 1)
    assert bound.chosen.action is REPLENISH
    assert "restart smaller would be cheaper, but too late" in bound.reason


def test_a_save_is_of_use_on_all_machines_only() -> None:
    """With 12 of 15 minutes saved, two machines are cheaper than one that starts again."""
    assert choose(loss(saved_s=12 * MIN), FAR).chosen.action is REPLENISH


def test_discard_follows_target_and_weight() -> None:
    """Nothing to spare: never; the running ones suffice: free; else a light item makes way for one of mean weight."""
    late = replace(FAR, done=80.0, running=10.0)
    none = option(loss(), replace(FAR, given_up=10.0), DISCARD)

    assert (none.possible, none.usd) == (False, math.inf)
    assert "leaves 0 to spare" in none.reason
    assert (choose(loss(), late).chosen.action, choose(loss(), late).chosen.usd) == (DISCARD, 0.0)
    assert choose(loss(weight=0.1, times=(GangTime(2, 15 * MIN),)), FAR).chosen.action is DISCARD
    assert choose(loss(weight=3.0, times=(GangTime(2, 15 * MIN),)), FAR).chosen.action is REPLENISH
    assert not option(loss(weight=11.0), FAR, DISCARD).possible


def test_an_item_that_its_metric_gave_up_is_not_run_again() -> None:
    """Whatever it costs; but where nothing is to spare it runs again like any other, and the reason says why."""
    bad = loss(pointless="its best is worse than the median")
    spared, needed = choose(bad, FAR), choose(bad, replace(FAR, given_up=10.0))

    assert (spared.chosen.action, needed.chosen) == (DISCARD, choose(loss(), replace(FAR, given_up=10.0)).chosen)
    assert spared.reason == "it is not run again: its best is worse than the median"
    assert "leaves 0 to spare" in needed.reason
    assert "it runs again, though its metric would stop it" in needed.reason


def test_where_nothing_ends_in_time_the_first_to_end_is_chosen() -> None:
    """A minute is left: replenishing ends first; the reason says that it is late."""
    found = choose(loss(time_left_s=60.0), FAR)

    assert found.chosen.action is REPLENISH
    assert found.reason.startswith("nothing is expected to end in time")


def test_hazard_by_age_decides_between_old_and_new_machines() -> None:
    """Survivors of 23 h 50 min do not last for 20 minutes: both fresh ones win; of half an hour, the one left."""
    young, old = loss(lifetimes=bathtub()), loss(lifetimes=bathtub(), ages_s=(23.9 * H,))

    assert choose(young, FAR).chosen.action is SMALLER
    assert option(old, FAR, SMALLER).usd > option(old, FAR, DISCARD).usd
    assert "100 % are lost again" in option(old, FAR, SMALLER).reason


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"times": ()}, "has no measured time"),
        ({"times": (GangTime(2, 900.0), GangTime(2, 900.0))}, "the others are smaller"),
        ({"ages_s": (0.0, 0.0)}, "at least one machine is lost"),
        ({"wait_s": -1.0}, "a wait is 0 or more"),
        ({"saved_s": 900.0}, "less is saved than the item needs"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(given: dict[str, object], words: str) -> None:
    """One sentence with the numbers."""
    with pytest.raises(Misuse, match=words):
        choose(loss(**given), FAR)


def test_each_action_wins_in_a_bag_of_which_nine_tenths_must_finish() -> None:
    """100 jobs on 32 machines, 90 % needed: one machine while there is time, then two in spite of the cost, at the end none."""
    times = (GangTime(2, 15 * MIN), GangTime(1, 20 * MIN))
    scene = BagScene(100, 16, times, 0.24, memoryless(3.0), 120.0)
    policy = BagPolicy(MachineReuse.ALWAYS, recovers=True, target=0.9, deadline_s=1.01 * 7 * 15 * MIN)
    run = play(scene, policy, seed=3)

    assert (run.done, run.discarded <= 10) == (90, True)
    assert len(run.made) == sum(run.choices.values())
    won: dict[RecoveryAction, list[float]] = {action: [] for action in RecoveryAction}
    for at_s, made in run.made:
        sizes = {one.action for one in made.options if one.possible}
        if made.reason.startswith("the least") and len(sizes) == 3:
            cheaper = [one for one in made.options if one.usd < made.chosen.usd]
            assert all(one.done_s > made.chosen.done_s for one in cheaper)
            won[made.chosen.action].append(at_s)
    assert all(won.values()), run.choices
    assert min(won[SMALLER]) < min(won[DISCARD])
    assert any("too late" in made.reason for _, made in run.made if made.chosen.action is REPLENISH)
