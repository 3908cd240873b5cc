"""Linear regression in numpy alone, with momentum and a generator of its own."""

import numpy as np

import windfall as wf

rng = np.random.default_rng(4)
truth = rng.normal(size=6)
weights, velocity, step = np.zeros(6), np.zeros(6), 0
if path := wf.last():
    saved = np.load(path, allow_pickle=True)
    weights, velocity, step = saved["weights"], saved["velocity"], int(saved["step"])
    rng.bit_generator.state = saved["rng"].item()
while step < 500:
    with wf.step_context():
        inputs = rng.normal(size=(16, 6))
        error = inputs @ weights - inputs @ truth
        velocity = 0.9 * velocity - 0.05 * inputs.T @ error / 16
        weights = weights + velocity
        step += 1
    if wf.check_save():
        np.savez(f"{step}.npz", weights=weights, velocity=velocity, step=step, rng=rng.bit_generator.state)
        wf.backup(f"{step}.npz")
