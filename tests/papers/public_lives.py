"""The 960 public lives of Google's preemptible machines, and the numbers that were published about their kind."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from windfall.models.lifetimes.observations import Lifetimes, lifetimes_of

SHARED = Path(__file__).parents[2].parent / "shared"
H = 3600.0
TYPES = tuple(f"n1-highcpu-{cores}" for cores in (2, 4, 8, 16, 32, 64))
ZONES = ("us-central1-c", "us-central1-f", "us-east1-b", "us-west1-a")


def lifetimes() -> Lifetimes:
    """All lives; skips the test where the data are not at hand."""
    path = SHARED / "data" / "gcp_preemptible_lifetimes" / "lifetimes.csv"
    if not path.exists():
        pytest.skip("the public lives (gcp_preemptible_lifetimes/lifetimes.csv) are not beside this repository")
    with path.open(newline="") as opened:
        rows = list(csv.DictReader(opened))
    return lifetimes_of(
        [float(row["lifetime_s"]) for row in rows],
        [row["end_event"] == "preempted" for row in rows],
        batch=[row["launch_batch"] for row in rows],
        keys={"type": [row["machine_type"] for row in rows], "zone": [row["zone"] for row in rows]},
    )


def of_group(every: Lifetimes, group: str) -> Lifetimes:
    """The lives of a type or zone; `all`: every one."""
    if group == "all":
        return every
    return every.where(np.asarray((every.keys["type"] == group) | (every.keys["zone"] == group)))


def reference(name: str) -> Any:
    """A file of published or recomputed numbers about SciSpot."""
    path = SHARED / "reference" / "scispot" / name
    if not path.exists():
        pytest.skip(f"the reference numbers (scispot/{name}) are not beside this repository")
    return json.loads(path.read_text())
