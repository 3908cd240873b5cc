"""The verbs on a job, as a user meets them: real processes, a real controller, a real market."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.live import eventually, undisturbed
from tests.support.shop import Shop, shop

STEPS = 400


@dataclass
class Bought:
    """A job that lost a machine and is done, and what `run` printed of it."""

    shop: Shop
    job_id: str
    taken: str
    printed: str
    code: int


@pytest.fixture(scope="module")
def bought(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bought]:
    with shop(tmp_path_factory.mktemp("bought")) as made:
        made.job(steps=STEPS, step_s=0.05)
        following = made.start("run", "-y", "job.yaml")
        eventually((made.state / "controller.json").exists, "a controller")
        eventually(lambda: _trains(made), "a machine that trains")
        answer = made.say("inject", "tiny", "--notice", "8s")
        printed, _ = following.communicate(timeout=90)
        assert answer.returncode == 0, answer.stderr
        yield Bought(made, made.ps()["job_id"], answer.stdout.split()[0], printed, following.returncode)


def _trains(made: Shop) -> bool:
    answer = made.say("ps", "--json")
    views = [json.loads(line) for line in answer.stdout.splitlines()]
    return any(view["phase"] == "running" and view["details"].get("step", 0) >= 5 for view in views)


def _cost(bought: Bought) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(bought.shop.say("cost", "--json", "tiny").stdout)
    return told


def test_run_ends_with_the_weights_of_a_run_that_nobody_disturbed(bought: Bought, tmp_path: Path) -> None:
    """Exit code 0, the script's last words, and nothing of it lost."""
    assert bought.code == 0, bought.printed
    assert undisturbed(tmp_path, STEPS) in bought.printed


def test_run_says_each_thing_once(bought: Bought) -> None:
    """What happens to machines is told in order, one sentence each, although the journal has it several times."""
    told = [line[9:] for line in bought.printed.splitlines() if re.match(r"\d\d:\d\d:\d\d windfall: ", line)]

    once = [message for message in told if "ordering" not in message]
    assert len(once) == len(set(once)), bought.printed
    story = [
        "ordering tiny in here",
        ", is up, 9 USD/h",
        f"injecting a preemption of {bought.taken}, 8 s of notice",
        "ordering tiny in here",
        f"step {STEPS} is stored",
        "is done",
    ]
    rest = "\n".join(told)
    for message in story:
        assert message in rest, f"{message!r} is missing, or too early:\n{bought.printed}"
        rest = rest.partition(message)[2]


def test_ps_lists_all_jobs_and_shows_one(bought: Bought) -> None:
    """Without a name all of them; with one, whichever way it is called, how it stands."""
    listed = bought.shop.say("ps").stdout
    shown = bought.shop.say("ps", "tiny").stdout
    by = [bought.shop.say("ps", name, "--json").stdout for name in (bought.job_id, "tiny", bought.job_id[:-2])]

    assert bought.job_id in listed
    assert "done" in listed
    assert by[0] == by[1] == by[2]
    assert f"step    {STEPS} (last checkpoint: {STEPS})" in shown


def test_a_job_that_does_not_exist_is_told_with_the_nearest(bought: Bought) -> None:
    """A sentence with the name that was probably meant, exit code 2."""
    answer = bought.shop.say("cost", f"x{bought.job_id[1:]}")

    assert (answer.returncode, answer.stdout) == (2, "")
    assert f"did you mean {bought.job_id}?" in answer.stderr


def test_the_costs_of_the_machines_are_the_ledgers_sums(bought: Bought) -> None:
    """Hours, estimates and settled charges of the table add up to the totals; the taken machine says why it ended."""
    told = _cost(bought)
    machines, money = told["machines"], told["money"]

    assert len(machines) == 2
    assert sum(one["estimated_usd"] for one in machines) == pytest.approx(money["estimated_usd"], rel=1e-9)
    assert sum(one["settled_usd"] for one in machines) == pytest.approx(money["settled_usd"], rel=1e-9)
    assert sum(one["hours"] for one in machines) == pytest.approx(money["hours"], rel=1e-9)
    assert money["due_usd"] == pytest.approx(money["settled_usd"])
    assert (money["unsettled"], money["disputed"], money["unexplained_usd"]) == (0, 0, 0)
    assert told["savings_percent"] == pytest.approx(75.0, abs=1.0)
    assert 0 < told["undisturbed_usd"] < money["baseline_usd"]
    details = {one["machine_id"]: one["detail"] for one in machines}
    assert "injected" in details[bought.taken]
    assert told["run"]["steps"] == STEPS


def test_cost_fits_a_terminal_and_draws_the_machines_lives(bought: Bought) -> None:
    """Text of 80 columns with a line for each machine; a picture if one is wanted."""
    answer = bought.shop.say("cost", "tiny", "--plot", "lives.png")

    assert answer.returncode == 0, answer.stderr
    assert max(len(line) for line in answer.stdout.splitlines()) <= 80
    assert len(re.findall(r"^m-\w+ \|", answer.stdout, re.MULTILINE)) == 2
    assert (bought.shop.folder / "code" / "lives.png").read_bytes().startswith(b"\x89PNG")


def test_what_a_run_has_shown_tells_how_sure_the_next_one_is(bought: Bought) -> None:
    """The plan has its P50 and P90, and the simulation rests on what was measured; both within a minute of asking."""
    plan = bought.shop.say("plan", "job.yaml")
    simulated = bought.shop.say("simulate", "--trials", "300", "job.yaml")

    assert (plan.returncode, simulated.returncode) == (0, 0), plan.stderr + simulated.stderr
    assert plan.stdout.count("P50\N{NO-BREAK SPACE}") + plan.stdout.count("P50 ") >= 3
    assert f"{STEPS} steps on tiny in here of local" in simulated.stdout
    assert "measured in 1 earlier run" in simulated.stdout


@pytest.mark.trial("F5")
def test_run_shows_the_odds_that_plan_shows(bought: Bought) -> None:
    """The same P50 and P90 from both, and `plan` names no run that never comes to be."""
    plan = bought.shop.say("plan", "job.yaml")
    planned = json.loads(bought.shop.say("plan", "--json", "job.yaml").stdout)
    asked = bought.shop.say("run", "--json", "job.yaml")
    about_to_run = json.loads(asked.stdout.splitlines()[0])["plan"]

    assert asked.returncode == 2, "nobody said yes"
    assert planned["odds"]["cost_usd"]["p90"] > 0
    assert about_to_run["odds"] == planned["odds"]
    assert re.search(r"tiny-[0-9a-z]{6}", plan.stdout) is None, plan.stdout


def test_both_journals_are_replayed_and_agree(bought: Bought) -> None:
    """The controller's and the machines' decisions are the same again."""
    answer = bought.shop.say("replay", "tiny")

    assert answer.returncode == 0, answer.stdout
    assert re.search(
        r"controller: \d+ rows, \d+ decisions: the same\nmachines:   \d+ rows, \d+ decisions: the same", answer.stdout
    )


def test_events_merge_the_journals_by_time(bought: Bought) -> None:
    """`--machines` adds what the agents wrote between what the controller wrote; the times only grow."""
    lines = bought.shop.say("events", "--machines", "tiny").stdout.splitlines()
    sources = [line.split()[1][0] for line in lines]
    times = [line.split()[0] for line in lines]

    assert set(sources) == {"c", "m"}
    assert times == sorted(times)
    assert any("PreemptionRequested" in line for line in lines)


def test_what_a_run_keeps_is_reached_by_the_jobs_name(bought: Bought) -> None:
    """Points, files, output and explanations, without its URL."""
    checkpoints = bought.shop.say("checkpoints", "--json", "tiny").stdout.splitlines()
    got = json.loads(bought.shop.say("get", "--json", "tiny", "result").stdout)
    output = bought.shop.say("logs", "tiny").stdout
    reason = bought.shop.say("explain", "tiny", "1").stdout

    assert json.loads(checkpoints[0])["step"] == got["step"] == STEPS
    assert f"step {STEPS}\n" in output
    assert "order 1 tiny in here" in reason


def test_what_is_done_cannot_be_stopped_resumed_or_taken(bought: Bought) -> None:
    """Each verb says how it stands, and changes nothing."""
    stopped, resumed, taken = (
        bought.shop.say(*verb)
        for verb in (("stop", "tiny"), ("resume", "tiny"), ("inject", "tiny", "--notice", "none"))
    )

    assert (stopped.returncode, resumed.returncode, taken.returncode) == (0, 2, 2)
    assert "nothing to stop" in stopped.stdout
    assert "is done" in resumed.stderr
    assert "has no machine to preempt" in taken.stderr


def test_nobody_spends_without_a_terminal_and_without_yes(bought: Bought) -> None:
    """`run` in a script refuses, names the option, and leaves no job behind."""
    before = bought.shop.say("ps", "--json").stdout
    answer = bought.shop.say("run", "job.yaml")

    assert answer.returncode == 2
    assert "--yes (-y)" in answer.stderr
    assert bought.shop.say("ps", "--json").stdout == before


def test_a_job_is_stopped_with_its_work_kept_and_goes_on_later(tmp_path: Path) -> None:
    """`stop` waits until the machines are given back and says what is stored; `resume` finishes from there."""
    hurry = tmp_path / "hurry"
    with shop(tmp_path) as made:
        made.job(steps=180, step_s=0.02, at_step=f"time.sleep(0 if os.path.exists('{hurry}') else 0.3)")
        job_id = made.say("run", "-y", "-d", "job.yaml").stdout.splitlines()[-1]
        eventually(lambda: _trains(made), "a machine that trains")
        stopped = made.say("stop", "tiny")
        stands = made.ps(job_id)
        hurry.touch()
        resumed = made.say("resume", "tiny")

        assert stopped.returncode == 0, stopped.stderr
        assert re.search(r"stopped after .* \(last checkpoint: step \d+\)", stopped.stdout)
        assert stands["phase"] == "stopped"
        assert stands["details"]["slots"][0]["machines"] == []
        assert resumed.returncode == 0, resumed.stderr
        assert "step 180\n" in resumed.stdout
        assert "step 1\n" not in resumed.stdout, "what was printed before it was stopped is not printed again"


@pytest.mark.slow
def test_a_job_whose_run_was_deleted_says_so_and_buys_nothing(tmp_path: Path) -> None:
    """After `rm` no verb speaks as if the run were there or had never been; what it cost stays, and `resume` is refused."""
    with shop(tmp_path) as made:
        made.job(steps=18000, step_s=0.05)
        job_id = made.say("run", "-y", "-d", "job.yaml").stdout.splitlines()[-1]
        eventually(lambda: _trains(made), "a machine that trains")
        assert made.say("stop", "--now", "tiny").returncode == 0
        before = json.loads(made.say("cost", "--json", "tiny").stdout)
        url = made.ps()["run_url"]
        assert made.say("rm", "-y", url).returncode == 0

        refused = made.say("resume", "-d", "tiny")
        assert refused.returncode == 2, refused.stdout
        assert re.search(
            r"^windfall: tiny-\w+ cannot be resumed: its run was deleted .*`windfall run` starts a new one$",
            refused.stderr,
        )
        for verb in (("checkpoints",), ("get",), ("logs",), ("logs", "-f"), ("rm", "-y"), ("explain", "--machines")):
            answer = made.say(*verb, "tiny")
            assert (answer.returncode, answer.stdout) == (2, ""), verb
            assert f"the run of {job_id} was deleted" in answer.stderr, verb
        for verb in (
            ("ps",),
            ("ps", "tiny"),
            ("cost", "tiny"),
            ("events", "tiny"),
            ("explain", "tiny"),
            ("stop", "tiny"),
        ):
            answer = made.say(*verb)
            assert answer.returncode == 0, answer.stderr
            assert re.search(r"run (of \S+ )?was deleted", " ".join((answer.stdout + answer.stderr).split())), verb
        after = json.loads(made.say("cost", "--json", "tiny").stdout)
        assert [one["machine_id"] for one in after["machines"]] == [one["machine_id"] for one in before["machines"]]
        assert after["money"]["estimated_usd"] > 0
        assert (before["run_deleted"], after["run_deleted"]) == (False, True)


@pytest.mark.trial("F1")
def test_without_the_extra_exec_works_and_jobs_say_what_to_install() -> None:
    """A machine that only trains needs no web server; whoever names a job there is told the one command that works."""
    absent = ("httpx", "fastapi", "uvicorn", "sqlalchemy", "yaml", "pydantic")
    blocked = (
        "import sys\nclass Absent:\n    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.partition('.')[0] in {absent}: raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, Absent())\n"
    )
    start = "from windfall.cli.main import main\nsys.exit(main(sys.argv[1:]))"
    answers = {
        verb: subprocess.run(
            [sys.executable, "-c", blocked + start, *verb.split()], capture_output=True, text=True, check=False
        )
        for verb in ("--help", "exec --help", "run job.yaml", "serve")
    }

    assert answers["--help"].returncode == answers["exec --help"].returncode == 0, answers["--help"].stderr
    for verb in ("run job.yaml", "serve"):
        assert answers[verb].returncode == 2
        named = re.search(r"pip install (?:-e )?'(.+)\[control\]'", answers[verb].stderr)
        assert named is not None, answers[verb].stderr
        assert (Path(named[1]) / "pyproject.toml").is_file(), f"{named[1]} cannot be installed: this came from no index"
