"""Following a job in a real terminal: its controller is killed, the user lets go of it, and it goes on."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from pathlib import Path

from tests.support.live import WINDFALL, eventually
from tests.support.shop import Shop, shop

CTRL_C = b"\x03"
PATIENCE_S = 60.0


class Terminal:
    """A verb on a terminal of 80 columns, and all that it has shown."""

    def __init__(self, made: Shop, *arguments: str) -> None:
        self._master, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        environment = {name: value for name, value in made.environment.items() if name != "COLUMNS"}
        self.process = subprocess.Popen(
            [*WINDFALL, *arguments],
            cwd=made.folder / "code",
            env=environment | {"TERM": "xterm"},
            stdin=other,
            stdout=other,
            stderr=other,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - this process has no threads
        )
        os.close(other)
        self._shown = b""

    @property
    def shown(self) -> str:
        """What was written, without the codes that move the cursor and colour."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self._shown.decode(errors="replace"))

    def until(self, text: str) -> None:
        """Read until something is shown."""
        end = time.monotonic() + PATIENCE_S
        while text not in self.shown:
            assert time.monotonic() < end, f"{text!r} is not shown:\n{self.shown}"
            assert self._read(), f"it ended without {text!r}:\n{self.shown}"

    def _read(self) -> bool:
        if select.select([self._master], [], [], 0.2)[0]:
            try:
                data = os.read(self._master, 65536)
            except OSError:
                return False
            self._shown += data
            return bool(data)
        return self.process.poll() is None

    def press(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def code(self) -> int:
        """Read to the end; return the exit code."""
        while self._read():
            pass
        return self.process.wait(PATIENCE_S)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        os.close(self._master)


def test_a_followed_job_survives_its_controller_and_its_user(tmp_path: Path) -> None:
    """Kill -9 of the controller is told and followed by another; Ctrl-C detaches and says where the job lives.

    On the terminal a last line says how far the job is, how fast, and what it has cost; no line is wider than the terminal.
    """
    with shop(tmp_path) as made:
        made.job(steps=2000, step_s=0.05)
        terminal = Terminal(made, "run", "-y", "job.yaml")
        try:
            terminal.until("holds the run")
            terminal.until("steps/s")
            killed = made.controller()
            os.kill(killed, signal.SIGKILL)
            terminal.until("another controller took over")
            terminal.press(CTRL_C)

            assert terminal.code() == 0
            shown = terminal.shown
            now = made.controller()
            assert "detached" in shown
            assert f"process {now} of this machine" in " ".join(shown.split())
            assert re.search(r"windfall stop tiny-\w+ +save and stop", shown)
            assert re.search(r"running: step \d+ of 2000 \(\d+ %\)", shown)
            assert now != killed
            before = made.ps()["details"]["step"]
            eventually(lambda: made.ps()["details"]["step"] > before, "more steps without anybody who follows")
            told = [
                line.strip() for line in re.split(r"[\r\n]+", shown) if " windfall: " in line and "detached" not in line
            ]
            assert max(map(len, told)) <= 80
            assert made.say("stop", "--now", "tiny").returncode == 0
            assert len(made.ps()["details"]["slots"][0]["machines"]) == 0
        finally:
            terminal.close()
