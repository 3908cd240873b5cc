"""Laws of lifetimes: what each answers, checked against closed forms, published numbers and one another."""

from __future__ import annotations

import math

import numpy as np
import pytest

from windfall.errors import Misuse
from windfall.models.lifetimes.families import (
    Bathtub,
    Blended,
    BlendedAsPrinted,
    Exponential,
    GompertzMakeham,
    Piecewise,
    Weibull,
)
from windfall.models.lifetimes.lifetime_law import Law
from windfall.models.lifetimes.observations import kaplan_meier, lifetimes_of

H = 3600.0
PRINTED = BlendedAsPrinted(0.4137, 24 * H, 0.9 * H, 0.76 * H)
LAWS = [
    Exponential(1 / (3 * H)),
    Weibull(16 * H, 0.6),
    Weibull(20 * H, 4.0),
    GompertzMakeham(0.03 / H, 1e-40 / H, H / 3.8),
    GompertzMakeham(0.0, 1e-300, 100.0),
    Blended.mixed(0.384, 3.68 * H, 0.637 * H, end_s=24.84 * H, observed_s=math.inf),
    PRINTED.normalised(24.83 * H),
    Bathtub(0.24 / H, 1.1 * H, 0.0097 / H, 24 * H, 0.29 * H, 1.1),
    Bathtub(0.24 / H, 1.1 * H, 0.0097 / H),
    Piecewise((0.0, 1 * H, 24 * H), (0.2 / H, 0.01 / H, 3.0 / H)),
]
by_law = pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)


def _ages(law: Law) -> np.ndarray:
    """Ages over all of a law's life, off its kinks."""
    return law.quantile(np.asarray([0.003, 0.02, 0.11, 0.33, 0.52, 0.77, 0.95, 0.993])) * 1.0000003


@by_law
def test_a_quantile_is_the_age_by_which_that_share_is_lost(law: Law) -> None:
    """The distribution function at the quantile of p is p, from a millionth to all but a millionth."""
    shares = np.asarray([1e-6, 1e-3, 0.1, 0.5, 0.9, 1 - 1e-3, 1 - 1e-6])

    assert law.cdf(law.quantile(shares)) == pytest.approx(shares, rel=1e-8)


@by_law
def test_the_hazard_is_the_slope_of_the_cumulative_hazard(law: Law) -> None:
    """Finite differences of H agree with h, and h S with the density."""
    ages = _ages(law)
    step = 1e-6 * ages
    slope = (law.cumulative_hazard(ages + step) - law.cumulative_hazard(ages - step)) / (2 * step)

    assert law.hazard(ages) == pytest.approx(slope, rel=1e-4)
    assert law.pdf(ages) == pytest.approx(law.hazard(ages) * law.survival(ages), rel=1e-9)


@by_law
def test_sampled_lives_follow_the_law(law: Law) -> None:
    """Lifetimes drawn with evenly spread uniforms have the law's mean and the law's distribution."""
    uniforms = (np.arange(8_000) + 0.5) / 8_000
    lifetimes = law.sample(uniforms)

    assert np.mean(lifetimes) == pytest.approx(law.remaining().mean_s, rel=2e-3)
    assert law.cdf(lifetimes) == pytest.approx(uniforms, abs=1e-9)


@by_law
def test_a_machine_of_some_age_is_judged_by_what_it_has_survived(law: Law) -> None:
    """Drawn lives of old machines are longer than their age, and their mean is age plus remaining life."""
    age_s = float(law.quantile(0.4))
    lifetimes = law.sample((np.arange(8_000) + 0.5) / 8_000, age_s=age_s)

    assert np.min(lifetimes) >= age_s
    assert np.mean(lifetimes) - age_s == pytest.approx(law.remaining(age_s).mean_s, rel=2e-3)
    middle = float(law.quantile(0.5, age_s=age_s))
    assert float(law.survival_from(age_s, middle)) == pytest.approx(0.5, rel=1e-9)


def test_remaining_life_of_the_exponential_has_its_closed_form() -> None:
    """It is the mean at any age, and mean (1 - exp(-window / mean)) up to a horizon."""
    law = Exponential(1 / (3 * H))

    assert law.remaining(50 * H).mean_s == pytest.approx(3 * H, rel=1e-12)
    found = law.remaining(5 * H, until_s=9 * H)
    assert found.mean_s == pytest.approx(3 * H * -math.expm1(-4 / 3), rel=1e-12)
    assert found.surviving_share == pytest.approx(math.exp(-4 / 3))
    assert "9 h" in found.note


def test_remaining_life_of_the_weibull_has_its_closed_form() -> None:
    """The mean is scale Gamma(1 + 1/shape), also where infancy is steep."""
    for shape in (0.3, 0.6, 1.0, 4.0):
        law = Weibull(16 * H, shape)

        assert law.remaining().mean_s == pytest.approx(16 * H * math.gamma(1 + 1 / shape), rel=1e-9)


def test_tails_keep_their_digits() -> None:
    """Neither the first millisecond nor a survival of 1e-300 is rounded away."""
    law = Exponential(1e-9)

    assert float(law.cdf(1e-3)) == pytest.approx(1e-12, rel=1e-12)
    assert float(law.log_survival(1e12)) == pytest.approx(-1000.0, rel=1e-15)
    blended = LAWS[5]
    assert float(blended.survival(blended.end_s - 1e-6)) == pytest.approx(
        float(blended.pdf(blended.end_s)) * 1e-6, rel=1e-3
    )


def test_nothing_outlives_the_end_of_a_bounded_law() -> None:
    """A normalised law ends with certainty, and a question about an older machine is refused with the reason."""
    law = PRINTED.normalised(24.83 * H)

    assert float(law.survival(24.83 * H)) == 0.0
    assert float(law.quantile(1.0)) == pytest.approx(24.83 * H)
    with pytest.raises(Misuse, match="no machine reaches an age of 25 h: this law ends at 24 h 49 min"):
        law.remaining(25 * H)


def test_a_machine_that_is_never_lost_lives_for_ever() -> None:
    """Where the hazard dies away a share of machines is immortal, and the mean says so."""
    law = Bathtub(0.5 / H, 1 * H, 0.0)

    assert float(law.quantile(0.99)) == math.inf
    assert law.remaining().mean_s == math.inf
    assert law.remaining(until_s=10 * H).surviving_share == pytest.approx(math.exp(-0.5), rel=1e-3)


def test_a_reclaim_that_begins_before_the_limit_is_no_bathtub() -> None:
    """Its hazard would be infinite at the limit."""
    with pytest.raises(AssertionError):
        Bathtub(0.24 / H, 1.1 * H, 0.0097 / H, 24 * H, 0.3 * H, 0.9)


# ------------------------------------------------------------------------------------------------------------- SciSpot


def test_the_printed_blended_form_is_no_distribution() -> None:
    """With the constants of the authors' simulator F is .827 at 24 h and passes 1 at about 24.27 h, as published."""
    assert float(PRINTED.cdf(24 * H)) == pytest.approx(0.827, abs=5e-4)
    assert PRINTED.whole_s / H == pytest.approx(24.27, abs=0.01)
    assert float(PRINTED.cdf(24.83 * H)) > 1.5
    assert float(PRINTED.hazard(24.5 * H)) == math.inf


def test_the_printed_expected_life_depends_on_its_bound() -> None:
    """The published fit of all machines has an expected life of 5.72 h until 24 h and 16.72 h until the last observation."""
    fit = BlendedAsPrinted(0.413703, 24.4533 * H, 0.949803 * H, 0.767458 * H)

    assert fit.expected_lifetime_s(24 * H) / H == pytest.approx(5.71725, abs=1e-4)
    assert float(fit.cdf(24 * H)) == pytest.approx(0.642877, abs=1e-5)
    last_s = next(x for x in np.arange(24 * H, 25 * H, 1.0) if fit.expected_lifetime_s(x) / H >= 16.7179)
    assert last_s / H == pytest.approx(24.84, abs=0.02)


def test_the_normalised_form_has_the_printed_shape() -> None:
    """Inside its bounds it is the printed curve, scaled; the factor A cancels."""
    law = PRINTED.normalised(24.2 * H)
    ages = np.asarray([0.0, 1, 5, 12, 20, 23, 24, 24.2]) * H
    scaled = (PRINTED.cdf(ages) - PRINTED.cdf(0.0)) / (PRINTED.cdf(24.2 * H) - PRINTED.cdf(0.0))

    assert law.cdf(ages) == pytest.approx(scaled, abs=1e-12)
    again = Blended.mixed(law.early_share, law.tau1_s, law.tau2_s, end_s=law.end_s, observed_s=math.inf)
    assert again.b_s == pytest.approx(law.b_s, rel=1e-12)


def test_the_papers_normalised_bathtub_is_the_normalised_blended_form() -> None:
    """The three-parameter mixture that is fitted to these data elsewhere is the same law under other names."""
    w, tau1, tau2, end = 0.38402, 3.68361, 0.636831, 24.84
    law = Blended.mixed(w, tau1 * H, tau2 * H, end_s=end * H, observed_s=math.inf)
    t = np.asarray([0.5, 3.0, 12.0, 23.0, 24.5])
    early = w * (1 - np.exp(-t / tau1)) / (1 - math.exp(-end / tau1))
    late = (1 - w) * (np.exp((t - end) / tau2) - math.exp(-end / tau2)) / (1 - math.exp(-end / tau2))

    assert law.cdf(t * H) == pytest.approx(early + late, rel=1e-10)


# -------------------------------------------------------------------------------------------------------- Kaplan-Meier


def test_kaplan_meier_counts_who_was_still_watched() -> None:
    """A worked example: five lives, one stopped at 2 s and one at 5 s; a machine stopped at 3 s counts at 3 s."""
    curve = kaplan_meier(lifetimes_of([1, 2, 3, 3, 5], [True, False, True, True, False]))

    assert curve.survival([0.5, 1, 2.9, 3, 5, 9]) == pytest.approx([1, 0.8, 0.8, 0.8 / 3, 0.8 / 3, 0.8 / 3])
    assert kaplan_meier(lifetimes_of([3, 3], [True, False])).survival(3.0) == pytest.approx(0.5)
    assert float(curve.standard_error(1)) == pytest.approx(0.8 * math.sqrt(1 / (5 * 4)))
    assert curve.remaining().mean_s == pytest.approx(1 + 0.8 * 2 + 0.8 / 3 * 2)


def test_kaplan_meier_says_nothing_beyond_the_data() -> None:
    """Beyond the oldest observation the answer carries a flag and a sentence, and remaining life is not made up."""
    curve = kaplan_meier(lifetimes_of([1 * H, 2 * H, 5 * H], [True, True, False]))

    assert not curve.survival_answer(5 * H).extrapolated
    asked = curve.survival_answer(6 * H)
    assert asked.extrapolated
    assert asked.note == "no machine was observed beyond 5 h: there is no estimate for older ones"
    assert curve.remaining(2 * H).until_s == 5 * H
    assert curve.remaining(6 * H).mean_s == 0.0
    assert curve.remaining(6 * H).extrapolated


def test_kaplan_meier_draws_only_lives_that_were_seen() -> None:
    """Samples are observed ages, and infinite where nobody knows when the machine was lost."""
    curve = kaplan_meier(lifetimes_of([1, 2, 3, 4], [True, True, True, False]))

    assert curve.sample([0.0, 0.2, 0.3, 0.6, 0.8]).tolist() == [0.0, 1.0, 2.0, 3.0, math.inf]


# ---------------------------------------------------------------------------------------------- asked beyond the data


def test_a_fitted_law_says_when_it_is_asked_beyond_its_data() -> None:
    """An answer past the oldest observed life is flagged, with a sentence; one inside is not."""
    law = Exponential(1 / (10 * H), observed_s=20 * H)

    assert not law.survival_answer(20 * H).extrapolated
    asked = law.survival_answer(30 * H, age_s=5 * H)
    assert asked.extrapolated
    assert asked.value == pytest.approx(math.exp(-2.5))
    assert asked.note == ("no machine was observed beyond 20 h: beyond it the exponential law extrapolates")


def test_remaining_life_is_counted_as_far_as_the_data_reach() -> None:
    """By default it ends with the oldest observed life, says who outlives it, and says so where it goes on."""
    law = Exponential(1 / (10 * H), observed_s=20 * H)
    inside = law.remaining(5 * H)

    assert inside.until_s == 20 * H
    assert inside.mean_s == pytest.approx(10 * H * -math.expm1(-1.5))
    assert not inside.extrapolated
    assert inside.note == ("the lifetime from the age of 5 h to 20 h; 22 % last longer and count up to there")
    assert law.remaining(5 * H, until_s=40 * H).extrapolated
    old = law.remaining(25 * H)
    assert old.extrapolated
    assert old.mean_s == pytest.approx(10 * H)
    assert "the exponential law extrapolates" in old.note


def test_a_horizon_before_the_age_is_refused() -> None:
    """A remaining lifetime cannot be counted backwards."""
    with pytest.raises(Misuse, match="cannot end at"):
        Exponential(1.0).remaining(10.0, until_s=5.0)
