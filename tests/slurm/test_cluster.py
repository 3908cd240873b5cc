"""The Slurm of the tests itself: what `make test` runs of it. What Slurm does is in `test_slurm_habits.py`."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.slurm.cluster import no_slurm
from tests.slurm.conftest import StartSlurm
from tests.slurm.packages import CACHE_VARIABLE, SlurmNotUnpacked, SlurmUnavailable, find_slurm

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.real


def listens(port: int) -> bool:
    """Whether something accepts connections there."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def make_slurm(**environment: str) -> subprocess.CompletedProcess[str]:
    """What `make slurm` runs, with these variables alone."""
    command = [sys.executable, "-m", "tests.slurm.packages"]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_without_apt_the_reason_is_a_sentence(tmp_path: Path) -> None:
    """`make slurm` where there is neither Slurm nor apt says so in a line, and fails."""
    done = make_slurm(PATH=str(tmp_path), WINDFALL_TEST_CACHE=str(tmp_path / "cache"))
    assert done.returncode == 1
    assert done.stderr == (
        "make slurm: no Slurm on the path, and no apt-get to fetch Debian's packages: install slurm-wlm\n"
    )


def test_without_network_the_reason_is_a_sentence(tmp_path: Path) -> None:
    """Where apt-get fails, `make slurm` has its last word in a line, fails, and leaves nothing that looks unpacked."""
    for name, line in {"apt-get": "echo 'E: Failed to fetch slurmd' >&2; exit 100", "dpkg": "exit 1"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n", "utf-8")
        (tmp_path / name).chmod(0o755)
    cache = tmp_path / "cache"
    done = make_slurm(PATH=str(tmp_path), WINDFALL_TEST_CACHE=str(cache))
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "E: Failed to fetch slurmd" in done.stderr
    assert [path for path in cache.iterdir() if path.suffix != ".lock"] == []


def test_a_cache_that_cannot_be_written_is_no_reason_to_skip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the packages could be had and something here is wrong, the tests fail, and `make slurm` says what it is."""
    file = tmp_path / "cache"
    file.touch()
    for name in ("apt-get", "dpkg"):
        (tmp_path / name).touch(0o755)
    done = make_slurm(PATH=str(tmp_path), WINDFALL_TEST_CACHE=str(file))
    assert done.returncode == 1
    assert "make slurm: Slurm's packages cannot be unpacked into " in done.stderr
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv(CACHE_VARIABLE, str(file))
    with pytest.raises(SlurmNotUnpacked):
        no_slurm()


def test_what_is_unpacked_is_not_fetched_again(tmp_path: Path) -> None:
    """A second `make slurm` needs neither apt nor a network."""
    try:
        found = find_slurm()
    except SlurmUnavailable as error:
        pytest.skip(str(error))
    if found.root is None:
        pytest.skip("Slurm of the system is used here, nothing is unpacked")
    kept = {name: os.environ[name] for name in (CACHE_VARIABLE, "XDG_CACHE_HOME", "HOME") if name in os.environ}
    done = make_slurm(PATH=str(tmp_path), **kept)
    assert (done.returncode, done.stdout) == (0, f"Slurm for the tests: {found.root}/usr/sbin\n")


def test_a_real_cluster_starts_runs_a_job_and_leaves_nothing(start_slurm: StartSlurm) -> None:
    """Three nodes become idle, a job of three runs a step on each, and afterwards no process, port or file is left."""
    cluster = start_slurm()
    assert cluster.node_states() == {"n0": "idle", "n1": "idle", "n2": "idle"}
    job = cluster.submit("srun sh -c 'echo $SLURMD_NODENAME of $SLURM_JOB_ID'", "--nodes=3")
    cluster.until(lambda: cluster.state(job) == "COMPLETED", "the job has run")
    assert sorted(cluster.output_of(job).split("\n")[:3]) == [f"n{number} of {job}" for number in range(3)]
    endless = cluster.submit("setsid sh -c 'sleep 1000' & srun sleep 1000")
    cluster.until(lambda: len(cluster.processes(endless)) >= 4, "the endless job has its processes")
    assert listens(cluster.port)
    cluster.end()
    assert cluster.processes() == {}
    assert not listens(cluster.port)
    assert not cluster.folder.exists()
