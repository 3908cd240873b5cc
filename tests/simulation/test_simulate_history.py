"""`windfall simulate --history`: one history, read by the code that reads a live job."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.simulation.conftest import RunVerb
from tests.simulation.posing import OFFER, RUN, Controller, built, job
from windfall.cli import simulate_history
from windfall.cli.simulate import SimulationSetup
from windfall.report import bill, machine_timeline
from windfall.report.interval_kinds import Kind
from windfall.report.simulated_history import ReadHistory
from windfall.simulation import engine, kernels
from windfall.simulation.engine_fleet import OWNER
from windfall.simulation.engine_runtime import CheckpointMachines
from windfall.simulation.scenario_from_job import BuiltScenario, Overrides
from windfall.simulation.virtual_time import WALL_START
from windfall.simulation.world import ProviderMarket, World
from windfall.terms import WallTime

HARD = ("--step", "2s", "--mttp", "40m", "--prepare", "60s", "--policy", "every:50")


def _built(nodes: int) -> BuiltScenario:
    """A job whose machines live for 40 minutes, half of them lost with a notice."""
    return built(job(nodes=nodes), RUN, overrides=Overrides(mttp_s=2400.0, notice_s=30.0, announced_share=0.5))


def _played(nodes: int, seed: int) -> ReadHistory:
    return simulate_history.play(SimulationSetup("gpt", "gpt", _built(nodes), OFFER), "adaptive", seed)


# ------------------------------------------------------------------------------------------------------------ the page


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize("nodes", [1, 3])
def test_the_page_fits_a_terminal_and_says_first_that_it_is_simulated(run_verb: RunVerb, nodes: int) -> None:
    """Bill, account, timeline, inputs and decisions; no line is wider than 80."""
    code, out, err = run_verb("simulate", "--history", "3", *HARD, "--set", f"num_nodes={nodes}")

    assert code == 0, err
    lines = out.splitlines()
    assert max(len(line) for line in lines) <= 80
    assert lines[0] == "A simulated history, seed 3: nothing was bought, and all times are simulated."
    assert "policy every:50steps" in lines[1]
    for word in ("gpt is done: ", "Machines", "Where the time went", "Losses", "x lost", "inputs and their sources"):
        assert word in out
    assert "Decisions of the controller, from the submission at 08:00:00 on" in out
    assert "order 1 small in zone-a at 3.6 USD/h" in out
    assert "1970" not in out


@pytest.mark.usefixtures("shop")
def test_the_machines_explain_their_saves_instead(run_verb: RunVerb) -> None:
    """What `explain --machines` says of a live job."""
    code, out, err = run_verb("simulate", "--history", "3", "--machines", *HARD)

    assert code == 0, err
    assert "Decisions of the machines" in out
    assert "save every 50 steps" in out or "insurance" in out.partition("Decisions of the machines")[2]
    assert "order 1 small" not in out.partition("Decisions of the machines")[2]


@pytest.mark.usefixtures("shop")
def test_the_data_are_those_of_cost_and_the_seed(run_verb: RunVerb) -> None:
    """The keys of `windfall cost --json` for a job, and `seed`."""
    code, out, err = run_verb("simulate", "--history", "3", "--json", *HARD)

    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    history = _played(1, 3)
    assert found.keys() == bill.as_json(history.bill).keys() | {"run_deleted", "undisturbed_usd", "run", "seed"}
    assert (found["seed"], found["job_id"], found["phase"]) == (3, "gpt", "done")
    assert found["run"]["steps"] == 5000
    assert {machine["zone"] for machine in found["machines"]} == {"zone-a"}


@pytest.mark.usefixtures("shop")
def test_only_a_price_of_the_offer_is_compared_with_its_on_demand_price(run_verb: RunVerb) -> None:
    """A price of the user's own says nothing of what the machine would cost on demand."""
    own = run_verb("simulate", "--history", "3", *HARD, "--price", "0.1")[1]
    offered = run_verb("simulate", "--history", "3", *HARD)[1]

    assert "on demand " in offered
    assert "on demand " not in own


@pytest.mark.usefixtures("shop")
def test_the_picture_is_drawn_and_named(run_verb: RunVerb, tmp_path: Path) -> None:
    """In the format of its suffix."""
    code, out, err = run_verb("simulate", "--history", "3", "--plot", str(tmp_path / "h.png"), *HARD)

    assert code == 0, err
    assert (tmp_path / "h.png").read_bytes()[:4] == b"\x89PNG"
    assert "timeline: " in out


def test_a_machine_that_trains_with_the_lease_holder_is_shown_training() -> None:
    """The bill knows who trained in which generation; without that the other machines looked idle."""
    history = _played(3, 4)
    rows = machine_timeline.rows(history.bill, history.run)
    waits_s = history.built.scenario.allocate_s.high_s + history.built.scenario.prepare_s.high_s

    assert len(rows) > 3
    for row in rows:
        if row.end - row.start > 600.0:
            worked_s = sum(interval.duration_s for interval in row.intervals)
            assert worked_s > 0.5 * (row.end - row.start - waits_s), row.cost.machine.machine_id
        for interval in row.intervals:
            assert row.start - 1e-5 <= interval.start <= interval.end <= row.end + 1e-5


# ---------------------------------------------------------------------------------------------------------- the figures


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("nodes", [1, 3])
def test_the_account_is_the_meter_and_the_time_breakdown(nodes: int, seed: int) -> None:
    """Money is the market's own meter, to the cent; time is what the machines counted themselves."""
    history = _played(nodes, seed)
    scenario = history.built.scenario
    pool = engine.scenario_pool(scenario, OFFER.machine_type, OFFER.zone, OFFER.on_demand_usd_per_hour)
    markets = (ProviderMarket(scenario.provider, (pool,)),)
    world = World(markets, (engine.scenario_job("gpt", scenario, markets, seed=seed),))
    world.run()
    fleet, meter = world.fleets["gpt"], world.providers[scenario.provider].meter
    machines = fleet.runtime
    assert isinstance(machines, CheckpointMachines)
    counted, run = machines.context.breakdown, history.run

    metered_usd = meter.total_usd(OWNER, WallTime(WALL_START + world.timeline.time))
    assert history.bill.sums.due_usd == pytest.approx(metered_usd, abs=0.005)
    assert history.bill.sums.estimated_usd == pytest.approx(metered_usd, abs=0.005)
    assert history.bill.sums.disputed == history.bill.sums.unsettled == 0
    assert history.bill.sums.hours == pytest.approx(fleet.billed_s / 3600.0, abs=1e-6)
    assert sum(one.lost for one in history.bill.machines) == fleet.preemptions

    work_s = scenario.steps * machines.context.draws.step_s
    holding_s = sum(run.of(kind) for kind in (Kind.COMPUTE, Kind.REDO, Kind.SAVE, Kind.OTHER))
    assert holding_s == pytest.approx(work_s + counted.redo_s + counted.save_s, abs=1e-3)
    before_s = run.start - history.bill.start
    assert before_s + run.of(Kind.WAITING) == pytest.approx(counted.allocate_s + counted.prepare_s, abs=1e-3)
    assert fleet.finish_s == pytest.approx(before_s + run.total_s, abs=1e-3)
    assert run.of(Kind.UNKNOWN) + run.of(Kind.UNSEEN) == pytest.approx(0.0, abs=1e-3)
    assert (run.unknown, run.steps) == ((), scenario.steps)


@pytest.mark.parametrize("nodes", [1, 3])
def test_a_history_is_trial_0_of_a_simulation_with_its_seed(nodes: int) -> None:
    """The compiled kernels, which never saw a journal, find the same finish, bill and losses."""
    history = _played(nodes, 5)
    trials = kernels.simulate(history.built.scenario, trials=1, seed=5)
    trial = history.found.trial

    assert trial.finish_s == pytest.approx(float(trials.finish_s[0]), rel=1e-9)
    assert trial.billed_s == pytest.approx(float(trials.billed_s[0]), rel=1e-9)
    assert trial.preemptions == trials.preemptions[0]


# ---------------------------------------------------------------------------------------------------------------- bytes

_PROGRAM = """
import sys
from tests.simulation.posing import Controller
from windfall.cli import client
from windfall.cli.main import main
client.planner = lambda *_, **__: Controller()
sys.exit(main(sys.argv[1:]))
"""


def _printed(folder: Path, hash_seed: str, *words: str) -> bytes:
    (folder / "job.yaml").write_text("name: gpt\nrun: python train.py\nnum_nodes: 2\nwork: {steps: 5000}\n")
    command = [sys.executable, "-c", _PROGRAM, "simulate", str(folder / "job.yaml"), "--state", str(folder / "state")]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "COLUMNS": "80", "TZ": f"UTC{hash_seed}"}
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [*command, *HARD, *words], cwd=root, env=environment, capture_output=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


@pytest.mark.parametrize("form", ["--json", "--machines"])
def test_the_same_seed_gives_the_same_bytes_in_another_process(tmp_path: Path, form: str) -> None:
    """Whatever the order of sets and the time zone; another seed gives others."""
    first, second = (_printed(tmp_path, hash_seed, "--history", "7", form) for hash_seed in ("1", "2"))

    assert first == second
    assert first != _printed(tmp_path, "1", "--history", "8", form)


# -------------------------------------------------------------------------------------------------------------- options


@pytest.mark.usefixtures("shop")
def test_every_option_about_the_world_counts(run_verb: RunVerb, tmp_path: Path) -> None:
    """Steps, saves, uploads, prices, notices, laws and traces change the history; a policy of one's own is played."""
    (tmp_path / "mine.py").write_text(
        "def eager(age_s, work_left_s, stall_s, durable_s, mttp_s, restart_s):\n    return 20.0\n"
    )
    (tmp_path / "zone_hours_count.csv").write_text("0,1\n1,1\n1,0\n2,0\n2,1\n3,1\n3,0\n4,0\n")
    (tmp_path / "life.csv").write_text("lifetime_s,preempted\n" + "600,1\n" * 30)
    seen = {}
    for words in (
        (),
        ("--steps", "3000"),
        ("--save", "9s"),
        ("--upload", "50s"),
        ("--allocate", "5m"),
        ("--price", "9"),
        ("--notice", "10m", "--announced", "1"),
        ("--model", "bathtub"),
        ("--trace", str(tmp_path / "zone_hours_count.csv")),
        ("--policy", f"{tmp_path}/mine.py:eager"),
        ("--inject", "mttp=900s,seed=7,notice=10s"),
    ):
        more = HARD[:2] if {"--trace", "--inject"} & set(words) else HARD[:6]
        code, out, err = run_verb("simulate", "--history", "2", "--json", *more, *words)
        assert code == 0, err
        seen[words] = out
    assert len(set(seen.values())) == len(seen)


# -------------------------------------------------------------------------------------------------------------- mistakes


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--history", "seven"], "--history: must be a whole number, not 'seven'"),
        (["--history", "-1"], "--history: the seed must be 0 or more, not -1"),
        (["--history", "1", "--policy", "adaptive,never"], "name one with --policy"),
        (["--history", "1", "--trials", "10"], "--trials: leave it out with --history"),
        (["--history", "1", "--seed", "3"], "--seed: leave it out with --history"),
        (["--history", "1", "--dark"], "--dark: leave it out with --history"),
        (["--machines"], "add --history SEED"),
        (["--history", "1", "--plot", "x.gif"], ".png"),
        (["--history", "1", "--trace", "no/such/file.csv"], "no/such/file.csv"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(run_verb: RunVerb, words: list[str], says: str) -> None:
    """What is wrong, and what to write instead; never a traceback."""
    code, out, err = run_verb("simulate", *words)

    assert (code, out) == (2, "")
    assert says in err
    assert len(err.strip().splitlines()) == 1, err


def test_a_world_in_which_nothing_can_be_bought_says_so(shop: Controller, run_verb: RunVerb, tmp_path: Path) -> None:
    """No offer and no price: exit code 3, as without `--history`; a trace without prices does not help."""
    trace = tmp_path / "zone_hours_count.csv"
    trace.write_text("0,1\n1,1\n1,0\n2,0\n2,1\n3,1\n3,0\n4,0\n")
    shop.offers = ()
    for words in ((), ("--trace", str(trace))):
        code, out, err = run_verb("simulate", "--history", "1", "--step", "2s", *words)
        assert (code, out) == (3, "")
        assert "give its price: --price" in err
    assert run_verb("simulate", "--history", "1", "--step", "2s", "--trace", str(trace), "--price", "1")[0] == 0


@pytest.mark.usefixtures("shop")
def test_a_trace_that_never_has_the_machines_says_so(run_verb: RunVerb, tmp_path: Path) -> None:
    """Two machines, where the trace has one at most."""
    trace = tmp_path / "zone_hours_count.csv"
    trace.write_text("0,1\n1,1\n1,0\n2,0\n2,1\n3,1\n3,0\n4,0\n")
    code, out, err = run_verb(
        "simulate", "--history", "1", "--step", "2s", "--set", "num_nodes=2", "--trace", str(trace)
    )

    assert (code, out) == (2, "")
    assert "never has 2 machines at once" in err


@pytest.mark.usefixtures("shop")
def test_a_job_that_never_gets_anywhere_ends_with_a_sentence(
    run_verb: RunVerb, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Machines that live as long as they prepare."""
    monkeypatch.setattr("windfall.simulation.engine_fleet.MACHINES_WITHOUT_PROGRESS_MAX", 200)
    words = ("--mttp", "1s", "--prepare", "10m", "--policy", "never", "--notice", "0s", "--step", "2s")
    code, out, err = run_verb("simulate", "--history", "1", *words)

    assert (code, out) == (3, "")
    assert "makes no progress" in err


# ------------------------------------------------------------------------------------------------------------- the page


@pytest.mark.usefixtures("shop")
def test_the_howto_s_history_is_what_its_command_prints(shop: Controller, run_verb: RunVerb) -> None:
    """Line by line; `...` stands for lines that the page leaves out."""
    shop.offers, shop.measured = (), ()
    page = (Path(__file__).parents[2] / "docs/howto/simulate.md").read_text("utf-8")
    asked = re.search(r"^    windfall simulate (job\.yaml --set (?:.*\\\n)+.*--history \d+)$", page, re.MULTILINE)
    assert asked is not None
    shown = re.search(r"^(    A simulated history(?:.*\n)+?)\nWith `--plot", page, re.MULTILINE | re.DOTALL)
    assert shown is not None
    words = shlex.split(asked[1].replace("\\\n", " "))[1:]
    code, out, err = run_verb("simulate", *words, job="name: gpt\nrun: python train.py\n")
    assert code == 0, err

    printed = [line.rstrip() for line in out.splitlines()]
    expected = [line.removeprefix("    ").rstrip() for line in shown[1].splitlines()]
    at, skipping = 0, False
    for line in expected:
        if line == "...":
            skipping = True
            continue
        at = printed.index(line, at) if skipping else at
        assert printed[at] == line
        at, skipping = at + 1, False
    assert len(expected) > 50
