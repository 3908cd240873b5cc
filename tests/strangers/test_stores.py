"""Runs on an S3 store whose connections break: nothing is lost or trained twice, and 75 says that a store is missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.contracts.servers import s3_server
from tests.strangers.proxy import Proxy, Rule, proxy
from tests.support.live import FAST, PATIENCE_S, WINDFALL, Machine, plain_environment

pytestmark = pytest.mark.real

SCRIPT = """
import os, sys, time
import windfall as wf
first = int(open(found).read()) if (found := wf.last()) else 0
print("from", first, file=open("../starts", "a"), flush=True)
for step in range(first + 1, int(os.environ.get("STEPS", "4")) + 1):
    time.sleep(float(os.environ.get("STEP_S", "0.02")))
    print(step, file=open("../steps", "a"), flush=True)
    if wf.step() or "SAVE" in os.environ:
        open(f"{step}.pt", "w").write(str(step))
        wf.backup(f"{step}.pt")
"""
QUICK = ("reset before", "reset after", "refuse")
"""Faults of `make test`; the others are tried by `make verify`."""
FAULTS = ("reset before", "reset in", "reset after", "500", "503", "500 after", "404 cut", "slow", "refuse")


@dataclass
class Bucket:
    """A run behind a proxy, and what is started on it."""

    folder: Path
    between: Proxy
    environment: dict[str, str]
    url: str
    started: list[Machine] = field(default_factory=list)

    def exec_(self, *options: str, command: bool = True, **environment: str) -> Machine:
        here = self.folder / f"machine-{len(self.started) + 1}"
        here.mkdir()
        script = self.folder / "train.py"
        script.write_text(SCRIPT)
        line = [*WINDFALL, "exec", *FAST, *options, "--state", str(self.folder / "state"), self.url]
        with (here / "printed").open("wb") as out:
            process = subprocess.Popen(
                [*line, *(("--", sys.executable, str(script)) if command else ())],
                cwd=here,
                env={**self.environment, **environment},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        self.started.append(Machine(process, here))
        return self.started[-1]

    def say(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*WINDFALL, *words], capture_output=True, text=True, timeout=PATIENCE_S, env=self.environment, check=False
        )

    def outcome(self) -> str:
        told = json.loads(self.say("ps", "--json", self.url).stdout)
        return str(told["state"]["outcome"])

    def lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with s3_server(tmp_path_factory.mktemp("s3")) as environment:
        yield environment


@pytest.fixture
def bucket(tmp_path: Path, server: dict[str, str]) -> Iterator[Bucket]:
    with proxy(server["AWS_ENDPOINT_URL"]) as between:
        environment = plain_environment() | server | {"AWS_ENDPOINT_URL": between.endpoint}
        made = Bucket(tmp_path, between, environment, f"s3://lab/{os.urandom(6).hex()}")
        try:
            yield made
        finally:
            for machine in made.started:
                machine.process.kill()
                machine.process.wait()


def slow_but(quick: tuple[str, ...], values: tuple[str, ...]) -> list[object]:
    return [pytest.param(one, marks=() if one in quick else pytest.mark.slow) for one in values]


# ----------------------------------------------------------------------------------------------------------- the release


@pytest.mark.trial("A2")
@pytest.mark.parametrize("fault", slow_but(QUICK, FAULTS))
def test_a_finished_run_is_done_whatever_its_release_meets(bucket: Bucket, fault: str) -> None:
    """One broken connection at the record that lets a finished run go: exit 0, done, trained once."""
    rule = Rule(fault, "PUT", r"log/\d+$", skip=1)
    bucket.between.plan(rule)
    machine = bucket.exec_()
    assert machine.code() == 0, machine.text
    assert rule.hits == 1
    assert bucket.outcome() == "done"
    assert bucket.lines("starts") == ["from 0"]


@pytest.mark.trial("A2")
def test_a_success_that_no_store_heard_of_is_not_forgotten(bucket: Bucket) -> None:
    """The store goes away before the release: 75; the same line again says that the run is done and trains nothing."""
    bucket.between.plan(Rule("503", "PUT", r"log/\d+$", skip=1, times=0))
    machine = bucket.exec_("--patience", "2s")
    assert machine.code() == 75, machine.text
    bucket.between.calm()
    again = bucket.exec_()
    assert again.code() == 0, again.text
    assert bucket.outcome() == "done"
    assert bucket.lines("starts") == ["from 0"]
    assert bucket.exec_().code() == 0
    assert bucket.lines("starts") == ["from 0"]


# ------------------------------------------------------------------------------------------------------------- the start

FIRST_WRITES = {
    "marker": r"windfall\.json$",
    "probe": r"probe",
    "code": r"code/|bundles?/",
    "taking record": r"log/00000001$",
    "heartbeat": r"heartbeats/",
}
FIRST_READS = {"marker": r"windfall\.json$", "log": r"log/"}


@pytest.mark.trial("A3")
@pytest.mark.parametrize("fault", slow_but(("reset before", "reset after", "404 cut"), FAULTS))
def test_a_first_start_bears_a_fault_at_each_thing_it_writes(bucket: Bucket, fault: str) -> None:
    """Marker, probe, code, taking record, heartbeat: each one's first write fails once, and the run begins and ends."""
    rules = {name: Rule(fault, "PUT", path) for name, path in FIRST_WRITES.items()}
    bucket.between.plan(*rules.values())
    machine = bucket.exec_()
    assert machine.code() == 0, machine.text
    assert [name for name, rule in rules.items() if not rule.hits] == []
    assert bucket.outcome() == "done"
