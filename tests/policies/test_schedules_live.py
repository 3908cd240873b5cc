"""From recorded lives to one machine's schedule: when there is one, what based on, when it is made anew."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

import numpy as np
import pytest

from windfall.events import ScheduleAssigned
from windfall.fleet import Lifetime, ScheduleComputed
from windfall.models.exact.makespan import MakespanWorld, expect, tabulate
from windfall.models.lifetimes import model_selection
from windfall.policies.checkpointing import live_schedules
from windfall.policies.checkpointing.optimal_schedule import Optimal, optimal
from windfall.policies.checkpointing.schedule_table import ScheduleRequest
from windfall.structs import replace
from windfall.terms import SaveCosts, SaveTable, Seconds, Step, Term, WallTime

HOUR = 3_600.0
NOW = WallTime(1e9)
WISH = ScheduleRequest(
    machine_id="m-1",
    provider="sim",
    machine_type="m4",
    zone="a",
    machines=1,
    term=Term(4),
    from_step=Step(100),
    age_s=Seconds(600.0),
    work_s=Seconds(6.0 * HOUR),
    step_s=Seconds(2.0),
    costs=SaveCosts(Seconds(20.0), 10**9, Seconds(15.0), Seconds(1.0)),
    allocate_s=Seconds(60.0),
    prepare_s=Seconds(60.0),
    notice_s=Seconds(30.0),
)


def lifetimes(count: int = 120, seed: int = 3, rehearsed: int = 0) -> list[Lifetime]:
    """Machines of which a third is lost in the first two hours, the others at their limit of a day."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(count):
        early = rng.uniform() < 0.35
        lifetime_s = rng.exponential(HOUR) if early else 23.5 * HOUR + rng.uniform(0.0, HOUR / 2.0)
        started = WallTime(NOW - 40.0 * 86_400.0 + number * 600.0)
        ended = WallTime(started + max(lifetime_s, 60.0))
        taken = number >= rehearsed
        found.append(Lifetime(f"x{number}", "sim", "m4", "a", started, ended, preempted=taken, announced=False))
    return found


ROWS = lifetimes()


FAMILIES = tuple(pair for pair in model_selection.FAMILIES if pair[0] in {"exponential", "piecewise"})


def known_of(rows: Sequence[Lifetime]) -> live_schedules.ProviderFit:
    """What `fit_provider` finds, among the two laws that are fitted at once."""
    return live_schedules.fit_provider(rows, NOW, "sim", FAMILIES)


@pytest.fixture(scope="module")
def known() -> live_schedules.ProviderFit:
    return known_of(ROWS)


def made(
    request: ScheduleRequest, known: live_schedules.ProviderFit, rows: Sequence[Lifetime] = ROWS
) -> ScheduleComputed:
    found = live_schedules.make_schedule(request, known, rows, NOW)
    assert found is not None
    return found


def test_a_machine_saves_by_its_age(known: live_schedules.ProviderFit) -> None:
    """A young machine often, seldom once it has survived its first hours; the sentence names what this rests on."""
    young, old = made(WISH, known), made(replace(WISH, age_s=Seconds(8.0 * HOUR)), known)

    assert young.trusted
    assert old.trusted
    table = young.schedule.table
    gaps = np.diff((0.0, *table.saves_at_s))
    assert gaps[-1] > 2.0 * gaps[0]
    assert len(old.schedule.table.saves_at_s) < len(table.saves_at_s) / 3.0
    assert young.schedule.from_step == WISH.from_step
    assert table.explanation.startswith("based on 120 losses, piecewise law")
    assert table.horizon_s > WISH.work_s, "the whole work is planned, and known"


def test_an_old_machine_is_expected_to_take_longer_than_a_new_one(known: live_schedules.ProviderFit) -> None:
    """All end after a day: six hours of work are better begun on a new one at twenty, not at eight (`retirement`)."""
    middle, old = (made(replace(WISH, age_s=Seconds(hours * HOUR)), known).basis for hours in (8.0, 20.0))

    assert 6.0 * HOUR < middle.reuse_s < middle.fresh_s
    assert (old.reuse_s, old.fresh_s) == (pytest.approx(22_474.0, rel=1e-3), pytest.approx(22_266.0, rel=1e-3))
    assert middle.fresh_s == pytest.approx(old.fresh_s, rel=0.05)


def test_the_table_is_the_programmes_schedule(known: live_schedules.ProviderFit) -> None:
    """Handed over whole: its exact expectation is that of the programme, and less than with the default rule."""
    belief = live_schedules.estimate_law(WISH, known)
    assert belief is not None
    found = made(WISH, known)
    with np.errstate(divide="ignore"):
        table = tabulate(belief.law.log_survival, until_s=15.0 * HOUR, cell_s=60.0)
    world = MakespanWorld(table, 20.0, 36.0, 60.0, 60.0)
    best = optimal(world, WISH.work_s, age_s=WISH.age_s, unit_s=60.0)
    ours = [round(checkpoint / 60.0) for checkpoint in found.schedule.table.saves_at_s]
    first = np.diff((0, *ours, round(WISH.work_s / 60.0)))
    often = np.full(36, 10)
    followed, usual = (
        expect(world, replace(best.schedule, first=np.asarray(one, dtype=np.int64))).expected_s
        for one in (first, often)
    )
    assert best.expected.expected_s == pytest.approx(followed, rel=2e-3)
    assert followed < usual


def test_rehearsals_are_no_losses() -> None:
    """The injector took most of these machines: what is left is not enough to plan by."""
    rows = lifetimes(40, rehearsed=25)
    found = made(WISH, known_of(rows), rows)
    assert not found.trusted
    assert found.schedule.table.explanation.endswith("the default rule decides")
    assert "based on 15 losses" in found.schedule.table.explanation


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "no loss of such a machine has been observed yet"),
        (lifetimes(12), "based on 12 losses, fewer than 20"),
        (lifetimes(4), "based on 4 losses, fewer than 20"),
    ],
)
def test_too_little_to_go_by_leaves_the_default_rule_and_says_so(rows: list[Lifetime], words: str) -> None:
    """Once: as long as nothing changes, nothing is said again."""
    few = known_of(rows)
    found = made(WISH, few, rows)

    assert (found.trusted, found.schedule.table.saves_at_s, found.schedule.table.horizon_s) == (False, (), 0.0)
    assert words in found.schedule.table.explanation
    assert live_schedules.make_schedule(replace(WISH, before=found), few, rows, NOW) is None


def test_a_fit_far_off_is_not_followed(known: live_schedules.ProviderFit) -> None:
    """However many losses based on."""
    assert known.fit is not None
    far = replace(
        known,
        fit=dataclasses.replace(known.fit, doubts=("the weibull law differs from the observed survival by 0.31",)),
    )
    found = made(WISH, far)
    assert not found.trusted
    assert "because the weibull law differs" in found.schedule.table.explanation


def test_beyond_the_oldest_observed_age_there_is_no_schedule() -> None:
    """Nobody has seen a machine of this age: the table is empty, and the default rule has the machine."""
    young = [replace(row, ended=WallTime(min(row.ended or NOW, row.started + 2.0 * HOUR))) for row in ROWS]
    known = known_of(young)
    found = made(replace(WISH, age_s=Seconds(3.0 * HOUR)), known, young)
    assert not found.trusted


def test_a_zone_with_a_law_of_its_own_is_planned_by_it() -> None:
    """Machines of zone b live a tenth as long: theirs is the shorter interval."""
    rng = np.random.default_rng(8)
    rows = []
    for number in range(400):
        zone, mean_s = ("a", 10.0 * HOUR) if number % 2 else ("b", HOUR)
        started = WallTime(NOW - 1e6 + 100.0 * number)
        ended = WallTime(started + 1.0 + rng.exponential(mean_s))
        rows.append(Lifetime(f"x{number}", "sim", "m4", zone, started, ended, preempted=True, announced=False))
    known = known_of(rows)

    there, here = (made(replace(WISH, zone=zone), known, rows) for zone in ("a", "b"))

    assert "200 losses in b" in here.schedule.table.explanation
    assert here.schedule.table.saves_at_s[0] < there.schedule.table.saves_at_s[0] / 2.0


def test_under_the_injector_the_losses_are_the_injectors(known: live_schedules.ProviderFit) -> None:
    """A rehearsal at a known rate is planned with it, whatever machines lived before."""
    found = made(replace(WISH, injected=True, mttp_s=Seconds(HOUR), notice_s=Seconds(0.0)), known)
    assert found.schedule.table.explanation == "the injector preempts machines after 3600 s on average"
    tau_s = math.sqrt(2.0 * 20.0 * HOUR)
    assert np.diff((0.0, *found.schedule.table.saves_at_s)) == pytest.approx(tau_s, rel=0.15)


def test_machines_that_train_together_have_no_schedule_and_are_told_why(known: live_schedules.ProviderFit) -> None:
    """One sentence, once."""
    found = made(replace(WISH, machines=4), known)
    assert "for a machine that trains alone, and 4 train together" in found.schedule.table.explanation
    assert live_schedules.make_schedule(replace(WISH, machines=4, before=found), known, ROWS, NOW) is None


@pytest.mark.parametrize("work_s", [None, Seconds(4_000.0 * HOUR)])
def test_work_without_an_end_in_sight_is_planned_piece_by_piece(
    known: live_schedules.ProviderFit, work_s: Seconds | None
) -> None:
    """As far as lives were observed and the programme is quick; the next piece follows at the last save of this one."""
    request = replace(WISH, work_s=work_s)
    first = made(request, known)
    table = first.schedule.table
    assert table.saves_at_s
    assert table.horizon_s < 24.0 * HOUR
    on = replace(request, before=first, age_s=Seconds(WISH.age_s + table.saves_at_s[0]))
    early = replace(on, from_step=Step(100 + round(table.saves_at_s[0] / 2.0)))
    assert live_schedules.make_schedule(early, known, ROWS, NOW) is None
    late = replace(on, from_step=Step(100 + math.ceil(table.saves_at_s[-1] / 2.0)))
    again = made(replace(late, age_s=Seconds(WISH.age_s + table.saves_at_s[-1])), known)
    assert "it ended after" in again.reason


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"costs": SaveCosts(Seconds(60.0), 10**9, Seconds(15.0), Seconds(1.0))}, "stall is 60 s, planned with 20 s"),
        ({"costs": SaveCosts(Seconds(20.0), 10**9, Seconds(99.0), Seconds(1.0))}, "time until committed is 120 s"),
        ({"allocate_s": Seconds(900.0)}, "restart is 960 s, planned with 120 s"),
        ({"step_s": Seconds(3.0)}, "step time is 3 s, planned with 2 s"),
        ({"term": Term(6)}, "the run resumed at step 100"),
        ({"from_step": Step(40)}, "the run rolled back to step 40, before step 100"),
        ({}, ""),
        ({"from_step": Step(400), "age_s": Seconds(1_200.0), "work_s": Seconds(5.9 * HOUR)}, ""),
        ({"costs": SaveCosts(Seconds(22.0), 10**9, Seconds(16.0), Seconds(1.0))}, ""),
    ],
)
def test_a_schedule_is_made_anew_when_what_it_rests_on_has_changed(
    known: live_schedules.ProviderFit, changes: dict[str, object], words: str
) -> None:
    """Each reason is named with its numbers; growing older as planned and noise are none."""
    request = replace(WISH, before=made(WISH, known), **changes)  # type: ignore[arg-type]
    again = live_schedules.make_schedule(request, known, ROWS, NOW)

    assert ("" if again is None else again.reason).startswith(words)
    assert (again is None) == (words == "")


def test_a_schedule_is_made_anew_when_the_hazard_has_changed(known: live_schedules.ProviderFit) -> None:
    """Lives of half the length make the rest of this machine's life shorter, at the age that was planned for."""
    shorter = [replace(row, ended=WallTime(row.started + (row.ended - row.started) / 3.0)) for row in ROWS if row.ended]
    request = replace(WISH, before=made(WISH, known))
    again = made(request, known_of(shorter), shorter)
    assert again.reason.startswith("remaining lifetime is ")


def test_a_machine_that_ages_as_planned_keeps_its_schedule(known: live_schedules.ProviderFit) -> None:
    """Near the limit of its life the rest of it is short, which the schedule knew from the beginning."""
    request = replace(WISH, work_s=Seconds(20.0 * HOUR))
    first = made(request, known)
    later = {"from_step": Step(100 + round(19.0 * HOUR / 2.0)), "age_s": Seconds(WISH.age_s + 19.2 * HOUR)}
    late = replace(request, before=first, work_s=Seconds(HOUR), **later)  # type: ignore[arg-type]
    assert live_schedules.make_schedule(late, known, ROWS, NOW) is None


def test_time_lost_since_is_a_reason_to_plan_anew(known: live_schedules.ProviderFit) -> None:
    """A script that was started again within the term: the machine comes to the step five hours older than planned."""
    before = made(replace(WISH, age_s=Seconds(14.0 * HOUR)), known)
    late = replace(WISH, from_step=Step(1_000), before=before, age_s=Seconds(14.5 * HOUR + 5.0 * HOUR))
    again = made(late, known)
    assert "remaining lifetime" in again.reason
    assert again.schedule.table.saves_at_s != before.schedule.table.saves_at_s
    memoryless = replace(WISH, injected=True, mttp_s=Seconds(6.0 * HOUR))
    planned = made(memoryless, known)
    older = replace(memoryless, before=planned, from_step=Step(1_000), age_s=Seconds(3.0 * HOUR))
    assert live_schedules.make_schedule(older, known, ROWS, NOW) is None


def test_each_holding_of_the_run_has_its_own_answer(known: live_schedules.ProviderFit) -> None:
    """Table or reason: a machine that took the run again is given none of the last time, and not left without a word."""
    few = known_of(lifetimes(12))
    for request, told in ((WISH, known), (WISH, few), (replace(WISH, machines=3), known)):
        first = made(request, told)
        assert first.schedule.term == first.term == WISH.term
        assert live_schedules.make_schedule(replace(request, before=first), told, ROWS, NOW) is None
        again = made(replace(request, before=first, term=Term(7)), told)
        assert again.schedule.term == again.term == 7


@pytest.mark.parametrize(("age_s", "stall_s", "step_s"), [(12.0 * HOUR, 0.05, 0.1), (22.0 * HOUR, 0.005, 0.02)])
def test_what_is_planned_of_an_old_machine_is_soon_solved(
    known: live_schedules.ProviderFit, monkeypatch: pytest.MonkeyPatch, age_s: float, stall_s: float, step_s: float
) -> None:
    """Effort grows with the age in units and the square of the work: cheap saves on an old machine took minutes."""
    efforts = []

    def spy(world: MakespanWorld, work_s: float, *, age_s: float, unit_s: float) -> Optimal:
        efforts.append((work_s / unit_s) ** 2 * age_s / unit_s)
        return optimal(world, work_s, age_s=age_s, unit_s=unit_s)

    monkeypatch.setattr(live_schedules, "optimal", spy)
    costs = SaveCosts(Seconds(stall_s), 10**6, Seconds(0.1), Seconds(0.05))
    found = made(replace(WISH, age_s=Seconds(age_s), step_s=Seconds(step_s), costs=costs), known)
    assert found.trusted
    assert efforts[0] <= 1.1 * live_schedules.EFFORT_MAX


def test_an_old_machine_whose_saves_cost_nothing_saves_by_the_default_rule(known: live_schedules.ProviderFit) -> None:
    """No fraction of a terabyte for a table of a few minutes."""
    costs = SaveCosts(Seconds(0.0), 0, Seconds(0.0), Seconds(0.0))
    request = replace(
        WISH, age_s=Seconds(2e7), step_s=Seconds(0.004), costs=costs, injected=True, mttp_s=Seconds(138.0)
    )
    found = made(request, known)
    assert not found.trusted
    assert "too frequent to plan" in found.schedule.table.explanation


def test_other_threads_go_on_while_a_schedule_is_computed() -> None:
    """The controller's turns and its API run in the same process."""
    lives_table = tabulate(lambda age_s: -np.asarray(age_s) / 36_000.0, until_s=200_000.0, cell_s=10.0)
    world = MakespanWorld(lives_table, 5.0, 20.0, 60.0, 60.0, 0.5)
    optimal(world, 100.0, age_s=600.0, unit_s=10.0)  # compiled before anybody looks at a clock
    ended = threading.Event()

    def solve() -> None:
        optimal(world, 4_000.0, age_s=60_000.0, unit_s=10.0)
        ended.set()

    started, gaps = time.perf_counter(), []
    threading.Thread(target=solve).start()
    while not ended.is_set():
        at = time.perf_counter()
        ended.wait(0.001)
        gaps.append(time.perf_counter() - at)
    assert max(gaps) < (time.perf_counter() - started) / 3.0


def test_the_newest_lives_of_the_provider_are_fitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fit of all that an old installation has seen would take minutes."""
    monkeypatch.setattr(live_schedules, "LIFETIMES_MAX", 60)
    old = [
        replace(row, machine_id=f"o{row.machine_id}", started=WallTime(row.started - 1e8), ended=None) for row in ROWS
    ]
    others = [replace(row, machine_id=f"p{row.machine_id}", provider="other") for row in ROWS]
    fit = known_of([*ROWS[60:], *others, *old]).fit
    assert fit is not None
    assert (len(fit.lifetimes.duration_s), fit.lifetimes.oldest_s < 30.0 * HOUR) == (60, True)


def test_a_schedule_follows_once_the_fit_can_be_trusted(known: live_schedules.ProviderFit) -> None:
    """And goes again when it cannot."""
    few = lifetimes(12)
    without = made(WISH, known_of(few), few)
    first = made(replace(WISH, before=without), known)
    assert (first.trusted, first.reason) == (True, "the fit of lifetimes can be trusted now")
    gone = made(replace(WISH, before=first), known_of(few), few)
    assert not gone.trusted


def test_saves_that_a_notice_covers_are_left_out(known: live_schedules.ProviderFit) -> None:
    """Where all losses are announced early enough fewer insurance saves are worth their price."""
    announced = [replace(row, announced=True) for row in ROWS]
    covered = made(replace(WISH, notice_s=Seconds(120.0)), known, announced)
    assert len(covered.schedule.table.saves_at_s) < len(made(WISH, known).schedule.table.saves_at_s) / 2.0


def test_who_wants_a_schedule_is_decided_without_the_packages_that_make_it() -> None:
    """The conductor's own half loads neither numpy nor numba."""
    code = (
        "import sys, windfall.control.job_loop, windfall.core.save_schedules, windfall.policies.checkpointing.schedule_table;"
        "print([name for name in ('numpy', 'numba', 'scipy') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_a_schedule_is_a_fact_that_any_journal_can_hold(known: live_schedules.ProviderFit) -> None:
    """Plain finite numbers, few enough for a directive that is sent every second."""
    for request in (WISH, replace(WISH, work_s=None), replace(WISH, costs=SaveCosts(*(Seconds(0.01),) * 4))):
        given = made(request, known).schedule
        numbers = (*given.table.saves_at_s, given.table.horizon_s, given.table.interval_s)
        assert all(math.isfinite(number) for number in numbers)
        assert len(given.table.saves_at_s) <= live_schedules.SAVES_MAX
        assert list(given.table.saves_at_s) == sorted(set(given.table.saves_at_s))
        assert given == ScheduleAssigned(SaveTable(*numbers_of(given)), given.from_step, WISH.term)


def numbers_of(given: ScheduleAssigned) -> tuple[tuple[float, ...], float, float, str]:
    table = given.table
    return table.saves_at_s, table.horizon_s, table.interval_s, table.explanation
