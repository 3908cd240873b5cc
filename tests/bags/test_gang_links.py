"""The line between two machines of an allocation: a machine that is cut off without a word is noticed by the kernel's clock."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

TOGETHER_S = 2.0
STEADY_S = 3.0
ALONE = ("unshare", "--map-root-user", "--net")
UP = ("ip", "link", "set", "lo", "up")
# In a network of its own: the line is quiet for longer than a loss takes to show, then it is cut, and no byte ends it.
LINE = """
import json, socket, subprocess, sys, threading, time
from windfall.agent.item_gang import GangLink

subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
lost, both, lock = {}, threading.Event(), threading.Lock()

def note(side):
    def lose(reason):
        with lock:
            lost[side] = time.monotonic()
        if len(lost) == 2:
            both.set()
    return lose

with socket.create_server(("127.0.0.1", 0)) as server:
    ends = [socket.create_connection(server.getsockname()), server.accept()[0]]
links = [GangLink(end, lambda message: None, note(side)) for side, end in enumerate(ends)]
early = both.wait(float(sys.argv[1])) or bool(lost)
cut = time.monotonic()
subprocess.run(["ip", "link", "set", "lo", "down"], check=True)
both.wait(20.0)
print(json.dumps({"early": early, "took_s": [at - cut for at in lost.values()]}))
"""


def cannot() -> str:
    """Why no network of its own can be had here; empty if one can."""
    try:
        done = subprocess.run((*ALONE, *UP), capture_output=True, text=True, check=False)
    except OSError as error:
        return f"{error.filename} is not installed"
    return done.stderr.strip()


@pytest.mark.slow
def test_a_machine_that_is_cut_off_is_noticed_in_time() -> None:
    """Nothing is lost while the line is whole; once it is cut, both sides know within two seconds."""
    if reason := cannot():
        pytest.skip(f"no network namespace: {reason}")
    line = (*ALONE, sys.executable, "-c", LINE, str(STEADY_S))
    told = json.loads(subprocess.run(line, capture_output=True, text=True, check=True, timeout=60).stdout)

    print(told)
    assert not told["early"]
    assert len(told["took_s"]) == 2
    assert max(told["took_s"]) < TOGETHER_S
