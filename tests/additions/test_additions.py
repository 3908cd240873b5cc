"""What CONTRIBUTING says of adding a verb, a notice source, a provider or a saving policy, done once with a toy.

Each toy is added to a copy of the package, only in the files that its list names, and then used as a user would.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.house.source import PACKAGE, ROOT
from tests.jobs.conftest import User
from tests.support.live import TRAINER, plain_environment

FILES_MAX = 4
"""How many source files an addition may touch."""


LAST = ')\n"""Every policy of this package'
"""The end of the list of policies."""
CAUTIOUS = """    PolicyEntry(
        PolicyKind.SAVING,
        "cautious",
        "cautious",
        "windfall.policies.checkpointing.rules:cautious_interval_s",
        "twice as often as Young's rule",
        KernelCode.INJECTED,
    ),
"""
ONE_MORE = '''
    """The fleet policy `one-more`: a machine more than the runtime needs."""

    from __future__ import annotations

    from windfall.events import ComparedValue, Decision
    from windfall.fleet import Slot
    from windfall.policies.acquisition.fleet_policy import FleetEstimates, FleetTarget, FleetView


    def one_more(view: FleetView, estimates: FleetEstimates) -> FleetTarget:
        """Return the runtime's needs and a spare."""
        del estimates
        if any(slot.id == "spare" for slot in view.needs):
            return FleetTarget(view.needs)
        rationale = (ComparedValue("machines needed", len(view.needs), ""),)
        decision = Decision("one-more", 1, "one machine more than the runtime needs", rationale)
        return FleetTarget((*view.needs, Slot("spare", view.needs[0].role)), decision=decision)
'''
TWINS = '''
    """The rules of the runtime `twins`: a leader and its understudies, of which whoever is first holds the run."""

    from __future__ import annotations

    from collections.abc import Mapping
    from typing import Any

    from windfall.fleet import Slot
    from windfall.jobs import Job
    from windfall.policies.layout import checkpoint_rules
    from windfall.policies.layout.membership import ALONE
    from windfall.policies.layout.runtime_list import RuntimeRules


    def slots(job: Job) -> tuple[Slot, ...]:
        """Return a leader and its understudies."""
        count = job.runtime.settings.get("understudies", 1)
        return (Slot("leader-0", "leader"), *(Slot(f"understudy-{number}", "understudy") for number in range(count)))


    def check(settings: Mapping[str, Any]) -> str | None:
        """Return what is wrong with the settings."""
        if set(settings) - {"understudies"} or not isinstance(settings.get("understudies", 1), int):
            return "has one setting, understudies: a whole number such as 1"
        return None


    RULES = RuntimeRules(
        "twins",
        "a leader and its understudies",
        ("leader", "understudy"),
        slots,
        lambda job: ALONE,
        live=checkpoint_rules.RULES.live,
        program=checkpoint_rules.RULES.program,
        check=check,
    )
'''
TOY_PROVIDER = '''
"""A toy market with one kind of machine, which sells none; its client wants a key."""

from __future__ import annotations

import os
from pathlib import Path

from windfall.market import BlockSettings, Capabilities, Offer, Quota
from windfall.ports import Clock, Provider
from windfall.providers.provider_settings import ProviderSettings, read_secret
from windfall.terms import Reliability, Seconds


class Toy:
    """See the module."""

    name = "toy"

    def __init__(self, clock: Clock, settings: ProviderSettings) -> None:
        self._clock, self._settings = clock, settings

    def capabilities(self) -> Capabilities:
        """Tokens are forgotten, and prices float."""
        return Capabilities(False, False, False, True, "local", Seconds(60.0), token_memory_s=Seconds(60.0), price_floats=True)

    def offers(self, block: BlockSettings = ()) -> tuple[Offer, ...]:
        """Return the only offer, to whom the key opens the shelf; a job's settings change no price."""
        if self._settings.credentials is not None:
            assert read_secret(self._settings.credentials, os.environ)
        now, place = self._clock.wall_time(), self._settings.region or "shelf"
        return (Offer("toy", "brick", place, 0.5, 2.0, Reliability.TRANSIENT, Seconds(30.0), now, 4.0, 8.0),)

    def quota(self, owner: str, block: BlockSettings = ()) -> tuple[Quota, ...]:
        """There is none."""
        return ()


def open_provider(installation: Path, clock: Clock, *, start: bool, settings: ProviderSettings) -> Provider:
    """Open it."""
    return Toy(clock, settings)
'''


@dataclass
class Copy:
    """A copy of the package, and the files of it that an addition touched."""

    folder: Path
    new: set[str]
    changed: set[str]

    def write(self, name: str, text: str) -> None:
        """Add a file."""
        path = self.folder / "windfall" / name
        assert not path.exists()
        path.write_text(textwrap.dedent(text))
        self.new.add(name)

    def insert(self, name: str, before: str, text: str) -> None:
        """Insert text before the only place where another text stands."""
        path = self.folder / "windfall" / name
        whole = path.read_text()
        assert whole.count(before) == 1, f"{name}: {before!r}"
        path.write_text(whole.replace(before, text + before))
        self.changed.add(name)

    def windfall(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run the copy's command line."""
        ours = {"PYTHONPATH": str(self.folder), "XDG_STATE_HOME": str(self.folder / "state")}
        return subprocess.run(
            [sys.executable, "-m", "windfall.cli.main", *words],
            cwd=self.folder,
            env=plain_environment() | ours | environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def user(self, job: str) -> User:
        """Return a user of the copy, with a job file and a tiny script."""
        (self.folder / "home").mkdir()
        (self.folder / "work").mkdir()
        (self.folder / "work" / "train.py").write_text(TRAINER)
        head = f"run: |\n  {shlex.quote(sys.executable)} train.py\nworkdir: work\nresources: {{infra: local}}\n"
        (self.folder / "job.yaml").write_text(f"{head}envs: {{STEPS: 60, STEP_S: 0.05, EVERY: 20}}\n{job}")
        return User(self.folder / "home", {"PYTHONPATH": str(self.folder)})

    def is_what_the_list_says(self, title: str) -> None:
        """The section of CONTRIBUTING names every file that was changed, and the folder of each new one."""
        section = re.search(
            rf"^## {title}\n(.*?)(?=^## |\Z)", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE | re.DOTALL
        )
        assert section is not None, title
        named = set(re.findall(r"`([a-z_/]+(?:\.py|/))`", section[1]))
        assert self.changed - named == set()
        assert {f"{Path(name).parent}/" for name in self.new} - named == set()
        assert len(self.new | self.changed) <= FILES_MAX


def run_job(user: User, folder: Path) -> tuple[list[str], int, str]:
    """Run the job to its end; return its slots, how many machines it had, and the explanation of its decisions."""
    ran = user.say("run", "job.yaml", "--yes", cwd=folder)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    name = json.loads(user.say("ps", "--json", cwd=folder).stdout)["job_id"]
    table = user.say("ps", name, cwd=folder).stdout.partition("\nslot ")[2]
    slots = [line.split()[0] for line in table.splitlines()[1:] if line.strip()]
    machines = re.search(r"done: (\d+) machines", user.say("cost", name, cwd=folder).stdout)
    assert machines is not None
    return slots, int(machines[1]), user.say("explain", name, cwd=folder).stdout


@pytest.fixture
def user_of() -> Iterator[list[User]]:
    """Users whose processes end with the test."""
    users: list[User] = []
    yield users
    for user in users:
        user.close()


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    """A fresh copy."""
    shutil.copytree(PACKAGE, tmp_path / "windfall", ignore=shutil.ignore_patterns("__pycache__"))
    return Copy(tmp_path, set(), set())


def test_a_verb(copy: Copy) -> None:
    """A function in a file, and a line in the list of verbs."""
    copy.write(
        "cli/greet.py",
        '''
        """`windfall greet`: greet a user."""

        from __future__ import annotations


        def greet(name: str, /) -> int:
            """Greet a user.

            Args:
                name: whom to greet.
            """
            print(f"hello {name}")
            return 0
        ''',
    )
    copy.insert(
        "cli/verb_list.py",
        '        Verb("cli.verbs:completion"',
        '        Verb("cli.greet:greet", "greet NAME", "Greet a user."),\n',
    )
    assert copy.windfall("greet", "ada").stdout == "hello ada\n"
    assert "  greet " in copy.windfall("--help").stdout
    assert "whom to greet" in copy.windfall("greet", "--help").stdout
    assert "NAME is missing: `windfall greet NAME`" in copy.windfall("greet").stderr
    copy.is_what_the_list_says("To add a verb")


def test_a_notice_source(copy: Copy) -> None:
    """A file behind `ports.NoticeSource`, an entry in the list, and what to expect: a run is saved by its notice."""
    copy.write(
        "notices/toy.py",
        '''
        """Notices of a toy: each machine is told of its end half a second after it starts."""

        from __future__ import annotations

        from collections.abc import Callable

        from windfall.ports import Clock
        from windfall.terms import Instant, Notice, NoticeLevel, Seconds


        class ToyNotices:
            """See the module."""

            name = "toy"

            def __init__(self, clock: Clock) -> None:
                self._clock = clock

            def watch(self, deliver: Callable[[Notice], None], stopped: Callable[[], bool]) -> None:
                """Deliver the only notice."""
                self._clock.sleep(Seconds(0.5))
                deliver(Notice(NoticeLevel.ANNOUNCED, self.name, "the end", Instant(self._clock.now() + 4.0)))

            def acknowledge(self, notice: Notice) -> None:
                """Nobody waits for it."""
        ''',
    )
    copy.insert(
        "notices/notice_sources.py",
        '    NoticeProvider(\n        "kubernetes"',
        '    NoticeProvider("toy", _variable("TOY"), "a toy\'s own", "notices.toy:ToyNotices"),\n',
    )
    copy.insert("models/preemption_rates.py", '    ("local", ', '    ("toy", PreemptionPattern(4.0, 2.5, 2.5)),\n')
    (copy.folder / "train.py").write_text(TRAINER)
    line = ["exec", "run", "--", sys.executable, "train.py"]
    ended = copy.windfall(*line, TOY="1", STEPS="400")
    assert ended.returncode == 75, ended.stderr
    assert "emergency save" in copy.windfall("explain", "run").stdout
    assert "provider toy: a toy's own" in copy.windfall("doctor", TOY="1").stdout
    copy.is_what_the_list_says("To add a notice source")


def test_a_provider(copy: Copy) -> None:
    """A file behind `ports.Provider`, and an entry in the list: job files, configuration, `doctor` and `plan` know it."""
    copy.write("providers/toy.py", TOY_PROVIDER)
    copy.insert(
        "providers/provider_list.py",
        'ProviderEntry(\n        "local"',
        """ProviderEntry(
        "toy", "providers.toy:open_provider", "a shelf of bricks", settings=("credentials", "region", "limits"),
        block=(BlockKey("colour", BlockKind.TEXT, "Of the bricks.", "red", choices=("red", "blue")),),
    ),
    """,
    )
    home = {"XDG_CONFIG_HOME": str(copy.folder / "config")}
    config = copy.folder / "config" / "windfall" / "config.yaml"
    config.parent.mkdir(parents=True)
    job = copy.folder / "job.yaml"

    def planned(text: str, settings: str, **more: str) -> subprocess.CompletedProcess[str]:
        job.write_text(f"run: python train.py\nwork: {{steps: 10}}\n{text}")
        config.write_text(settings)
        return copy.windfall("plan", "job.yaml", **home, **more)

    settings = "providers:\n  toy: {region: attic, credentials: {env: TOY_KEY}, limits: {machines: 3}}\n"
    infra = "resources: {infra: toy}\n"
    told = planned(infra + "toy: {colour: red}\n", settings, TOY_KEY="hush")
    assert told.returncode == 0, told.stderr
    assert "brick in attic, spot of toy" in told.stdout
    assert (
        "the environment variable TOY_KEY is not set"
        in planned(infra, settings).stdout + planned(infra, settings).stderr
    )
    assert "did you mean toy?" in planned("resources: {infra: tony}\n", settings).stderr
    assert "job.yaml:4:7: toy.color is an unknown key; did you mean colour?" in (
        planned(infra + "toy: {color: red}\n", settings).stderr
    )
    assert "toy.colour must be red or blue, not 'rot'" in planned(infra + "toy: {colour: rot}\n", settings).stderr
    assert "config.yaml:2:9: providers.toy.regoin is an unknown key; did you mean region?" in (
        planned(infra, settings.replace("region", "regoin")).stderr
    )
    config.write_text(settings)
    doctor = " ".join(copy.windfall("doctor", **home, TOY_KEY="hush").stdout.split())
    assert "a shelf of bricks; credentials from env TOY_KEY, region attic, at most 3 machines" in doctor
    assert "hush" not in doctor
    assert '"colour"' in copy.windfall("schema", "job").stdout
    copy.is_what_the_list_says("To add a provider")


@pytest.mark.slow
def test_a_saving_policy(copy: Copy) -> None:
    """A scalar rule, and its name: the command line, the job file and the simulation then take it."""
    copy.insert(
        "policies/checkpointing/rules.py",
        "def young_interval_s(",
        'def cautious_interval_s(stall_s: float, mttp_s: float) -> float:\n    """Return half of Young\'s."""\n'
        "    return 0.5 * math.sqrt(2.0 * stall_s * mttp_s)\n\n\n",
    )
    copy.insert("policies/policy_registry.py", LAST, CAUTIOUS)
    (copy.folder / "train.py").write_text(TRAINER)
    ran = copy.windfall("exec", "--policy", "cautious", "--mttp", "2s", "run", "--", sys.executable, "train.py")
    assert ran.returncode == 0, ran.stderr
    explained = copy.windfall("explain", "run").stdout
    assert "(cautious, version" in explained
    (copy.folder / "job.yaml").write_text(
        "run: python train.py\nresources: {infra: local}\nwork: {steps: 3600}\ncheckpoint: {insure: cautious}\n"
    )
    numbers = ("--price", "1", "--step", "1s", "--save", "1s", "--upload", "1s", "--mttp", "1h")
    simulated = copy.windfall("simulate", "job.yaml", "--policy", "cautious,young-daly", "--trials", "50", *numbers)
    assert simulated.returncode == 0, simulated.stderr
    assert "cautious" in simulated.stdout
    assert all("cautious" in copy.windfall(verb, "--help").stdout for verb in ("exec", "simulate"))
    assert '"cautious"' in copy.windfall("completion", "bash").stdout
    copy.is_what_the_list_says("To add a saving policy")


@pytest.mark.slow
def test_a_fleet_policy(copy: Copy, user_of: list[User]) -> None:
    """A function, and its name: a plan shows it, and a real job then has one machine more than its runtime needs."""
    copy.write("policies/acquisition/one_more.py", ONE_MORE)
    place = "windfall.policies.acquisition.one_more:one_more"
    entry = f'    PolicyEntry(PolicyKind.FLEET, "one-more", "one-more", "{place}", "a spare"),\n'
    copy.insert("policies/policy_registry.py", LAST, entry)
    user = copy.user("fleet: one-more\n")
    user_of.append(user)
    assert "one-more: a spare" in user.say("plan", "job.yaml", cwd=copy.folder).stdout
    slots, machines, explained = run_job(user, copy.folder)
    assert (slots, machines) == (["node-0", "spare"], 2)
    assert "one machine more than the runtime needs" in explained
    misspelt = user.say("plan", "job.yaml", "--set", "fleet=one-mor", cwd=copy.folder)
    assert (misspelt.returncode, "did you mean one-more?" in misspelt.stderr) == (2, True)
    copy.is_what_the_list_says("To add a fleet policy")


@pytest.mark.slow
def test_a_runtime(copy: Copy, user_of: list[User]) -> None:
    """Rules, and their name: a job file names it with its settings, and a real job has a machine for each of its roles."""
    copy.write("policies/layout/twins_rules.py", TWINS)
    entry = '    PolicyEntry(PolicyKind.RUNTIME, "twins", "twins", "windfall.policies.layout.twins_rules:RULES", "twins"),\n'
    copy.insert("policies/policy_registry.py", LAST, entry)
    user = copy.user("runtime: {twins: {understudies: 1}}\n")
    user_of.append(user)
    wrong = user.say("plan", "job.yaml", "--set", "runtime={twins: {understudys: 1}}", cwd=copy.folder)
    assert (wrong.returncode, "runtime.twins has one setting, understudies" in wrong.stderr) == (2, True)
    planned = user.say("plan", "job.yaml", cwd=copy.folder).stdout
    assert "twins: twins; it starts with 1 leader, 1 understudy" in planned
    slots, machines, _ = run_job(user, copy.folder)
    assert (slots, machines) == (["leader-0", "understudy-0"], 2)
    copy.is_what_the_list_says("To add a runtime")
