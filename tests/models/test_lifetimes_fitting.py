"""Fitting laws to lives: parameters come back, stopped machines are neither losses nor left out, the choice predicts."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from tests.models.lifetimes import H, drawn, joined
from windfall.errors import Misuse
from windfall.fleet import Lifetime
from windfall.models.lifetimes import least_squares, maximum_likelihood, model_selection
from windfall.models.lifetimes.families import (
    Bathtub,
    Blended,
    Exponential,
    GompertzMakeham,
    Piecewise,
    Weibull,
    fit_piecewise,
)
from windfall.models.lifetimes.groups import GroupLawKind, fit_groups, scaled
from windfall.models.lifetimes.lifetime_law import Law
from windfall.models.lifetimes.maximum_likelihood import Bounds
from windfall.models.lifetimes.observations import folds, kaplan_meier, lifetimes_of, observed_lifetimes, uniforms
from windfall.terms import WallTime

MEMORYLESS = model_selection.FAMILIES[:1]
TUB = Bathtub(0.24 / H, 1.1 * H, 0.0097 / H, 24 * H, 0.3 * H, 1.2)


def test_the_exponential_fit_is_losses_per_life() -> None:
    """Two losses and one stopped machine in 10 h of life are 0.2 losses an hour."""
    law = maximum_likelihood.fit_exponential(lifetimes_of([3 * H, 2 * H, 5 * H], [True, True, False]))

    assert law.rate_per_s * H == pytest.approx(0.2)
    assert law.observed_s == 5 * H


@pytest.mark.parametrize(
    ("law", "fit", "close"),
    [
        (Weibull(16 * H, 0.6), maximum_likelihood.fit_weibull, 0.1),
        (GompertzMakeham(0.03 / H, 1e-4 / H, 2 * H), maximum_likelihood.fit_gompertz_makeham, 0.6),
        (Blended.mixed(0.4, 3 * H, 0.6 * H, end_s=24.8 * H, observed_s=math.inf), maximum_likelihood.fit_blended, 0.1),
        (TUB, maximum_likelihood.fit_bathtub, 0.35),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_a_law_is_recovered_from_censored_lives(law: Law, fit: object, close: float) -> None:
    """Of 4,000 machines, about half stopped by their users, a fit has the law's survival and about its parameters."""
    lifetimes = drawn(law, 4_000, watched_s=40 * H)
    found = fit(lifetimes, Bounds())

    ages = law.quantile(np.linspace(0.02, 0.95, 30))
    assert found.survival(ages) == pytest.approx(law.survival(ages), abs=0.025)
    for name, value in law.parameters().items():
        assert found.parameters()[name] == pytest.approx(value, rel=close), name


def test_stopped_machines_count_as_having_lived() -> None:
    """Leaving them out, as the papers do, makes lives look short; the censored fit does not."""
    law = Exponential(1 / (10 * H))
    lifetimes = drawn(law, 3_000, watched_s=10 * H)

    assert maximum_likelihood.fit_exponential(lifetimes).remaining(until_s=math.inf).mean_s == pytest.approx(
        10 * H, rel=0.05
    )
    assert np.mean(lifetimes.duration_s[lifetimes.lost]) < 4.5 * H
    assert least_squares.fit_as_published(lifetimes, "exponential").curve.remaining().mean_s < 5 * H


def test_the_limit_of_the_provider_is_found() -> None:
    """Nobody said that machines are reclaimed at 24 h; the lives do, and where there is no limit none is found."""
    assert maximum_likelihood.fit_bathtub(drawn(TUB, 600)).limit_s == 24 * H
    assert maximum_likelihood.fit_bathtub(drawn(Exponential(1 / (8 * H)), 600)).limit_s == math.inf
    assert maximum_likelihood.fit_bathtub(drawn(TUB, 600), Bounds(limit_s=23 * H)).limit_s == 23 * H


def test_piecewise_hazard_finds_where_it_changes() -> None:
    """Two changes of the hazard are found near where they are, with the rates between, and no others."""
    law = Piecewise((0.0, 2 * H, 20 * H), (0.2 / H, 0.02 / H, 1.0 / H))
    found = fit_piecewise(drawn(law, 2_000))

    assert len(found.breaks_s) == 3
    assert np.asarray(found.breaks_s) == pytest.approx(np.asarray(law.breaks_s), rel=0.06)
    assert np.asarray(found.rates_per_s) == pytest.approx(np.asarray(law.rates_per_s), rel=0.15)


def test_piecewise_partition_is_the_best_one() -> None:
    """Against every partition into up to three stretches, tried one by one, none has a higher penalised likelihood."""
    lifetimes = drawn(Weibull(5 * H, 0.5), 26, watched_s=40 * H)
    price = 1.5 * math.log(lifetimes.losses)

    def score(law: Piecewise) -> float:
        return float(np.sum(maximum_likelihood.log_likelihoods(law, lifetimes))) - price * (len(law.breaks_s) - 1)

    ages = np.unique(lifetimes.duration_s[lifetimes.lost])[:-1]
    cuts = [(), *((a,) for a in ages), *((a, b) for a in ages for b in ages if a < b)]
    scores = []
    for cut in cuts:
        edges = np.asarray([0.0, *cut, np.inf])
        lost = np.histogram(lifetimes.duration_s[lifetimes.lost], edges)[0]
        lived = [np.sum(np.clip(lifetimes.duration_s - low, 0, high - low)) for low, high in itertools.pairwise(edges)]
        if np.min(lost) >= 5:
            scores.append(score(Piecewise((0.0, *cut), tuple(lost / np.asarray(lived)))))
    assert score(fit_piecewise(lifetimes)) >= max(scores) - 1e-9


@pytest.mark.parametrize(("early", "found"), [(6, True), (5, False)])
def test_a_stretch_of_constant_hazard_holds_at_least_five_losses(early: int, found: bool) -> None:
    """Some machines die within minutes, the others after hours: a stretch ends at the sixth loss, which the next holds."""
    ages = [*np.linspace(60.0, 300.0, early), *np.linspace(10 * H, 20 * H, 40)]
    breaks_s = fit_piecewise(lifetimes_of(ages, [True] * len(ages))).breaks_s

    assert any(0.0 < age < H for age in breaks_s) == found


def test_goodness_measures_are_those_of_the_papers() -> None:
    """R2 and KS of a known curve against three lives, by hand: ordinates 0, 1/2, 1."""
    sample = np.asarray([1.0, 2.0, 3.0])

    assert model_selection.r_squared(lambda x: np.asarray([0.1, 0.5, 0.9]), sample) == pytest.approx(1 - 0.02 / 0.5)
    assert model_selection.ks_to_sample(lambda x: np.asarray([0.1, 0.3, 0.9]), sample) == pytest.approx(0.2)
    kaplan = kaplan_meier(lifetimes_of([1.0, 2.0], [True, True]))
    assert model_selection.ks_to_kaplan(Exponential(math.log(2.0)), kaplan) == pytest.approx(0.5)


def test_folds_keep_batches_whole() -> None:
    """No launch batch is in two folds, and folds have about as many losses each."""
    lifetimes = drawn(TUB, 300, watched_s=30 * H, in_batch=7)
    fold = folds(lifetimes)

    assert all(len(set(fold[lifetimes.batch == batch])) == 1 for batch in np.unique(lifetimes.batch))
    counts = np.bincount(fold, weights=lifetimes.lost)
    assert len(counts) == 5
    assert np.ptp(counts) <= 7


def test_draws_depend_on_seed_and_position_alone() -> None:
    """The stream of a seed begins alike however many are asked for, is uniform, and differs between seeds."""
    assert uniforms(7, 1000)[:10].tolist() == uniforms(7, 10).tolist()
    assert np.mean(uniforms(7, 100_000)) == pytest.approx(0.5, abs=0.005)
    assert abs(np.corrcoef(uniforms(7, 10_000), uniforms(8, 10_000))[0, 1]) < 0.05


@pytest.mark.parametrize("names", [("exponential", "weibull", "bathtub"), pytest.param((), marks=pytest.mark.slow)])
def test_the_choice_predicts_best_and_says_why(names: tuple[str, ...]) -> None:
    """Of machines with infancy and a limit the bathtub is chosen, surely before the memoryless law; of three laws, of all."""
    lifetimes = drawn(TUB, 240, watched_s=60 * H)
    families = tuple(family for family in model_selection.FAMILIES if not names or family[0] in names)
    fit = model_selection.fit_lifetimes(lifetimes, families=families, bounds=Bounds(limit_s=24 * H))

    assert fit.law.name == "bathtub"
    assert fit.trusted
    against = {comparison.worse: comparison for comparison in fit.comparisons}
    assert against["exponential"].sure
    assert against["exponential"].low < against["exponential"].gain < against["exponential"].high


def test_a_simpler_law_is_taken_where_nothing_speaks_for_another() -> None:
    """These memoryless lives happen to score higher under the Weibull law, but not surely: they keep the memoryless one."""
    lifetimes = drawn(Exponential(1 / (5 * H)), 150, seed=17, in_batch=1)
    fit = model_selection.fit_lifetimes(lifetimes, families=model_selection.FAMILIES[:2])

    assert fit.candidates[0].name == "weibull"
    assert fit.law.name == "exponential"
    assert fit.reason == (
        "with 1 number it predicts held-out lifetimes as well as the weibull law with 2 numbers, "
        "as far as 150 launch batches can tell"
    )


def test_few_losses_give_the_simplest_law_and_a_doubt() -> None:
    """Who plans by a fit of six losses is told not to trust it."""
    fit = model_selection.fit_lifetimes(lifetimes_of(np.arange(1, 8) * H, [True] * 6 + [False]))

    assert isinstance(fit.law, Exponential)
    assert not fit.trusted
    assert fit.doubts == ("6 losses in 6 launch batches are too few to compare laws: at least 10 in 5 are needed",)


def test_groups_that_differ_get_their_own_law_and_others_are_pooled() -> None:
    """A zone that loses machines four times as fast is told apart; one with few losses is not."""
    slow, fast = Exponential(1 / (20 * H)), Exponential(1 / (5 * H))
    lifetimes = joined(a=drawn(slow, 200, seed=3), b=drawn(fast, 200, seed=5), c=drawn(fast, 12, seed=9))
    groups = {
        group.value: group
        for group in fit_groups(model_selection.fit_lifetimes(lifetimes, families=MEMORYLESS), "zone")
    }

    assert groups["a"].kind is GroupLawKind.SCALED
    assert groups["a"].law.remaining(until_s=math.inf).mean_s == pytest.approx(20 * H, rel=0.2)
    assert groups["b"].law.remaining(until_s=math.inf).mean_s == pytest.approx(5 * H, rel=0.2)
    assert groups["c"].kind is GroupLawKind.POOLED
    assert groups["c"].reason == "too few losses or batches (12 in 3)"


def test_groups_that_are_alike_stay_together() -> None:
    """Two zones with the same law are not told apart by chance."""
    law = Exponential(1 / (5 * H))
    fit = model_selection.fit_lifetimes(
        joined(a=drawn(law, 200, seed=3), b=drawn(law, 200, seed=5)), families=MEMORYLESS
    )

    assert [group.kind for group in fit_groups(fit, "zone")] == [GroupLawKind.POOLED, GroupLawKind.POOLED]
    with pytest.raises(Misuse, match="no property 'type' to group by; use one of: zone"):
        fit_groups(fit, "type")


def test_a_scaled_bathtub_keeps_the_providers_limit() -> None:
    """Only what happens before the limit is scaled: of machines with twice the hazard there, by two."""
    twice = Bathtub(0.48 / H, 1.1 * H, 0.0194 / H, 24 * H, 0.3 * H, 1.2)
    found = scaled(TUB, drawn(twice, 3_000))

    assert found.early_per_s / TUB.early_per_s == pytest.approx(2, rel=0.06)
    assert found.base_per_s / TUB.base_per_s == pytest.approx(2, rel=0.06)
    assert (found.limit_s, found.reclaim_s) == (TUB.limit_s, TUB.reclaim_s)


def test_lives_come_from_the_journal() -> None:
    """Preempted machines are losses, released ones and running ones are censored, other providers' are left out."""

    def machine(
        name: str, started: float, ended: float | None, *, taken: bool = False, provider: str = "aws"
    ) -> Lifetime:
        end = None if ended is None else WallTime(ended)
        return Lifetime(name, provider, "m5", "us-1a", WallTime(started), end, taken, announced=False)

    monday = 1_750_032_000.0 + 7 * H  # 2025-06-16 07:00 UTC
    rows = [
        machine("1", monday, monday + 100, taken=True),
        machine("2", monday + 1, monday + 50),
        machine("3", monday + 3600, None),
        machine("4", monday, monday + 9, taken=True, provider="google"),
    ]
    lifetimes = observed_lifetimes(rows, WallTime(monday + 7200), provider="aws")

    assert lifetimes.duration_s.tolist() == [100, 49, 3600]
    assert lifetimes.lost.tolist() == [True, False, False]
    assert lifetimes.batches == 2
    assert {name: values[0] for name, values in lifetimes.keys.items()} == {
        "type": "m5",
        "zone": "us-1a",
        "hour": "06-12",
        "weekday": "Monday",
    }


@pytest.mark.parametrize(
    ("durations", "message"),
    [([], "there are none"), ([1.0, -2.0], "number 2 is -2 s"), ([math.nan], "number 1 is nan s")],
)
def test_impossible_lives_are_refused(durations: list[float], message: str) -> None:
    """No life, a negative one and one that is no number are named in the refusal."""
    with pytest.raises(Misuse, match=message):
        lifetimes_of(durations, [True] * len(durations))


def test_without_a_loss_nothing_is_fitted() -> None:
    """Machines that were never lost say nothing about how they are lost, and that is what the user reads."""
    with pytest.raises(Misuse, match="wait for the first loss"):
        model_selection.fit_lifetimes(lifetimes_of([5.0, 6.0], [False, False]))


def test_machines_of_a_batch_are_one_observation() -> None:
    """Gains that batches share are less certain than as many independent ones: the interval is wider by sqrt(batch size)."""
    gains = np.repeat(uniforms(2, 100) - 0.4, 9)
    together = model_selection.bootstrap(gains, np.repeat(np.arange(100), 9), better="a", worse="b", seed=3)
    apart = model_selection.bootstrap(gains, np.arange(900), better="a", worse="b", seed=3)

    assert together.gain == pytest.approx(float(np.sum(gains)))
    assert (together.high - together.low) / (apart.high - apart.low) == pytest.approx(3, rel=0.1)


def test_a_piecewise_law_of_one_stretch_is_called_by_its_name() -> None:
    """Where the hazard never changes the piecewise law is the memoryless one, and that is what is chosen."""
    lifetimes = drawn(Exponential(1 / (5 * H)), 60, watched_s=30 * H)
    families = tuple(family for family in model_selection.FAMILIES if family[0] in ("exponential", "piecewise"))
    fit = model_selection.fit_lifetimes(lifetimes, families=families[::-1])

    assert fit.law.name == "exponential"
