"""The rules of the runtime `paramserver`: what settings mean, which machines and work follow, and how mistakes are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.bad_input.job_files import PARAMSERVER, BadFile
from tests.control.house import a_job
from windfall import apps
from windfall.cli.main import main
from windfall.errors import EXIT_MISUSE
from windfall.fleet import Slot
from windfall.jobs import Job, RuntimeSpec, Work
from windfall.policies.layout import runtime_list, tier_rules
from windfall.policies.layout.runtime_list import Placement, Scaling
from windfall.policies.layout.tier_rules import APPS, BadSetting, TierJob, job_of
from windfall.policies.layout.tiers import SERVERS_APART, StageRatios
from windfall.terms import Reliability, Unit


def tiers(**settings: Any) -> Job:
    """A job with these settings, of 50 clocks."""
    return a_job(runtime=RuntimeSpec("paramserver", {"clocks": 50, **settings}))


def test_settings_have_defaults() -> None:
    """One worker and one reliable machine, a bound of one clock, a data partition for each worker."""
    assert job_of({"clocks": 50}) == TierJob(1, 1, 1, 50, 1, 1, 100, "", {})
    assert job_of({"clocks": 50, "workers": "2 .. 8"}).partitions == 8


def test_settings_are_what_they_say() -> None:
    """Numbers of workers as a range or one number; `none` is no bound."""
    given = {
        "workers": "2..8",
        "reliable": 2,
        "staleness": "none",
        "clocks": 500,
        "partitions": 16,
        "save_every": 10,
        "app": "windfall.apps.mf",
        "settings": {"rank": 4},
    }
    assert job_of(given) == TierJob(2, 8, 2, 500, None, 16, 10, "windfall.apps.mf", {"rank": 4})
    assert (job_of({"clocks": 1, "workers": 3}).workers_min, job_of({"clocks": 1, "workers": 3}).workers_max) == (3, 3)
    assert job_of({"clocks": 1, "staleness": 0}).staleness == 0


def test_a_wrong_setting_is_named() -> None:
    """So that its line can be shown."""
    with pytest.raises(BadSetting, match="has reliable 0") as caught:
        job_of({"clocks": 5, "reliable": 0})
    assert caught.value.key == "reliable"


def test_a_program_that_windfall_has_not_is_refused_before_anything_is_bought() -> None:
    """Those that it has are the modules of `windfall.apps` with a function `program`; of others nothing is known here."""
    folder = Path(apps.__file__).parent
    has_program = {path.stem for path in folder.glob("*.py") if "\ndef program(" in path.read_text(encoding="utf-8")}

    assert set(APPS) == has_program
    assert job_of({"clocks": 1, "app": "mine.apps"}).app == "mine.apps"
    with pytest.raises(
        BadSetting, match=r"has app 'windfall\.apps\.svd', which Windfall has not: write one of mf, mlr"
    ):
        job_of({"clocks": 1, "app": "windfall.apps.svd"})


def test_reliable_machines_can_serve_alone() -> None:
    """A part for each of them, and no stage in which they compute beside workers; anything else is refused by name."""
    job = job_of({"clocks": 1, "workers": 8, "reliable": 2, "servers": "reliable"})

    assert (job.parts, job.ratios) == (2, SERVERS_APART)
    assert job_of({"clocks": 1, "workers": 8}).ratios == StageRatios()
    with pytest.raises(BadSetting, match="has servers 'worker': write tiers") as caught:
        job_of({"clocks": 5, "servers": "worker"})
    assert caught.value.key == "servers"


@pytest.mark.parametrize(("workers", "reliable", "parts"), [(1, 1, 1), (8, 1, 4), (8, 2, 5), ("2..60", 1, 30)])
def test_the_state_has_half_as_many_parts_as_there_can_be_machines(workers: object, reliable: int, parts: int) -> None:
    """Half of them serve, at most (Proteus, section 3.3)."""
    assert job_of({"clocks": 1, "workers": workers, "reliable": reliable}).parts == parts


def test_a_job_needs_its_reliable_machines_and_the_fewest_workers() -> None:
    """Only reliable ones must not be preempted; the first of them leads."""
    job = tiers(workers="2..8", reliable=2)

    assert tier_rules.slots(job) == (
        Slot("reliable-0", "reliable", Reliability.RELIABLE),
        Slot("reliable-1", "reliable", Reliability.RELIABLE),
        Slot("worker-0", "worker"),
        Slot("worker-1", "worker"),
    )
    assert tier_rules.LEADER_SLOT == "reliable-0"
    assert tier_rules.scaling(job) == Scaling(2, 8, "worker", reliable=2, reliable_role="reliable")


def test_a_clock_is_a_step_of_work() -> None:
    """Whatever else the job says."""
    assert tier_rules.work(tiers()) == Work(50.0, Unit.STEP)
    assert runtime_list.with_work(tiers(clocks=7)).work == Work(7.0, Unit.STEP)


def test_machines_learn_where_rays_head_is_and_where_they_are() -> None:
    """Empty until a machine fills the slot; only the head's machine leads."""
    job, leader, worker = tiers(), Slot("reliable-0", "reliable"), Slot("worker-3", "worker")
    placed = {
        "reliable-0": Placement("reliable", "m-1", "10.0.0.1:7001"),
        "worker-3": Placement("worker", "m-2", "10.0.0.2:7002"),
    }

    assert tier_rules.assign(job, leader, {}) == {"head": "", "leads": True, "address": ""}
    assert tier_rules.assign(job, leader, placed) == {
        "head": "10.0.0.1:7001",
        "leads": True,
        "address": "10.0.0.1:7001",
    }
    assert tier_rules.assign(job, worker, placed) == {
        "head": "10.0.0.1:7001",
        "leads": False,
        "address": "10.0.0.2:7002",
    }
    assert tier_rules.assign(job, worker, {"worker-3": placed["worker-3"]})["head"] == ""


def test_an_application_stands_for_a_command() -> None:
    """A job file then has no `run`; of a script it has one."""
    assert tier_rules.command({"app": "windfall.apps.mf", "clocks": 5}) == "python -m windfall.apps.mf"
    assert tier_rules.command({"clocks": 5}) is None


@pytest.mark.parametrize("case", PARAMSERVER, ids=lambda case: case.name)
def test_plan_refuses_bad_settings_before_anything_starts(
    case: BadFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence with file, line and field, exit code 2, and neither a file nor a controller."""
    state = tmp_path / "state"
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(case.text)

    code = main(["plan", "job.yaml"])

    printed = capsys.readouterr()
    assert (code, printed.out) == (EXIT_MISUSE, "")
    (line,) = printed.err.splitlines()
    assert line.startswith(f"windfall: job.yaml:{case.at}: ")
    assert [part for part in case.says if part not in line] == [], line
    assert not state.exists()
