"""What stands still until all have heard of a layout does not wait for the next report, nor for the coordinator's next look."""

from __future__ import annotations

import asyncio
import time

import numpy as np

from tests.tiers.in_step import InStep
from tests.tiers.in_threads import ThreadCluster, played
from tests.tiers.least_squares import LeastSquares
from windfall.runtimes.tier_pace import TierPace
from windfall.structs import replace

SLOW_S = 2.0
CLOCKS = 300
PACE = TierPace(
    save_every=10_000, report_s=SLOW_S, decide_s=SLOW_S, lost_after_s=3 * SLOW_S, reliable_lost_after_s=3 * SLOW_S
)
SOON_S = SLOW_S / 2


def all_on_reliable(cluster: ThreadCluster) -> bool:
    """Whether the reliable machine serves and computes all."""
    newest = cluster.layouts[-1]
    return {place.active for place in newest.parts} == {place.holder for place in newest.data} == {"r1"}


def test_machines_that_leave_hand_everything_over_between_two_reports() -> None:
    """With reports and looks two seconds apart, all is on the reliable machine, and each clock committed, long before that."""
    program = LeastSquares(4, seconds=0.01)
    gaps_s: list[float] = []

    async def story(cluster: ThreadCluster) -> None:
        await cluster.until(5)
        for name in ("t1", "t2"):
            cluster.machines[name].member.leave()
        # Their next reports say so; from then on nothing waits.
        seen, at_s = cluster.committed(), time.monotonic()
        async with asyncio.timeout(30.0):
            while not all_on_reliable(cluster):
                assert cluster.committed() < CLOCKS, "training is over, and they have not left"
                await asyncio.sleep(0.005)
                if cluster.committed() > seen:
                    gaps_s.append(time.monotonic() - at_s)
                    seen, at_s = cluster.committed(), time.monotonic()

    cluster = played(["r1", "t1", "t2"], program, story, clocks=CLOCKS, pace=PACE)
    assert np.allclose(cluster.values(), program.alone(CLOCKS))
    assert max(gaps_s) < SOON_S, gaps_s


def test_a_turn_that_ends_is_no_news_for_which_a_report_is_made() -> None:
    """Its loss and counts wait for the next report; what another machine waits for does not."""
    report = InStep(["r1", "t1"], clocks=4).members["r1"].report()

    assert replace(report, number=9, done={0: 1}, losses={0: (1, 0.5)}).decisive == report.decisive
    assert replace(report, loaded=frozenset({7})).decisive != report.decisive
