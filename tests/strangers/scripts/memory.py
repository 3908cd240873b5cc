"""Q-learning in a corridor, with a replay buffer that is most of the state; the checkpoint is a folder."""

import collections
import hashlib
import os
import pickle
import random
import time

import windfall as wf

STEPS = 150
random.seed(0)
q = [[0.0, 0.0] for _ in range(10)]
memory: collections.deque = collections.deque(maxlen=5000)
place, first = 0, 0
if folder := wf.last():
    with open(f"{folder}/agent.pkl", "rb") as file:
        q, place, first, chance = pickle.load(file)
    with open(f"{folder}/memory.pkl", "rb") as file:
        memory = pickle.load(file)
    random.setstate(chance)
for step in range(first, STEPS):
    for _ in range(20):
        act = random.randrange(2) if random.random() < 0.3 else int(q[place][1] > q[place][0])
        then = max(0, min(9, place + (1 if act else -1)))
        memory.append((place, act, float(then == 9), then))
        place = 0 if then == 9 else then
    for a, b, reward, then in random.sample(list(memory), min(16, len(memory))):
        q[a][b] += 0.1 * (reward + 0.95 * max(q[then]) - q[a][b])
    time.sleep(0.02)
    with open(os.environ["LOG"], "a") as log:
        log.write(f"{step + 1}\n")
    if wf.step() or (step + 1) % 50 == 0:
        folder = f"agent-{step + 1}"
        os.makedirs(folder, exist_ok=True)
        with open(f"{folder}/agent.pkl", "wb") as file:
            pickle.dump((q, place, step + 1, random.getstate()), file)
        with open(f"{folder}/memory.pkl", "wb") as file:
            pickle.dump(memory, file)
        wf.backup(folder)
print("result", hashlib.sha256(repr((q, list(memory))).encode()).hexdigest(), flush=True)
