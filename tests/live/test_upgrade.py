"""What the release before left behind, in the middle of its work, is read and carried to its end."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.fixtures.make import FORMAT_4, RUN_STEPS, STEPS, opened
from tests.live.rig import Rig, replay
from tests.real import training_plain
from tests.real.machines import Run
from windfall.terms import Outcome

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]
JOB = "kept-3ce6ec"


@pytest.fixture
def rig(new_rig: Callable[..., Rig]) -> Rig:
    """An installation of version 4: a job on two machines, one loss, one notice, one order without an answer."""
    made = new_rig(allocation_s=1.0, notice_s=40.0)
    opened(FORMAT_4 / "installation.tar.gz", made.state)
    return made


def versions(rig: Rig) -> tuple[int, set[int]]:
    """The versions of a database, and of the rows in it."""
    with closing(sqlite3.connect(f"file:{rig.state / 'controller.db'}?mode=ro", uri=True)) as database:
        (tables,) = database.execute("SELECT version FROM installation").fetchone()
        lines = database.execute("SELECT line FROM journal_rows").fetchall()
    return tables, {json.loads(line)["version"] for (line,) in lines}


def test_verbs_read_an_installation_of_version_4(rig: Rig) -> None:
    """`ps`, `cost`, `explain` and `replay` show its job, while the new controller goes on with it."""
    assert versions(rig) == (4, {4})
    before = len(rig_rows(rig))
    rig.start_controller()
    told = json.loads(rig.say("ps", JOB, "--json"))
    assert (told["job_id"], told["details"]["preemptions"]) == (JOB, 1)
    assert json.loads(rig.say("cost", JOB, "--json"))["job_id"] == JOB
    assert "order 2 small in zone-a" in rig.say("explain", JOB)
    assert json.loads(rig.say("replay", JOB, "--json"))["differences"] == []
    assert versions(rig) == (5, {4, 5})
    assert len(rig_rows(rig)) > before


def rig_rows(rig: Rig) -> list[str]:
    """The lines of the job's journal, read without upgrading anything."""
    with closing(sqlite3.connect(f"file:{rig.state / 'controller.db'}?mode=ro", uri=True)) as database:
        return [line for (line,) in database.execute("SELECT line FROM journal_rows ORDER BY sequence")]


@pytest.mark.slow
def test_a_controller_carries_a_job_of_version_4_to_its_end(rig: Rig) -> None:
    """Lost machines are replaced, the open order is settled, and the weights are those of an undisturbed run."""
    rig.start_controller()
    told = rig.ended(JOB, 240.0)

    assert told["phase"] == "done", f"{told['message']}\n{rig.log()}"
    replay(rig.rows(JOB))
    assert versions(rig) == (5, {4, 5})
    got = json.loads(rig.say("get", rig.run_url(JOB), str(rig.folder / "result"), "--json"))
    weights = {(rig.folder / path).read_bytes() for path in got["files"]}
    assert weights == {training_plain.undisturbed(STEPS)}


def test_exec_carries_a_run_of_version_4_to_its_end(tmp_path: Path) -> None:
    """It resumes from the newest checkpoint and ends with the result of a run that nobody disturbed; `cost` reads both."""
    run = Run(tmp_path, RUN_STEPS)
    opened(FORMAT_4 / "run.tar.gz", tmp_path)
    committed = run.committed_step()
    assert committed >= 20
    assert json.loads(run.say("cost", run.url, "--json").stdout)["steps"] >= committed
    with run.machine() as machine:
        assert machine.code() == 0, machine.printed
    assert machine.starts()[0][1] == committed

    run.check_done(Outcome.DONE)
    account = json.loads(run.say("cost", run.url, "--json").stdout)
    assert account["steps"] == RUN_STEPS
    spools = [
        json.loads(line)["version"]
        for path in sorted(run.place.glob("spool/*/*"))
        for line in path.read_text().splitlines()
    ]
    assert set(spools) == {4, 5}
    assert json.loads(run.say("replay", run.url, "--json").stdout)["differences"] == []
