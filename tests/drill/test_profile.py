"""`windfall drill --profile`: its protocol, its report, the block that a job file takes, and what it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tests.control.house import a_job
from tests.models.planted_turns import idle_of, model, run_of
from windfall.cli.main import main
from windfall.drill import profile_drill, profile_report
from windfall.drill.profile_drill import ProfileKinds, ProfileLength, ProfileProtocol
from windfall.drill.profile_report import ProfileResult
from windfall.drill.profile_words import IdleTable, MachineSize, ProfiledProgram, ProfileTraining, SeenTraining
from windfall.errors import EXIT_DONE, EXIT_MISUSE, Misuse, RunFailed
from windfall.jobs import RuntimeSpec
from windfall.models import asp_turn_fits
from windfall.policies.layout import runtime_list, tier_profile
from windfall.policies.layout.tier_rules import TierJob, job_of
from windfall.providers.local.market_config import MachineType, MarketConfig
from windfall.runtimes.machine_limits import MachineLimits

TIERS: dict[str, Any] = {
    "workers": "1..8", "clocks": 500, "partitions": 8, "staleness": "none", "servers": "reliable",
    "app": "windfall.apps.mlr",
}  # fmt: skip
KINDS = ProfileKinds(
    (MachineSize("small", 1, MachineLimits(0.1), 2.0), MachineSize("large", 2, MachineLimits(0.2), 4.0)),
    MachineSize("small", 1, MachineLimits(0.1), 2.0),
)
JOB = """\
name: digits
runtime:
  paramserver:
    workers: 1..2
    clocks: 500
    staleness: none
    servers: reliable
    partitions: 4
    app: windfall.apps.mlr
    settings: {observations: 2000, features: 20, classes: 4, batch: 250, rate: 0.5}
"""
MARKET = """\
types:
  small: {on_demand: 0.1, kernel_speed: 0.05, network: 2MB/s}
  large: {on_demand: 0.2, kernel_speed: 0.1, network: 2MB/s}
"""


class PlantedCluster:
    """A cluster whose trainings follow planted constants.

    Attributes:
        trained: machine types and turns of each training.
    """

    def __init__(self, *, short: bool = False) -> None:
        self.trained: list[tuple[tuple[str, ...], int]] = []
        self._rng, self._short = np.random.default_rng(0), short

    def samples(self, program: ProfiledProgram, size: MachineSize) -> float:
        """As many for each machine type."""
        del program, size
        return 3000.0

    def train(
        self, wanted: ProfileTraining, job: TierJob, samples: Mapping[str, float], show: Callable[[int], None]
    ) -> SeenTraining:
        """Return planted turns."""
        del job, samples
        kinds = [one.kind for one in wanted.workers]
        show(wanted.turns)
        self.trained.append((tuple(kinds), wanted.turns))
        if isinstance(wanted.program, IdleTable):
            return SeenTraining(idle_of(self._rng), 0.2)
        return SeenTraining(run_of(kinds, wanted.turns // 2 if self._short else wanted.turns, self._rng), 0.3)


def protocol(cluster: PlantedCluster, said: list[str]) -> ProfileProtocol:
    """The protocol on planted machines."""
    program = ProfiledProgram(job_of(TIERS), (), "", {})
    return ProfileProtocol(
        cluster,  # type: ignore[arg-type]
        program,
        KINDS,
        ProfileLength(400, 1e9),
        lambda phase, detail: said.append(f"{phase}: {detail}"),
    )


@pytest.fixture(scope="module")
def result() -> ProfileResult:
    """A profile of planted machines."""
    trainings, idle = protocol(PlantedCluster(), []).run((2, 4, 7))
    fit = asp_turn_fits.fit_turns([one.run for one in trainings], idle.run)
    fitted = asp_turn_fits.model_of(fit, "digits", servers=1)
    seen = tuple(profile_drill.training_of(one, fitted) for one in trainings)
    return ProfileResult("digits", "1 small", fit, tier_profile.block_of(fitted), seen)


def test_each_type_trains_alone_then_clusters_of_mixed_types() -> None:
    """30 turns that count of each type, clusters of 2, 4 and 7, then workers that compute nothing; each shows its progress."""
    cluster, said = PlantedCluster(), list[str]()

    protocol(cluster, said).run((2, 4, 7))

    assert [(len(kinds), set(kinds), turns) for kinds, turns in cluster.trained] == [
        (1, {"small"}, 33),
        (1, {"large"}, 33),
        (2, {"small", "large"}, 400),
        (4, {"small", "large"}, 400),
        (7, {"small", "large"}, 400),
        (4, {"small"}, profile_drill.IDLE_TURNS),
    ]
    assert "train on 1 small: turn 33 of 33" in said


def test_a_profile_that_is_cut_off_says_where() -> None:
    """And which options help."""
    with pytest.raises(RunFailed, match=r"after 16 of 33 turns on 1 small: raise --limit"):
        protocol(PlantedCluster(short=True), []).run((2,))


@pytest.mark.parametrize(
    ("settings", "sizes"),
    [({}, (2, 4, 7)), ({"workers": 1}, ()), ({"workers": "2..3"}, (2, 3)), ({"workers": 9, "partitions": 3}, (2, 3))],
)
def test_clusters_are_no_larger_than_the_job_can_be(settings: dict[str, Any], sizes: tuple[int, ...]) -> None:
    """Each worker has a data partition to compute on."""
    assert profile_drill.cluster_sizes(job_of({**TIERS, **settings}), (2, 4, 7)) == sizes


def test_the_block_is_yaml_from_which_the_model_comes_again(result: ProfileResult) -> None:
    """As printed and as written: the job file's own check takes it, and the model predicts what the fitted one does."""
    document = yaml.safe_load("\n".join(profile_report.block_lines(result.block)))
    indented = yaml.safe_load("\n".join(profile_report.block_lines(result.block, profile_report.INDENT)))

    assert document == indented
    read = tier_profile.model_of(document["profile"], "digits")
    assert tier_profile.block_of(read) == result.block
    assert runtime_list.settings_problem(RuntimeSpec("paramserver", {**TIERS, **document})) is None
    training = runtime_list.rules("paramserver").training
    assert training is not None
    assert training(a_job(runtime=RuntimeSpec("paramserver", {**TIERS, **document}))).types == read.types


def test_numbers_of_a_block_are_numbers_in_yaml() -> None:
    """Also tiny and huge ones, and machine types with odd names."""
    block: dict[str, dict[str, Any]] = {
        "workload": {"gamma2": -1e-09, "pcie": 1e22},
        "workers": {"4x.large": {"batch": 1.5}},
    }

    found = yaml.safe_load("\n".join(profile_report.block_lines(block)))

    assert found == {"profile": block}


def test_the_report_has_each_constant_with_its_interval(result: ProfileResult) -> None:
    """And how far the model is from each training that it was fitted to; what was not seen is said, not guessed."""
    text = "\n".join(profile_report.lines(result))

    for words in (
        "6 small + 1 large",
        "compute_s of large",
        "to",
        "workers_power",
        "not told by this profile",
        "profile:",
    ):
        assert words in text
    told = profile_report.as_json(result)
    assert json.loads(json.dumps(told)) == told
    by_name = {one["constant"]: one for one in told["constants"]}
    assert by_name["gamma2 of the batch"]["high"] is None
    assert by_name["compute_s of small"]["low"] < model().types[0].compute_s < by_name["compute_s of small"]["high"]
    assert all(abs(one["predicted_turns_per_s"] / one["turns_per_s"] - 1.0) < 0.06 for one in told["trainings"])


def test_a_busy_host_is_told(result: ProfileResult) -> None:
    """What small machines show on busy cores is not theirs."""
    busy = ProfileResult(
        result.job, result.servers, result.fit, result.block,
        (*result.trainings, profile_report.ProfiledTraining("1 small", 33, 1.0, 1.0, 0.93)),
    )  # fmt: skip

    assert "93% busy" in "\n".join(profile_report.lines(busy))
    assert "busy: machines" not in "\n".join(profile_report.lines(result))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"staleness": 1}, "wait for one another (staleness: 1)"),
        ({"servers": "tiers"}, "write servers: reliable"),
        ({"profile": tier_profile.block_of(model())}, "take it out of the file"),
    ],
)
def test_a_training_that_the_model_does_not_cover_is_refused(changes: dict[str, Any], says: str) -> None:
    """By what to write instead."""
    with pytest.raises(Misuse) as caught:
        profile_drill.tiers_of(a_job(runtime=RuntimeSpec("paramserver", {**TIERS, **changes})))

    assert says in str(caught.value)


def test_machine_types_are_those_of_the_market_that_fit_the_job() -> None:
    """With their limits; the cheapest serves.  A type that is slowed in another way is refused."""
    config = MarketConfig(
        types={
            "small": MachineType(on_demand=0.1, memory_gib=2, kernel_speed=0.1, network="2MB/s"),
            "large": MachineType(on_demand=0.2, cpus=2, memory_gib=4),
        }
    )
    job = a_job(runtime=RuntimeSpec("paramserver", TIERS))

    found = profile_drill.kinds_of(job, config)

    assert found.server == MachineSize("small", 1, MachineLimits(0.1, 2e6), 2.0)
    assert found.workers == (found.server, MachineSize("large", 2, MachineLimits(), 4.0))
    slow = MarketConfig(types={"small": MachineType(on_demand=0.1, speed=0.5)})
    with pytest.raises(Misuse, match=r"has speed 0\.5.*kernel_speed: 0\.5"):
        profile_drill.kinds_of(job, slow)


@pytest.mark.parametrize(
    ("text", "options", "says"),
    [
        (JOB, ("--turns", "5"), "--turns must be at least 20"),
        (JOB, ("--out", "nowhere/profile.yaml"), "there is no folder nowhere"),
        ("name: a\nrun: python train.py\n", (), "the job has runtime checkpoint"),
        (JOB.replace("staleness: none", "staleness: 2"), (), "write staleness: none"),
        (JOB.replace("    settings", "    profile: {}\n    settings"), (), "profile that needs workload"),
    ],
)
def test_a_wrong_profile_is_refused_before_anything_starts(
    text: str, options: tuple[str, ...], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """In one sentence, with the exit code of misuse."""
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(text)

    code = main(["drill", "--profile", "job.yaml", "--state", str(tmp_path / "state"), *options])

    error = capsys.readouterr().err
    assert code == EXIT_MISUSE
    assert says in error
    assert "Traceback" not in error


def test_options_of_a_profile_are_refused_without_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And a bare command has no training to profile."""
    state = ["--state", str(tmp_path)]
    assert main(["drill", "--turns", "50", *state, "--", sys.executable, "x.py"]) == EXIT_MISUSE
    assert "--turns and --out are for --profile" in capsys.readouterr().err
    assert main(["drill", "--profile", *state, "--", sys.executable, "x.py"]) == EXIT_MISUSE
    assert "name its job file" in capsys.readouterr().err


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_profile_of_real_machines_is_a_job_file_that_plans(tmp_path: Path) -> None:
    """It ends with exit code 0 and leaves no process; the job with its block, a loss and a deadline has a plan of workers."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'windfall[paramserver]'")
    (tmp_path / "state" / "market").mkdir(parents=True)
    (tmp_path / "state" / "market" / "market.yaml").write_text(MARKET)
    (tmp_path / "job.yaml").write_text(JOB)
    command = [sys.executable, "-c", "import sys; from windfall.cli.main import main; sys.exit(main(sys.argv[1:]))"]
    state = ["--state", str(tmp_path / "state")]

    done = subprocess.run(
        [*command, "drill", "--profile", "job.yaml", "--turns", "40", "--out", "profile.yaml", "--json", *state],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == EXIT_DONE, done.stderr
    told = json.loads(done.stdout)
    assert [one["machines"] for one in told["trainings"]] == ["1 small", "1 large", "1 small + 1 large"]
    block = yaml.safe_load((tmp_path / "profile.yaml").read_text())["profile"]
    assert block == told["profile"]
    document = yaml.safe_load(JOB)
    document["runtime"]["paramserver"]["profile"] = block
    goal = (block["workload"]["start_loss"] + block["workload"]["gamma5"]) / 2.0
    document |= {"fleet": "spotdnn", "objective": {"loss": round(goal, 4), "deadline": "3h"}}
    (tmp_path / "planned.yaml").write_text(yaml.safe_dump(document))
    planned = subprocess.run(
        [*command, "plan", "planned.yaml", *state], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert planned.returncode == EXIT_DONE, planned.stderr
    assert "turns" in planned.stdout
    assert not [name for name in os.listdir("/proc") if name.isdigit() and str(tmp_path) in _line(name)], (
        "nothing is left"
    )


def _line(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""
