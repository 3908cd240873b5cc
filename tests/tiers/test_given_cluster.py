"""A parameter server on a Ray cluster that is there already: it is looked at first, joined, and left as it was."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.live.rig import WINDFALL, Rig
from tests.tiers_live.test_live_tiers import PARTITIONS, SECONDS, SQUARES, status, table, undisturbed
from windfall.cli import ray_cluster, ray_probe
from windfall.errors import EXIT_MISUSE, Misuse
from windfall.runtimes.tier_node import namespace_of, without_spaces
from windfall.spec.job_file import JobFile
from windfall.wire.python_programs import program
from windfall.wire.ray_environment import TOKEN, given_environment

pytest.importorskip("ray", reason="Ray is not installed: pip install 'windfall[paramserver]'")
SECRET = "ab" * 32
CLOCKS = 300
NODES = """
import sys
from ray._raylet import GcsClient
for node in GcsClient(address=sys.argv[1]).get_all_node_info().values():
    if node.state == 0:
        print(node.node_manager_address)
"""


class Cluster:
    """A Ray cluster of one node, as somebody else has started it."""

    def __init__(self, folder: str, token: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
            port, clients = one.getsockname()[1], other.getsockname()[1]
        self.address, self.token = f"127.0.0.1:{port}", {TOKEN: token} if token else {}
        plain = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        self._environment = {**plain, **given_environment(self.token), **self.token}
        python, *start = program("ray.scripts.scripts", "start", "--block", "--head", "--disable-usage-stats")
        own = (
            f"--port={port}",
            f"--ray-client-server-port={clients}",
            "--node-ip-address=127.0.0.1",
            "--include-dashboard=false",
            "--num-cpus=0",
        )
        self.head = subprocess.Popen(
            [without_spaces(python, folder), *start, *own, "--num-gpus=0", "--object-store-memory=100000000",
             f"--temp-dir={folder}"],
            env=self._environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        deadline = time.monotonic() + 60.0
        while not self.nodes():
            assert self.head.poll() is None, "the head has ended"
            assert time.monotonic() < deadline, "the cluster does not answer"

    def asked(self, argv: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
        """Run a program as one that belongs to the cluster."""
        return subprocess.run(argv, env=self._environment, capture_output=True, text=True, timeout=60, check=False)

    def nodes(self) -> list[str]:
        """The hosts of its nodes that are alive."""
        return self.asked((sys.executable, "-c", NODES, self.address)).stdout.split()

    def end(self) -> None:
        """Stop it, and all that it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.head.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.head.wait(20.0)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.head.pid, signal.SIGKILL)
        self.head.wait()


@contextlib.contextmanager
def cluster(token: str) -> Iterator[Cluster]:
    """A cluster with a token, or without one; sockets are in its folder, whose path must be short."""
    folder = tempfile.mkdtemp(prefix="rk-", dir="/tmp")
    made = Cluster(folder, token)
    try:
        yield made
    finally:
        made.end()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def guarded() -> Iterator[Cluster]:
    """A cluster that asks for a token."""
    with cluster(SECRET) as made:
        yield made


def job_file(address: str, **more: Any) -> JobFile:
    """A job file that names a cluster."""
    settings = {"workers": 1, "clocks": 5, "app": "windfall.apps.mf", "ray": address}
    return JobFile(run="python -m windfall.apps.mf", runtime={"paramserver": settings}, **more)


def refusal(address: str, **more: Any) -> str:
    """Why a cluster is refused."""
    with pytest.raises(Misuse) as caught:
        ray_cluster.check_cluster(job_file(address, **more))
    return str(caught.value)


# ------------------------------------------------------------------------------------------------ before anything is bought


def test_an_address_where_nothing_or_something_else_answers_is_refused() -> None:
    """With what to write instead."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{other.getsockname()[1]}"
        assert f"nothing answers at {address} (Connection refused): write host:port" in refusal(address)


@pytest.mark.real
@pytest.mark.timeout(180)
def test_the_token_of_a_guarded_cluster_must_be_there_and_right(
    guarded: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes from a secret of the job; one that is exported here alone would not reach the machines."""
    monkeypatch.setenv(TOKEN, SECRET)
    assert f"asks for a token: export {TOKEN}, and write secrets: [{TOKEN}]" in refusal(guarded.address)
    ray_cluster.check_cluster(job_file(guarded.address, secrets=[TOKEN]))
    monkeypatch.setenv(TOKEN, "cd" * 32)
    assert f"refuses the token in {TOKEN}" in refusal(guarded.address, secrets=[TOKEN])


@pytest.mark.real
@pytest.mark.timeout(180)
def test_another_version_of_ray_or_python_is_refused(guarded: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray joins only equal ones; both are named."""
    monkeypatch.setenv(TOKEN, SECRET)
    here = importlib.metadata.version("ray")
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "2.51.0")
    said = refusal(guarded.address, secrets=[TOKEN])
    assert f"has Ray {here} and Python {platform.python_version()}, and here is Ray 2.51.0" in said
    assert f"install ray=={here}" in said


@pytest.mark.real
@pytest.mark.timeout(180)
@pytest.mark.slow
def test_a_cluster_without_a_token_is_joined_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token that it does not ask for would keep it from reaching the machines, so it is refused."""
    with cluster("") as made:
        ray_cluster.check_cluster(job_file(made.address))
        monkeypatch.setenv(TOKEN, SECRET)
        assert f"takes no token: remove {TOKEN}" in refusal(made.address, secrets=[TOKEN])


@pytest.mark.slow
def test_a_probe_of_something_else_says_that_it_is_no_ray() -> None:
    """A server that answers nothing; the exit code is not that of a refused token."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        asked = subprocess.run(
            program("windfall.cli.ray_probe", f"127.0.0.1:{other.getsockname()[1]}"),
            env={**os.environ, **given_environment({})}, capture_output=True, timeout=60, check=False,
        )  # fmt: skip
    assert asked.returncode not in (0, ray_probe.REFUSED)


def test_runs_have_namespaces_of_their_own() -> None:
    """Their actors have the same names."""
    assert namespace_of("file:///runs/a") != namespace_of("file:///runs/b")
    assert namespace_of("file:///runs/a") == namespace_of("file:///runs/a")


# --------------------------------------------------------------------------------------------------------------- live


class ClientRig(Rig):
    """An installation whose user has exported the cluster's token."""

    def environment(self) -> dict[str, str]:
        return super().environment() | {TOKEN: SECRET}


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """An installation with a controller."""
    made = ClientRig(tmp_path / "lab")
    try:
        made.start_controller()
        yield made
    finally:
        made.close()


def submit(rig: Rig, address: str, name: str) -> str:
    """Run a job on a cluster."""
    work = rig.folder / f"work-{name}"
    work.mkdir()
    (work / "squares.py").write_text(SQUARES)
    tiers = {
        "workers": "2", "clocks": CLOCKS, "partitions": PARTITIONS, "staleness": 0, "save_every": 50, "app": "squares",
        "settings": {"seconds": SECONDS}, "ray": address,
    }  # fmt: skip
    runtime = {"paramserver": tiers}
    return rig.submit({"name": name, "run": "python -m squares", "runtime": runtime, "secrets": [TOKEN]}, None)


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(500)
def test_two_jobs_train_on_one_cluster_which_is_there_afterwards(rig: Rig, guarded: Cluster) -> None:
    """Both end bit for bit as one process; meanwhile their nodes are in the cluster, and afterwards its own alone."""
    own = guarded.nodes()
    jobs = [submit(rig, guarded.address, name) for name in ("first", "second")]
    rig.until(lambda: len(guarded.nodes()) == len(own) + 6, "the machines of both jobs are in the cluster", 200.0)
    ended = [rig.ended(job_id, 300.0) for job_id in jobs]

    assert [told["phase"] for told in ended] == ["done", "done"], f"{[told['message'] for told in ended]}\n{rig.log()}"
    for job_id in jobs:
        assert np.array_equal(table(rig, job_id), undisturbed(CLOCKS))
        assert (status(rig, job_id).rollbacks, status(rig, job_id).restores) == (0, 0)
    assert guarded.head.poll() is None
    rig.until(lambda: guarded.nodes() == own, "only the cluster's own node is left", 60.0)


@pytest.mark.real
@pytest.mark.slow
def test_a_cluster_that_does_not_answer_ends_run_before_anything_is_bought(rig: Rig) -> None:
    """One sentence, the exit code of misuse, no job, no machine."""
    work = rig.folder / "job.yaml"
    work.write_text("runtime: {paramserver: {workers: 1, clocks: 5, app: windfall.apps.mf, ray: '127.0.0.1:1'}}\n")
    ran = subprocess.run(
        [*WINDFALL, "run", "-y", "job.yaml"], cwd=rig.folder, env=rig.environment() | {"XDG_STATE_HOME": str(rig.folder)},
        capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stdout) == (EXIT_MISUSE, "")
    assert ran.stderr.count("\n") == 1
    assert "nothing answers at 127.0.0.1:1" in ran.stderr
    assert rig.say("ps", "--json") == ""
