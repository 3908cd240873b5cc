"""Nothing of the folder in which a user stands is ever imported by a process of ours; the script is started as without us."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.live import plain_environment

WINDFALL = str(Path(sys.executable).with_name("windfall"))
QUICK = ("--lease", "1s", "--grace", "2s", "--provider", "local")
FOREIGN = (
    "import os\n"
    "descriptor = os.open({mark!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)\n"
    "os.write(descriptor, b'{name} ')\n"
    "raise ImportError('{name} is not ours to import')\n"
)
OTHERS = ("windfall", "obstore", "xxhash", "rich", "cyclopts", "msgspec", "yaml", "httpx", "pydantic", "fastapi", "uvicorn",
          "sqlalchemy", "starlette", "anyio", "sitecustomize_of_a_user")  # fmt: skip
_BEFORE_ANY_CODE = frozenset({"os", "sys", "site", "builtins"})


def foreign(folder: Path, names: tuple[str, ...] | None = None) -> Path:
    """Fill a folder with a module for every name that the standard library and our dependencies have; return their mark."""
    mark = folder.parent / "imported"
    folder.mkdir(parents=True, exist_ok=True)
    for name in names or (*sorted(sys.stdlib_module_names - _BEFORE_ANY_CODE), *OTHERS):
        (folder / f"{name}.py").write_text(FOREIGN.format(name=name, mark=str(mark)))
    return mark


def ran(
    folder: Path, *words: str, environment: dict[str, str] | None = None, limit_s: float = 60.0
) -> subprocess.CompletedProcess[str]:
    """Run a line in a folder, as a user who stands there does."""
    home = {"HOME": str(folder.parent), "XDG_STATE_HOME": str(folder.parent / "state")}
    return subprocess.run(
        words,
        cwd=folder,
        env=plain_environment() | home | (environment or {}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )


def _imported(mark: Path) -> str:
    return mark.read_text() if mark.exists() else ""


@pytest.mark.trial("G8")
def test_exec_imports_nothing_of_the_folder_it_is_started_in(tmp_path: Path) -> None:
    """With a module of every name of the standard library in the folder, the run goes its way, and none was imported."""
    mark = foreign(tmp_path / "code")

    done = ran(tmp_path / "code", WINDFALL, "exec", *QUICK, str(tmp_path / "run"), "--", "sh", "-c", "echo it ran")

    assert (done.returncode, _imported(mark)) == (0, ""), done.stderr
    assert "it ran" in done.stdout


@pytest.mark.trial("G8")
@pytest.mark.parametrize("variable", [{}, {"PYTHONSAFEPATH": "1"}], ids=["plain", "safe"])
def test_a_script_finds_its_own_folder_first(tmp_path: Path, variable: dict[str, str]) -> None:
    """A script that has a `queue.py` beside it imports that one; its flags and paths are those it has without us."""
    code = tmp_path / "code"
    code.mkdir()
    (code / "queue.py").write_text("OURS = 'the one beside the script'\n")
    (code / "train.py").write_text(
        "import json, os, sys\n"
        "try:\n    import queue\n    found = getattr(queue, 'OURS', 'the library')\n"
        "except ImportError as error:\n    found = str(error)\n"
        "names = sorted(name for name in os.environ if name.startswith('PYTHON') and name != 'PYTHONUNBUFFERED')\n"
        "print(json.dumps([found, sys.path, sys.flags.safe_path, {name: os.environ[name] for name in names}]))\n"
    )
    alone = ran(code, sys.executable, "train.py", environment=variable)

    done = ran(
        code, WINDFALL, "exec", *QUICK, str(tmp_path / "run"), "--", sys.executable, "train.py", environment=variable
    )

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads(alone.stdout)


@pytest.mark.trial("G8")
@pytest.mark.real
def test_a_bought_machine_and_its_controller_import_nothing_of_the_code_they_carry(tmp_path: Path) -> None:
    """Controller, market, keeper, agent: none imports of a folder that has a module of every name, on `PYTHONPATH` too."""
    code, state = tmp_path / "code", tmp_path / "s"
    mark = foreign(code)
    (code / "job.yaml").write_text(
        'name: foreign\nworkdir: .\nenvs: {PYTHONPATH: .}\nrun: echo "it ran with $PYTHONPATH"\n'
    )
    (state / "windfall" / "market").mkdir(parents=True, mode=0o700)
    (state / "windfall" / "market" / "market.yaml").write_text("allocation_delay: 0\nidle_exit: 2\n")
    home = {"XDG_STATE_HOME": str(state)}

    done = ran(code, WINDFALL, "run", "-y", "job.yaml", environment=home)
    controller = json.loads((state / "windfall" / "controller.json").read_text())["pid"]
    os.kill(controller, 15)

    assert (done.returncode, _imported(mark)) == (0, ""), done.stdout + done.stderr
    assert "it ran with .\n" in done.stdout


@pytest.mark.trial("G8")
def test_the_checks_of_a_machine_import_nothing_of_the_folder(tmp_path: Path) -> None:
    """`doctor` looks at the machine in processes of its own, and these import nothing of the folder either."""
    mark = foreign(tmp_path / "code")

    done = ran(tmp_path / "code", WINDFALL, "doctor", "--provider", "local")

    assert (done.returncode, _imported(mark)) == (0, ""), done.stdout + done.stderr
