"""One rank's three traces compared, and what differs after a restore beyond the script's own noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from windfall.drill.drill_trace import Finding, Items, Record, ScriptTrace, distance, rounded, same, shown

NOISE_FACTOR = 4.0
"""A difference from the continuation counts if it is this many times the largest between the two restored runs."""
NOISE_LEAST = 1e-5
"""Relative difference; smaller ones are rounding errors."""


@dataclass(frozen=True, slots=True)
class Shift:
    """The first learning rate that differs from the continuation's."""

    step: int
    found: float
    expected: float
    as_at_first: bool


@dataclass(frozen=True, slots=True)
class Effect:
    """The first visible result of training that differs from the continuation's."""

    key: str
    step: int
    subject: str
    detail: str


@dataclass(frozen=True, slots=True)
class RankComparison:
    """The traces of one rank: the continuation, the two restored runs, and the number of steps before the save."""

    a: ScriptTrace
    b1: ScriptTrace
    b2: ScriptTrace
    saved_at: int

    @property
    def direct(self) -> bool:
        """Whether the start of the first step was seen; otherwise its end is compared."""
        return self.saved_at in self.a.begins and 0 in self.b1.begins and 0 in self.b2.begins

    @property
    def expected(self) -> Items:
        """The continuation's state at the first step after the save."""
        return self.a.begins[self.saved_at] if self.direct else self.a.ends.get(self.saved_at, {})

    @property
    def found(self) -> Items:
        """The first restored run's state at that step."""
        return self.b1.begins[0] if self.direct else self.b1.ends.get(0, {})

    @property
    def again(self) -> Items:
        """The second restored run's state at that step."""
        return self.b2.begins[0] if self.direct else self.b2.ends.get(0, {})

    @property
    def first(self) -> int:
        """The number of the first step after the save, in the script's own count."""
        return self.number(self.saved_at + 1)

    def number(self, ended: int) -> int:
        """Return the script's own number of a step, by how many had ended with it."""
        return self.a.numbers.get(ended - 1, ended)

    def wrong(self, channels: Sequence[str]) -> list[str]:
        """Return the items of these channels that differ.

        A variable must exist in both runs; an object that was not seen after the restore cannot be compared.
        """
        expected, found = self.expected, self.found
        seen = {key.partition("|")[0] for key in found}
        return [
            key
            for key in expected
            if _channel(key) in channels
            and (key in found or ("|" in key and key.partition("|")[0] in seen))
            and not same(expected[key], found.get(key))
        ]

    @property
    def accumulates(self) -> bool:
        """Whether the continuation has steps without an update."""
        return any(number not in self.a.updates for number in self.a.ends)

    def as_of(self, keys: Sequence[str]) -> int | None:
        """Return after how many steps the continuation had all these items as the restored run has them."""
        for number, items in sorted(self.a.begins.items(), reverse=True):
            if number != self.saved_at and all(same(items.get(key), self.found.get(key)) for key in keys):
                return number
        return None

    def all_rounded(self, keys: Sequence[str]) -> str | None:
        """Return the number type to which all the items were rounded; None if any was not."""
        kinds = {rounded(self.expected[key], self.found[key]) if key in self.found else None for key in keys}
        return kinds.pop() if len(kinds) == 1 else None

    def example(self, keys: Sequence[str]) -> str:
        """Return the values of one item, in parentheses."""
        if not keys:
            return ""
        key = max(keys, key=lambda one: ("n" in self.expected[one], one in self.found))
        name = key.partition("|")[2] or key.partition(":")[2]
        return f" ({name}: {shown(self.found.get(key))}, expected {shown(self.expected[key])})"

    def finding(self, code: str, subject: str, detail: str) -> Finding:
        """Return a finding that shows at the first step."""
        return Finding(code, subject, detail, self.a.rank, self.first)

    def judged(self, code: str, what: str, detail: str, *, settled: bool) -> Finding:
        """Return the finding that `what` is not restored if the two restored runs agree, otherwise a note."""
        if settled:
            return self.finding(code, f"{what} not restored", detail)
        detail = "the two restored runs differ from each other"
        return Finding(code, f"{what} cannot be judged", detail, self.a.rank, self.first, forgotten=False)

    def drawn(self, keys: Sequence[str]) -> bool:
        """Return whether a random generator differs that the continuation drew from."""
        return any(key in self.expected and self.a.changes(key) for key in self.wrong(("rng",)) if key in keys)

    def lasting(self, key: str) -> bool:
        """Return whether a variable still differs at the end of the first step and at the last step that both have."""
        for number in (0, max(self.b1.ends, default=0)):
            a, b = self.a.ends.get(self.saved_at + number, {}), self.b1.ends.get(number, {})
            if key in a and key in b and same(a[key], b[key]):
                return False
        for number, items in self.b1.begins.items():
            there = self.a.begins.get(self.saved_at + number, {})
            if key in items and key in there and same(items[key], there[key]):
                return False
        return True

    def off_by_one(self, key: str) -> bool:
        """Return whether a variable that counts steps is exactly one too low or too high after the restore."""
        values = [(number, record.get("v")) for number, record in self.a.history(key)]
        gaps = {value - number for number, value in values if isinstance(value, int) and number}
        expected, found = self.expected[key].get("v"), self.found[key].get("v")
        if len(gaps) != 1 or not isinstance(expected, int) or not isinstance(found, int):
            return False
        return abs(expected - found) == 1


def first_rate(comparison: RankComparison) -> Shift | None:
    """Return the first update whose learning rate differs from the continuation's; None if none, or if noise decides."""
    for number, items in sorted(comparison.b1.updates.items()):
        expected = comparison.a.updates.get(comparison.saved_at + number, {})
        for key, record in items.items():
            if key.startswith("lr:") and key in expected and not same(record, expected[key]):
                if not same(record, comparison.b2.updates.get(number, {}).get(key)):
                    return None
                begun = comparison.a.updates[min(comparison.a.updates)].get(key)
                return Shift(
                    comparison.number(comparison.saved_at + number + 1),
                    record["v"],
                    expected[key]["v"],
                    same(begun, record),
                )
    return None


def first_effect(comparison: RankComparison) -> Effect | None:
    """Return the first batch, loss, report or parameter that differs from the continuation beyond the noise floor."""
    floors = _floors(comparison)
    for number in sorted(comparison.b1.ends):
        a, b = _moment(comparison.a, comparison.saved_at + number), _moment(comparison.b1, number)
        for key in sorted(b, key=lambda key: _ORDER.index(_channel(key))):
            if key in a and distance(a[key], b[key]) > NOISE_FACTOR * floors[_channel(key)] + NOISE_LEAST:
                step = comparison.number(comparison.saved_at + number + 1)
                return Effect(
                    key,
                    step,
                    f"{_title(key)} of a restored run differs from step {step} on",
                    f"{shown(b[key])}, expected {shown(a[key])}, more than the two restored runs differ from each other; "
                    "nothing that was seen at the restore explains it",
                )
    return None


def _floors(comparison: RankComparison) -> dict[str, float]:
    """Return the noise floor of each channel.

    Losses move parameters and parameters losses, so none of these is less noisy than another: two runs may come out
    close in one of them by chance.  Data differ wholly or not at all, and say nothing of the others.
    """
    floors = {channel: noise(comparison, channel) for channel in _ORDER}
    training = max((floors[one] for one in _TRAINING if math.isfinite(floors[one])), default=0.0)
    return {channel: own if channel == "data" else max(own, training) for channel, own in floors.items()}


def noise(comparison: RankComparison, channel: str) -> float:
    """Return the largest relative difference of one channel between the two restored runs."""
    apart = 0.0
    for number in comparison.b1.ends:
        one, other = _moment(comparison.b1, number), _moment(comparison.b2, number)
        apart = max(
            [apart, *(distance(one[key], other[key]) for key in one if key in other and _channel(key) == channel)]
        )
    return apart


def _channel(key: str) -> str:
    return key.partition(":")[0]


def loss_apart(comparison: RankComparison) -> tuple[float, float] | None:
    """Return the largest relative difference of a loss from the continuation, and between the restored runs."""
    apart = [
        distance(one["loss:loss"], other["loss:loss"])
        for number in comparison.b1.ends
        if (one := _moment(comparison.a, comparison.saved_at + number)) and (other := _moment(comparison.b1, number))
        if "loss:loss" in one and one["loss:loss"].get("v") not in (None, []) and "loss:loss" in other
    ]
    return (max(apart), noise(comparison, "loss")) if apart else None


def remainder(comparison: RankComparison) -> str | None:
    """Return how gradients that were accumulated at the save are missing after the restore; None if they are not."""
    for number in sorted(comparison.b1.ends):
        a, b = comparison.a.updates.get(comparison.saved_at + number), comparison.b1.updates.get(number)
        step = comparison.number(comparison.saved_at + number + 1)
        if (a is None) != (b is None):
            who = "the continuation updates and a restored run does not" if b is None else "only a restored run updates"
            return f"at step {step} {who}"
        if a is None or b is None:
            continue
        other = comparison.b2.updates.get(number, {})
        for key in (key for key in a if key.startswith("grad:")):
            floor = distance(b[key], other[key]) if key in b and key in other else 0.0
            if key not in b or distance(a[key], b[key]) > NOISE_FACTOR * floor + NOISE_LEAST:
                return (
                    (
                        f"at step {step} the gradients have {shown(b.get(key))}, expected "
                        f"{shown(a[key])}; the sum accumulated before the save is missing"
                    )
                    if _losses_agree(comparison, number)
                    else None
                )
        return None
    return None


def _losses_agree(comparison: RankComparison, number: int) -> bool:
    a, b = comparison.a.ends.get(comparison.saved_at + number, {}), comparison.b1.ends.get(number, {})
    return same(a.get("loss:loss"), b.get("loss:loss"))


_ORDER = ("data", "loss", "report", "file", "param", "buffer", "array")
_TRAINING = ("loss", "param", "buffer")


def _moment(trace: ScriptTrace, number: int) -> dict[str, Record]:
    """Return the visible results of a step: its data, loss and reports, and the state at its end.

    Arrays that no module owns count only if nothing better is visible.
    """
    end, after = trace.ends.get(number, {}), trace.begins.get(number + 1, {})
    found = {key: record for key, record in after.items() if _channel(key) in ("param", "buffer")}
    found |= {key: record for key, record in end.items() if _channel(key) in _ORDER}
    return {key: record for key, record in found.items() if not (trace.begins and key.startswith("array:"))}


def _title(key: str) -> str:
    titles = {"data": "the data", "loss": "the loss", "report": "the reported metric", "file": "the checkpoint"}
    return titles.get(_channel(key), f"`{key.partition(':')[2].replace('|', '.')}`")
