"""A user's script that makes each call in each way; a wrong answer ends it."""

import numpy as np

import windfall.paramserver as ps

server = ps.connect(rows=6, width=2, first=lambda rows: np.stack((rows, rows), axis=1))
assert server.partitions == 4
kept = None
for turn in server.turns():
    values = server.pull([4, 1, 4])
    assert np.array_equal(values[:, 0], np.array([4, 1, 4]) + 10 * (turn.clock - 1)), values
    if kept is not None:
        assert np.array_equal(kept, 2 + 10 * (turn.clock - 2) * np.ones((1, 2))), kept
    kept = server.pull([2])
    # One's own: no later call sees what is written into it.
    values[:] = -1
    assert np.array_equal(server.pull(np.array([1], np.int32)), [[1 + 10 * (turn.clock - 1)] * 2])
    server.push([], np.empty((0, 2)))
    server.push(np.arange(6), np.full((6, 2), 4.0))
    server.push([5, 0, 5], [[1.0, 1.0], [6.0, 6.0], [5.0, 5.0]])
    server.push([1, 2, 3, 4], np.full((4, 2), 6))
    for _ in range(3000):
        server.push([3], [[0.5, 0.5]])
    server.push([3], [[-1500.0, -1500.0]])
    drawn = turn.rng.integers(1000)
    assert drawn == np.random.default_rng((turn.seed, turn.data, turn.clock)).integers(1000)
    if turn.clock == 2:
        server.clock()
print("to its end")
