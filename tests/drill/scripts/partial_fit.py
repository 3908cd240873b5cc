"""A regression in plain Python, whose rate falls with the samples it has seen."""

import os
import pickle
import random

import windfall as wf


class SGDRegressor:
    def __init__(self, n, eta0=0.1):
        self.coef_ = [0.0] * n
        self.t_ = 1
        self.eta0 = eta0

    def partial_fit(self, rows, targets):
        err = 0.0
        for row, target in zip(rows, targets, strict=True):
            eta = self.eta0 / self.t_**0.25
            e = sum(c * v for c, v in zip(self.coef_, row, strict=True)) - target
            self.coef_ = [c - eta * e * v for c, v in zip(self.coef_, row, strict=True)]
            self.t_ += 1
            err += e * e
        return err / len(rows)


rnd = random.Random(42)
rows = [[rnd.gauss(0, 1) for _ in range(4)] for _ in range(100)]
targets = [r[0] - 2 * r[3] for r in rows]
model = SGDRegressor(4)
start = 0
if (p := wf.last()) is not None:
    with open(p, "rb") as f:
        saved = pickle.load(f)
    model.coef_ = saved["coef"]
    model.t_ = saved["t"]
    rnd.setstate(saved["rnd"])
    start = saved["round"]
for round_ in range(start, 60):
    pick = rnd.sample(range(100), 10)
    mse = model.partial_fit([rows[i] for i in pick], [targets[i] for i in pick])
    if wf.step():
        os.makedirs("m", exist_ok=True)
        with open(f"m/{round_}.pkl", "wb") as f:
            pickle.dump({"coef": model.coef_, "t": model.t_, "rnd": rnd.getstate(), "round": round_ + 1}, f)
        wf.backup(f"m/{round_}.pkl")
