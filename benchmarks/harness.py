"""Paired measurements: what we do and its yardstick, in turns, in one run; what counts is the median of the ratios."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass

SPREAD_MAX = 0.15
"""Where the yardstick itself spreads further, by its quartiles over its median, nothing can be said; pairs may differ."""


class Skipped(Exception):
    """A benchmark cannot be measured here; says why."""


@dataclass(frozen=True)
class Benchmark:
    """A pair to be measured.

    Attributes:
        name: what is printed.
        ours: does our work once and returns what it measured.
        yardstick: the same for what we compare with, in the same unit.
        target: the bound of the ratio.
        at_most: whether the ratio `ours / yardstick` must stay below the target, or else reach it.
        unit: of both measurements, for people.
        rounds: how many pairs; one more goes before them and is thrown away.
        close: ends what the pair needed.
        spread_max: where the yardstick itself spreads further, by its quartiles over its median, nothing can be said.
    """

    name: str
    ours: Callable[[], float]
    yardstick: Callable[[], float]
    target: float
    at_most: bool
    unit: str
    rounds: int = 7
    close: Callable[[], None] = lambda: None
    spread_max: float = SPREAD_MAX


@dataclass(frozen=True)
class Outcome:
    """What one pair came to; `verdict` is `ok`, `MISS` or `not comparable`."""

    name: str
    verdict: str
    ratio: float
    ratio_low: float
    ratio_high: float
    target: float
    at_most: bool
    ours: float
    yardstick: float
    yardstick_spread: float
    unit: str
    rounds: int

    def line(self) -> str:
        """One line of at most 110 columns."""
        bound = f"{'<=' if self.at_most else '>='} {self.target:g}x"
        return (
            f"{self.name:<42} {self.ratio:6.2f}x  [{self.ratio_low:.2f}, {self.ratio_high:.2f}]  {bound:<9} {self.verdict}\n"
            f"    ours {self.ours:.4g} {self.unit}, yardstick {self.yardstick:.4g} {self.unit} "
            f"spreading over {self.yardstick_spread:.0%}, {self.rounds} pairs"
        )

    def as_dict(self) -> dict[str, object]:
        """The same for machines."""
        return asdict(self)


def measure(benchmark: Benchmark) -> Outcome:
    """Run the pair in turns, the first to go changing each round, and compare."""
    pairs = []
    try:
        for number in range(benchmark.rounds + 1):
            if number % 2:
                ours, yardstick = benchmark.ours(), benchmark.yardstick()
            else:
                yardstick, ours = benchmark.yardstick(), benchmark.ours()
            pairs.append((ours, yardstick))
    finally:
        benchmark.close()
    return judge(benchmark, pairs[1:])


def judge(benchmark: Benchmark, pairs: list[tuple[float, float]]) -> Outcome:
    """Turn pairs (ours, yardstick) into an outcome."""
    low, ratio, high = statistics.quantiles([ours / yardstick for ours, yardstick in pairs], n=4, method="inclusive")
    yard_low, yard, yard_high = statistics.quantiles([yardstick for _, yardstick in pairs], n=4, method="inclusive")
    spread = (yard_high - yard_low) / yard
    kept = ratio <= benchmark.target if benchmark.at_most else ratio >= benchmark.target
    return Outcome(
        name=benchmark.name,
        verdict="not comparable" if spread > benchmark.spread_max else "ok" if kept else "MISS",
        ratio=ratio,
        ratio_low=low,
        ratio_high=high,
        target=benchmark.target,
        at_most=benchmark.at_most,
        ours=statistics.median(ours for ours, _ in pairs),
        yardstick=yard,
        yardstick_spread=spread,
        unit=benchmark.unit,
        rounds=len(pairs),
    )
