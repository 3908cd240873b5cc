"""Scripts that fail, and checkpoints that cannot be stored."""

from __future__ import annotations

from tests.bad_input.box import QUICK, Box, Case

SAVE = """
import os, sys
import windfall as wf
wf.step()
os.makedirs("point")
"""

# What the SDK of a newer Windfall would make: a page whose second word is another version.
NEWER_PAGE = """
import os, time
from windfall.wire import script_page
path = os.path.join(os.environ["WINDFALL_SESSION"], script_page.page_name(0))
script_page.create(path + ".draft", pid=os.getpid(), rank=0, step=0)[script_page.W_VERSION] = 9
os.rename(path + ".draft", path)
time.sleep(1000)
"""


def _terminated(box: Box) -> list[str]:
    """A script that sleeps on a machine that gets SIGTERM once the script runs."""
    wait = f'"$@" & while ! [ -e {box.started} ]; do sleep 0.02; done; kill -TERM $!; wait $!'
    box.prefix = ("sh", "-c", wait, "sh")
    return box.train(f"import time; open({str(box.started)!r}, 'w'); time.sleep(1000)")


def _code(line: str) -> object:
    return lambda box: box.train(line)


def _bundle_too_large(box: Box) -> list[str]:
    with (box.here / "data.bin").open("wb") as file:
        file.truncate(600 * 1024 * 1024)
    return box.exec(box.store, "--bundle")


def _link_out_of_the_code(box: Box) -> list[str]:
    (box.here / "data").symlink_to("/etc")
    return box.exec(box.store, "--bundle")


def _current_folder_gone(box: Box) -> list[str]:
    gone = box.here / "gone"
    gone.mkdir()
    box.prefix = ("sh", "-c", f'cd {gone} && rmdir {gone} && exec "$@"', "sh")
    return box.exec(box.store)


CASES = [
    Case(
        "script-exits-with-1",
        _code("raise SystemExit(1)"),
        1,
        ("failed once", "with exit code 1", "fix the script"),
        process=True,
        after=1,
        adds=True,
    ),
    Case(
        "script-killed-by-segv",
        _code("import os; os.kill(os.getpid(), 11)"),
        1,
        ("exit code 139", "fix the script"),
        process=True,
        after=1,
        adds=True,
    ),
    Case(
        "script-not-there",
        lambda box: ["exec", *QUICK, str(box.store), "--", "python3", "/no/such/train.py"],
        1,
        ("exit code 2", "fix the script"),
        talks=True,
        process=True,
        after=1,
        adds=True,
    ),
    Case(
        "script-never-calls-windfall",
        _terminated,
        75,
        ("this machine is being preempted", "nothing is stored yet", "run the same command again"),
        process=True,
        after=2,
        adds=True,
        starts=True,
    ),
    Case("page-newer", _code(NEWER_PAGE), 1, ("exit code 137", "fix the script"), process=True, after=2, adds=True),
    Case(
        "checkpoint-not-there",
        _code(SAVE + "wf.backup('nothing')"),
        1,
        ("the script is done, but its save at step 1 could not be stored",),
        process=True,
        after=2,
        adds=True,
    ),
    Case(
        "checkpoint-with-a-link-out",
        _code(SAVE + "os.symlink('/etc/passwd', 'point/link'); wf.backup('point')"),
        1,
        ("the script is done, but its save at step 1 could not be stored",),
        process=True,
        after=2,
        adds=True,
    ),
    Case("bundle-too-large", _bundle_too_large, 2, ("629 MB", "data.bin", ".windfallignore"), process=True, adds=True),
    Case("bundle-with-a-link-out", _link_out_of_the_code, 2, ("/etc", ".windfallignore"), process=True, adds=True),
    Case("current-folder-gone", _current_folder_gone, 2, ("current folder",), process=True),
]
