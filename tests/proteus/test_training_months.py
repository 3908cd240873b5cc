"""Proteus on the last third of the months to learn from, with 100 starts in each zone; nothing here reads what judges."""

from __future__ import annotations

import pytest

from tests.simulation.shared_data import DATA, needs_data
from windfall.lab import proteus, proteus_choices
from windfall.lab import proteus_runs as played
from windfall.lab.proteus_arms import Choices
from windfall.lab.proteus_runs import Replay
from windfall.lab.proteus_worlds import Span
from windfall.lab.published_rows import Options

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600), needs_data]
FOLDER = DATA / "aws_spot_prices"
STARTS = 100


def quiet(words: str) -> None:
    del words


@pytest.mark.parametrize("arm", list(proteus_choices.FREE))
def test_each_arm_has_the_best_of_its_free_constants(arm: str) -> None:
    """No other value of one of them costs more than 3 % less, on average over zones, worlds and lengths of jobs."""
    base = proteus_choices.CHOICES[arm]

    def cost(choices: Choices) -> float:
        shares = []
        for hours, starts in ((2.0, STARTS), (20.0, STARTS // 5)):
            runs = played.play(Replay(FOLDER, Span.TRAIN, starts, 1), hours, {arm: choices}, quiet)
            shares += [played.mean([one], lambda jobs: jobs.cost_usd).value / hours for one in runs]
        return sum(shares)

    chosen, others = cost(base), {}
    for name, values in proteus_choices.FREE[arm].items():
        for value in values:
            others[name, value] = cost(proteus_choices.varied(base, name, value)) / chosen
            print(f"{arm}: {name} = {value}: {others[name, value]:.3f} of the chosen one's cost")
    assert min(others.values()) > 0.97


def test_sensitivity_shows_every_constant_that_the_paper_does_not_print() -> None:
    """Each value has cost and run time in both worlds."""
    rows = proteus.PARTS["sensitivity"].rows(Options(STARTS, folder=str(FOLDER)), quiet)
    for row in rows:
        print(f"{row.item}: {row.quantity} {row.ours:.1f} {row.unit}")
    values = sum(len(values) for values in proteus_choices.UNPRINTED.values())
    assert len(rows) == 8 * values
    assert all(row.ours is not None and row.ours > 0.0 for row in rows)


def test_claims_are_played_with_constants_as_stated_and_as_measured() -> None:
    """The stated ones are those of the claims; of the measured ones as many stand beside them, and some are others."""
    options = Options(STARTS // 5, folder=str(FOLDER))
    claims, both = (proteus.PARTS[name].rows(options, quiet) for name in ("claims", "measured"))

    assert both[: len(claims)] == claims
    measured = both[len(claims) :]
    assert [row.quantity.partition(",")[0] for row in measured] == [row.quantity.partition(",")[0] for row in claims]
    assert [row.ours for row in measured] != [row.ours for row in claims]
