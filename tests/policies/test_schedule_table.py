"""The plain table that machines save by, its fall-back, and when it is made anew."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest

from windfall.errors import Misuse
from windfall.policies.checkpointing import rules
from windfall.policies.checkpointing.schedule_table import Basis, Evidence, changed_input, doubt, save_table
from windfall.terms import SaveTable

GOOD = Evidence(losses=500, distance=0.05, oldest_s=86_400.0)
SAVES_S = (1_080.0, 2_280.0, 3_780.0)


def made(evidence: Evidence = GOOD, age_s: float = 0.0) -> SaveTable:
    return save_table(SAVES_S, work_s=14_400.0, age_s=age_s, stall_s=60.0, evidence=evidence, interval_s=600.0)


def next_save_s(table: SaveTable, done_s: float) -> float:
    return rules.scheduled_work_s(done_s, table.saves_at_s, table.horizon_s, table.interval_s)


def test_a_trusted_schedule_is_followed_to_the_end() -> None:
    """Each save follows the last, one made by the user does not disturb the rest, and at the end there is none."""
    table = made()

    assert [next_save_s(table, done_s) for done_s in (0.0, 1_080.0, 1_500.0, 2_280.0)] == [
        1_080.0,
        2_280.0,
        2_280.0,
        3_780.0,
    ]
    assert next_save_s(table, 3_780.0) == math.inf
    assert table.explanation == "based on 500 losses"


@pytest.mark.parametrize(
    ("evidence", "words"),
    [
        (Evidence(12, 0.05, 86_400.0), "based on 12 losses, fewer than 20"),
        (Evidence(500, 0.21, 86_400.0), "differs from the observed lifetimes by 0.21, more than 0.15"),
        (Evidence(25, 0.30, 86_400.0), "differs from the observed lifetimes by 0.30, more than 0.27"),
        (Evidence(500, math.nan, 86_400.0), "differs from the observed lifetimes"),
    ],
)
def test_a_fit_that_is_not_trusted_leaves_the_default_rule_and_says_so(evidence: Evidence, words: str) -> None:
    """Too few losses, too far from the data for its size: saves come at the rule's interval, with the reason."""
    table = made(evidence)

    assert [next_save_s(table, done_s) for done_s in (0.0, 600.0)] == [600.0, 1_200.0]
    assert words in table.explanation
    assert table.explanation.endswith("the default rule decides")


def test_a_small_sample_may_be_further_off() -> None:
    """What chance alone does to 25 losses is no reason for doubt."""
    assert doubt(Evidence(25, 0.25, 1.0)) == ""


def test_beyond_the_oldest_machine_the_default_rule_decides() -> None:
    """Where the machine will be older than any that was seen, the schedule ends and the interval begins."""
    table = made(Evidence(500, 0.05, oldest_s=10_000.0), age_s=7_000.0)

    assert table.saves_at_s == (1_080.0, 2_280.0)
    assert next_save_s(table, 1_080.0) == 2_280.0
    assert next_save_s(table, 2_280.0) == 2_880.0
    assert next_save_s(table, 2_880.0) == 3_480.0
    assert "no machine older than 10000 s was observed" in table.explanation


def test_a_machine_older_than_all_saves_by_the_rule_at_once() -> None:
    """Older than anything observed: nothing of the schedule is used."""
    table = made(age_s=100_000.0)

    assert table.saves_at_s == ()
    assert next_save_s(table, 0.0) == 600.0


@pytest.mark.parametrize("saves_s", [(100.0, 100.0), (0.0, 5.0), (-1.0,)])
def test_a_schedule_that_does_not_rise_is_refused(saves_s: tuple[float, ...]) -> None:
    """Two saves at one amount of work, or one before any work, is a mistake of the caller."""
    with pytest.raises(Misuse):
        save_table(saves_s, work_s=1e3, age_s=0.0, stall_s=1.0, evidence=GOOD, interval_s=600.0)


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (Basis(61.0, 95.0, 310.0, 30_000.0), ""),
        (Basis(20.0, 90.0, 300.0, 36_000.0), "stall is 20 s, planned with 60 s"),
        (Basis(60.0, 90.0, 500.0, 36_000.0), "restart is 500 s, planned with 300 s"),
        (Basis(60.0, 90.0, 300.0, 9_000.0), "remaining lifetime is 9000 s, planned with 36000 s"),
    ],
)
def test_a_plan_is_made_anew_when_what_it_rests_on_has_changed(now: Basis, words: str) -> None:
    """A cost or the rest of life that moved by a quarter asks for a new plan and is named; noise does not."""
    assert changed_input(Basis(60.0, 90.0, 300.0, 36_000.0), now) == words


def test_milliseconds_are_no_reason_for_a_new_plan() -> None:
    """A stall of 3 ms instead of 2 ms is half as much again, and nothing; steps of 30 ms instead of 20 ms are not."""
    assert changed_input(Basis(0.002, 0.02, 300.0, 9e3, 0.02), Basis(0.003, 0.05, 300.0, 9e3, 0.02)) == ""
    assert "step time is 0.03 s" in changed_input(
        Basis(0.002, 0.02, 300.0, 9e3, 0.02), Basis(0.002, 0.02, 300.0, 9e3, 0.03)
    )


def test_the_table_needs_none_of_the_packages_that_make_it() -> None:
    """An agent reads the table with the standard library alone."""
    module = "windfall.policies.checkpointing.schedule_table"
    code = f"import sys; import {module}; print('numpy' in sys.modules, 'numba' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert result.stdout.split() == ["False", "False"]
