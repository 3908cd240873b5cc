"""How long machines live: by a law, by their own record, by a trace; with a note on what lies beyond the data."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from tests.simulation.posing import NOW, lifetime
from tests.simulation.shared_data import DATA, needs_data
from windfall.errors import Misuse
from windfall.lab.fit_verb import read_lifetimes
from windfall.models.lifetimes import model_selection
from windfall.models.lifetimes.maximum_likelihood import Bounds
from windfall.models.lifetimes.observations import lifetimes_of
from windfall.simulation import lifetime_source, random_draws, sampling
from windfall.simulation.lifetime_source import by_trace
from windfall.simulation.scenario import AvailabilityWindows, LifetimeQuantiles, MemorylessLifetimes

LAWS = [name for name in lifetime_source.NAMES if name != lifetime_source.KAPLAN]


def ages(found: lifetime_source.LifetimeSource) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    assert isinstance(found.lifetimes, LifetimeQuantiles)
    return np.array(found.lifetimes.ages_s)


@pytest.mark.parametrize("name", LAWS)
def test_a_laws_table_has_its_distribution(name: str) -> None:
    """Quantiles are the law's, and so is the mean lifetime, that of the oldest cell included."""
    law = next(one for one in lifetime_source.PUBLIC if one.name == name)
    found = lifetime_source.by_model(name, (), provider="local", now=NOW)

    middle = np.linspace(0.05, 0.95, 19)
    at = np.interp(middle, np.linspace(0.0, 1.0, len(ages(found))), ages(found))
    assert law.cdf(at) == pytest.approx(middle, abs=1e-3)
    assert found.mttp_s == pytest.approx(law.remaining(until_s=max(law.end_s, 1e9)).mean_s, rel=3e-4)
    assert found.known_until_s == pytest.approx(89_398.0, abs=1.0)
    assert "960 lifetimes" in found.source


def test_draws_from_a_table_follow_the_law() -> None:
    """The kernels' own draws of 20,000 machines are as old as the bathtub says: largest distance below 1.4 %."""
    law = next(one for one in lifetime_source.PUBLIC if one.name == "bathtub")
    kind, values, _, _ = sampling.pack(lifetime_source.by_model("bathtub", (), provider="local", now=NOW).lifetimes)
    drawn = np.sort(
        [sampling.lifetime_s(kind, values, np.uint64(random_draws.key(1, trial)), 0, 0) for trial in range(20_000)]
    )

    assert float(np.max(np.abs(law.cdf(drawn) - np.arange(1, 20_001) / 20_000))) < 0.014


def test_a_mean_life_that_is_given_stretches_the_law() -> None:
    """A bathtub with a mean lifetime of 3 h is one on another scale, and was observed to ages on that scale."""
    found = lifetime_source.by_model("bathtub", (), provider="local", now=NOW, mttp_s=10_800.0)
    plain = lifetime_source.by_model("bathtub", (), provider="local", now=NOW)

    assert found.mttp_s == pytest.approx(10_800.0)
    assert ages(found) == pytest.approx(ages(plain) * 10_800.0 / plain.mttp_s)
    assert found.known_until_s == pytest.approx(plain.known_until_s * 10_800.0 / plain.mttp_s)


def test_own_lives_are_used_where_enough_were_lost() -> None:
    """Twenty losses of this provider after 2 h each: the law is fitted to them; nineteen are too few, as the source notes."""
    lost = [lifetime(n, 2.0) for n in range(20)]
    others = [lifetime(n + 100, 9.0, provider="aws") for n in range(30)]
    found = lifetime_source.by_model("exponential", [*lost, *others], provider="local", now=NOW)
    few = lifetime_source.by_model("exponential", [*lost[1:], *others], provider="local", now=NOW)

    assert found.mttp_s == pytest.approx(7200.0, rel=5e-3)
    assert "20 machines of local, 20 preempted" in found.source
    assert "lost 19 of local, fewer than 20" in few.source


def test_machines_that_were_stopped_count_as_long_as_they_lived() -> None:
    """Kaplan and Meier: 20 lost after 2 h, 20 stopped after 6 h; half of all outlive the data, as a note reports."""
    lifetimes = [lifetime(n, 2.0) for n in range(20)] + [lifetime(50 + n, 6.0, preempted=False) for n in range(20)]
    found = lifetime_source.by_model(lifetime_source.KAPLAN, lifetimes, provider="local", now=NOW)
    table = ages(found)

    assert float(np.mean(table < 2.5 * 3600)) == pytest.approx(0.5, abs=2e-3)
    assert not np.any((table > 2.5 * 3600) & (table < 5.99 * 3600)), "no machine was lost there"
    assert "50 % of the machines outlived the data (6 h)" in found.notes[0]
    tail_s = 20 * 8 * 3600 / 20
    assert found.mttp_s == pytest.approx(0.5 * 7200 + 0.5 * (6 * 3600 + tail_s), rel=0.01)


@pytest.mark.parametrize(
    ("name", "words"), [("bathtob", "did you mean bathtub?"), ("normal", "choose one of exponential")]
)
def test_an_unknown_law_is_answered_with_the_nearest(name: str, words: str) -> None:
    """Or with all of them, where none is near."""
    with pytest.raises(Misuse, match="is not a law of lifetimes") as caught:
        lifetime_source.by_model(name, (), provider="local", now=NOW)

    assert words in str(caught.value)


def test_without_a_single_loss_nothing_is_estimated() -> None:
    """Stopped machines alone show nothing about losses."""
    with pytest.raises(Misuse, match="none of its 2 machines was preempted"):
        lifetime_source.by_lifetimes(lifetimes_of([1.0, 2.0], [False, False]), "x.csv")


# ---------------------------------------------------------------------------------------------------------------- traces


def write(path: Path, *lines: str) -> str:
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_counts_become_windows_in_which_all_machines_are_there(tmp_path: Path) -> None:
    """Two machines from 1 h to 2 h and from 3 h to 4 h; one at all times, and so for ever."""
    rows = ["0,1", "1,1", "1,2", "2,2", "2,1", "3,1", "3,2", "4,2"]
    path = write(tmp_path / "p3_us-east-1a_hours_count.csv", *rows)
    two, one = by_trace(path, machines=2).lifetime_source, by_trace(path, machines=1).lifetime_source

    assert two is not None
    assert two.lifetimes == AvailabilityWindows(((3600.0, 7200.0), (10_800.0, 14_400.0)), 14_400.0)
    assert two.mttp_s == 3600.0
    assert "50 % of 4 h" in two.source
    assert one is not None
    assert one.lifetimes == MemorylessLifetimes((math.inf,))
    with pytest.raises(Misuse, match="never has 3 machines at once"):
        by_trace(path, machines=3)


def test_machines_that_are_there_when_a_trace_begins_again_are_not_lost(tmp_path: Path) -> None:
    """From 3 h to 4 h, and after it from 0 h to 2 h: one window of three hours, not two."""
    path = write(tmp_path / "p3_us-east-1a_hours_count.csv", "0,1", "2,1", "2,0", "3,0", "3,1", "4,1")
    found = by_trace(path, machines=1).lifetime_source
    assert found is not None
    assert found.lifetimes == AvailabilityWindows(((3600.0, 14_400.0),), 14_400.0)
    assert found.mttp_s == 10_800.0


def test_a_hole_in_the_counts_is_told(tmp_path: Path) -> None:
    """Every minute, and then nothing for three days: the note says so; without the gap there is none."""
    rows = [f"{minute / 60:.6f},{int(minute % 60 < 40)}" for minute in (*range(300), *range(4800, 5100))]
    path = write(tmp_path / "p3_us-east-1a_hours_count.csv", *rows)
    found = by_trace(path, machines=1).lifetime_source
    assert found is not None
    assert [note for note in found.notes if "gap of 3.1 days" in note]
    whole = by_trace(write(tmp_path / "p4_us-east-1a_hours_count.csv", *rows[:300]), machines=1).lifetime_source
    assert whole is not None
    assert not [note for note in whole.notes if "gap" in note]


@needs_data
def test_prices_of_a_slice_become_their_mean_over_time() -> None:
    """A day of one zone; several zones at once are refused with how to name one."""
    path = DATA / "aws_spot_prices" / "2016_may_aug_events.csv.gz"
    with pytest.raises(Misuse, match="choose one as FILE:TYPE@ZONE"):
        by_trace(f"{path}:..24h", machines=1)


@needs_data
def test_public_lives_are_read_with_their_censored_ones() -> None:
    """Of 960 machines 501 were preempted: half of them live longer than the median of the preempted alone."""
    found = by_trace(str(DATA / "gcp_preemptible_lifetimes" / "lifetimes.csv"), machines=1).lifetime_source

    assert found is not None
    assert "960 machines, 501 preempted" in found.source
    assert float(np.mean(ages(found) > 20 * 3600)) == pytest.approx(0.63, abs=0.01)


@needs_data
@pytest.mark.parametrize("name", ["exponential", "weibull", pytest.param("bathtub", marks=pytest.mark.slow)])
def test_the_published_parameters_are_the_fit_of_the_public_lives(name: str) -> None:
    """The constants in the code are what `windfall lab fit` finds."""
    lifetimes = read_lifetimes(DATA / "gcp_preemptible_lifetimes" / "lifetimes.csv")
    fitted = dict(model_selection.FAMILIES)[name](lifetimes, Bounds())
    ours = next(law for law in lifetime_source.PUBLIC if law.name == name)

    for key, value in fitted.parameters().items():
        assert ours.parameters()[key] == pytest.approx(value, rel=1e-3), key
    assert math.isfinite(ours.observed_s)
