"""`windfall rm` of jobs of every kind: nothing that a run left stays, in the store or on this host; all else does."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bags.live_bags import described
from tests.live.rig import OVER, WINDFALL, Rig
from windfall.errors import EXIT_MISUSE

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(400)]

SIGKILLED = -9
TIERS = {
    "workers": "1", "clocks": 30, "partitions": 2, "save_every": 10, "app": "windfall.apps.mf",
    "settings": {"source": "generated", "users": 40, "items": 30, "ratings": 400, "rank": 4, "clocks": 30},
}  # fmt: skip
TRAINING = {"run": "python -m windfall.apps.mf", "runtime": {"paramserver": TIERS}}
BAG = described("sweep", "echo {x}", 1, rows="rows.csv")


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """An installation with a controller."""
    made = Rig(tmp_path / "lab")
    try:
        made.start_controller()
        yield made
    finally:
        made.close()


def typed(rig: Rig, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a verb that may fail."""
    return subprocess.run(
        [*WINDFALL, *words], cwd=rig.folder, env=rig.environment() | {"XDG_STATE_HOME": str(rig.folder)} | environment,
        capture_output=True, text=True, timeout=90, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def ran(rig: Rig, job: dict[str, Any], name: str) -> str:
    """Run a job under a name to its end."""
    work = rig.folder / f"work-{name}"
    work.mkdir(exist_ok=True)
    (work / "rows.csv").write_text("x\n1\n2\n3\n")
    script = work / "steps.py"
    script.write_text("import windfall as wf\nwf.backup(__file__)\n")
    job_id = rig.submit({**job, "name": name}, script)
    told = rig.ended(job_id)
    assert told["phase"] == "done", f"{told['message']}\n{rig.log()}"
    return job_id


def never_began(rig: Rig) -> str:
    """A job that was stopped before it had a machine."""
    job_id = rig.submit({"name": "early", "run": "true", "resources": {"use_spot": True}}, None)
    typed(rig, "stop", "--now", job_id)
    rig.until(lambda: (rig.job(job_id) or {}).get("phase") in OVER, "it has stopped")
    return job_id


def names(rig: Rig) -> set[str]:
    """Everything in the installation's folder, the store among it."""
    return {str(path.relative_to(rig.state)) for path in rig.state.rglob("*")}


def kept(rig: Rig, job_id: str) -> dict[str, bytes]:
    """All objects of a run."""
    root = rig.state / "runs" / job_id
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("kind", ["checkpoint", "bag", "paramserver", "never began"])
def test_nothing_of_a_run_that_is_removed_is_left_and_others_are_as_they_were(kind: str, rig: Rig) -> None:
    """The folder of the installation has the same files before the run and after `rm`; another run of its kind is unchanged."""
    job: dict[str, Any] = {"bag": BAG, "paramserver": TRAINING}.get(kind, {})
    other = ran(rig, job, "other")
    before, objects = names(rig), kept(rig, other)
    job_id = never_began(rig) if kind == "never began" else ran(rig, job, "own")
    assert any(job_id in name for name in names(rig))

    removed = typed(rig, "rm", "-y", job_id)

    assert removed.returncode == 0, removed.stderr
    # The market forgets a machine's folder by itself, and a store's next writer the lock of the last one.
    left = {name for name in names(rig) - before if not name.startswith(("market/", "runs/.tmp/"))}
    assert left == set(), "of the run"
    assert not [name for name in names(rig) if job_id in name]
    assert kept(rig, other) == objects
    again = typed(rig, "rm", "-y", job_id)
    assert (again.returncode, "was deleted" in again.stderr) == (EXIT_MISUSE, True), again.stderr
    assert job_id in rig.say("ps")


@pytest.mark.parametrize("kind", ["bag", "paramserver"])
def test_a_run_whose_removal_was_killed_is_removed_by_the_next(kind: str, rig: Rig) -> None:
    """Killed after the second, and after the next to last deletion, by the job's name and by its URL."""
    job = BAG if kind == "bag" else TRAINING
    job_id = ran(rig, job, kind)
    count = len(kept(rig, job_id))
    for after, reference in ((2, job_id), (count // 2, rig.run_url(job_id)), (1, job_id)):
        killed = typed(rig, "rm", "-y", reference, WINDFALL_FAILPOINT=f"store.delete:after:{after}")
        assert killed.returncode == SIGKILLED, killed.stderr
        assert kept(rig, job_id), "something was left"
        assert typed(rig, "resume", job_id).returncode == EXIT_MISUSE

    assert typed(rig, "rm", "-y", job_id).returncode == 0
    assert not [name for name in names(rig) if job_id in name]


def test_a_job_that_runs_is_not_removed_by_name_or_url(rig: Rig) -> None:
    """Two sentences, and the exit code of misuse; the job ends as if nothing had been asked."""
    work = rig.folder / "work-busy"
    work.mkdir()
    (work / "rows.csv").write_text("x\n1\n2\n")
    job_id = rig.submit({**BAG, "name": "busy", "run": f"until test -e {rig.folder}/go; do sleep 0.1; done"}, None)
    rig.until(lambda: bool(list((rig.state / "runs" / job_id).glob("items/log/*"))), "items run")
    for reference in (job_id, rig.run_url(job_id)):
        refused = typed(rig, "rm", "-y", reference)
        assert refused.returncode == EXIT_MISUSE
        assert f"stop it first with `windfall stop {job_id}`" in refused.stderr
        assert len(refused.stderr.splitlines()) == 1
    # A user whose controller does not know the job listens for a sign of life, and hears one.
    elsewhere = typed(rig, "rm", "-y", rig.run_url(job_id), XDG_STATE_HOME=str(rig.folder / "elsewhere"))
    assert (elsewhere.returncode, "has not ended" in elsewhere.stderr) == (EXIT_MISUSE, True), elsewhere.stderr
    (rig.folder / "go").touch()
    assert rig.ended(job_id)["phase"] == "done"
