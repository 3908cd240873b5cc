"""Variables that may explain why a restored run differs, if nothing seen at the restore certainly explains it.

A checkpoint must hold what the save's step left behind.  A variable that has the same value at the start of the next step
as at the end of that step was *carried* over; a variable that the next step computes again only shows another error.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence

from windfall.drill.drill_trace import Record, distance, same
from windfall.drill.effects import RankComparison

SUSPECTS_MAX = 3
"""Report at most this many; others are consequences."""
LOCAL = frozenset(
    {"start", "started", "first", "since", "local", "session", "here", "elapsed", "time", "timer", "seconds", "speed"}
    | {"log", "logs", "logger", "window", "running", "printed", "resumed", "history", "process", "loss", "losses"}
    | {"metric", "metrics", "meter", "meters", "curve", "plot", "progress"}
)
"""Words in the names of variables that belong to one process or to its output."""
_ORDER = ("array", "value", "list", "size")


def is_number(record: Record) -> bool:
    """Return whether an array holds one number, as sums for a log do."""
    return "s" not in record or math.prod(record["s"]) == 1


def words(name: str) -> set[str]:
    """Return the words of a variable's name."""
    return set(re.split(r"[^a-z]+", re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()))


def carried(comparison: RankComparison, key: str) -> bool | None:
    """Return whether the continuation carried a variable over from the save's step; None if that was not seen.

    Its name may differ, because a step can start and end in different functions of the script.
    """
    after = comparison.a.afters.get(comparison.saved_at)
    if after is None or not comparison.direct:
        return None
    if same(after.get(key), comparison.expected[key]):
        return True
    kind, last = key.partition(":")[0], _last(key)
    named = [
        record
        for other, record in after.items()
        if other.partition(":")[0] == kind and (kind == "array" or _last(other) == last)
    ]
    if kind in ("list", "size"):
        # A growing list may have grown already when the step's start is detected, but it is never shorter than before.
        return any(_length(comparison.found[key]) < _length(one) <= _length(comparison.expected[key]) for one in named)
    return any(same(record, comparison.expected[key]) for record in named)


def _length(record: Record) -> int:
    return int(record["s"][0] if "s" in record else record["v"])


def _last(key: str) -> str:
    return key.partition(":")[2].rpartition(".")[2]


def counts_steps(comparison: RankComparison, key: str) -> bool:
    """Return whether a variable is an integer that every step increases by the same amount."""
    history = [record.get("v") for _, record in comparison.a.history(key)]
    values = [value for value in history if type(value) is int]
    if len(values) < 3 or len(values) < len(history):
        return False
    return len({after - before for before, after in itertools.pairwise(values)}) == 1 and values[0] != values[1]


def causes_first(comparison: RankComparison, wrong: Sequence[str]) -> list[str]:
    """Return variables that were only seen at the ends of steps, with likely causes before their consequences.

    A wrong counter is a cause, and an array may be its consequence.  A value that was not restored differs more than
    what one step has computed from it.
    """
    return sorted(
        wrong,
        key=lambda key: (not counts_steps(comparison, key), -distance(comparison.expected[key], comparison.found[key])),
    )


def _is_order(comparison: RankComparison, key: str) -> bool:
    """Return whether an array or list consists of integers and has the expected length."""
    expected, found = comparison.expected[key], comparison.found[key]
    if key.partition(":")[0] not in ("array", "list") or expected.get("s") != found.get("s"):
        return False
    return all(float(one).is_integer() for one in (*expected.get("x", ()), *found.get("x", ())))


def suspects(comparison: RankComparison) -> list[str]:
    """Return variables that were carried over, are equal in both restored runs, and differ from the continuation's.

    Step counters are excluded, since each process may count its own steps; so are variables for output, and arrays of
    integers, since an order of samples belongs to the data.
    """
    wrong = [
        key
        for key in comparison.wrong(_ORDER)
        if carried(comparison, key)
        and comparison.lasting(key)
        and comparison.a.changes(key)
        and same(comparison.found[key], comparison.again.get(key))
        and not words(key.partition(":")[2]) & LOCAL
        and not (key.startswith("value:") and counts_steps(comparison, key))
        and not _is_order(comparison, key)
    ]
    kinds = {key: _ORDER.index(key.partition(":")[0]) for key in wrong}
    best = [key for key in wrong if kinds[key] < _ORDER.index("list")]
    lists = {key.partition(":")[2] for key in wrong if key.startswith("list:")}
    rest = [key for key in wrong if not (key.startswith("size:") and key.partition(":")[2] in lists)]
    return sorted(best or rest, key=lambda key: kinds[key])[:SUSPECTS_MAX]
