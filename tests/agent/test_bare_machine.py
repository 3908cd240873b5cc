"""The node agent arrives on a machine that has sh and python3 and nothing else, by the script that a provider hands it."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from windfall.market import AgentArchive, BootImage, BootSecret, BootSpec
from windfall.structs import replace
from windfall.wire.agent_archive import write_archive
from windfall.wire.agent_start import SECRETS
from windfall.wire.start_script import NODE_AGENT, USER_DATA_BYTES_MAX, start_script

SECRET = "one-time-credential-of-this-machine"


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is installed here, packed as a user packs it."""
    folder = tmp_path_factory.mktemp("archive")
    pack = [sys.executable, "-P", "-m", "windfall.wire.agent_archive", str(folder / "agent.zip")]
    packed = subprocess.run(pack, capture_output=True, text=True, timeout=100, check=True)
    assert packed.stdout.strip() == hashlib.sha256((folder / "agent.zip").read_bytes()).hexdigest()
    return folder / "agent.zip"


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """An empty machine: a folder, and on PATH only sh and the plain Python that this environment was made from."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sh").symlink_to("/bin/sh")
    (tmp_path / "bin" / "python3").symlink_to(Path(sys.executable).resolve())
    return tmp_path


def spec(archive: Path, *argv: str) -> BootSpec:
    """A machine that fetches the archive."""
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    return BootSpec(argv or NODE_AGENT, agent=AgentArchive(archive.as_uri(), digest))


def start(machine: Path, script: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Start a machine: nothing of this process's environment reaches it."""
    env = {"PATH": str(machine / "bin"), "HOME": str(machine), "WINDFALL_MACHINE_FOLDER": str(machine / "w"), **more}
    return subprocess.run(
        [str(machine / "bin" / "sh"), "-c", script], env=env, cwd=machine, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip


@pytest.mark.real
def test_the_agent_arrives_on_a_bare_machine(archive: Path, machine: Path) -> None:
    """From sh and python3 alone the node agent runs, out of the archive; a second start uses what is there."""
    bare = start(machine, "python3 -c 'import msgspec'")
    assert "No module named 'msgspec'" in bare.stderr

    where = spec(archive, "python3", "-P", "-c", "import windfall.wiring_node_agent as w; print(w.__file__)")
    assert start(machine, start_script(where)).stdout.startswith(str(machine / "w" / "agent-"))
    archive_gone = replace(spec(archive), agent=replace(spec(archive).agent, url="file:///nowhere"))  # type: ignore[type-var]
    again = start(machine, start_script(archive_gone))
    assert (again.returncode, again.stdout) == (2, "")
    assert again.stderr == "windfall: WINDFALL_RUN_URL is not set: only a controller can start the node agent\n"


@pytest.mark.real
def test_variables_and_secrets_reach_the_agent_and_no_command_line(archive: Path, machine: Path) -> None:
    """Open variables are in the script, secrets come from the private file, which is gone once they are read."""
    show = (
        "import os; print(os.environ['GREETING'], os.environ['WINDFALL_CREDENTIAL']);"
        "print([open('/proc/%d/cmdline' % pid, 'rb').read() for pid in (os.getpid(), os.getppid())])"
    )
    shown = replace(
        spec(archive, "python3", "-c", show),
        env=(("GREETING", 'it\'s $HOME "here"'),),
        secrets=(BootSecret("WINDFALL_CREDENTIAL", SECRET),),
        credential="WINDFALL_CREDENTIAL",
    )
    script = start_script(shown)
    assert SECRET not in script + repr(shown)
    (machine / "w").mkdir()
    private = machine / "w" / SECRETS
    private.write_text(f'{{"WINDFALL_CREDENTIAL": "{SECRET}"}}')

    private.chmod(0o644)
    assert "can be read by other users" in start(machine, script).stderr
    private.chmod(0o600)
    said = start(machine, script).stdout.splitlines()

    assert said[0] == f'it\'s $HOME "here" {SECRET}'
    assert SECRET not in said[1]
    assert not private.exists()
    embedded = start_script(shown, embed=frozenset({"WINDFALL_CREDENTIAL"}))
    assert start(machine, embedded).stdout.splitlines()[0].endswith(SECRET)


@pytest.mark.real
def test_a_wrong_archive_is_never_run(archive: Path, machine: Path, tmp_path: Path) -> None:
    """Another digest, or an archive for another Python, ends with a sentence, and nothing of it is kept."""
    right = spec(archive)
    assert right.agent is not None
    wrong = replace(right, agent=replace(right.agent, sha256="0" * 64))
    assert "has the SHA-256" in start(machine, start_script(wrong)).stderr
    other = tmp_path / "other.zip"
    with zipfile.ZipFile(other, "w") as made:
        made.writestr("windfall-agent.json", '{"python": "3.99", "machine": "sparc"}')

    ended = start(machine, start_script(spec(other)))

    assert "this agent is for python 3.99, and the machine has" in ended.stderr
    assert ended.returncode == 1
    assert not [path for path in (machine / "w").iterdir() if path.is_dir()]


def test_a_machine_without_python_says_so(machine: Path) -> None:
    """A sentence and exit code 69, not a shell's message."""
    (machine / "bin" / "python3").unlink()

    ended = start(machine, start_script(BootSpec(NODE_AGENT)))

    assert (ended.returncode, ended.stderr) == (69, "windfall: this machine has no python3\n")


def test_a_container_is_run_with_names_alone(machine: Path) -> None:
    """The engine gets the names of the variables; the values are in its environment, and in no command line."""
    engine = machine / "bin" / "podman"
    engine.write_text('#!/bin/sh\nfor word in "$@"; do echo "$word"; done\necho "{$RUN}"\n')
    engine.chmod(0o755)
    boxed = BootSpec(
        NODE_AGENT,
        (("RUN", "s3://lab/it's"),),
        (BootSecret("KEY", SECRET),),
        "KEY",
        BootImage("lab/train:3", container=True),
    )

    words = start(machine, start_script(boxed), KEY=SECRET).stdout.splitlines()

    assert words == [
        *("run", "--rm", "--network=host", "--env", "RUN", "--env", "KEY", "lab/train:3", *NODE_AGENT),
        "{s3://lab/it's}",
    ]  # fmt: skip


def test_the_script_fits_into_user_data_and_the_archive_is_reproducible(archive: Path, tmp_path: Path) -> None:
    """Half of the smallest cloud's user data is left for the job; the same packages give the same bytes."""
    assert len(start_script(spec(archive)).encode()) < USER_DATA_BYTES_MAX / 2
    assert write_archive(tmp_path / "again.zip") == hashlib.sha256(archive.read_bytes()).hexdigest()
