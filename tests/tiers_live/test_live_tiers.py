"""A parameter server on a local market's machines: real verbs, real Ray, processes killed with SIGKILL by their numbers."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.live.rig import OVER, Rig
from tests.tiers.test_applications import computed_alone
from windfall.runtimes.table_rows import joined_parts
from windfall.runtimes.tier_store import ObjectTierStore
from windfall.storage.object_stores import open_store
from windfall.tier_status import TierStatus

pytest.importorskip("ray", reason="Ray is not installed: pip install 'windfall[paramserver]'")
pytestmark = [pytest.mark.real, pytest.mark.timeout(400)]
PARTITIONS = 4
SETTINGS = {"users": 600, "items": 200, "rank": 8, "ratings": 40_000, "rate": 0.002}
SQUARES = """
import os, time
from pathlib import Path

import numpy as np

TRUTH = np.random.default_rng(1).normal(size=(24, 3))


class Squares:
    rows = len(TRUTH)

    def __init__(self, partitions, seconds):
        self.partitions, self.seconds = partitions, seconds

    def first(self, rows):
        return np.zeros((len(rows), TRUTH.shape[1]))

    def load(self, data):
        return np.random.default_rng([2, data]).uniform(0.5, 1.5, TRUTH.shape)

    def compute(self, weights, clock, table):
        rows = np.arange(self.rows)
        values = table.pull(rows)
        time.sleep(self.seconds)
        table.push(rows, 0.01 * weights * (TRUTH - values) / self.partitions)

    def evaluate(self, values):
        return float(np.square(values - TRUTH).mean())

    def write(self, values, folder):
        np.save(Path(folder) / "weights.npy", values)


def program(settings, partitions):
    return Squares(partitions, settings["seconds"])
"""
"""A user's own application, so slow that all machines have joined before it ends."""
SECONDS = 0.02
LISTENS = "0A"
"""State of a socket in the kernel's tables."""
TRANSIENT = ("worker", "server", "raylet", "machine")
RESTORING = ("head", "reliable")
KINDS = (*TRANSIENT, *RESTORING, "coordinator", "controller")


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """An installation with a controller."""
    made = Rig(tmp_path / "lab")
    try:
        made.start_controller()
        yield made
    finally:
        made.close()


def submit(rig: Rig, clocks: int, workers: str = "3", app: str = "squares", **settings: Any) -> str:
    """Run a job whose program is an application."""
    tiers = {"workers": workers, "clocks": clocks, "partitions": PARTITIONS, "staleness": 0, "save_every": 50}
    given = settings or {"seconds": SECONDS}
    work = rig.folder / "work-tiers"
    work.mkdir()
    (work / "squares.py").write_text(SQUARES)
    runtime = {"paramserver": {**tiers, "app": app, "settings": given}}
    return rig.submit({"name": "tiers", "run": f"python -m {app}", "runtime": runtime}, None)


def store_of(rig: Rig, job_id: str) -> ObjectTierStore:
    """What the run has in its store."""
    return ObjectTierStore(open_store(rig.run_url(job_id)))


def status(rig: Rig, job_id: str) -> TierStatus:
    """What the coordinator last wrote."""
    found = store_of(rig, job_id).status()
    assert found is not None
    return found


def until_clock(rig: Rig, job_id: str, clock: int) -> None:
    """Wait for a clock that all backups have, or for the end."""

    def there() -> bool:
        found = store_of(rig, job_id).status()
        return found is not None and (found.clock >= clock or found.over)

    rig.until(there, f"clock {clock}")


def until_all_compute(rig: Rig, job_id: str, machines: int) -> None:
    """Wait until so many machines have joined, some of them serve, and the reliable one only backs up."""

    def there() -> bool:
        found = store_of(rig, job_id).status()
        serving = found is not None and any(one.serves for one in found.machines if not one.reliable)
        return found is not None and len(found.machines) >= machines and serving

    rig.until(there, f"{machines} machines train")


def table(rig: Rig, job_id: str) -> np.ndarray:
    """The whole table as the last checkpoint has it."""
    store = store_of(rig, job_id)
    layout = store.newest_layout()
    assert layout is not None
    return joined_parts([store.load(part, layout.checkpoint) for part in range(len(layout.parts))])


def undisturbed(clocks: int) -> np.ndarray:
    """The table that one process computes."""
    module: dict[str, Any] = {}
    exec(SQUARES, module)
    return computed_alone(module["Squares"](PARTITIONS, 0.0), clocks)


# ------------------------------------------------------------------------------------------------------- what may be killed


def processes(rig: Rig, words: str) -> dict[int, str]:
    """Ray's processes with these words in their command line, and the machine of each."""
    found = {}
    for pid, line in rig._everything():
        if words not in line:
            continue
        with contextlib.suppress(OSError):
            # Everything on a machine runs on its disk.
            place = re.search(r"/machines/(m-\w+)/", os.readlink(f"/proc/{pid}/cwd") + "/")
            if place is not None:
                found[pid] = place[1]
    return found


def kill(rig: Rig, job_id: str, kind: str, chance: random.Random) -> bool:
    """Kill something of a kind, if it is there."""
    now = status(rig, job_id)
    serving = {one.name.rpartition("-")[0] for one in now.machines if one.serves and not one.reliable}
    reliable = {one.name.rpartition("-")[0] for one in now.machines if one.reliable}
    transient = sorted({one.name.rpartition("-")[0] for one in now.machines} - reliable)
    if kind in ("machine", "reliable"):
        victims = transient if kind == "machine" else sorted(reliable)
        if victims:
            rig.take(chance.choice(victims), None)
        return bool(victims)
    if kind == "controller":
        killed = rig.kill("controller", chance)
        rig.start_controller()
        return killed
    words = {"raylet": "raylet/raylet", "head": "gcs_server", "coordinator": "ray::CoordinatorActor"}
    pids = processes(rig, words.get(kind, "ray::MachineActor"))
    if kind == "worker":
        pids = {pid: machine for pid, machine in pids.items() if machine in transient and machine not in serving}
    if kind == "server":
        pids = {pid: machine for pid, machine in pids.items() if machine in serving}
    if kind == "raylet":
        pids = {pid: machine for pid, machine in pids.items() if machine in transient}
    if not pids:
        return False
    os.kill(chance.choice(sorted(pids)), signal.SIGKILL)
    return True


def listening(rig: Rig) -> dict[str, set[str]]:
    """The program of each process here that listens beyond loopback, and its addresses as the kernel lists them."""
    addresses = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == LISTENS:
                addresses[f"socket:[{words[9]}]"] = words[1]
    found: dict[str, set[str]] = {}
    for pid, line in rig._everything():
        with contextlib.suppress(OSError):
            files = [os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")]
            for address in (addresses[file] for file in files if file in addresses):
                host = address.partition(":")[0]
                # Little-endian: 127 is the last byte of an address, or of one that is mapped into IPv6.
                if not host.endswith("7F"):
                    found.setdefault(line, set()).add(address)
    return found


def is_over(rig: Rig, job_id: str) -> bool:
    """Whether the job has ended."""
    told = rig.job(job_id)
    return told is not None and told["phase"] in OVER


# ------------------------------------------------------------------------------------------------------------- the tests


def test_an_application_trains_on_a_markets_machines_as_in_one_process(rig: Rig, tmp_path: Path) -> None:
    """Bit for bit; `ps` shows the tiers, `get` brings the product, and the bill is the market's."""
    from windfall.apps import mf

    job_id = submit(rig, 120, "1", "windfall.apps.mf", **SETTINGS)
    told = rig.ended(job_id)

    assert told["phase"] == "done", told["message"]
    assert np.array_equal(table(rig, job_id), computed_alone(mf.program(SETTINGS, PARTITIONS), 120))
    shown = rig.say("ps", job_id)
    assert "clock   120 of 120" in shown
    assert "0 roll-backs and 0 returns to a checkpoint; 0 machines lost" in shown
    rig.say("get", job_id, str(tmp_path / "out"))
    assert (tmp_path / "out" / "factors.npz").stat().st_size > 0
    assert len(list((Path(rig.run_url(job_id)[7:]) / "tiers" / "checkpoints").iterdir())) <= 2
    rig.check(job_id, told, nodes=2)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_training_survives_the_death_of(kind: str, rig: Rig) -> None:
    """Bit for bit as undisturbed; only without a reliable machine or Ray's head all returns to the store's checkpoint."""
    chance, clocks = random.Random(kind), 800
    job_id = submit(rig, clocks)
    until_all_compute(rig, job_id, 4)
    until_clock(rig, job_id, status(rig, job_id).clock + 60)
    assert kill(rig, job_id, kind, chance)
    told = rig.ended(job_id, 300.0)

    assert told["phase"] == "done", f"{kind}: {told['message']}\n{rig.log()}"
    assert np.array_equal(table(rig, job_id), undisturbed(clocks))
    found = status(rig, job_id)
    assert (found.restores > 0) == (kind in RESTORING), found
    if kind in ("worker", "coordinator", "controller"):
        assert found.rollbacks == 0
    rig.check(job_id, told, nodes=4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_training_survives_kills_of_everything(seed: int, rig: Rig) -> None:
    """Several kinds at drawn moments, transient ones mostly: bit for bit as undisturbed, and nothing is left."""
    chance, clocks = random.Random(f"tiers {seed}"), 1000
    job_id = submit(rig, clocks)
    until_clock(rig, job_id, 20)
    for kind in chance.choices(KINDS, weights=(3, 3, 3, 3, 1, 1, 2, 2), k=4):
        time.sleep(chance.uniform(1.0, 6.0))
        if is_over(rig, job_id):
            break
        if kill(rig, job_id, kind, chance):
            rig.killed.append(kind)
    told = rig.ended(job_id, 300.0)

    assert told["phase"] == "done", f"killed {rig.killed}: {told['message']}\n{rig.log()}"
    assert np.array_equal(table(rig, job_id), undisturbed(clocks)), f"killed {rig.killed}"
    rig.check(job_id, told, nodes=4)


@pytest.mark.slow
def test_without_its_controller_training_continues_to_its_end(rig: Rig) -> None:
    """The product is there before a controller is; the next one sees it, and releases the machines."""
    job_id = submit(rig, 600)
    until_all_compute(rig, job_id, 4)
    rig.kill("controller", random.Random(0))
    rig.until(lambda: store_of(rig, job_id).product() is not None, "the product is there", 200.0)
    rig.start_controller()
    told = rig.ended(job_id)

    assert told["phase"] == "done"
    assert np.array_equal(table(rig, job_id), undisturbed(600))
    rig.check(job_id, told, nodes=4)


@pytest.mark.slow
def test_a_machine_with_notice_leaves_without_a_clock_done_again(rig: Rig) -> None:
    """All that it serves and computes has moved before its end; its successor joins."""
    job_id = submit(rig, 800)
    until_all_compute(rig, job_id, 4)
    now = status(rig, job_id)
    server = next(one.name.rpartition("-")[0] for one in now.machines if one.serves)
    rig.take(server, 8.0)
    told = rig.ended(job_id, 300.0)

    assert told["phase"] == "done"
    found = status(rig, job_id)
    assert (found.rollbacks, found.restores, found.clocks_redone) == (0, 0, 0), found
    assert np.array_equal(table(rig, job_id), undisturbed(800))
    rig.check(job_id, told, nodes=4)


@pytest.mark.slow
def test_a_setting_that_the_application_refuses_ends_the_job_with_its_words(rig: Rig) -> None:
    """After three tries; `logs` has the sentence, and nothing is left."""
    job_id = submit(rig, 100, "1", "windfall.apps.mf", **{**SETTINGS, "rank": 0})
    told = rig.ended(job_id, 300.0)

    assert told["phase"] == "failed"
    assert "the script failed 3 times" in told["message"]
    assert "settings.rank" in rig.say("logs", job_id)
    rig.until(lambda: not rig.processes("machine", "keeper"), "nothing is left alive")


@pytest.mark.slow
def test_only_ray_listens_beyond_loopback(rig: Rig) -> None:
    """Its head, nodes, actors, and the processes that have joined it; with a token (see `test_tier_machine`).

    `doctor` names each of their ports.
    """
    job_id = submit(rig, 600)
    until_all_compute(rig, job_id, 4)
    found = listening(rig)

    assert any("gcs_server" in line for line in found), (
        "Ray binds all addresses: where it does not, say so in the how-to"
    )
    rays = ("gcs_server", "raylet/raylet", "ray::", "ray/dashboard/agent.py", "runtime_env/agent", "cli.tier_process")
    assert [line for line in found if not any(words in line for words in rays)] == []

    checks = {line["check"]: line for line in map(json.loads, rig.say("doctor", "--json").splitlines())}
    said, ports = checks["listening"], {int(one.partition(":")[2], 16) for line in found.values() for one in line}
    named = {int(port) for port in re.findall(r"(?<=[ ,])\d+(?=,)", said["says"])}
    assert (said["verdict"], said["numbers"]["without_token"]) == ("warn", 0.0), said
    assert "gcs_server at ::, port" in said["says"]
    assert ports <= named, said
