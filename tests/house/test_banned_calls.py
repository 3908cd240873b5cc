"""Time, chance, output and the environment are handed in: whoever reads them directly is listed here with the reason."""

from __future__ import annotations

import ast
import fnmatch
from functools import cache

import pytest

from tests.house.source import PACKAGE, Use, parse, python_files, uses, where

BANNED = (
    "time.*",
    "datetime.datetime.now",
    "datetime.datetime.utcnow",
    "datetime.datetime.today",
    "datetime.date.today",
    "random.*",
    "numpy.random.*",
    "secrets.*",
    "uuid.uuid1",
    "uuid.uuid4",
    "os.urandom",
    "os.environ",
    "os.environ.*",
    "os.environb*",
    "os.getenv",
    "print",
    "input",
)
# A stream of chance that is created from a seed and handed on is what the rule asks for, and so is the type of one; writing a
# given moment as text reads no clock.
HARMLESS = frozenset({"random.Random", "numpy.random.Generator", "time.gmtime", "time.strftime"})

# (file, banned name): why this file may.  Both are patterns.
ALLOWED: dict[tuple[str, str], str] = {
    ("lab/spotdnn_simulated.py", "numpy.random.default_rng"): "a simulated cluster, by a seed",
    ("lab/proteus_runs.py", "numpy.random.default_rng"): "starts of jobs and resamples of blocks, by a seed",
    ("lab/parcae_elsewhere.py", "numpy.random.default_rng"): "resamples of blocks, by a seed",
    ("lab/deadlines*.py", "numpy.random.default_rng"): "starts of jobs and start-up times, by a seed",
    ("models/parameter_space.py", "numpy.random.default_rng"): "samples of a parameter space, by a seed",
    ("models/asp_turn_fits.py", "numpy.random.default_rng"): "resamples of blocks, by a seed",
    ("drill/elastic_drill.py", "os.environ*"): "the script runs in the user's environment, as in any drill",
    ("drill/profile_drill.py", "os.environ*"): "Ray reads its settings from the environment when it is imported",
    ("drill/profile_machine.py", "os.environ*"): "a machine's process becomes one with the job's variables",
    ("drill/busy_cores.py", "time.monotonic"): "stamps how busy the host is; nothing is decided by it",
    ("simulation/bag_odds.py", "numpy.random.default_rng"): "lifetimes of a bag's machines, by a seed",
    ("simulation/elastic_odds.py", "numpy.random.default_rng"): "machines that are lost and replaced, by a seed",
    ("simulation/fleet_odds.py", "numpy.random.*"): "histories of fleets, by a seed",
    ("runtimes/machine_limits.py", "time.*"): "measures a thread's own processor time, and makes that thread rest",
    ("apps/*.py", "numpy.random.default_rng"): "first values, draws and generated data, by a seed",
    ("agent/script_environment.py", "os.environ*"): "a script inherits the environment that its user gave",
    ("agent/supervisor.py", "time.monotonic*"): "stands before the wiring, on the standard library alone",
    ("cli/*", "print"): "the command line's output",
    ("drill/*", "print"): "the command line's output",
    ("lab/*", "print"): "the command line's output",
    (
        "agent/contained_program.py",
        "os.environ",
    ): "the program is this process again, in the environment that its user gave",
    (
        "cli/tier_process.py",
        "os.environ*",
    ): "Ray reads its token from the environment, where a secret is on no command line",
    (
        "cli/shape_process.py",
        "os.environ*",
    ): "the secret of a job's machines is taken out of what the script inherits",
    (
        "cli/ray_cluster.py",
        "os.environ*",
    ): "a job's secrets are the user's variables, and so is what another process starts with",
    ("cli/backup.py", "os.environ*"): "the environment is the interface between agent and script",
    ("cli/backup.py", "time.monotonic_ns"): "stamps the page; a script in another language has no clock to hand in",
    ("cli/backup.py", "time.sleep"): "a script waits for the runner's answer; it has no clock to hand in",
    ("cli/client.py", "os.environ*"): "says where a team's controller is; one that is started inherits the user's",
    ("cli/controller_process.py", "secrets.token_urlsafe"): "a user's token must be guessed by nobody",
    ("agent/exec_start.py", "os.environ*"): "a process becomes another one in the environment that its user gave",
    ("cli/verb_list.py", "os.environ*"): "NO_COLOR is the user's wish",
    ("cli/verb_list.py", "print"): "the command line's output",
    ("settings.py", "os.environ*"): "the home of the settings that the environment holds",
    ("linux/random_names.py", "os.urandom"): "the home of random names",
    (
        "cli/slurm_checks.py",
        "os.environ*",
    ): "the environment names the configuration file, and where Slurm's commands are",
    ("cli/provider_checks.py", "os.environ*"): "the environment names the configuration file, and holds secrets",
    ("wire/agent_start.py", "os.environ*"): "runs on a bare machine, on the standard library alone",
    ("wire/agent_start.py", "time.sleep"): "runs on a bare machine, on the standard library alone",
    ("cli/verbs.py", "os.environ*"): "the environment names the user's shell",
    ("cli/exec_line.py", "os.environ*"): "how this machine shows its provider",
    ("cli/locations.py", "os.environ*"): "the user's folder for state",
    (
        "cli/node_agent_process.py",
        "os.environ*",
    ): "the provider's environment is the interface between controller and machine",
    ("cli/item_process.py", "os.environ*"): "the provider's environment names the allocation of a machine",
    ("wiring_items.py", "os.environ*"): "the provider's environment names the allocation of a machine",
    ("cli/cost.py", "time.time"): "until when machines that still run have cost; shown, not decided by",
    ("cli/bag_verbs.py", "time.*"): "shows how a bag stands now, and waits for a request to be taken in",
    ("cli/follow.py", "time.*"): "follows a job from a terminal; nothing is decided by it",
    ("cli/job_verbs.py", "time.*"): "follows a job from a terminal; nothing is decided by it",
    ("cli/run_reference.py", "os.environ*"): "the environment says whether a team's controller is meant",
    ("cli/job_submit.py", "os.environ*"): "the values of a job's secrets are exported by its user",
    ("cli/run_verbs.py", "time.monotonic"): "follows a run from a terminal; nothing is decided by it",
    ("cli/run_verbs.py", "time.sleep"): "follows a run from a terminal; nothing is decided by it",
    ("control/notifier.py", "os.environ*"): "a user's command runs as in their own shell",
    ("linux/clock.py", "time.*"): "the home of the real clock",
    ("providers/local/machine_init.py", "os.environ*"): "a machine finds the software of its host",
    ("providers/slurm/node_start.py", "os.environ*"): "a machine inherits what Slurm and the site gave its job",
    (
        "providers/slurm/slurm_provider.py",
        "os.environ",
    ): "the site's commands are found where the user's shell finds them",
    ("providers/local/market_daemon.py", "secrets.token_hex"): "the token by which the market knows its callers",
    ("runtimes/tier_actors.py", "time.time"): "stamps a parameter server's status, for people",
    ("sdk/attachment.py", "time.monotonic_ns"): "stamps the page; the script has no clock to hand in",
    ("drill/watch.py", "os.environ*"): "the environment is the interface between drill and script",
    ("drill/watch.py", "time.monotonic"): "runs inside the script, which has no clock to hand in",
    ("drill/variables.py", "random.getstate"): "looks at the script's own global generator, and draws nothing",
    ("sdk/lightning.py", "os.environ*"): "the environment is the interface between agent and script",
    ("sdk/remote_call.py", "os.environ*"): "the environment is the interface between agent and call",
    (
        "wiring_shapes.py",
        "os.environ",
    ): "the script inherits the environment, the store's credentials too: it saves its state",
    ("elastic.py", "os.environ*"): "the environment is the interface between machine and script",
    ("runtimes/shape_*.py", "time.*"): "runs inside the script, which has no clock to hand in",
    ("runtimes/shape_samples.py", "random.seed"): "gives each sample of the script's data its stream",
    ("runtimes/shape_samples.py", "numpy.random.seed"): "gives each sample of the script's data its stream",
    ("paramserver.py", "os.environ*"): "the environment is the interface between machine and script",
    ("paramserver.py", "numpy.random.default_rng"): "a turn's own stream, by its seed",
    ("sdk/wrapped_model.py", "numpy.random.seed"): "gives each turn of the script its stream",
    ("sdk/wrapped_model.py", "random.seed"): "gives each turn of the script its stream",
    ("sdk/session.py", "os.environ*"): "the environment is the interface between agent and script",
    ("sdk/contexts.py", "time.monotonic_ns"): "stamps the page; a script has no clock to hand in",
    ("sdk/session.py", "time.monotonic_ns"): "stamps the page, with nothing between script and clock on the hot path",
    ("sdk/standstill.py", "time.*"): "runs inside the script, which has no clock to hand in",
    ("sdk/torch.py", "os.environ*"): "the environment is the interface between agent and script",
    ("sdk/torch.py", "random.[gs]et*"): "saves and restores the script's own global generator",
    ("sdk/torch.py", "random.seed"): "gives each rank and worker of the script its stream",
    ("storage/failpoints.py", "os.environ*"): "a drill names its failpoint to a process it cannot reach otherwise",
    ("storage/bucket_store.py", "os.environ*"): "the cloud's own variables say where and as whom to connect",
    ("storage/database_schema.py", "secrets.token_bytes"): "the installation's key must be guessed by nobody",
    ("wire/metadata_server.py", "time.time"): "the main program of the notice server hands its clock in here",
    ("wiring_control.py", "os.environ*"): "machines of this very host reach the stores that their controller reaches",
    ("wiring.py", "os.environ*"): "the token of a generation travels in the environment, as every secret",
}


@cache
def is_banned(name: str) -> bool:
    """Whether a name is banned where no entry allows it; few names are read all over the source."""
    return any(fnmatch.fnmatch(name, one) for one in BANNED)


def breaches(path_name: str, used: list[Use], allowed: dict[tuple[str, str], str]) -> list[Use]:
    """The uses of banned names in a file that no entry of `allowed` covers."""
    mine = [name for file, name in allowed if fnmatch.fnmatch(path_name, file)]
    banned = [use for use in used if is_banned(use.name)]
    return [
        use for use in banned if use.name not in HARMLESS and not any(fnmatch.fnmatch(use.name, name) for name in mine)
    ]


def test_no_file_reads_time_chance_or_the_environment_without_a_reason() -> None:
    """Every clock, global random number, environment variable and `print` in the source is on the list with its reason."""
    found = []
    for path in python_files(PACKAGE):
        name = path.relative_to(PACKAGE).as_posix()
        found += [f"{where(path, use.line)}: {use.name}" for use in breaches(name, uses(parse(path)), ALLOWED)]

    assert found == []


@pytest.mark.parametrize(("file", "name"), sorted(ALLOWED))
def test_every_exception_is_still_needed(file: str, name: str) -> None:
    """An exception whose file or call is gone leaves the list."""
    files = [path for path in python_files(PACKAGE) if fnmatch.fnmatch(path.relative_to(PACKAGE).as_posix(), file)]

    assert any(fnmatch.fnmatch(use.name, name) for path in files for use in uses(parse(path)))
    assert ALLOWED[file, name]


@pytest.mark.parametrize(
    "line",
    [
        "import time; time.time()",
        "from time import sleep; sleep(1)",
        "import time as t; t.monotonic()",
        "import datetime; datetime.datetime.now()",
        "from datetime import datetime; datetime.utcnow()",
        "import random; random.shuffle([])",
        "from random import choice; choice([1])",
        "print('hello')",
        "import os; os.environ['HOME']",
        "import os; os.environ.get('HOME')",
        "from os import environ; environ['HOME']",
        "import os; os.getenv('HOME')",
        "import uuid; uuid.uuid4()",
    ],
)
def test_the_ban_sees_through_the_ways_to_write_a_call(line: str) -> None:
    """However a banned thing is imported, its use is found."""
    assert breaches("core/worker.py", uses(ast.parse(line)), {}) != []


@pytest.mark.parametrize(
    "line",
    [
        "import random; stream = random.Random(7); stream.random()",
        "def f(print): print('x')",
        "clock.now()",
    ],
)
def test_the_ban_leaves_what_is_handed_in_alone(line: str) -> None:
    """A seeded stream, a clock that is a parameter and a local name are not banned."""
    assert breaches("core/worker.py", uses(ast.parse(line)), {}) == []


def test_programs_of_ours_are_started_from_one_place() -> None:
    """`wire/python_programs.py` alone starts Python, with `-P`: elsewhere it would import from the folder a user stands in."""
    found = []
    for path in python_files(PACKAGE):
        if path.relative_to(PACKAGE).as_posix() != "wire/python_programs.py":
            found += [where(path, use.line) for use in uses(parse(path)) if use.name == "sys.executable"]

    assert found == []
