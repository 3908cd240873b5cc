"""Logistic regression with momentum in numpy; the archive that it restored from stays behind, closed."""

import os

import numpy as np

import windfall as wf

r = np.random.default_rng(0)
X = r.normal(size=(400, 7))
y = (X @ np.arange(7) > 0).astype(float)
w = np.zeros(7)
velocity = np.zeros(7)
order = np.random.default_rng(1).permutation(400)
t = 0
last = wf.last()
if last:
    with np.load(last) as z:
        w = z["w"]
        velocity = z["velocity"]
        t = int(z["t"])
while t < 80:
    rows = order[np.arange(t * 20, t * 20 + 20) % 400]
    p = 1 / (1 + np.exp(-X[rows] @ w))
    grad = X[rows].T @ (p - y[rows]) / 20
    velocity = 0.9 * velocity - 0.1 * grad
    w = w + velocity
    t += 1
    loss = -np.mean(y[rows] * np.log(p + 1e-9) + (1 - y[rows]) * np.log(1 - p + 1e-9))
    wf.report(loss=float(loss))
    if wf.step():
        os.makedirs("np", exist_ok=True)
        np.savez(f"np/{t}.npz", w=w, velocity=velocity, t=t)
        wf.backup(f"np/{t}.npz")
