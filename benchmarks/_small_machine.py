"""A small machine of `_small_machines`: orders come by standard input, events go to standard output, a line each."""

from __future__ import annotations

import json
import os
import queue
import shutil
import sys
import tempfile
import threading
import time
from typing import Any

from benchmarks._small_machines import ProgramOnArrival

LOOK_S = 0.02
"""Iterations take seconds; looking more often takes cores that the small machines need."""
CLOCKS = 100_000
"""More than there is time for, and so no checkpoint before the end."""


def main() -> None:
    """Be a machine."""
    about = json.loads(sys.argv[1])
    from windfall.wire.ray_environment import ray_environment

    os.environ.update(ray_environment(about["secret"]))
    orders: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_read_orders, args=(orders,), daemon=True).start()
    folder = tempfile.mkdtemp(prefix="wf-ray-", dir="/tmp")
    from windfall.runtimes.tier_node import TierNode

    node: TierNode = _node(about, folder)
    try:
        node.join()
        # It answers once its process has all its modules.
        node.look(leaving=False)
        print("joined", flush=True)
        if orders.get() != "begin":
            return
        node.begin()
        print("begun", flush=True)
        if about["leads"]:
            threading.Thread(target=_watch_clocks, daemon=True).start()
        leaving = False
        while not node.turn():
            while not orders.empty():
                order = orders.get()
                if order == "end":
                    return
                leaving = leaving or order == "leave"
            seen = node.look(leaving=leaving)
            if leaving and seen is not None and not seen.needed:
                print("left", flush=True)
                return
        print("over", flush=True)
    finally:
        node.end()
        shutil.rmtree(folder, ignore_errors=True)


def _node(about: dict[str, Any], folder: str) -> Any:
    from windfall.linux.clock import SystemClock
    from windfall.policies.layout.tiers import StageRatios
    from windfall.runtimes.machine_limits import MachineLimits
    from windfall.runtimes.tier_actors import TierTraining
    from windfall.runtimes.tier_node import TierNode, TierNodePlace, TierNodePorts
    from windfall.runtimes.tier_pace import TierPace
    from windfall.runtimes.tier_server import ServerSettings
    from windfall.storage.object_stores import folder_url
    from windfall.tier_layout import TierMachine

    name = about["name"]
    pace = TierPace(save_every=CLOCKS, found_within_s=about["found_within_s"])
    ratios = StageRatios(about["stage_2_above"], about["stage_3_above"])
    training = TierTraining(
        folder_url(about["store"]), ServerSettings(0, 1, CLOCKS), about["parts"], about["data"], ratios, pace,
        reliable=about["reliable"],
    )  # fmt: skip
    limits = MachineLimits(about["speed"], about["link_bytes_per_s"], about["turn_s"])
    place = TierNodePlace(about["head"], about["leads"], about["host"], folder, 128 << 20, 1, limits)
    machine = TierMachine(name, name.startswith("r"), float(about["order"]))
    return TierNode(
        place, machine, training, ProgramOnArrival(about["data"]), TierNodePorts(SystemClock(), lambda _: None)
    )


def _read_orders(orders: queue.Queue[str]) -> None:
    for line in sys.stdin:
        orders.put(line.strip())
    orders.put("end")


def _watch_clocks() -> None:
    """Print each clock when the coordinator says that it is committed."""
    import ray

    from windfall.runtimes.tier_actors import COORDINATOR

    coordinator, seen = ray.get_actor(COORDINATOR), 0
    while True:
        try:
            clock = ray.get(coordinator.committed.remote()).clock
        except ray.exceptions.RayError:
            # Training is over, and the cluster with it.
            return
        if clock > seen:
            seen = clock
            print(f"clock {clock} {time.monotonic()}", flush=True)
        time.sleep(LOOK_S)


if __name__ == "__main__":
    main()
