"""A user's script with a mistake: argv[1] says which."""

import os
import sys
import time
from collections.abc import Callable

import numpy as np

import windfall.paramserver as ps

ROWS = np.arange(12)
mistake = sys.argv[1]
if mistake == "exits":
    sys.exit()
if mistake == "sleeps":
    time.sleep(60)
if mistake == "raises before it connects":
    raise RuntimeError("no data")
if mistake == "dtype":
    ps.connect(rows=12, width=2, first=lambda rows: rows, dtype=np.int64)
if mistake == "two tables":
    ps.connect(rows=os.getpid(), width=2, first=lambda rows: rows)
width = 3 if mistake == "first" else 2
server = ps.connect(rows=12, width=2, first=lambda rows: np.ones((len(rows), width)))
if mistake == "no turn":
    server.push(ROWS, np.ones((12, 2)))
if mistake == "connects twice":
    ps.connect(rows=12, width=2, first=lambda rows: np.ones((len(rows), width)))


def big(value: float) -> np.ndarray:
    changes = np.full((12, 2), 1e30)
    changes[4, 1] = value
    return changes


ACTS: dict[str, Callable[[], object]] = {
    "raises": lambda: list[int]()[3],
    "exit": lambda: sys.exit(7),
    "leaves": lambda: sys.exit(0),
    "nan": lambda: server.push(ROWS, big(np.nan)),
    "infinite": lambda: server.push(ROWS, big(np.inf)),
    "too large for float32": lambda: server.push(ROWS, big(1e300)),
    "outside": lambda: server.pull([3, 12]),
    "below": lambda: server.push([-1], [[1.0, 1.0]]),
    "fractions": lambda: server.pull([0.5]),
    "narrow": lambda: server.push([3, 5], np.ones((2, 3))),
    "nested": lambda: next(server.turns()),
    "nan of what it pulled": lambda: server.push(ROWS, np.nan * server.pull(ROWS)),
    "kills itself": lambda: os.kill(os.getpid(), 9),
}
for turn in server.turns():
    if turn.clock == 3 and turn.data == 0:
        ACTS[mistake]()
