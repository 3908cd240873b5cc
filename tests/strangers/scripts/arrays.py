"""numpy alone: a particle filter's worth of arrays, saved as one file of arrays."""

import hashlib
import json
import os
import time

import numpy as np

import windfall as wf

STEPS = 150
random = np.random.default_rng(3)
weights, first = np.zeros(64), 0
os.makedirs("saves", exist_ok=True)
if path := wf.last():
    with np.load(path) as saved:
        weights, first = saved["weights"], int(saved["step"])
        random.bit_generator.state = json.loads(str(saved["random"]))
for step in range(first, STEPS):
    x = random.normal(size=(32, 64))
    weights -= 0.05 * (x @ weights - x.sum(axis=1)) @ x / 32
    time.sleep(0.02)
    with open(os.environ["LOG"], "a") as log:
        log.write(f"{step + 1}\n")
    if wf.step() or (step + 1) % 50 == 0:
        path = f"saves/{step + 1}.npz"
        np.savez(path, weights=weights, step=step + 1, random=json.dumps(random.bit_generator.state))
        wf.backup(path)
print("result", hashlib.sha256(weights.tobytes()).hexdigest(), flush=True)
