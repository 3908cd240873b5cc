"""A training that `windfall run` brings to a cluster of the tests, and what it prints."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.slurm.cluster import SlurmCluster
from windfall.storage import object_stores, run_log
from windfall.terms import Record

ROOT = Path(__file__).parents[2]


def losses(text: str) -> dict[str, str]:
    """Loss by step, as printed; a step that was done again counts as its last time."""
    return dict(re.findall(r"step +(\d+) +loss ([\d.]+)", text))


@dataclass
class Training:
    """`windfall run` with state and configuration of its own."""

    cluster: SlurmCluster
    lab: Path
    process: subprocess.Popen[bytes]
    environ: Mapping[str, str]

    @property
    def printed(self) -> str:
        """What it has said so far."""
        return (self.lab / "out").read_text("utf-8", "replace")

    def until_printed(self, text: str, limit_s: float = 120.0) -> None:
        """Wait until it has said something; fail with all that it has said."""
        try:
            self.cluster.until(lambda: text in self.printed or self.process.poll() is not None, text, limit_s)
        finally:
            assert text in self.printed, self.printed

    def until_done(self, limit_s: float = 240.0) -> None:
        """Wait until it has ended, as it should."""
        try:
            self.cluster.until(lambda: self.process.poll() is not None, "it ends", limit_s)
        finally:
            assert self.process.poll() == 0, self.printed

    def ask(self, *words: str) -> str:
        """What another command says of it meanwhile."""
        line = [sys.executable, "-m", "windfall.cli.main", *words]
        done = subprocess.run(line, env=self.environ, capture_output=True, text=True, check=True)
        return done.stdout

    def machines(self) -> list[int]:
        """The pids of the machines that run, each the first process of its node's share of the step."""
        processes = self.cluster.processes().items()
        return [pid for pid, line in processes if "node_start" in line and "srun" not in line]


@contextmanager
def training(cluster: SlurmCluster, lab: Path, job: Mapping[str, Any]) -> Iterator[Training]:
    """Start `windfall run` of a job; at the end its process is killed, and its machines are the caller's to release."""
    (lab / "cf" / "windfall").mkdir(parents=True)
    (lab / "cf" / "windfall" / "config.yaml").write_text("providers: {slurm: {poll: 1s}}\n")
    (lab / "job.yaml").write_text(yaml.safe_dump(dict(job)))
    environ = cluster.environment() | {"XDG_STATE_HOME": str(lab / "st"), "XDG_CONFIG_HOME": str(lab / "cf")}
    line = [sys.executable, "-m", "windfall.cli.main", "run", "-y", str(lab / "job.yaml")]
    with (lab / "out").open("wb") as out:
        process = subprocess.Popen(line, env=environ, cwd=lab, stdout=out, stderr=subprocess.STDOUT)
    try:
        yield Training(cluster, lab, process, environ)
    finally:
        process.kill()
        process.wait()


def bill(run: Training) -> list[dict[str, Any]]:
    """The machines of `windfall cost JOB --json`."""
    name = yaml.safe_load((run.lab / "job.yaml").read_text())["name"]
    told: list[dict[str, Any]] = json.loads(run.ask("cost", name, "--json"))["machines"]
    return told


def records(lab: Path) -> list[Record]:
    """The log of the only run in a lab, oldest first."""
    (folder,) = (lab / "st" / "windfall" / "runs").iterdir()
    reader, found = object_stores.open_reader(f"file://{folder}"), []
    while (record := reader.run(run_log.read_record(len(found) + 1))) is not None:
        found.append(record)
    return found
