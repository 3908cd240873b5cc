"""A training with a goal of loss and time on a parameter server, on machines that a local market sells: one run, all real."""

from __future__ import annotations

from typing import Any

from tests.live.rig import USD_PER_HOUR

APP = """
import time

import numpy as np

TRUTH = np.random.default_rng(1).choice([-1.0, 1.0], size=(24, 3))


class Slope:
    rows = len(TRUTH)

    def __init__(self, partitions, seconds, floor):
        self.partitions, self.seconds, self.floor = partitions, seconds, floor

    def first(self, rows):
        return np.zeros((len(rows), TRUTH.shape[1]))

    def load(self, data):
        return data

    def compute(self, data, clock, table):
        rows = np.arange(self.rows)
        values = table.pull(rows)
        time.sleep(self.seconds)
        table.push(rows, (TRUTH - values) * 0.5 / (clock + 1) / self.partitions)
        return self.evaluate(values)

    def evaluate(self, values):
        return self.floor + float(np.square(values - TRUTH).mean())

    def write(self, values, folder):
        np.save(folder / "weights.npy", values)


def program(settings, partitions):
    return Slope(partitions, settings["seconds"], settings["floor"])
"""
"""Its loss above the floor falls as 1.27 / (clock + 1.27)."""
PARTITIONS, CLOCKS, FLOOR, LOSS = 8, 2000, 0.1, 0.11
SECONDS = 0.2
DEADLINE_S, TAKEOVER_S, NOTICE_S = 75.0, 12.0, 3.0
SMALL_USD = 900.0
PROFILE = {
    "workload": {
        "parameters_mb": 0.0006,
        "required_mb_per_s": 100.0,
        "alpha1": 0.05,
        "beta1": 0.0,
        "gamma2": -1e-6,
        "gamma3": 1.27 * PARTITIONS / 2,
        "gamma5": FLOOR,
        "start_loss": FLOOR + 1.0,
    },
    "platform": {"server_mb_per_s": 1000.0, "pcie_mb_per_s": 1e6},
    "workers": {"small": {"batch": 1.0, "compute_s": SECONDS + 0.01}},
}


def market() -> dict[str, Any]:
    """Two zones, the second one dearer."""
    return {
        "types": {"small": {"on_demand": USD_PER_HOUR}},
        "zones": ["zone-a", "zone-b"],
        "capacity": {"default": 8},
        "prices": {"points": {"small/zone-a": [[0, SMALL_USD]], "small/zone-b": [[0, SMALL_USD + 50.0]]}},
    }


def job() -> dict[str, Any]:
    tiers = {
        "workers": "1..8", "clocks": CLOCKS, "partitions": PARTITIONS, "staleness": 1, "save_every": 500, "app": "slope",
        "settings": {"seconds": SECONDS, "floor": FLOOR}, "profile": PROFILE,
    }  # fmt: skip
    return {
        "name": "tiers",
        "run": "python -m slope",
        "runtime": {"paramserver": tiers},
        "fleet": {"spotdnn": {"takeover_s": TAKEOVER_S, "decide_every_s": 5.0}},
        "objective": {"loss": LOSS, "deadline": f"{DEADLINE_S:g}s"},
        "resources": {"infra": "local", "use_spot": True},
    }
