"""What leaves the user's folder with a job, and what the plan says of it before anything is bought."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.jobs.conftest import User
from windfall.storage import bundle

KEY = "-----BEGIN RSA PRIVATE KEY-----\n" + "MIIEpAIBAAKCAQEAxyz0" * 8 + "\n-----END RSA PRIVATE KEY-----\n"
AWS = "k = 'AKIA" + "Q" * 16 + "'"
CALLS = "import windfall as wf\n\nwf.last()\n"


def _put(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def _job(user: User, files: dict[str, str]) -> Path:
    return _put(user.home / "job", {"job.yaml": "run: python train.py\nworkdir: .\n", "train.py": CALLS, **files})


@pytest.mark.trial("C1")
@pytest.mark.parametrize("words", [("run", "-y", "-d", "job.yaml"), ("plan", "job.yaml")])
@pytest.mark.parametrize(
    ("name", "text"),
    [(".env", "A=1"), (".ssh/id_rsa", "x"), ("deep/server.pem", KEY), ("notes.txt", KEY), ("aws.py", AWS)],
)
def test_what_looks_like_a_key_is_refused_by_name(name: str, text: str, words: tuple[str, ...], user: User) -> None:
    """No job starts with a key in its code: the file is named, and nothing is stored or bought."""
    folder = _job(user, {name: text})

    told = user.say(*words, cwd=folder)

    assert told.returncode == 2, told.stdout + told.stderr
    assert name in told.stderr
    assert not list(user.state.glob("runs/*"))


@pytest.mark.trial("C1")
def test_exec_refuses_a_key_in_the_bundle_too(user: User) -> None:
    """`exec --bundle` is the same door: it ends before the command runs; without --bundle nothing leaves."""
    folder = _put(user.home / "job", {".env": "A=1", "train.sh": "echo ran"})

    told = user.say("exec", "--bundle", str(user.home / "store"), "--", "sh", "train.sh", cwd=folder)

    assert told.returncode == 2, told.stderr
    assert ".env" in told.stderr
    assert "ran" not in told.stdout
    assert user.say("exec", str(user.home / "other"), "--", "sh", "train.sh", cwd=folder).returncode == 0


@pytest.mark.trial("C1")
@pytest.mark.parametrize("versioned", [False, True])
def test_ignore_files_decide_what_stays(versioned: bool, tmp_path: Path) -> None:
    """`.gitignore` counts outside git too, `.windfallignore` everywhere and at any depth; a line with ! lets a key travel."""
    folder = _put(
        tmp_path,
        {
            ".gitignore": "*.log\n/data/\n",
            ".windfallignore": "*.bin\n!ca.pem\nsecret/\n",
            "sub/.windfallignore": "!keep.bin\nlocal.py\n",
            "train.py": CALLS, "a.log": "", "data/x.py": "", "b.bin": "", "ca.pem": KEY, "secret/.env": "", "local.py": "",
            "sub/keep.bin": "", "sub/other.bin": "", "sub/local.py": "", "sub/data/y.py": "",
        },
    )  # fmt: skip
    if versioned:
        subprocess.run(("git", "init", "-q", str(folder)), check=True)

    kept = bundle.pack_for_others(str(folder)).paths

    code = {path for path in kept if not path.rpartition("/")[2].startswith(".")}
    assert code == {"train.py", "ca.pem", "local.py", "sub/keep.bin", "sub/data/y.py"}


@pytest.mark.trial("C1")
@pytest.mark.parametrize("name", [".env.example", "id_rsa.pub", "env.py", "ca-bundle.pem", "test_keys.py"])
def test_what_only_resembles_a_key_travels(name: str, tmp_path: Path) -> None:
    """Examples, public keys and certificates, and code that speaks of keys, are no keys."""
    text = "-----BEGIN CERTIFICATE-----\nMIID" if name.endswith("pem") else "HEAD = '-----BEGIN PRIVATE KEY-----'\n"

    assert bundle.pack_for_others(str(_put(tmp_path, {name: text}))).paths == (name,)


@pytest.mark.real
@pytest.mark.trial("C1")
@pytest.mark.trial("C2")
def test_runs_of_windfall_stay_and_the_plan_tells_the_code(user: User) -> None:
    """After `exec` into a folder beside the code, the plan counts the code alone; `workdir` counts from the job file."""
    script = "import windfall as wf\n\nwf.last()\nwf.step()\nopen('s', 'w').write('x' * 9999)\nwf.backup('s')\n"
    folder = _job(user, {"train.py": script, "lib/model.py": "W = 1\n", ".windfallignore": "/s\n"})
    first = user.say("exec", "runs/line", "--", "python3", "-c", "print(1)", cwd=folder)
    assert first.returncode == 0, first.stderr

    told = user.say("plan", "job/job.yaml", "--json", cwd=user.home)

    assert told.returncode == 0, told.stderr
    code = json.loads(told.stdout).get("code") or {}
    files = ("job.yaml", "train.py", "lib/model.py", ".windfallignore")
    size = sum((folder / name).stat().st_size for name in files)
    assert (code.get("folder"), code.get("files"), code.get("size_bytes")) == (str(folder), 4, size)
    assert len(code["digest"]) == 64


@pytest.mark.real
@pytest.mark.trial("C2")
@pytest.mark.trial("B4")
@pytest.mark.trial("F5")
def test_the_plan_warns_of_code_that_cannot_work(user: User) -> None:
    """A script that is not in the code, and code that never calls Windfall, are warned of; `run -d` prints the id alone."""
    folder = _job(user, {"train.py": "print(1)\n", "job.yaml": "run: python3 train.py\nworkdir: .\n"})
    _put(folder, {"lost.yaml": "run: python3 trainer.py\nworkdir: .\n"})

    sdk_inactive, lost = (
        json.loads(user.say("plan", name, "--json", cwd=folder).stdout) for name in ("job.yaml", "lost.yaml")
    )
    started = user.say("run", "-y", "-d", "job.yaml", cwd=folder)

    assert any("Windfall" in said for said in sdk_inactive["warnings"]), sdk_inactive["warnings"]
    assert any("trainer.py" in said for said in lost["warnings"]), lost["warnings"]
    assert started.returncode == 0, started.stderr
    assert started.stdout.strip().startswith("job-"), started.stdout
    assert len(started.stdout.split()) == 1, "J=$(windfall run -y -d job.yaml) works"
    assert "price" in started.stderr, "the plan is there for people"


@pytest.mark.trial("C2")
def test_a_bundle_that_is_too_large_is_refused_before_the_plan(user: User) -> None:
    """600 MB in the folder of the code end `plan` as they would end `run`."""
    folder = _job(user, {})
    with open(folder / "weights.bin", "wb") as file:
        file.truncate(600_000_000)

    told = user.say("plan", "job.yaml", cwd=folder)

    assert told.returncode == 2, told.stdout
    assert "weights.bin" in told.stderr
