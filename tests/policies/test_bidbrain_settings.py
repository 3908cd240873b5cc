"""`fleet: bidbrain` in a job file: its settings, the jobs that can have it, and what it makes of a runtime's scaling."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import tickets
from windfall.jobs import Job, Resources, Use
from windfall.policies.acquisition import bidbrain_settings, fleet_policy_list
from windfall.policies.planning import job_checks
from windfall.structs import replace
from windfall.terms import Usd


@pytest.fixture(autouse=True)
def _installed() -> Iterator[None]:
    """The toy runtime, whose jobs can use more or fewer machines."""
    with tickets.installed():
        yield


def scaled(**settings: Any) -> Job:
    """Return a job of tickets that has BidBrain, with at most three takers."""
    return replace(tickets.job("job", tickets.QueueSettings()), fleet="bidbrain", fleet_settings=settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"machine_max": 3}, "has no setting 'machine_max'; it has machines_max, purchases_max"),
        ({"machines_max": 2.5}, "machines_max must be a whole number from 1, not 2.5"),
        ({"purchases_max": 0}, "purchases_max must be a whole number from 1, not 0"),
        ({"machines_max": True}, "machines_max must be a whole number from 1, not True"),
        ({"margin": -0.1}, "margin must be a number above zero, not -0.1"),
        ({"price_max": math.inf}, "price_max must be a number above zero, not inf"),
        ({"whole_hour": "yes"}, "whole_hour must be true or false, not 'yes'"),
    ],
)
def test_a_bad_setting_is_a_sentence(settings: dict[str, Any], words: str) -> None:
    """It says which setting, and what to write instead."""
    assert words in str(bidbrain_settings.check(settings))
    assert [path for path, found in job_checks.problems(scaled(**settings)) if words in found] == ["fleet.bidbrain"]


def test_a_policy_without_settings_takes_none() -> None:
    """`fixed` has nothing to set."""
    assert fleet_policy_list.settings_problem("fixed", {}) is None
    assert fleet_policy_list.settings_problem("fixed", {"machines_max": 1}) == "has no settings; write `fleet: fixed`"


def test_a_job_with_a_fixed_number_of_machines_cannot_have_it() -> None:
    """Nor one that takes no machine that can be preempted."""
    rigid = Job("job", "job", "ada", "memory://run", ("true",), (Resources(),), fleet="bidbrain")
    assert bidbrain_settings.job_check(scaled()) is None
    assert "checkpoint needs a fixed number" in str(bidbrain_settings.job_check(rigid))
    assert "set spot_policy" in str(bidbrain_settings.job_check(replace(scaled(), use=Use.ON_DEMAND)))
    fleets = [[path for path, _ in job_checks.problems(one) if path.startswith("fleet")] for one in (scaled(), rigid)]
    assert fleets == [[], ["fleet.bidbrain"]]


def test_the_lower_limit_of_job_and_runtime_holds() -> None:
    """The runtime says at most three; the job may say fewer, not more; its price limit is the policy's."""
    assert bidbrain_settings.settings_of(scaled(machines_max=2)).machines_max == 2
    assert bidbrain_settings.settings_of(scaled(machines_max=9)).machines_max == 3
    assert bidbrain_settings.settings_of(scaled(margin=0.2)).margin == 0.2
    assert bidbrain_settings.settings_of(scaled()).usd_per_hour_max == math.inf
    limited = replace(scaled(), max_price_usd_per_hour=Usd(0.3))
    assert bidbrain_settings.settings_of(limited).usd_per_hour_max == 0.3
