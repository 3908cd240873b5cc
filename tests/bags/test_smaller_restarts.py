"""A live bag whose items may run on fewer processors: what is done after each of three losses, and why."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from statistics import mean

import pytest

from tests.bags.live_bags import described, opened, shown
from tests.live.rig import Rig
from windfall.cli.bag_verbs import OpenBag
from windfall.storage.store_operations import get
from windfall.wire import bag_layout

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(300)]
ITEMS, GATED = 40, 35
"""Of forty items thirty-six must be done; those from the thirty-sixth on wait for a gate."""


def _on_all(bag: OpenBag) -> dict[int, str]:
    """The items that run on all the processors that they want, by their runners' reports, with their machines."""
    found = {}
    for runner, kept in bag.log.table.runners.items():
        report = bag.reader.run(get(bag_layout.runner_report_key(runner)))
        known = None if report is None else bag_layout.report_from_bytes(report)
        for lease in () if known is None or kept.left else known.holds[: len(known.ran_s)]:
            if bag.log.table.is_newest(lease) and bag.log.table.sized.cpus(lease.item) is None:
                found[lease.item] = kept.machine_id
    return found


def test_replenish_smaller_and_discard_each_win_in_a_run_of_which_nine_tenths_must_finish(
    new_rig: Callable[..., Rig],
) -> None:
    """Before its time on half a processor is known, after that, and once the items that run suffice."""
    rig = new_rig()
    gate, log = rig.folder / "gate", rig.folder / "ran"
    rig.start_controller()
    run = (
        f'echo "{{{{x}}}} {{{{cpus}}}} $WINDFALL_CPUS" >> {log}; if test {{{{x}}}} -ge {GATED}; then '
        f"while ! test -e {gate}; do sleep 0.05; done; elif test {{{{cpus}}}} = 1; then sleep 1.5; else sleep 2; fi"
    )
    job = described("sized", run, 2, parameters={"x": list(range(ITEMS))}, finish=0.9, cpus_per_item=[1, 0.5])
    job_id = rig.submit(job, None)
    taken: list[int] = []

    def take_once(ready: Callable[[OpenBag], bool], what: str) -> None:
        """Take the machine of an item away that runs on all its processors, once a bag is so far."""

        def is_taken() -> bool:
            bag = opened(rig, job_id)
            running = {} if bag is None or not ready(bag) else _on_all(bag)
            for item, machine_id in running.items():
                if item not in taken:
                    taken.append(item)
                    rig.take(machine_id, None)
                    return True
            return False

        def is_decided() -> bool:
            bag = opened(rig, job_id)
            return bag is not None and bag.log.recovered.total() == len(taken)

        rig.until(is_taken, what)
        rig.until(is_decided, f"it is decided what is done with item {taken[-1]}")

    take_once(lambda bag: bag.log.table.timed > 0 and not bag.log.table.sized.times(), "the first items are timed")
    take_once(lambda bag: bag.log.table.sized.mean_s(0.5) is not None, "an item is timed on half a processor")
    take_once(lambda bag: bag.log.table.counts.done == GATED and len(_on_all(bag)) == 2, "two of the last items run")
    explained = rig.say("explain", job_id)
    gate.touch()
    told = rig.ended(job_id)
    rig.check(job_id, told, nodes=2)
    _check_choices(rig, job_id, explained, taken)
    _check_sizes(rig, job_id, taken[1], log.read_text())


def _check_choices(rig: Rig, job_id: str, explained: str, taken: Sequence[int]) -> None:
    first, second, third = taken
    assert shown(rig, job_id)["preempted"] == {"run again": 1, "restart smaller": 1, "discard": 1, "run last": 0}
    assert f"item {first}: run again, the least expected cost, " in explained
    assert f"item {second}: restart smaller on 0.5 CPUs, the least expected cost, " in explained
    assert f"item {third}: discard, the least expected cost, 0 USD" in explained
    for number in ("restart smaller, on 0.5 CPUs", "replenish and restart", "discard"):
        assert f"expected cost, {number} = " in explained


def _check_sizes(rig: Rig, job_id: str, smaller: int, ran: str) -> None:
    """Compare the table with what the commands say themselves: each ran on the number that the table has for it."""
    rig.say("results", job_id, "-o", str(rig.folder / "results.csv"))
    rows = {int(row["item"]): row for row in csv.DictReader((rig.folder / "results.csv").read_text().splitlines())}
    own = [(int(item), cpus, variable) for item, cpus, variable in map(str.split, ran.splitlines())]
    assert (rows[smaller]["cpus"], rows[smaller]["state"]) == ("0.5", "done")
    assert all(given == variable for _, given, variable in own)
    assert {cpus for item, cpus, _ in own if item == smaller} == {"1", "0.5"}
    half = {item for item, row in rows.items() if row["cpus"] == "0.5"}
    assert half <= {item for item, cpus, _ in own if cpus == "0.5"}
    sizes = {one["cpus"]: one["mean_run_s"] for one in shown(rig, job_id)["sizes"]}
    for cpus in (1.0, 0.5):
        times_s = [
            float(row["run_s"]) for row in rows.values() if float(row["cpus"] or 0) == cpus and row["attempts"] == "1"
        ]
        assert sizes[cpus] == pytest.approx(mean(times_s), abs=0.01)
    assert sizes[0.5] > 2.0
    assert "an item takes" in rig.say("ps", job_id)
