"""A change of the driver's frame changes nothing that a job with checkpoints does."""

from __future__ import annotations

import pytest

from tests.storms.same_orders import SEEDS, different

QUICK = 60


@pytest.mark.timeout(300)
def test_storms_give_the_same_orders_releases_and_generations_as_recorded() -> None:
    """Every order, release and generation, at its millisecond."""
    assert different(SEEDS[:QUICK]) == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_thousand_storms_give_the_same_orders_releases_and_generations_as_recorded() -> None:
    """The same over the thousand seeds that are recorded."""
    assert different(SEEDS[QUICK:]) == []
