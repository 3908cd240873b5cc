"""Scripts that fail, and checkpoints that cannot be stored."""

from __future__ import annotations

from tests.bad_input.box import QUICK, Box, Case

SAVE = """
import os, sys
import windfall as wf
wf.step()
os.makedirs("point")
"""


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
        ("failed 1 times", "status 1", "mend it"),
        process=True,
        after=1,
        adds=True,
    ),
    Case(
        "script-killed-by-segv",
        _code("import os; os.kill(os.getpid(), 11)"),
        1,
        ("status 139", "mend it"),
        process=True,
        after=1,
        adds=True,
    ),
    Case(
        "script-not-there",
        lambda box: ["exec", *QUICK, str(box.store), "--", "python3", "/no/such/train.py"],
        1,
        ("status 2", "mend it"),
        talks=True,
        process=True,
        after=1,
        adds=True,
    ),
    Case(
        "script-never-calls-windfall",
        _code("import os, time; os.kill(os.getppid(), 15) if os.getppid() > 1 else None"),
        0,
        ("the script is done",),
        process=True,
        after=1,
        adds=True,
    ),
    Case(
        "checkpoint-not-there",
        _code(SAVE + "wf.backup('nothing')"),
        0,
        ("the script is done",),
        process=True,
        after=2,
        adds=True,
    ),
    Case(
        "checkpoint-with-a-link-out",
        _code(SAVE + "os.symlink('/etc/passwd', 'point/link'); wf.backup('point')"),
        0,
        ("the script is done",),
        process=True,
        after=2,
        adds=True,
    ),
    Case("bundle-too-large", _bundle_too_large, 2, ("629 MB", "data.bin", ".gitignore"), process=True, adds=True),
    Case("bundle-with-a-link-out", _link_out_of_the_code, 2, ("/etc", ".gitignore"), process=True, adds=True),
    Case("current-folder-gone", _current_folder_gone, 2, ("current folder",), process=True),
]
