"""The default policy is never much worse than insuring always, whatever the notices are and whatever was stated about them."""

from __future__ import annotations

import pytest

from tests.regret import worlds
from tests.regret.__main__ import describe, search


@pytest.mark.trial("E1")
def test_the_default_is_hardly_worse_than_insuring_always():
    """In forty worlds of a fixed seed, as far as a few histories show."""
    found = [worlds.measured(number, 40) for number in range(40)]
    counted = [one for one in found if one.histories]
    assert len(counted) > 25
    for one in counted:
        assert one.regret - 3.0 * one.stderr <= worlds.REGRET_MAX, describe(one)
    assert min(one.regret for one in counted) < -0.01, "and in some worlds it is better"


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.trial("E1")
def test_the_worst_regret_of_ten_thousand_worlds_is_two_percent():
    """Three hundred histories in each; the hundred worst again with twenty thousand, from fresh seeds."""
    worst = search(worlds.WORLDS)[0]
    assert worst.most <= worlds.REGRET_MAX, describe(worst)
