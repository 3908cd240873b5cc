"""A user's script: what `tests.tiers.least_squares.LeastSquares` computes; argv: the seconds that a clock takes at least."""

import sys
import time

import numpy as np

import windfall.paramserver as ps

ROWS = 12
server = ps.connect(rows=ROWS, width=1, first=lambda rows: np.zeros((len(rows), 1)), dtype=np.float64)
rng = np.random.default_rng(5)
a_all = rng.standard_normal((server.partitions, 30, ROWS))
wanted = rng.standard_normal((ROWS, 1))
for turn in server.turns():
    a = a_all[turn.data]
    x = server.pull(np.arange(ROWS))
    time.sleep(float(sys.argv[1]))
    server.loss(1e9)  # of what is given in a turn the last counts
    server.push(np.arange(ROWS), -0.002 * a.T @ (a @ x - a @ wanted))
    server.loss(((a @ x - a @ wanted) ** 2).mean())
