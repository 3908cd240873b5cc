"""One file that each save replaces, as many scripts have it: written beside it, then renamed over it."""

import hashlib
import os
import pickle
import time

import windfall as wf

STEPS = 150
state = {"step": 0, "weights": hashlib.shake_128(b"seed").digest(200_000)}
if last := wf.last():
    with open(last, "rb") as file:
        state = pickle.load(file)
while state["step"] < STEPS:
    step = state["step"] + 1
    state = {"step": step, "weights": hashlib.shake_128(state["weights"]).digest(200_000)}
    time.sleep(0.02)
    with open(os.environ["LOG"], "a") as log:
        log.write(f"{step}\n")
    if wf.step() or step % 15 == 0:
        with open("latest.tmp", "wb") as file:
            pickle.dump(state, file)
        os.replace("latest.tmp", "latest.ckpt")
        wf.backup("latest.ckpt")
print("result", hashlib.sha256(state["weights"]).hexdigest(), flush=True)
