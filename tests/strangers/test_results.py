"""What a script makes is brought back as it was, whatever happened meanwhile, and no restart takes it for a checkpoint."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from pathlib import Path

import pytest

from tests.support.live import Machine, Run, eventually, fast, new_run

AS_THE_README_HAD_IT = """
import os, time, windfall as wf
os.makedirs("ck", exist_ok=True); wf.last()
for i in range(1, 101):
    time.sleep(0.01)
    if wf.step() or i % 100 == 0:
        p = f"ck/{i}.pt"; open(p, "wb").write(os.urandom(4_000_000)); wf.backup(p)
open("final.pt", "wb").write(os.urandom(1_500_000)); wf.backup("final.pt"); time.sleep(float(os.environ["REST_S"]))
"""

MAKER = """
import os, sys, time, windfall as wf
found = wf.last()
print("restored", found, flush=True)
def write(path, text):
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path, "w") as file:
        file.write(text)
first = int(open(found).read()) if found else 0
for step in range(first + 1, 21):
    time.sleep(0.02)
    asked = wf.step(step)
    exec(os.environ.get("AT_STEP", ""))
    if asked or step % 10 == 0:
        write(f"ck-{step}-{os.getpid()}", str(step))
        wf.backup(f"ck-{step}-{os.getpid()}")
exec(os.environ.get("AT_END", ""))
"""


def maker(run: Run, *, options: tuple[str, ...] = fast(), **environment: str) -> Machine:
    """Start a machine that trains for twenty steps, and does what the variables say."""
    return start(run, MAKER, options=options, **environment)


def start(run: Run, script: str, *, options: tuple[str, ...] = fast(), **environment: str) -> Machine:
    path = run.folder / "train.py"
    path.write_text(script)
    return run.start(sys.executable, str(path), options=options, **environment)


def results(run: Run) -> list[dict[str, object]]:
    return [json.loads(line) for line in run.say("checkpoints", run.url, "--results", "--json").stdout.splitlines()]


def brought(run: Run, *what: str) -> dict[str, bytes]:
    """What `get` brings, by path."""
    dest = run.folder / f"brought-{len(list(run.folder.glob('brought-*')))}"
    done = run.say("get", run.url, str(dest), *what)
    assert done.returncode == 0, done.stderr
    return {str(path.relative_to(dest)): path.read_bytes() for path in dest.rglob("*") if path.is_file()}


def check_the_readme(folder: Path, *options: str, rest_s: float) -> None:
    run = new_run(folder)
    machine = start(run, AS_THE_README_HAD_IT, options=fast(*options), REST_S=str(rest_s))
    assert machine.code() == 0, machine.text
    assert brought(run, "--result", "final.pt") == {"final.pt": (machine.folder / "final.pt").read_bytes()}, (
        machine.text
    )
    newest = brought(run)
    assert newest == {"100.pt": (machine.folder / "ck" / "100.pt").read_bytes()}, machine.text
    assert [result["name"] for result in results(run)] == ["final.pt"]


@pytest.mark.real
@pytest.mark.trial("A1")
def test_a_file_behind_the_loop_is_a_result_and_the_last_save_the_checkpoint(tmp_path: Path) -> None:
    """A script as the README had them, on an uplink that is still busy when it ends: both are brought back."""
    check_the_readme(tmp_path, "--uplink", "8MB/s", rest_s=0.0)


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.trial("A1")
@pytest.mark.parametrize("number", range(20))
def test_a_script_of_the_readme_loses_nothing_in_twenty_runs(number: int, tmp_path: Path) -> None:
    """With and without a rest at its end, on uplinks from none to fast."""
    uplink = ("--uplink", f"{2 + number}MB/s") if number % 4 else ()
    check_the_readme(tmp_path, *uplink, rest_s=3.0 if number % 2 else 0.0)


@pytest.mark.real
@pytest.mark.trial("A1")
def test_results_are_files_and_folders_under_their_names_and_the_newest_counts(tmp_path: Path) -> None:
    """Handed over again, a result replaces the one before; none of them becomes what a restart restores."""
    run = new_run(tmp_path)
    machine = maker(
        run,
        AT_STEP="if step in (3, 12): write('best.txt', f'best {step}'); wf.save_result('best.txt')",
        AT_END="write('tables/a/1.csv', '1'); write('tables/2.csv', '2'); wf.save_result('tables', 'all tables')",
    )
    assert machine.code() == 0, machine.text
    assert brought(run, "--results") == {"best.txt": b"best 12", "all tables/a/1.csv": b"1", "all tables/2.csv": b"2"}
    assert brought(run, "--result", "best.txt") == {"best.txt": b"best 12"}
    assert [path.read_text() for path in [*Path(run.folder / "run").rglob("*")] if path.is_file()].count("best 3") == 0
    (newest,) = brought(run).values()
    assert newest == b"20"


@pytest.mark.real
@pytest.mark.trial("A1")
def test_a_result_of_a_script_that_goes_on_elsewhere_stays_and_is_not_restored(tmp_path: Path) -> None:
    """Handed over before the save at which the machine ends: the next machine does not make it again, and has a checkpoint."""
    run = new_run(tmp_path)
    first = maker(
        run,
        options=fast("--uplink", "2MB/s", "--grace", "20s"),
        AT_STEP="if step == 3: write('early.txt', 'x' * 3_000_000); wf.save_result('early.txt'); os.kill(os.getppid(), 0)\n"
        "if step >= 3: time.sleep(0.1); print('past', step, flush=True)",
    )
    first.until("past 4")
    first.process.send_signal(signal.SIGTERM)
    assert first.code() == 75, first.text
    second = maker(run)
    assert second.code() == 0, second.text
    assert "restored None" not in second.text
    assert brought(run, "--result", "early.txt") == {"early.txt": b"x" * 3_000_000}


@pytest.mark.real
@pytest.mark.trial("A1")
def test_a_result_outlives_a_script_that_fails_and_an_agent_that_is_killed(tmp_path: Path) -> None:
    """The agent dies while the result waits for the uplink, the script fails right after: the result is stored."""
    run = new_run(tmp_path)
    machine = maker(
        run,
        options=fast("--uplink", "2MB/s", "--max-failures", "1"),
        AT_END="write('made.txt', 'y' * 4_000_000); wf.save_result('made.txt'); print('made', flush=True)\n"
        "time.sleep(0.5); sys.exit(3)",
    )
    machine.until("made")
    agents = [
        int(name) for name in os.listdir("/proc") if name.isdigit() and _is_agent_of(int(name), machine.process.pid)
    ]
    assert agents
    os.kill(agents[0], signal.SIGKILL)
    assert machine.code() == 1, machine.text
    assert brought(run, "--results") == {"made.txt": b"y" * 4_000_000}


def _is_agent_of(pid: int, supervisor: int) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        parent = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
    except OSError:
        return False
    return b"windfall.cli.agent_process" in command and parent == supervisor


@pytest.mark.real
@pytest.mark.trial("A1")
def test_a_shell_script_hands_a_result_over(tmp_path: Path) -> None:
    """`windfall backup PATH --result NAME` ends no step, and is no checkpoint."""
    run = new_run(tmp_path)
    script = run.folder / "train.sh"
    windfall = f"{shlex.quote(sys.executable)} -m windfall.cli.main"
    script.write_text(
        f"echo 1 > one; {windfall} backup one --step 7\necho done > report.txt; {windfall} backup report.txt --result report"
    )
    machine = run.start("sh", str(script))
    assert machine.code() == 0, machine.text
    assert brought(run, "--results") == {"report": b"done\n"}
    assert brought(run) == {"one": b"1\n"}
    assert [checkpoint.step for checkpoint in run.state().checkpoints] == [7]


RANKS = """
import os, subprocess, sys
if "RANK" not in os.environ:
    started = [subprocess.Popen([sys.executable, __file__],
               env={**os.environ, "RANK": str(n), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}) for n in range(2)]
    sys.exit(max(abs(one.wait()) for one in started))
import windfall as wf
rank = os.environ["RANK"]
for step in range(1, 6):
    wf.step(step)
open(f"part-{rank}", "w").write(rank)
wf.save_result(f"part-{rank}", "part")
if rank == "0":
    open("model", "w").write("whole")
    wf.save_result("model")
"""


@pytest.mark.real
@pytest.mark.trial("A1")
def test_ranks_that_hand_over_the_same_name_keep_one_each(tmp_path: Path) -> None:
    """Brought back into a folder of each rank; a name of one rank alone needs none."""
    run = new_run(tmp_path)
    machine = start(run, RANKS)
    assert machine.code() == 0, machine.text
    assert brought(run, "--results") == {"rank-0/part": b"0", "rank-1/part": b"1", "model": b"whole"}


@pytest.mark.real
@pytest.mark.trial("A1")
def test_a_run_whose_result_cannot_be_stored_is_not_done(tmp_path: Path) -> None:
    """Exit 1 with the name, and the same line again makes it anew; names and choices that cannot be are refused."""
    run = new_run(tmp_path)
    machine = maker(run, AT_END="wf.save_result('never-written')")
    assert machine.code() == 1, machine.text
    assert "never-written" in machine.text.splitlines()[-1]
    assert run.state().outcome.value == "waiting"
    again = maker(run, AT_END="write('never-written', 'now'); wf.save_result('never-written')")
    assert again.code() == 0, again.text
    assert brought(run, "--results") == {"never-written": b"now"}
    assert run.say("get", run.url, str(tmp_path / "x"), "--result", "other").returncode == 2
    assert run.say("get", run.url, str(tmp_path / "x"), "--result", "a", "--checkpoint", "b").returncode == 2
    assert run.say("backup", str(run.folder / "train.py"), "--result", "a/b").returncode == 2
    eventually(lambda: not (tmp_path / "x").exists(), "nothing was made")
