"""What `bag.stop_when` and `bag.stop_item` share: a metric among the results of the bag, and one of several rules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from windfall.bags import ResultRule
from windfall.spelling import nearest


def metric_problems(
    place: tuple[str, ...], metric: str, results: Sequence[ResultRule]
) -> Iterable[tuple[tuple[str, ...], str]]:
    """Yield what is wrong with the metric of the block at a place of the job file, each with its path, and a sentence."""
    block, names = ".".join(place), [one.name for one in results]
    if not names:
        yield place, f"{block} needs bag.results, for example results: {{energy: {{regex: 'energy = (.*)'}}}}"
    elif metric not in names:
        found = nearest(metric, names)
        yield (*place, "metric"), f"{block}.metric names {metric}, which is none of bag.results; {found}"


def one_rule(
    place: tuple[str, ...], rules: Sequence[str], known: Sequence[str], example: str
) -> Iterable[tuple[tuple[str, ...], str]]:
    """Yield that the block at a place has no rule, or several."""
    if len(rules) != 1:
        has = f"has {' and '.join(rules)}; keep one" if rules else f"needs one of {', '.join(known)}"
        yield place, f"{'.'.join(place)} {has}, for example {example}"
