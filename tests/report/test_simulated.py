"""What the simulated world says: compared trial by trial, readable in a terminal, the same as data, drawn."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from tests.simulation.posing import NOW, OFFER, RUN, built, estimate_of, job
from windfall.jobs import Minimize, Objective
from windfall.report import simulate_plot, simulate_report
from windfall.report.json_schema import schema
from windfall.report.simulate_report import Floats, PolicyOutcome
from windfall.simulation import lifetime_source, scenario_from_job
from windfall.simulation.outcomes import Trials, summarise
from windfall.structs import replace
from windfall.terms import RunOptions, Seconds, Usd
from windfall.units import share_text

PRICE = 3.6
TRIALS = 4000
OBJECTIVE = Objective(Seconds(12_000.0), Usd(12.5))


def machines(seed: int = 3) -> Floats:
    """What the draws of each trial cost whoever meets them: far more apart than policies are."""
    return np.random.default_rng(seed).gamma(4.0, 500.0, TRIALS) + 10_000.0


def made(policy: str, finish_s: Floats) -> PolicyOutcome:
    rest = np.full(len(finish_s), 30.0)
    trials = Trials(finish_s, finish_s - 5.0, rest, rest, rest, rest, np.full(len(finish_s), 2.0))
    return simulate_report.policy_outcome(summarise(policy, trials, PRICE), trials, PRICE)


def test_policies_are_compared_trial_by_trial() -> None:
    """3 s in 10,000 are sure where all trials agree on it, although either mean is only known to 16 s."""
    base = machines()
    answers = [made("thesis", base + 3.0 + np.sin(np.arange(TRIALS))), made("adaptive", base)]
    found = simulate_report.by_finish(answers)

    assert (found.policy, found.following, found.sure, found.same) == ("adaptive", "thesis", True, False)
    assert found.difference == pytest.approx(3.0, abs=0.05)
    assert found.stderr < 0.02 < answers[0].row.finish_s.stderr / 500


def test_a_difference_within_its_error_is_none() -> None:
    """Trials that disagree about who is better by 200 s each do not tell 1 s from nothing."""
    base = machines()
    noise = np.random.default_rng(1).normal(0.0, 200.0, TRIALS)
    found = simulate_report.by_finish([made("thesis", base + noise - noise.mean() + 1.0), made("adaptive", base)])
    said = list(simulate_report.comparisons([made("thesis", base + noise), made("adaptive", base)]))

    assert not found.sure
    assert any("cannot be told apart" in message and "--trials" in message for message in said)


def test_the_more_policies_the_surer_the_best_must_be() -> None:
    """A difference of 2.1 standard errors is enough against one other policy, and not against nine."""
    base = machines()
    noise = np.random.default_rng(2).normal(0.0, 1.0, TRIALS)
    noise = (noise - noise.mean()) / noise.std(ddof=1) + 2.1 / np.sqrt(TRIALS)
    two = [made("best", base), made("next", base + noise)]
    ten = [*two, *(made(f"far{n}", base + 900.0) for n in range(8))]

    assert simulate_report.by_finish(two).sure
    assert not simulate_report.by_finish(ten).sure


def test_policies_that_do_the_same_are_both_best() -> None:
    """No difference in any trial is said as that, not as a draw."""
    answers = [made("adaptive", machines()), made("thesis", machines())]

    assert simulate_report.by_cost(answers).same
    assert "do the same in every trial" in " ".join(simulate_report.comparisons(answers))


def noisy(seed: int, mean_s: float = 0.0) -> Floats:
    noise = np.random.default_rng(seed).normal(0.0, 200.0, TRIALS)
    return noise - noise.mean() + mean_s


def verdict(*outcomes: PolicyOutcome, own: str = "adaptive", objective: Objective | None = None) -> str:
    """The verdict on a job with this policy of its own."""
    made_scenario = built(job(options=RunOptions(own)), RUN)
    return simulate_report.verdict(made_scenario, outcomes, objective or Objective())


def test_the_verdict_names_the_line_for_the_job_file_and_what_it_saves() -> None:
    """A policy that is significantly cheaper than the job's own one replaces it."""
    base = machines()
    found = verdict(made("every:50steps", base * 1.25), made("adaptive", base), own="every:50steps")

    assert found == (
        "Set `checkpoint: {insure: auto}` in the job file: it costs 20 % (3 USD) less than the job's policy, every:50steps."
    )


def test_the_verdict_keeps_a_policy_that_is_best() -> None:
    """With the distance to the next best policy."""
    base = machines()

    assert verdict(made("adaptive", base), made("never", base * 2.0)) == (
        "Keep adaptive, the job's policy: it costs 50 % (12 USD) less than never, the next best."
    )


def test_the_verdict_keeps_the_jobs_policy_within_the_noise() -> None:
    """A difference that chance explains is no reason to change the job file."""
    base = machines()
    better, own = made("optimal", base), made("adaptive", base + noisy(1, 1.0))
    worse = made("never", base * 2.0)

    assert (
        verdict(better, own)
        == "Keep adaptive, the job's policy: the differences in cost are within the noise of 4,000 trials."
    )
    assert verdict(better, own, worse) == (
        "Keep adaptive, the job's policy: no other policy has a better cost beyond the noise of 4,000 trials."
    )
    assert verdict(made("optimal", base), made("adaptive", base)) == (
        "Keep adaptive, the job's policy: the cost is the same under all policies."
    )
    assert "the noise of 1 trial." in verdict(made("optimal", base[:1]), made("adaptive", base[:1] + 1.0))


def test_the_verdict_follows_the_objective_and_names_the_other_best() -> None:
    """A job that minimizes time gets the earliest finish; a second sentence says what is cheaper."""
    base = machines()
    quick, cheap = made("optimal", base), made("adaptive", base + 900.0)
    cheap = replace(cheap, cost_usd=quick.cost_usd * 0.5)
    found = verdict(cheap, quick, objective=Objective(minimize=Minimize.TIME))

    assert found.startswith("Set `checkpoint: {insure: optimal}` in the job file: it finishes 7")
    assert found.endswith("less than optimal.")
    assert "By cost, adaptive is better: it costs 50 %" in found


def test_the_verdict_on_free_machines_is_about_time() -> None:
    """Where nothing costs anything there is no cheapest policy."""
    base = machines()
    free = [replace(one, cost_usd=np.zeros(TRIALS)) for one in (made("adaptive", base + 9.0), made("never", base))]

    assert verdict(*free).startswith("Set `checkpoint: {insure: never}` in the job file: it finishes")


def test_the_verdict_recommends_only_what_a_job_file_accepts() -> None:
    """A better policy that only a simulation knows is named, and not recommended."""
    base = machines()
    found = verdict(made("adaptive", base), made("never", base * 2.0), made("mine.py:rule", base * 0.5))

    assert found.startswith("Keep adaptive, the job's policy")
    assert found.endswith("mine.py:rule costs 50 % (6 USD) less than that, but a job file cannot set it.")
    assert [
        simulate_report.job_file_value(name) for name in ("every:50steps", "every:600s", "thesis", "mine.py:rule")
    ] == [
        "50 steps",
        "600s",
        "thesis",
        None,
    ]


@pytest.mark.parametrize("own", ["adaptive", "thesis"])
def test_the_verdict_on_a_single_policy_says_how_to_compare(own: str) -> None:
    """One policy cannot be compared, and a list without the job's own policy still has a best one."""
    base = machines()

    assert "--policy adaptive,optimal" in verdict(made("adaptive", base), own=own)
    assert verdict(made("optimal", base), made("never", base * 2.0), own="adaptive").startswith(
        "Set `checkpoint: {insure: optimal}` in the job file: it costs 50 %"
    )


def test_the_verdict_comes_last() -> None:
    """It is the end of what is printed."""
    text = " ".join(printed(answers(), OBJECTIVE).split())

    assert text.endswith("the next best.")


def test_deadline_and_budget_are_odds() -> None:
    """The share of trials that keep them; nothing is said where none was set."""
    one = made("adaptive", np.array([11_000.0, 11_999.0, 12_000.0, 12_600.0]))

    assert simulate_report.odds_met(one, OBJECTIVE) == (0.75, 0.75)
    assert simulate_report.odds_met(one, Objective()) == (None, None)


@pytest.mark.parametrize(
    ("share", "text"),
    [(1.0, "100 %"), (0.9999, "> 99.9 %"), (0.5, "50 %"), (0.123, "12.3 %"), (1e-5, "< 0.1 %"), (0.0, "0 %")],
)
def test_nothing_is_certain_that_is_not(share: float, text: str) -> None:
    """Odds are written 100 % only where every trial agrees, and 0 % where none does."""
    assert share_text(share) == text


def answers() -> list[PolicyOutcome]:
    base = machines()
    longest = "a/rather/long/path/to/my_own_policy.py:interval_s"
    return [made("adaptive", base), made("every:100000steps", base + 50.0), made(longest, base + 700.0)]


def printed(found: list[PolicyOutcome], objective: Objective, model: str | None = None) -> str:
    wanted = job(objective=objective)
    lived = None if model is None else lifetime_source.by_model(model, (), provider="local", now=NOW)
    made_posed = scenario_from_job.build_scenario(
        wanted, estimate_of(wanted, OFFER, RUN), (RUN,), lifetime_source=lived
    )
    console = Console(width=80, highlight=False)
    with console.capture() as capture:
        console.print(simulate_report.render("gpt: 5000 steps", made_posed, found, objective))
    return capture.get()


@pytest.mark.parametrize("objective", [Objective(), OBJECTIVE])
def test_everything_fits_a_terminal_of_80_columns(objective: Objective) -> None:
    """Whatever the policies are called; nothing of a number is cut off."""
    text = printed(answers(), objective)

    assert max(len(line) for line in text.splitlines()) <= 80
    assert text.count("in time") == text.count("in budget") == (1 if objective.deadline_s else 0)
    for word in ("cost [USD]", "finish [h]", "adaptive", "measured in 1 earlier run", "P90", "preemptions"):
        assert word in text
    assert text.count("icy.py:interval_s") == 3
    assert not re.search(r"\d…", text)


def test_a_row_has_these_fields_and_the_whole_the_shape_of_its_schema() -> None:
    """The fields of a row, by name; and the schema is that of what is printed."""
    jsonschema = pytest.importorskip("jsonschema")
    told = json.loads(json.dumps(simulate_report.as_json(built(job(), RUN), answers(), OBJECTIVE, seed=7)))

    jsonschema.Draft202012Validator(schema("simulate")).validate(told)
    spread = {"mean", "p10", "p50", "p90", "p99", "stderr"}
    times = {"redo_s", "save_s", "allocate_s", "prepare_s", "preemptions", "trials"}
    for row in told["rows"]:
        assert set(row) == {"policy", "cost_usd", "finish_s"} | times
        assert set(row["cost_usd"]) == set(row["finish_s"]) == spread
    assert told["best"]["cost_usd"]["policy"] == "adaptive"


def test_a_law_that_is_asked_beyond_its_data_says_so() -> None:
    """No machine was seen older than a day: a job of thirty hours is told that."""
    long = [made("adaptive", machines() + 100_000.0)]

    assert "no machine was observed beyond 24 h 49 min" in " ".join(
        printed(long, Objective(), "bathtub").lower().split()
    )
    assert "was observed beyond" not in printed([made("adaptive", machines())], Objective(), "bathtub")


def test_machines_that_are_lost_before_they_are_ready_are_the_cause_and_not_the_policy() -> None:
    """A run that only prepares loses no saved work."""
    scenario = built(job(), RUN)
    work_s = scenario.scenario.steps * scenario.scenario.step_s.mean_s
    finish_s, rest = np.full(TRIALS, 20.0 * work_s), np.full(TRIALS, 30.0)
    trials = Trials(finish_s, finish_s, rest, rest, rest, 0.93 * finish_s, rest)
    one = simulate_report.policy_outcome(summarise("adaptive", trials, PRICE), trials, PRICE)

    (note,) = simulate_report.absurd(scenario, [one])
    assert note.startswith("machines are lost before they are ready (preparing takes 93 % of the time): ")
    assert "policy adaptive takes 20 times" in note


def test_pictures_are_drawn_on_light_and_on_dark_paper(tmp_path: Path) -> None:
    """PNG and SVG; of one policy too, and of trials that are all alike."""
    light, dark, vector = tmp_path / "light.png", tmp_path / "dark.png", tmp_path / "one.svg"
    simulate_plot.draw(answers(), OBJECTIVE, light, title="gpt")
    simulate_plot.draw(answers(), OBJECTIVE, dark, title="gpt", dark=True)
    simulate_plot.draw([made("adaptive", np.full(3, 100.0))], Objective(), vector, title="gpt")

    assert light.read_bytes()[:4] == dark.read_bytes()[:4] == b"\x89PNG"
    assert light.read_bytes() != dark.read_bytes()
    assert vector.read_text().lstrip().startswith("<?xml")


def test_a_bad_policy_blurs_no_good_one() -> None:
    """A policy that takes days leaves the hours of the others their unit and digits, and their room in a picture."""
    said = printed([*answers()[:1], made("thesis", machines() * 30.0)], OBJECTIVE)

    assert "finish [h]" in said
    assert "cost [USD]" in said


def test_only_policies_that_are_surely_worse_are_drawn_as_such() -> None:
    """Of three, one surely loses; the other two disagree from trial to trial about who is better."""
    base = machines()
    noise = np.random.default_rng(1).normal(0.0, 200.0, TRIALS)
    found = [made("a", base), made("b", base + noise - noise.mean() + 1.0), made("c", base + 900.0)]

    assert simulate_report.undefeated(found, lambda one: one.finish_s) == {"a", "b"}
    assert simulate_report.undefeated(found[2:], lambda one: one.finish_s) == {"c"}
