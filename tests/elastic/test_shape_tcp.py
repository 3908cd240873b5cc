"""Torch's TCP store where a name server does not answer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install 'windfall[elastic]'")

ALONE = ("unshare", "--map-root-user", "--net", "--mount")
SILENT = "ip link set lo up && mount --bind resolv.conf /etc/resolv.conf"
MEETS = """
import os, signal, socket, time
from windfall.runtimes import shape_tcp

asked = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
asked.bind(("127.0.0.1", 53))
port, told = os.pipe()
holder = os.fork()
if holder == 0:
    store = shape_tcp.opened_store("127.0.0.1", 0, 5.0)
    os.write(told, b"%d" % store.port)
    signal.pause()
try:
    address = "127.0.0.1:" + os.read(port, 100).decode()
    shape_tcp.ANSWER_WITHIN_S = 0.5
    began_s = time.monotonic()
    store = shape_tcp.connected(address)
    took_s = time.monotonic() - began_s
    store.set("key", b"value")
    print(store.get("key").decode(), "late" if took_s > shape_tcp.ANSWER_WITHIN_S else "early", store.timeout)
finally:
    os.kill(holder, signal.SIGKILL)
"""


def cannot() -> str:
    """Why no network and no name server of its own can be had here; empty if they can."""
    try:
        done = subprocess.run((*ALONE, "ip", "link", "set", "lo", "up"), capture_output=True, text=True, check=False)
    except OSError as error:
        return f"{error.filename} is not installed"
    return done.stderr.strip()


def test_a_name_server_that_does_not_answer_only_delays(tmp_path: Path) -> None:
    """Torch asks it for the name of 127.0.0.1, which takes longer than an answer of the store ever may."""
    if reason := cannot():
        pytest.skip(f"no network namespace: {reason}")
    (tmp_path / "resolv.conf").write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
    command = [*ALONE, "sh", "-c", f'{SILENT} && exec "$@"', "sh", sys.executable, "-c", MEETS]

    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)

    assert done.stdout.split() == ["value", "late", "0:00:00.500000"], done.stderr
