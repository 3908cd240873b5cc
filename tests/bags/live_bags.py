"""Bags that a controller runs on the local market: their job files, their logs, and what the verbs say of them."""

from __future__ import annotations

import json
from typing import Any

from tests.live.rig import Rig
from windfall.cli.bag_verbs import OpenBag, find_bag


def described(name: str, run: str, machines: int, **bag: Any) -> dict[str, Any]:
    """The job file of a bag; a machine here has one processor, and so runs one item at a time."""
    own = {"order": "given", **bag}
    return {"name": name, "num_nodes": machines, "resources": {"infra": "local"}, "run": run, "bag": own}


def opened(rig: Rig, job_id: str) -> OpenBag | None:
    """The bag, with its log."""
    return find_bag(rig.run_url(job_id)) if (rig.state / "runs" / job_id).exists() else None


def shown(rig: Rig, job_id: str) -> dict[str, Any]:
    """What `windfall ps --json` says of the items."""
    found: dict[str, Any] = json.loads(rig.say("ps", rig.run_url(job_id), "--json"))["bag"]
    return found
