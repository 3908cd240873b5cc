"""The exact planner of asynchronous training beside a search of all plans, and what it proves where that is hopeless.

The 72 instances of `_planner_family` (7 types x quota 10: 19,487,170 plans each) are searched both ways in one run, in turns;
each pass prints how long both took, and how much dearer the sliding window's plan is.  12 types x quota 100 have 10^24 plans:
printed is what is proven after how many nodes.  The lines go to the standard error, so that `--json` stays one object a line.
"""

from __future__ import annotations

import functools
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator

from benchmarks._planner_family import DEADLINES, drawn, exhaustive, family, within
from benchmarks.harness import Benchmark
from windfall.policies.planning.exact_provisioning import cheapest_plan, search
from windfall.policies.planning.provisioning import ProvisioningProblem
from windfall.policies.planning.sliding_window import sliding_window

EVERY, MEDIAN = 0.25, 0.01
"""Share of the exhaustive search's time: at most, in every instance and in the median."""
LARGE_TYPES, LARGE_QUOTA, LARGE_MB_PER_S, LARGE_GAMMA4, LARGE_SEED = 12, 100, 76_800.0, 0.5, 9
LARGE_NODES = (1_200, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000)
GAP_MAX = 0.05
SAME = 1e-9


def tell(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


@functools.cache
def instances() -> tuple[tuple[str, ProvisioningProblem], ...]:
    """The family, made once; both searches are compiled."""
    found = tuple(family())
    cheapest_plan(found[0][1])
    exhaustive(found[0][1])
    return found


def compared(name: str, problem: ProvisioningProblem) -> float:
    """Time of the exact search, its window included, over that of the exhaustive one; they must agree."""
    began = time.process_time()
    exact = cheapest_plan(problem)
    exact_s = time.process_time() - began
    began = time.process_time()
    cost_usd, counts, plans = exhaustive(problem)
    all_s = time.process_time() - began
    window = sliding_window(problem)
    assert exact.plan is not None, "the deadline is above the least possible time"
    assert exact.proven, name
    assert math.isclose(exact.plan.cost_usd, cost_usd, rel_tol=SAME), (name, exact.plan, counts, cost_usd)
    gap = "none in time" if window is None else f"{window.cost_usd / cost_usd - 1.0:7.2%}"
    tell(
        f"    {name:<50} exact {1e3 * exact_s:6.2f} ms, {exact.nodes:6d} nodes; all {plans} plans {all_s:5.3f} s; "
        f"{exact_s / all_s:.4f}x; window {gap}"
    )
    return exact_s / all_s


@functools.cache
def passed(number: int) -> tuple[float, ...]:
    """The ratios of all instances in one pass; the first passes' are shared by the two benchmarks."""
    tell(f"  pass {number}")
    return tuple(compared(name, problem) for name, problem in instances())


def passes() -> Iterator[tuple[float, ...]]:
    yield from map(passed, range(1, 100))


def of_passes(name: str, target: float, judged: Callable[[tuple[float, ...]], float]) -> Benchmark:
    """A bound of the ratios of one pass; the yardstick is the exhaustive search of the same pass, so 1."""
    pending = passes()
    return Benchmark(
        name=name,
        ours=lambda: judged(next(pending)),
        yardstick=lambda: 1.0,
        target=target,
        at_most=True,
        unit="of the exhaustive search's time",
        rounds=2,
    )


def planner_every() -> Benchmark:
    """In the worst of the 72 instances the exact search takes at most a quarter of the exhaustive one's time."""
    return of_passes("exact planner vs all plans, worst of 72", EVERY, max)


def planner_median() -> Benchmark:
    """In the median of the 72 instances it takes at most a hundredth."""
    return of_passes("exact planner vs all plans, median of 72", MEDIAN, statistics.median)


def curve(share: float) -> float:
    """Print what is proven after how many nodes and how long; return the last gap."""
    problem = within(drawn(LARGE_SEED, LARGE_TYPES, LARGE_QUOTA, LARGE_MB_PER_S, LARGE_GAMMA4), share)
    began = time.process_time()
    window = sliding_window(problem)
    window_s = time.process_time() - began
    assert window is not None, "its list has the fastest workers side by side"
    tell(f"  {LARGE_TYPES} types x quota {LARGE_QUOTA}, deadline {share:g} of the least time, window {window_s:.2f} s")
    gap = 1.0
    for nodes_max in LARGE_NODES:
        began = time.process_time()
        found = search(problem, window, nodes_max=nodes_max)
        took_s = time.process_time() - began
        assert found.plan is not None, "the window's plan is there"
        gap = found.gap
        tell(
            f"    {found.nodes:8d} nodes {took_s:7.3f} s: {found.plan.cost_usd:.4f} USD, at most {gap:7.3%} above the optimum; "
            f"window {window.cost_usd / found.plan.cost_usd - 1.0:.3%} dearer"
        )
        if found.proven:
            break
    return gap


def planner_large() -> Benchmark:
    """With 12 types x quota 100, a million nodes prove the plan to within 5 %, whatever the deadline."""
    return Benchmark(
        name="12 types x quota 100: proven gap",
        ours=lambda: max(map(curve, DEADLINES)),
        yardstick=lambda: GAP_MAX,
        target=1.0,
        at_most=True,
        unit="of the cost",
        rounds=2,
    )


def benchmarks() -> list[Callable[[], Benchmark]]:
    """What `python -m benchmarks planner` measures."""
    return [planner_every, planner_median, planner_large]
