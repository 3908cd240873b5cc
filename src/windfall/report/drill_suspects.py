"""Variables that may be why a restored run goes another way, where nothing that was seen at the restore is sure to be.

What a file has to bring is what the save's step left behind.  A variable that the next step begins with as that step left
it was *carried* over; one that the next step has made anew only shows what else is wrong.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence

from windfall.report.drill_effects import Look
from windfall.report.drill_trace import Record, distance, same

SUSPECTS_MAX = 3
"""More are consequences."""
LOCAL = frozenset(
    {"start", "started", "first", "since", "local", "session", "here", "elapsed", "time", "timer", "seconds", "speed"}
    | {"log", "logs", "logger", "window", "running", "printed", "resumed", "history", "process", "loss", "losses"}
    | {"metric", "metrics", "meter", "meters", "curve", "plot", "progress"}
)
"""Words in the names of variables that belong to a process, or to what it shows."""
_ORDER = ("array", "value", "list", "size")


def is_number(record: Record) -> bool:
    """Say whether an array holds one number, as sums for the log do."""
    return "s" not in record or math.prod(record["s"]) == 1


def words(name: str) -> set[str]:
    """Return the words of a variable's name."""
    return set(re.split(r"[^a-z]+", re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()))


def carried(look: Look, key: str) -> bool | None:
    """Say whether the continuation took a variable over from the step of the save; None if that was not seen.

    The name may be another, for a step begins and ends in different functions of the script.
    """
    after = look.a.afters.get(look.saved_at)
    if after is None or not look.direct:
        return None
    if same(after.get(key), look.expected[key]):
        return True
    kind, last = key.partition(":")[0], _last(key)
    named = [
        record
        for other, record in after.items()
        if other.partition(":")[0] == kind and (kind == "array" or _last(other) == last)
    ]
    if kind in ("list", "size"):
        # What grows may have grown already when the step shows itself, but is never shorter than it was.
        return any(_length(look.found[key]) < _length(one) <= _length(look.expected[key]) for one in named)
    return any(same(record, look.expected[key]) for record in named)


def _length(record: Record) -> int:
    return int(record["s"][0] if "s" in record else record["v"])


def _last(key: str) -> str:
    return key.partition(":")[2].rpartition(".")[2]


def counts_steps(look: Look, key: str) -> bool:
    """Say whether a variable is a whole number that every step raises by the same."""
    history = [record.get("v") for _, record in look.a.history(key)]
    values = [value for value in history if type(value) is int]
    if len(values) < 3 or len(values) < len(history):
        return False
    return len({after - before for before, after in itertools.pairwise(values)}) == 1 and values[0] != values[1]


def causes_first(look: Look, wrong: Sequence[str]) -> list[str]:
    """Return variables, of which only the ends of steps were seen, with the likely causes before their consequences.

    A count that is off is a reason, an array may be its consequence; what was forgotten is further off than what
    one step has made of it.
    """
    return sorted(
        wrong,
        key=lambda key: (not counts_steps(look, key), -distance(look.expected[key], look.found[key])),
    )


def _is_order(look: Look, key: str) -> bool:
    """Say whether an array or list is of whole numbers, and as long as it should be."""
    expected, found = look.expected[key], look.found[key]
    if key.partition(":")[0] not in ("array", "list") or expected.get("s") != found.get("s"):
        return False
    return all(float(one).is_integer() for one in (*expected.get("x", ()), *found.get("x", ())))


def suspects(look: Look) -> list[str]:
    """Return variables that were carried over, that both restored runs have as one another and not as the continuation.

    Counts of steps are left out, for each process may count its own; so is what only shows how it goes, and so are
    arrays of whole numbers: an order of samples is the data's.
    """
    wrong = [
        key
        for key in look.wrong(_ORDER)
        if carried(look, key)
        and look.lasting(key)
        and look.a.changes(key)
        and same(look.found[key], look.again.get(key))
        and not words(key.partition(":")[2]) & LOCAL
        and not (key.startswith("value:") and counts_steps(look, key))
        and not _is_order(look, key)
    ]
    kinds = {key: _ORDER.index(key.partition(":")[0]) for key in wrong}
    best = [key for key in wrong if kinds[key] < _ORDER.index("list")]
    lists = {key.partition(":")[2] for key in wrong if key.startswith("list:")}
    rest = [key for key in wrong if not (key.startswith("size:") and key.partition(":")[2] in lists)]
    return sorted(best or rest, key=lambda key: kinds[key])[:SUSPECTS_MAX]
