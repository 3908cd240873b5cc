"""Runs through a proxy that breaks connections by seed, in every phase and with a loss among them, on an S3 store."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.contracts.servers import s3_server
from tests.real.machines import descendants
from tests.strangers.proxy import Proxy, Rule, proxy
from tests.strangers.support import seeds, wait_until
from tests.support.live import WINDFALL, plain_environment
from tests.support.processes import alive

STEPS, EVERY = 120, 20
SCRIPT = f"""
import hashlib, os, time
import windfall as wf
state, step = b"seed", 0
if found := wf.last():
    name, state = open(found, "rb").read().split(b":", 1)
    step = int(name)
open(os.environ["LOG"], "a").write(f"from {{step}}\\n")
while step < {STEPS}:
    time.sleep(0.02)
    step, state = step + 1, hashlib.sha512(state).digest() * 2000
    open(os.environ["LOG"], "a").write(f"{{step}}\\n")
    while step == int(os.environ["HOLD"]) and wf.notice() is None:
        time.sleep(0.02)
    if wf.step() or step % {EVERY} == 0:
        open(f"{{step}}-{{os.getpid()}}.pt", "wb").write(b"%d:" % step + state)
        wf.backup(f"{{step}}-{{os.getpid()}}.pt")
print("result", hashlib.sha256(state).hexdigest(), flush=True)
"""
"""Its state is 128 kB that depend on every step."""
FAULTS = ("reset before", "reset in", "reset after", "500", "503", "500 after", "slow", "refuse")
CUT = {"GET": ("cut", "404 cut"), "PUT": ("cut",), "DELETE": ("cut",)}
"""Faults of a reply's body, for requests whose replies have one."""
FIRST = {
    "marker": ("PUT", r"windfall\.json$"),
    "probe": ("PUT", r"probe/"),
    "code": ("PUT", r"code/|bundles/"),
    "taking": ("PUT", r"log/00000001$"),
    "heartbeat": ("PUT", r"heartbeats/00000001"),
    "bytes": ("PUT", r"shards/"),
    "manifest": ("PUT", r"checkpoints/"),
    "commit": ("PUT", r"log/00000002$"),
    "journal": ("PUT", r"spool/"),
    "looking": ("GET", r"^/lab/?$"),
}
"""What any start and training asks of its store."""
LATER = {
    "next machine": ("GET", r"windfall\.json$"),
    "reading the log": ("GET", r"log/"),
    "take-up": ("PUT", r"log/"),
    "restoring": ("GET", r"checkpoints/|shards/"),
    "its heartbeat": ("PUT", r"heartbeats/"),
    "output": ("PUT", r"output/"),
    "tidying": ("DELETE", r""),
}
"""What the machine after a loss asks."""
MOMENTS = ("first start", "training", "notice", "commit", "release")


@dataclass
class Bucket:
    """A run on an S3 store behind a proxy; each machine is this host, in an empty folder and with a state of its own."""

    folder: Path
    between: Proxy
    direct: dict[str, str]
    url: str
    machines: int = 0
    hold: int = 0
    """A step at which the script waits for a notice; 0: it waits for none."""
    process: subprocess.Popen[bytes] | None = None

    def environment(self, *, direct: bool = False) -> dict[str, str]:
        """A user's, to whom the store is the proxy unless `direct`."""
        mine = plain_environment() | self.direct | {"LOG": str(self.folder / "steps"), "HOLD": str(self.hold)}
        return mine if direct else mine | {"AWS_ENDPOINT_URL": self.between.endpoint}

    @property
    def printed(self) -> str:
        path = self.folder / "printed"
        return path.read_text(errors="replace") if path.exists() else ""

    def starts(self) -> list[int]:
        """The step that each life of the script began from."""
        return [int(line.split()[1]) for line in self._log() if line.startswith("from")]

    def steps(self) -> list[int]:
        """The steps that the script says it did."""
        return [int(line) for line in self._log() if not line.startswith("from")]

    def _log(self) -> list[str]:
        path = self.folder / "steps"
        return path.read_text().splitlines() if path.exists() else []

    def start(self, *options: str) -> None:
        """The same line on another machine."""
        self.machines += 1
        here = self.folder / f"machine {self.machines}"
        here.mkdir()
        (here / "train.py").write_text(SCRIPT)
        line = [*WINDFALL, "exec", "--provider", "local", "--lease", "3s", "--grace", "5s", "--wait", *options]
        with (self.folder / "printed").open("ab") as out:
            self.process = subprocess.Popen(
                [*line, "--state", str(here / "state"), self.url, "--", sys.executable, "train.py"],
                cwd=here, env=self.environment(), stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                start_new_session=True,
            )  # fmt: skip

    @property
    def ended(self) -> bool:
        return self.process is None or self.process.poll() is not None

    def until(self, condition: Callable[[], object]) -> None:
        """Wait for a moment of the machine, or for its end."""
        wait_until(lambda: condition() or self.ended, lambda: self.printed[-3000:], 120.0)

    def code(self) -> int:
        """Wait for the machine's end."""
        self.until(lambda: False)
        assert self.process is not None
        return int(self.process.returncode)

    def vanish(self) -> None:
        """Kill all of the machine at once."""
        if self.process is None or self.ended:
            return
        below = descendants(self.process.pid)
        for pid in [self.process.pid, *below]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        wait_until(lambda: not any(alive(pid) for pid in below), lambda: "every descendant is dead")

    def say(self, *words: str, direct: bool = True) -> str:
        """Run a verb, past the proxy unless told otherwise."""
        done = subprocess.run(
            [*WINDFALL, *words], env=self.environment(direct=direct), capture_output=True, text=True, timeout=120,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{words}: {done.returncode}\n{done.stderr}"
        return done.stdout

    def committed(self) -> list[int]:
        """The steps whose checkpoints the store holds, newest first; nothing if there is no run yet."""
        done = subprocess.run(
            [*WINDFALL, "checkpoints", "--json", self.url], env=self.environment(direct=True), capture_output=True,
            text=True, timeout=120, check=False,
        )  # fmt: skip
        return [int(json.loads(line)["step"]) for line in done.stdout.splitlines() if line.startswith("{")]

    def bytes_stored(self) -> bytes:
        """The newest checkpoint, brought back from the store."""
        back = self.folder / "brought back"
        self.say("get", self.url, str(back))
        (file,) = (path for path in back.rglob("*.pt"))
        return file.read_bytes()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with s3_server(tmp_path_factory.mktemp("s3")) as environment:
        yield environment


@pytest.fixture
def bucket(tmp_path: Path, server: dict[str, str]) -> Iterator[Bucket]:
    with proxy(server["AWS_ENDPOINT_URL"]) as between:
        made = Bucket(tmp_path, between, server, f"s3://lab/{os.urandom(6).hex()}")
        try:
            yield made
        finally:
            made.vanish()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, bytes]:
    """What the script prints and saves last, without Windfall's help and without a fault."""
    here = tmp_path_factory.mktemp("alone")
    (here / "train.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=here, env=plain_environment() | {"LOG": str(here / "log"), "HOLD": "0"},
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    (last,) = here.glob(f"{STEPS}-*.pt")
    return done.stdout.splitlines()[-1], last.read_bytes()


def broken(dice: random.Random, what: dict[str, tuple[str, str]]) -> dict[str, Rule]:
    """A fault, once or a few times, for each thing that is asked of the store."""
    return {
        name: Rule(
            dice.choice(FAULTS + CUT[method] * 2),
            method,
            path,
            times=dice.randint(1, 3),
            seconds=dice.uniform(0.0, 1.5),
        )
        for name, (method, path) in what.items()
    }


def moment(bucket: Bucket, dice: random.Random, name: str, goal: int) -> Callable[[], object]:
    """What has to be seen for a moment of a run to have come."""
    count = dice.randint(1, len(FIRST))
    place = r"checkpoints/" if dice.random() < 0.5 else r"shards/"
    after = dice.randint(1, 3)
    return {
        "first start": lambda: len(bucket.between.hits) >= count,
        "training": lambda: goal in bucket.steps(),
        "notice": lambda: goal in bucket.steps(),
        "commit": lambda: sum(method == "PUT" and place in path for method, path in bucket.between.seen) >= after,
        "release": lambda: "result " in bucket.printed,
    }[name]


def is_the_undisturbed_one(bucket: Bucket, undisturbed: tuple[str, bytes]) -> None:
    """The same bits printed and stored, no step missing, and the run is done."""
    results = {line for line in bucket.printed.splitlines() if line.startswith("result ")}
    assert results == {undisturbed[0]}, bucket.printed[-3000:]
    assert bucket.committed()[0] == STEPS
    assert bucket.bytes_stored() == undisturbed[1]
    assert set(bucket.steps()) == set(range(1, STEPS + 1))
    assert json.loads(bucket.say("ps", "--json", bucket.url))["state"]["outcome"] == "done"


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.trial("A2")
@pytest.mark.parametrize("seed", seeds())
def test_faults_in_every_phase_and_a_loss_change_nothing(
    bucket: Bucket, undisturbed: tuple[str, bytes], seed: int
) -> None:
    """Each thing asked of the store fails by seed, others at random; a machine is lost: the same bits, exit code 0."""
    dice = random.Random(f"s3 {seed}")
    first, later = broken(dice, FIRST), broken(dice, LATER)
    loss = MOMENTS[seed % len(MOMENTS)]
    goal = dice.randint(1, STEPS - 10)
    has_come, bucket.hold = moment(bucket, dice, loss, goal), goal if loss == "notice" else 0
    bucket.between.plan(*first.values())
    bucket.between.storm(seed, 0.04)

    bucket.start()
    bucket.until(has_come)
    if loss == "notice" and not bucket.ended:
        bucket.say("inject", bucket.url, "--notice", "4s", direct=False)
        assert bucket.code() in (0, 75, -signal.SIGKILL), bucket.printed[-3000:]
    bucket.vanish()
    bucket.hold = 0
    had = bucket.committed()
    lives = len(bucket.starts())
    print(f"seed {seed}: lost at {loss}, step {max(bucket.steps(), default=0)}, stored {had[:1]}")

    bucket.between.plan(*later.values())
    bucket.start()
    assert bucket.code() == 0, bucket.printed[-3000:]
    print(f"seed {seed}: {len(bucket.between.hits)} of {len(bucket.between.seen)} requests hit")
    is_the_undisturbed_one(bucket, undisturbed)
    assert all(start >= had[0] for start in bucket.starts()[lives:] if had), f"{had} stored, starts {bucket.starts()}"
    if loss in ("notice", "release"):
        assert [name for name, rule in first.items() if not rule.hits] == []


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.trial("A3")
@pytest.mark.parametrize("seed", seeds())
def test_a_store_that_stays_away_ends_with_75_and_costs_nothing_stored(
    bucket: Bucket, undisturbed: tuple[str, bytes], seed: int
) -> None:
    """At a moment of the seed the store goes for good: 75; it comes back, and the same line ends with the same bits."""
    dice = random.Random(f"away {seed}")
    name = MOMENTS[(seed + 2) % len(MOMENTS)]
    has_come = moment(bucket, dice, name, dice.randint(1, STEPS - 10))
    bucket.between.plan(*broken(dice, FIRST).values())
    bucket.between.storm(seed, 0.02)

    bucket.start("--patience", "3s")
    bucket.until(has_come)
    bucket.between.calm()
    bucket.between.plan(Rule(dice.choice(("reset before", "503", "404 cut")), times=0))
    over = bucket.ended
    code = bucket.code()
    print(f"seed {seed}: away at {name}, step {max(bucket.steps(), default=0)}, code {code}")
    assert code == (0 if over else 75), bucket.printed[-3000:]
    bucket.between.calm()
    had = bucket.committed()
    lives = len(bucket.starts())

    bucket.start()
    assert bucket.code() == 0, bucket.printed[-3000:]
    is_the_undisturbed_one(bucket, undisturbed)
    assert all(start >= had[0] for start in bucket.starts()[lives:] if had), f"{had} stored, starts {bucket.starts()}"
