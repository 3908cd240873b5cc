"""`windfall drill` itself: what it says of scripts that cannot be drilled, of ranks, of costs; and what it leaves behind."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.drill.conftest import Drill, script
from tests.support.processes import alive
from tests.support.shop import shop
from windfall.cli.main import main
from windfall.drill.drill_report import folded
from windfall.linux import processes

PLAIN = [sys.executable, "train.py"]


@pytest.mark.real
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("print('nothing of windfall here')", "never called Windfall"),
        ("import windfall as wf\nwf.last()", "completed no step"),
        ("import windfall as wf\nfor _ in range(5):\n    wf.step()", "after 5 steps, before step 11: use --steps 2"),
        ("import windfall as wf\nwf.step()\nraise ValueError('no data')", "exit code 1 after 1 steps"),
        ("import windfall as wf\nfor _ in range(500):\n    wf.step()", "saved nothing"),
        (
            "import windfall as wf\nfor _ in range(500):\n    if wf.step():\n        wf.backup('nowhere')",
            "the checkpoint that the script handed over does not exist",
        ),
        (
            (
                "import windfall as wf\nassert not wf.last(), 'no restore yet'\nfor i in range(500):\n    if wf.step():\n"
                "        open('c', 'w').write(str(i))\n        wf.backup('c')"
            ),
            "from its own checkpoint of step 11: AssertionError: no restore yet",
        ),
    ],
)
def test_a_script_that_cannot_be_drilled_is_told_why(text: str, words: str, drill: Drill) -> None:
    """A script that never calls, ends early, crashes, saves nothing or cannot start again: one sentence, exit code 1."""
    told = drill(text, PLAIN)

    assert told["code"] == 1
    assert words in told["error"]
    assert "Traceback" not in told["error"]


@pytest.mark.real
def test_a_script_that_hangs_is_ended_with_its_children(drill: Drill) -> None:
    """When time is up the script ends, and so does everything that it started."""
    text = (
        "import subprocess, time\nimport windfall as wf\nsubprocess.Popen(['sleep', '61'])\nwf.step()\ntime.sleep(60)"
    )

    told = drill(text, PLAIN, "--limit", "3s")

    assert told["code"] == 1
    assert "completed 1 steps within the drill's limit of 3 s" in told["error"]
    mine = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in processes.children_of(os.getpid())]
    assert not any(b"sleep" in line for line in mine)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "JOB_FILE is missing"),
        (["--", "no-such-program", "x"], "no such command"),
        (["--steps", "1", "--", "true"], "--steps must be at least 2"),
        (["--limit", "0s", "--", "true"], "--limit"),
        (["job.yaml"], "run"),
    ],
)
def test_misuse_is_one_sentence(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A missing command, a job file without `run`, a number that cannot be: exit code 2 and what to write instead."""
    (tmp_path / "job.yaml").write_text("name: x\n")
    monkeypatch.chdir(tmp_path)

    assert main(["drill", "--state", str(tmp_path / "state"), *arguments]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.real
@pytest.mark.slow
def test_a_script_in_another_language_is_compared_by_its_checkpoints(drill: Drill) -> None:
    """Of a shell script only what it hands over is seen: here a counter that a restart begins anew."""
    loop = 'while [ "$i" -lt 40 ]; do i=$((i + 1)); echo "$i" > "s-$i"; windfall backup --step "$i" "s-$i"; done'
    restore = 'i=$(cat "${WINDFALL_CHECKPOINT:-/dev/null}"); i=${i:-0}; '

    right = drill(restore + loop, ["sh", "train.py"], "--steps", "2")
    wrong = drill("i=0; " + loop, ["sh", "train.py"], "--steps", "2")

    assert (right["code"], right["forgotten"]) == (0, []), right
    assert (wrong["code"], wrong["forgotten"][0]["code"]) == (5, "not-restored")


@pytest.mark.real
def test_files_written_elsewhere_are_named(drill: Drill, tmp_path: Path) -> None:
    """The script runs in copies of its folder; what it writes by an absolute path is told."""
    place = Path.home() / ".cache"
    place.mkdir(exist_ok=True)
    result = place / f"windfall-drill-{tmp_path.name}"
    text = script(
        "annealing", ("def main() -> None:\n", f"def main() -> None:\n    open({str(result)!r}, 'w').close()\n")
    )
    try:
        assert drill(text, PLAIN)["wrote_outside"] == [str(result)]
    finally:
        result.unlink(missing_ok=True)


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(500)
def test_torchrun_itself(drill: Drill) -> None:
    """Under the real launcher with two ranks: a script that resumes, and one whose rank 1 keeps its data to itself."""
    pytest.importorskip("torch")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"]

    right = drill(script("ranks"), command)
    wrong = drill(
        script("ranks", ('chance.set_state(saved["chance"])', "rank == 1 or chance.set_state(saved['chance'])")),
        command,
    )

    assert (right["code"], right["ranks"], right["forgotten"]) == (0, 2, [])
    assert [(one["code"], one["rank"]) for one in wrong["forgotten"]] == [("generator", 1)]


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(500)
@pytest.mark.parametrize(("package", "name"), [("transformers", "trainer"), ("lightning", "lightning_fit")])
def test_frameworks_resume(package: str, name: str, drill: Drill) -> None:
    """Hugging Face's Trainer and Lightning with Windfall's callbacks: nothing is forgotten, and nothing else is said."""
    pytest.importorskip(package)

    told = drill(script(name), PLAIN, "--steps", "5")

    assert (told["code"], told["forgotten"]) == (0, []), told


@pytest.mark.real
@pytest.mark.slow
def test_what_a_drill_measured_is_in_the_plan(tmp_path: Path) -> None:
    """After a drill of a job file its plan has speed and costs of a save, and says that they come from a drill."""
    pytest.importorskip("fastapi")
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(script("annealing"))
    job = tmp_path / "anneal.yaml"
    job.write_text(
        f"name: anneal\nworkdir: {tmp_path}/code\nrun: |\n  {shlex.quote(sys.executable)} train.py\nwork: {{steps: 1000}}\n"
        f"checkpoint: {{store: {tmp_path}/runs}}\n"
    )

    with shop(tmp_path / "shop") as made:
        drilled = made.say("drill", "--json", str(job))
        planned = made.say("plan", "--json", str(job))

    assert drilled.returncode == 0, drilled.stderr + drilled.stdout
    assert json.loads(drilled.stdout)["kept_for_plans"] is True
    assert [path for path in (tmp_path / "runs").rglob("*") if path.is_file()] == [], "the store is as it was"
    numbers = {one["name"]: one for one in json.loads(planned.stdout)["numbers"]}
    assert numbers["speed"]["source"].startswith("measured in a drill on ")
    assert numbers["stall per save"]["source"].startswith("measured in a drill on ")


READS = """import json, os, pathlib
import windfall as wf
rate = float(open("data/rate.txt").read())
at, x = json.loads(pathlib.Path(wf.last()).read_text()) if wf.last() else (0, 1.0)
while at < 500:
    at, x = at + 1, 0.9 * x + rate
    if wf.step():
        pathlib.Path("saved").write_text(json.dumps([at, x]))
        wf.backup("saved")
"""


@pytest.fixture
def reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A git repository whose script reads a file that git ignores; the current folder."""
    (tmp_path / "repo" / "data").mkdir(parents=True)
    (tmp_path / "repo" / "data" / "rate.txt").write_text("0.5")
    (tmp_path / "repo" / ".gitignore").write_text("data\n")
    (tmp_path / "repo" / "train.py").write_text(READS)
    subprocess.run(["git", "init", "-q", str(tmp_path / "repo")], check=True)
    monkeypatch.chdir(tmp_path / "repo")
    return tmp_path


@pytest.mark.real
def test_a_script_that_reads_what_is_not_copied_is_told_how(reads: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Data that git ignores is not copied: the drill says so, and with --link reads it where it is."""
    command = ["drill", "--state", str(reads / "state"), "--", *PLAIN]

    assert main(command) == 1
    assert "needs data/rate.txt" in (told := capsys.readouterr().err)
    assert "--link data" in told
    assert main([*command[:1], "--link", "data", *command[1:]]) == 0
    assert "The script resumes" in capsys.readouterr().out
    assert (reads / "repo" / "data" / "rate.txt").read_text() == "0.5"


@pytest.mark.parametrize(
    ("link", "words"), [("nope", "no such file"), ("../elsewhere", "not in"), (".", "not in"), ("/etc", "not in")]
)
def test_only_what_is_in_the_folder_can_be_linked(
    link: str, words: str, reads: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A link that leads nowhere, or out of the folder, is refused."""
    assert main(["drill", "--state", str(reads / "state"), "--link", link, "--", *PLAIN]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.real
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_drill_that_is_ended_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    """Ctrl-C, a closed terminal and a kill take the script and the copies of its folder along."""
    (tmp_path / "train.py").write_text(
        "import os, time\nopen(os.environ['PIDS'], 'w').write(str(os.getpid()))\ntime.sleep(60)"
    )
    os.mkfifo(tmp_path / "pids")
    command = [sys.executable, "-m", "windfall.cli.main", "drill", "--state", str(tmp_path / "state"), "--", *PLAIN]
    environ = {**os.environ, "PIDS": str(tmp_path / "pids")}
    # A suite that runs in the background of a shell ignores Ctrl-C, and so would its children.
    drilling = subprocess.Popen(["env", "--default-signal", *command], cwd=tmp_path, env=environ)
    pid = int((tmp_path / "pids").read_text())

    drilling.send_signal(number)

    assert drilling.wait(timeout=30) == 128 + number
    assert list((tmp_path / "state" / "drills").iterdir()) == []
    assert not alive(pid)


def test_lines_are_set_in_at_any_width() -> None:
    """What does not fit goes below the first word, or below the third column of a table."""
    row = f"{'upload':<30} {'35 ms':>9}  to a folder of this machine; name your store with --store"

    assert folded("  - " + "word " * 30, 40).split("\n")[1].startswith("    word")
    assert folded(row, 80).split("\n")[1] == " " * 42 + "store with --store"
    assert all(len(line) <= 60 for line in folded("It resumes: " + "word " * 30, 60).split("\n"))
