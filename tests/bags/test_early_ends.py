"""Live bags that end before all of their items: by a metric, and without an item that was preempted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.bags.live_bags import described, opened, shown
from tests.live.rig import Rig
from windfall.bags import ItemLease, ItemState
from windfall.cli.bag_verbs import OpenBag
from windfall.core.item_runner import ALIVE_S
from windfall.storage.store_operations import get
from windfall.wire import bag_layout

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(240)]


def test_a_bag_is_over_once_its_metric_says_so(new_rig: Callable[..., Rig]) -> None:
    """The twelfth item is the first below the bound: the others are given up, and the bag has succeeded."""
    rig = new_rig()
    rig.start_controller()
    job = described(
        "found", 'sleep 0.1; echo "energy = -{{x}}"', 1, parameters={"x": list(range(100))},
        results={"energy": {"regex": "energy = (.*)"}}, stop_when={"metric": "energy", "below": -10, "min_items": 3},
        reduce="wc -l < results.csv > rows.txt",
    )  # fmt: skip
    job_id = rig.submit(job, None)
    told = rig.ended(job_id)
    bag = shown(rig, job_id)

    assert told["phase"] == "done", f"{told['message']}\n{rig.log()}"
    # Two that end before the dispatcher looks count together, and the lower one is named.
    assert bag["reason"] == f"stop_when: energy: an item has -{bag['done'] - 1}, below -10"
    assert 12 <= bag["done"] < 30, "items that had ended beside it count too"
    assert bag["done"] + bag["discarded"] == 100
    assert bag["reason"] in rig.say("ps", job_id).replace("\n          ", " ")
    rig.check(job_id, told)


def _runs(bag: OpenBag, machine_id: str) -> ItemLease | None:
    """The item that runs on a machine, once it has reported it again: the dispatcher has long read its first report."""
    for runner, kept in bag.log.table.runners.items():
        report = bag.reader.run(get(bag_layout.runner_report_key(runner)))
        if kept.machine_id == machine_id and report is not None:
            known = bag_layout.report_from_bytes(report)
            if known.ran_s and known.ran_s[0] >= ALIVE_S / 2:
                return known.holds[0]
    return None


def test_a_preempted_item_that_is_not_needed_is_discarded(new_rig: Callable[..., Rig]) -> None:
    """Seven of ten are done, eight are needed and two run: one that loses its machine now is given up, with its reason."""
    rig = new_rig()
    both, go = rig.folder / "both", rig.folder / "go"
    rig.start_controller()
    # The first machine would have all items in its hands before the second one is there.
    run = f"gate={both}; if test {{{{x}}}} -ge 7; then gate={go}; fi; while ! test -e $gate; do sleep 0.05; done"
    job_id = rig.submit(described("spared", run, 2, parameters={"x": list(range(10))}, finish=0.8), None)
    running: dict[str, int] = {}

    def both_are_there() -> bool:
        bag = opened(rig, job_id)
        return bag is not None and sum(bool(kept.leases) for kept in bag.log.table.runners.values()) == 2

    rig.until(both_are_there, "both machines have items")
    both.touch()

    def both_run() -> bool:
        bag = opened(rig, job_id)
        if bag is None or bag.log.table.counts.done < 7:
            return False
        for machine_id in {kept.machine_id for kept in bag.log.table.runners.values()}:
            lease = _runs(bag, machine_id)
            if lease is not None and bag.log.table.state(lease.item) is ItemState.LEASED and lease.item >= 7:
                running[machine_id] = lease.item
        return len(running) == 2

    rig.until(both_run, "two of the last items run")
    machine_id, item = max(running.items(), key=lambda one: one[1])
    rig.take(machine_id, None)

    def is_decided() -> bool:
        bag = opened(rig, job_id)
        return bag is not None and bool(bag.log.recovered)

    rig.until(is_decided, "it is decided what becomes of the item")
    explained = rig.say("explain", f"{job_id}/{item}")
    go.touch()
    told = rig.ended(job_id)
    bag = shown(rig, job_id)

    assert told["phase"] == "done", f"{told['message']}\n{rig.log()}"
    assert (bag["done"], bag["discarded"], bag["preempted"]["discard"]) == (8, 2, 1)
    assert f"item {item}: discard, the least expected cost, 0 USD" in explained
    assert "expected cost, replenish and restart = " in explained
    assert "the items that run suffice for the completion target of 80 %" in explained
    assert f"item {item}: discard" in rig.say("explain", job_id)
    assert "preempted 1 item: 1 to discard" in rig.say("ps", job_id)
    rig.check(job_id, told, nodes=2)
