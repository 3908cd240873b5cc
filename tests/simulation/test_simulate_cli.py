"""`windfall simulate` and the odds of `windfall plan`, as a user meets them; the controller is one that knows our numbers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.simulation.conftest import JOB, RunVerb
from tests.simulation.posing import NO_NOTICE, RUN, Controller, estimate_of, lifetime
from tests.simulation.posing import job as made_job
from windfall.errors import Infeasible
from windfall.extras import install
from windfall.simulation import kernels
from windfall.simulation.outcomes import Trials
from windfall.simulation.scenario import Scenario
from windfall.structs import replace
from windfall.terms import Seconds


def rows(run_verb: RunVerb, *words: str, trials: int = 400) -> list[dict[str, Any]]:
    code, out, err = run_verb("simulate", "--json", "--trials", str(trials), *words)
    assert code == 0, err
    found: list[dict[str, Any]] = json.loads(out)["rows"]
    return found


# ------------------------------------------------------------------------------------------------------------ the answer


@pytest.mark.usefixtures("shop")
def test_the_answer_fits_a_terminal_and_names_the_best(run_verb: RunVerb) -> None:
    """Cost, finish and losses of each policy, a verdict, and what all of it rests on; no line is wider than 80."""
    code, out, err = run_verb("simulate", "--trials", "300", "--policy", "adaptive,young-daly,every:100,every 10m")

    assert code == 0, err
    assert max(len(line) for line in out.splitlines()) <= 80
    for word in (
        "gpt: 5000 steps on small in zone-a of local; 300 trials",
        "every:100steps",
        "every:600s",
        "Best cost",
    ):
        assert word in out
    assert "measured in 1 earlier run" in out


@pytest.mark.usefixtures("shop")
def test_the_jobs_own_policy_comes_first_and_each_policy_once(run_verb: RunVerb) -> None:
    """Without --policy: the policy of the job file, then the ones worth comparing."""
    own = JOB + "checkpoint: {insure: 200 steps}\n"
    code, out, _ = run_verb("simulate", "--json", "--trials", "50", job=own)

    assert code == 0
    policies = [row["policy"] for row in json.loads(out)["rows"]]
    assert policies == ["every:200steps", "adaptive", "thesis", "young-daly", "optimal"]
    assert [row["policy"] for row in rows(run_verb, "--policy", "thesis, every:50,every 50 steps")] == [
        "thesis",
        "every:50steps",
    ]


@pytest.mark.usefixtures("shop")
def test_the_same_seed_gives_the_same_answer(run_verb: RunVerb) -> None:
    """To the last digit; another seed gives another; trials add up to what was asked."""
    words = ("--policy", "adaptive")

    assert rows(run_verb, *words, "--seed", "3") == rows(run_verb, *words, "--seed", "3")
    assert rows(run_verb, *words, "--seed", "3") != rows(run_verb, *words, "--seed", "4")
    assert rows(run_verb, *words)[0]["trials"] == 400


@pytest.mark.usefixtures("shop")
def test_a_finish_is_made_of_its_parts(run_verb: RunVerb) -> None:
    """Mean finish = work + redo + save + allocate + prepare: nothing is counted twice or forgotten."""
    (row,) = rows(run_verb, "--policy", "adaptive", "--step", "2s", "--mttp", "30m", "--notice", "0s")

    parts = sum(row[name] for name in ("redo_s", "save_s", "allocate_s", "prepare_s"))
    assert row["finish_s"]["mean"] == pytest.approx(5000 * 2.0 + parts, rel=1e-9)
    assert row["preemptions"] > 3


@pytest.mark.usefixtures("shop")
def test_a_policy_of_ones_own_is_compiled_and_says_so(run_verb: RunVerb, tmp_path: Path) -> None:
    """A scalar function in a file: Young's formula does what young-daly does, one that saves each 20 s saves 500 times."""
    file = tmp_path / "mine.py"
    arguments = "(age_s, work_left_s, stall_s, durable_s, mttp_s, restart_s)"
    bodies = {"young": "(2.0 * stall_s * mttp_s) ** 0.5", "eager": "20.0"}
    file.write_text("".join(f"def {name}{arguments}:\n    return {body}\n" for name, body in bodies.items()))
    words = ("--policy", f"young-daly,{file}:young,{file}:eager", "--notice", "0s", "--mttp", "1h", "--step", "2s")
    code, out, err = run_verb("simulate", "--json", "--trials", "2000", "--save", "1s", *words)

    assert code == 0, err
    assert f"compiling {file}:young" in err
    theirs, young, eager = json.loads(out)["rows"]
    assert young["policy"] == f"{file}:young"
    assert young["finish_s"]["mean"] == pytest.approx(theirs["finish_s"]["mean"], rel=2e-3)
    assert young["save_s"] == pytest.approx(theirs["save_s"], rel=0.02)
    assert eager["save_s"] == pytest.approx(500.0, rel=0.05)


def test_the_mean_is_what_the_plan_expects(shop: Controller, run_verb: RunVerb) -> None:
    """Two sources, one truth: memoryless silent losses on one machine.

    They differ by design, and by how much is known: the plan notices a loss and gives a machine back half a look late (2.5 s
    of each loss and of the bill), counts the first step of each machine twice (2 s), and waits for the last point (4 s);
    its formula leaves out what the first save of a run teaches.  All of it is below a third of a percent of 3 h.
    """
    shop.offers = (NO_NOTICE,)
    found = estimate_of(made_job(), NO_NOTICE, RUN)
    expected = found.expect(found.work_s or 0.0)
    (row,) = rows(run_verb, "--policy", "adaptive", trials=20_000)

    error = 4.0 * row["finish_s"]["stderr"]
    by_design_s = 2.5 * expected.preemptions + 2.0 * (1.0 + expected.preemptions) + expected.finish_s
    assert abs(row["finish_s"]["mean"] + by_design_s - expected.wall_s) < error + 0.003 * expected.wall_s
    assert row["preemptions"] == pytest.approx(expected.preemptions, rel=0.03)
    assert row["cost_usd"]["mean"] == pytest.approx(found.cost_usd(expected), rel=0.006)


def test_young_lives_cost_more_where_machines_die_young(shop: Controller, run_verb: RunVerb) -> None:
    """The bathtub's infancy loses more machines in the first hours than a memoryless law of the same mean."""
    shop.lifetimes = tuple(lifetime(n, 0.5 if n % 2 else 11.5) for n in range(40))
    words = ("--policy", "adaptive", "--notice", "0s")
    (own,) = rows(run_verb, *words, "--model", "kaplan-meier", trials=2000)
    (flat,) = rows(run_verb, *words, "--model", "exponential", trials=2000)

    assert own["preemptions"] > 1.5 * flat["preemptions"]


@pytest.mark.usefixtures("shop")
def test_a_trace_says_when_machines_can_be_had(run_verb: RunVerb, tmp_path: Path) -> None:
    """An hour with machines, an hour without: a job of three hours of work takes about six."""
    trace = tmp_path / "zone_hours_count.csv"
    trace.write_text("\n".join(["0,1", "1,1", "1,0", "2,0", "2,1", "3,1", "3,0", "4,0"]) + "\n")
    (row,) = rows(run_verb, "--policy", "every:20", "--step", "2s", "--trace", str(trace))

    assert row["finish_s"]["mean"] == pytest.approx(2 * 10_000, rel=0.12)
    assert row["allocate_s"] > 7000
    _, out, _ = run_verb("simulate", "--trials", "50", "--policy", "every:20", "--trace", str(trace))
    assert "starts over" in " ".join(out.split())


@pytest.mark.usefixtures("shop")
def test_before_any_run_a_user_can_ask_with_their_own_numbers(run_verb: RunVerb) -> None:
    """All ten inputs of the thesis' simulator on the command line: its GPT-117M in small."""
    words = (
        "--steps 500 --step 4.6s --save 2.5s --upload 13s --allocate 80s..120s --prepare 160s --mttp 3h --notice 30s"
    )
    (row,) = rows(run_verb, "--policy", "thesis", *words.split(), "--announced", "0.5", "--price", "0.5")

    assert 2300.0 < row["finish_s"]["p50"] < 3000.0
    assert row["cost_usd"]["mean"] == pytest.approx(
        0.5 * (row["finish_s"]["mean"] - row["allocate_s"]) / 3600, rel=0.05
    )


def test_what_is_not_for_sale_is_simulated_by_its_price(shop: Controller, run_verb: RunVerb) -> None:
    """Without an offer the job cannot be planned; --price is enough to ask all the same."""
    shop.offers = ()
    code, _, err = run_verb("simulate", "--trials", "10", "--step", "2s")
    assert code == 3
    assert "--price" in err

    assert rows(run_verb, "--policy", "adaptive", "--step", "2s", "--price", "1")[0]["trials"] == 400


@pytest.mark.usefixtures("shop")
def test_a_policy_that_cannot_be_played_is_left_out_unless_it_was_named(
    run_verb: RunVerb, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A policy from the default list is left out with a note; a named one is an error."""
    whole = kernels.simulate

    def refuse(scenario: Scenario, **options: Any) -> Trials:
        if scenario.policy == "optimal":
            raise Infeasible("no machine lives long enough")
        return whole(scenario, **options)

    monkeypatch.setattr(kernels, "simulate", refuse)
    output = json.loads(run_verb("simulate", "--json", "--trials", "50")[1])

    assert [row["policy"] for row in output["rows"]] == ["adaptive", "thesis", "young-daly"]
    assert output["notes"] == ["policy optimal left out: no machine lives long enough"]
    assert run_verb("simulate", "--trials", "50", "--policy", "adaptive,optimal")[0] == 3


@pytest.mark.usefixtures("shop")
def test_deadline_and_budget_do_not_hide_what_misses_them(run_verb: RunVerb) -> None:
    """A job that cannot be done in time is simulated, with the odds that it is."""
    code, out, err = run_verb(
        "simulate", "--trials", "200", "--json", job=JOB + "objective: {deadline: 1h, budget_usd: 90}\n"
    )

    assert code == 0, err
    assert {(one["in_time"], one["in_budget"]) for one in json.loads(out)["odds"]} == {(0.0, 1.0)}


@pytest.mark.usefixtures("shop")
def test_a_picture_is_drawn(run_verb: RunVerb, tmp_path: Path) -> None:
    """To the named file, which is printed."""
    code, out, _ = run_verb(
        "simulate", "--trials", "200", "--policy", "adaptive", "--plot", str(tmp_path / "x.png"), "--dark"
    )

    assert code == 0
    assert "plot: " in out
    assert (tmp_path / "x.png").read_bytes()[:4] == b"\x89PNG"


# ---------------------------------------------------------------------------------------------------------------- mistakes


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--policy", "adaptiv"], "did you mean 'adaptive'?"),
        (["--policy", ","], "the list is empty"),
        (["--policy", "every:0"], "no valid interval"),
        (["--policy", "nowhere.py:rule"], "nowhere.py"),
        (["--model", "weibul"], "did you mean weibull?"),
        (["--trace", "no/such/file.csv"], "no/such/file.csv"),
        (["--trials", "0"], "--trials"),
        (["--trials", "1e9"], "--trials"),
        (["--seed", "-1"], "--seed"),
        (["--step", "0s"], "--step"),
        (["--step", "4.6"], "is not a duration"),
        (["--allocate", "3m..1m"], "the shorter time comes first: 1m..3m"),
        (["--mttp", "0s"], "--mttp"),
        (["--announced", "90"], "must be 0 to 1"),
        (["--price", "-1"], "--price"),
        (["--steps", "0"], "--steps"),
        (["--plot", "x.gif"], ".png"),
        (["--plot", "no/such/folder/x.png"], "folder"),
        (["--model", "kaplan-meier"], "needs 20 lost machines"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(run_verb: RunVerb, words: list[str], says: str) -> None:
    """What is wrong, and what to write instead; never a traceback."""
    code, out, err = run_verb("simulate", *words)

    assert (code, out) == (2, "")
    assert says in err
    assert len(err.strip().splitlines()) == 1, err


def test_a_job_that_was_never_measured_says_which_numbers_are_missing(shop: Controller, run_verb: RunVerb) -> None:
    """How to give them, and what measures them."""
    shop.measured = ()
    code, _, err = run_verb("simulate", job="name: gpt\nrun: python train.py\n")

    assert code == 2
    for word in ("work: {steps: 20000}", "--steps 20000", "--step 4.6s", "windfall drill job.yaml"):
        assert word in err


@pytest.mark.usefixtures("shop")
def test_a_model_and_a_trace_of_lives_exclude_each_other(run_verb: RunVerb, tmp_path: Path) -> None:
    """Both set how long machines live."""
    trace = tmp_path / "a_hours_count.csv"
    trace.write_text("0,1\n1,1\n1,0\n2,0\n")
    code, _, err = run_verb("simulate", "--model", "bathtub", "--trace", str(trace))

    assert code == 2
    assert "leave out --model" in err


# -------------------------------------------------------------------------------------------------------------------- plan


def test_a_plan_has_its_p50_and_p90_without_a_trial_where_they_can_be_calculated(
    shop: Controller, run_verb: RunVerb, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silent losses, one machine, a fixed interval: nothing is compiled and nothing is played."""
    shop.offers = (NO_NOTICE,)
    monkeypatch.delattr(kernels, "simulate")
    code, out, err = run_verb("plan")
    output = json.loads(run_verb("plan", "--json")[1])

    assert code == 0, err
    text = " ".join(out.split())
    assert "P50 and P90 computed exactly" in text
    assert text.count("; P50 ") == 2
    assert max(len(line) for line in out.splitlines() if not (line.startswith("run ") or "file://" in line)) <= 80
    expected, odds = output["chosen"]["expected"], output["odds"]
    for what, mean in (("cost_usd", expected["cost_usd"]), ("finish_s", expected["wall_s"])):
        assert 0.9 * mean < odds[what]["p50"] < odds[what]["p90"] < 1.5 * mean


@pytest.mark.usefixtures("shop")
def test_elsewhere_a_plan_plays_and_says_how_often(run_verb: RunVerb) -> None:
    """With a notice; the odds of the deadline and the budget are shown; the same plan has the same odds."""
    job = JOB + "objective: {deadline: 3h, budget_usd: 90}\n"
    code, out, err = run_verb("plan", job=job)

    assert code == 0, err
    text = " ".join(out.split())
    assert "done by the deadline in" in text
    assert "within the budget in 100 % of" in text
    assert "from 10,000 simulated runs" in text
    first, second = (json.loads(run_verb("plan", "--json")[1])["odds"] for _ in range(2))
    assert first == second
    assert set(first) == {"cost_usd", "finish_s", "in_time", "in_budget", "trials", "says"}


def test_a_plan_that_knows_no_cost_has_no_odds(shop: Controller, run_verb: RunVerb) -> None:
    """Nothing was measured: the unknown numbers are named, and nothing is simulated."""
    shop.measured = ()
    code, out, err = run_verb("plan")

    assert code == 0, err
    assert "P50" not in out
    assert json.loads(run_verb("plan", "--json")[1])["odds"] is None


def test_where_numba_is_not_installed_a_plan_says_what_to_install() -> None:
    """One row, and the plan all the same."""
    program = """
import sys
sys.modules["numba"] = None
from tests.simulation.posing import Controller, job
from windfall.simulation import plan_odds
made, wanted = Controller(), job()
told = plan_odds.of_plan(made, wanted, made.plan(wanted), print)
print(told["says"])
"""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True, timeout=60
    )

    assert f"P50 and P90 need numba: {install('control')}" in done.stdout


@pytest.mark.usefixtures("shop")
def test_a_job_that_never_ends_is_told_rather_than_played_for_ever(run_verb: RunVerb) -> None:
    """Machines that live as long as they prepare: the simulation ends with a sentence."""
    words = ("--mttp", "1s", "--prepare", "10m", "--policy", "never", "--notice", "0s", "--step", "2s")
    code, _, err = run_verb("simulate", "--trials", "100", *words)

    assert code == 3
    assert "does not finish" in err


def test_a_plan_of_many_saves_is_played_less_often(shop: Controller, run_verb: RunVerb) -> None:
    """Saves that cost nothing are made each 2 steps: 2,500 in a run; of 500,000 steps the odds are left to `simulate`."""
    shop.measured = (replace(RUN, stall_s=Seconds(0.0)),)
    odds = json.loads(run_verb("plan", "--json")[1])["odds"]
    more = json.loads(run_verb("plan", "--json", "--set", "work.steps=500000")[1])["odds"]

    assert odds["trials"] == 1000
    assert more["cost_usd"] is None
    assert "too many saves" in more["says"]


def test_ctrl_c_prints_no_result_and_no_traceback(
    shop: Controller, run_verb: RunVerb, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interruption is reported outside the streams, which may be in the middle of a table."""

    def stop(*_: object, **__: object) -> Trials:
        raise KeyboardInterrupt

    monkeypatch.setattr(kernels, "simulate", stop)

    assert run_verb("simulate", "--json") == (130, "", "")


@pytest.mark.trial("E3")
@pytest.mark.usefixtures("shop")
def test_an_absurd_answer_is_named_as_one(run_verb: RunVerb) -> None:
    """A policy without insurance, and machines that live for a sixth of the work: the notes name it."""
    words = ("--step", "4.6s", "--mttp", "1h", "--notice", "0s", "--policy", "adaptive,never", "--trials", "50")
    code, out, err = run_verb("simulate", "--json", *words, "--steps", "5000")
    assert code == 0, err
    (named,) = [note for note in json.loads(out)["notes"] if "is unsuitable here" in note]
    assert "policy never" in named
    assert "commits no save" in named


@pytest.mark.usefixtures("shop")
def test_of_one_trial_nobody_knows_how_sure_it_is(run_verb: RunVerb) -> None:
    """Its standard error is not 0: there is none."""
    code, out, err = run_verb("simulate", "--trials", "1", "--policy", "adaptive")
    assert code == 0, err
    (finish,) = [line for line in out.splitlines() if line.startswith("adaptive")][1:2]
    assert finish.split()[2] == "-"
