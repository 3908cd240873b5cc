"""Training that stops for a long evaluation now and then, and remembers the best."""

import hashlib
import json
import os
import time

import windfall as wf

STEPS = 90
weight, best, first = "seed", "", 0
if found := wf.last():
    with open(found) as file:
        weight, best, first = json.load(file)
for step in range(first, STEPS):
    weight = hashlib.sha256(f"{weight} {step}".encode()).hexdigest()
    time.sleep(0.02)
    with open(os.environ["LOG"], "a") as log:
        log.write(f"{step + 1}\n")
    save = wf.step()
    if (step + 1) % 30 == 0:
        with wf.phase("evaluation"):
            time.sleep(1.5)
            best = max(best, weight)
    if save or (step + 1) % 30 == 0:
        path = f"state-{step + 1}.json"
        with open(path, "w") as file:
            json.dump((weight, best, step + 1), file)
        wf.backup(path)
print("result", weight, best, flush=True)
