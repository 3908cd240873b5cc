"""Simulated annealing without torch: its state is in Python's own numbers."""

import json
import math
import os
import random

import windfall as wf


def cost_of(place: list[float]) -> float:
    return sum(x * x - 3 * math.cos(2 * math.pi * x) for x in place)


def main() -> None:
    random.seed(3)
    place, temperature, step, best = [random.uniform(-5, 5) for _ in range(6)], 5.0, 0, math.inf
    if path := wf.last():
        with open(path) as file:
            saved = json.load(file)
        place, temperature, step, best = saved["place"], saved["temperature"], saved["step"], saved["best"]
        version, state, gauss = saved["random"]
        random.setstate((version, tuple(state), gauss))
    while step < 2000:
        moved = [x + random.gauss(0, 0.3) for x in place]
        if random.random() < math.exp(min(0.0, (cost_of(place) - cost_of(moved)) / temperature)):
            place = moved
        best = min(best, cost_of(place))
        temperature *= 0.995
        step += 1
        wf.report(cost=cost_of(place))
        if wf.step():
            path = f"state-{step}-{os.getpid()}.json"
            everything = {"place": place, "temperature": temperature, "step": step, "best": best}
            with open(path, "w") as file:
                json.dump({**everything, "random": random.getstate()}, file)
            wf.backup(path)


if __name__ == "__main__":
    main()
