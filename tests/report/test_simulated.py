"""What the simulated world says: compared trial by trial, readable in a terminal, the same as data, drawn."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from tests.simulation.posing import NOW, OFFER, RUN, believed, job, posed
from windfall.jobs import Objective
from windfall.report import simulated, simulated_plot
from windfall.report.schema import schema
from windfall.report.simulated import Answer, Floats
from windfall.simulation import from_job, living
from windfall.simulation.outcomes import Trials, summarise
from windfall.terms import Seconds, Usd
from windfall.units import share_text

PRICE = 3.6
TRIALS = 4000
OBJECTIVE = Objective(Seconds(12_000.0), Usd(12.5))


def machines(seed: int = 3) -> Floats:
    """What the draws of each trial cost whoever meets them: far more apart than policies are."""
    return np.random.default_rng(seed).gamma(4.0, 500.0, TRIALS) + 10_000.0


def made(policy: str, finish_s: Floats) -> Answer:
    rest = np.full(len(finish_s), 30.0)
    trials = Trials(finish_s, finish_s - 5.0, rest, rest, rest, rest, np.full(len(finish_s), 2.0))
    return simulated.answer(summarise(policy, trials, PRICE), trials, PRICE)


def test_policies_are_compared_trial_by_trial() -> None:
    """3 s in 10,000 are sure where all trials agree on it, although either mean is only known to 16 s."""
    base = machines()
    answers = [made("thesis", base + 3.0 + np.sin(np.arange(TRIALS))), made("adaptive", base)]
    found = simulated.by_finish(answers)

    assert (found.policy, found.following, found.sure, found.same) == ("adaptive", "thesis", True, False)
    assert found.difference == pytest.approx(3.0, abs=0.05)
    assert found.stderr < 0.02 < answers[0].row.finish_s.stderr / 500


def test_a_difference_within_its_error_is_none() -> None:
    """Trials that disagree about who is better by 200 s each do not tell 1 s from nothing."""
    base = machines()
    noise = np.random.default_rng(1).normal(0.0, 200.0, TRIALS)
    found = simulated.by_finish([made("thesis", base + noise - noise.mean() + 1.0), made("adaptive", base)])
    said = list(simulated.verdicts([made("thesis", base + noise), made("adaptive", base)]))

    assert not found.sure
    assert any("cannot be told apart" in sentence and "--trials" in sentence for sentence in said)


def test_the_more_policies_the_surer_the_best_must_be() -> None:
    """A difference of 2.1 standard errors is enough against one other policy, and not against nine."""
    base = machines()
    noise = np.random.default_rng(2).normal(0.0, 1.0, TRIALS)
    noise = (noise - noise.mean()) / noise.std(ddof=1) + 2.1 / np.sqrt(TRIALS)
    two = [made("best", base), made("next", base + noise)]
    ten = [*two, *(made(f"far{n}", base + 900.0) for n in range(8))]

    assert simulated.by_finish(two).sure
    assert not simulated.by_finish(ten).sure


def test_policies_that_do_the_same_are_both_best() -> None:
    """No difference in any trial is said as that, not as a draw."""
    answers = [made("adaptive", machines()), made("thesis", machines())]

    assert simulated.by_cost(answers).same
    assert "do the same in every trial" in " ".join(simulated.verdicts(answers))


def test_deadline_and_budget_are_odds() -> None:
    """The share of trials that keep them; nothing is said where none was set."""
    one = made("adaptive", np.array([11_000.0, 11_999.0, 12_000.0, 12_600.0]))

    assert simulated.odds_met(one, OBJECTIVE) == (0.75, 0.75)
    assert simulated.odds_met(one, Objective()) == (None, None)


@pytest.mark.parametrize(
    ("share", "text"),
    [(1.0, "100 %"), (0.9999, "> 99.9 %"), (0.5, "50 %"), (0.123, "12.3 %"), (1e-5, "< 0.1 %"), (0.0, "0 %")],
)
def test_nothing_is_certain_that_is_not(share: float, text: str) -> None:
    """Odds are written 100 % only where every trial agrees, and 0 % where none does."""
    assert share_text(share) == text


def answers() -> list[Answer]:
    base = machines()
    longest = "a/rather/long/path/to/my_own_policy.py:interval_s"
    return [made("adaptive", base), made("every:100000steps", base + 50.0), made(longest, base + 700.0)]


def printed(found: list[Answer], objective: Objective, model: str | None = None) -> str:
    wanted = job(objective=objective)
    lived = None if model is None else living.by_model(model, (), provider="local", now=NOW)
    made_posed = from_job.pose(wanted, believed(wanted, OFFER, RUN), (RUN,), living=lived)
    console = Console(width=80, highlight=False)
    with console.capture() as capture:
        console.print(simulated.whole("gpt: 5000 steps", made_posed, found, objective))
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
    told = json.loads(json.dumps(simulated.as_json(posed(job(), RUN), answers(), OBJECTIVE, seed=7)))

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


def test_pictures_are_drawn_on_light_and_on_dark_paper(tmp_path: Path) -> None:
    """PNG and SVG; of one policy too, and of trials that are all alike."""
    light, dark, vector = tmp_path / "light.png", tmp_path / "dark.png", tmp_path / "one.svg"
    simulated_plot.draw(answers(), OBJECTIVE, light, title="gpt")
    simulated_plot.draw(answers(), OBJECTIVE, dark, title="gpt", dark=True)
    simulated_plot.draw([made("adaptive", np.full(3, 100.0))], Objective(), vector, title="gpt")

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

    assert simulated.undefeated(found, lambda one: one.finish_s) == {"a", "b"}
    assert simulated.undefeated(found[2:], lambda one: one.finish_s) == {"c"}
