"""What a bag did, by witnesses that the product does not have: its items' own notes, and every value computed again.

The bag's log is read from the files of its store, and added up here by other rules than the product's.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.bags import short_item
from windfall.bags import ItemEnd, ItemOutcome, ItemRecord
from windfall.core import item_commands
from windfall.wire import bag_layout

_FAILURES = (ItemEnd.FAILED, ItemEnd.TIMED_OUT)


@dataclass(frozen=True)
class Plan:
    """A bag of short items: the parameter of each, and what the job file says of it."""

    xs: tuple[int, ...]
    seed: int
    finish: float = 1.0
    at_once: int | None = None
    retries: int = 6

    @property
    def must_finish(self) -> int:
        """How many items must be done, counted in hundredths."""
        return -(-round(self.finish * 100) * len(self.xs) // 100)

    def seed_of(self, item: int) -> int:
        """The seed that an item has in each of its tries."""
        return item_commands.item_seed(self.seed, (self.xs[item],))

    def value_of(self, item: int) -> int:
        """What an item computes, computed here."""
        return short_item.value_of(self.xs[item], self.seed_of(item))


@dataclass(frozen=True)
class Try:
    """A try of an item by the notes of its process [s since 1970]; `ended` is None if it was killed, or failed."""

    item: int
    attempt: int
    seed: int
    started: float
    ended: float | None


def tries_of(path: Path) -> list[Try]:
    """Every try that was started, in order."""
    starts: dict[tuple[int, int], tuple[int, float]] = {}
    ends: dict[tuple[int, int], float] = {}
    for line in path.read_text().splitlines():
        what, item, attempt, seed, at = line.split()
        key = int(item), int(attempt)
        if what == "start":
            assert key not in starts, f"item {item} was started twice under number {attempt}"
            starts[key] = int(seed), float(at)
        else:
            assert key not in ends, f"item {item} ended twice under number {attempt}"
            ends[key] = float(at)
    return [Try(*key, seed, at, ends.get(key)) for key, (seed, at) in starts.items()]


@dataclass
class LogWatch:
    """The objects of a bag's log as they were first seen: none may ever change, or go."""

    folder: Path
    seen: dict[str, bytes] = field(default_factory=dict)

    def look(self) -> None:
        """Compare what is there with what was seen before."""
        found = {path.name: path.read_bytes() for path in sorted((self.folder / "items" / "log").glob("[0-9]*"))}
        for name, data in self.seen.items():
            assert found.get(name) == data, f"record {name} of the bag's log was changed or lost"
        self.seen |= found

    def records(self) -> list[ItemRecord]:
        """The log, from record 1 on."""
        self.look()
        names = sorted(self.seen)
        assert names == [f"{number:08d}" for number in range(1, len(names) + 1)], "the bag's log has a gap"
        return [bag_layout.record_from_bytes(self.seen[name]) for name in names]


@dataclass(frozen=True)
class Account:
    """The bag's log, added up: the outcome of each item that is done, and how many others ended how."""

    done: Mapping[int, ItemOutcome]
    failed: frozenset[int]
    ends: Counter[ItemEnd]
    records: int
    reason: str


def add_up(records: list[ItemRecord], plan: Plan) -> Account:
    """Add a log up; nothing may count twice, belong to another's lease, or come after the end."""
    done: dict[int, ItemOutcome] = {}
    failures: Counter[int] = Counter()
    holder: dict[int, tuple[str, int]] = {}
    numbers: Counter[int] = Counter()
    ends: Counter[ItemEnd] = Counter()
    closed = ""
    for record in records:
        assert not closed, f"record {record.number} follows the bag's end"
        assert len(done) < plan.must_finish, f"record {record.number} is of a bag that had its share"
        leased = [(leases.runner, item) for leases in record.leased for item in leases.items]
        for runner, outcome in record.outcomes:
            item = outcome.lease.item
            assert holder.pop(item, None) == (runner, outcome.lease.number), f"{runner} did not have {outcome.lease}"
            ends[outcome.end] += 1
            if outcome.end is ItemEnd.DONE:
                assert item not in done, f"item {item} counts twice"
                done[item] = outcome
            failures[item] += outcome.end in _FAILURES
        for ended in record.ended:
            ends[ended.end] += 1
            assert holder.pop(ended.lease.item) == (ended.runner, ended.lease.number)
        for runner, item in leased:
            assert item not in holder, f"two runners have item {item}"
            assert item not in done, f"item {item} is done, and leased"
            numbers[item] += 1
            holder[item] = runner, numbers[item]
        assert plan.at_once is None or len(holder) <= plan.at_once, f"{len(holder)} items in hand, not {plan.at_once}"
        closed = record.reason if record.closed else ""
    assert closed, "the bag did not end"
    failed = frozenset(item for item, count in failures.items() if count > plan.retries and item not in done)
    return Account(done, failed, ends, len(records), closed)


def check_results(folder: Path, plan: Plan, account: Account, tries: list[Try]) -> None:
    """Each item that is done ended by its own notes, and has the values, the output and the file of one whole run."""
    ended = {(one.item, one.attempt) for one in tries if one.ended is not None}
    for one in tries:
        assert one.seed == plan.seed_of(one.item), f"item {one.item} had another seed in try {one.attempt}"
    for item, outcome in account.done.items():
        assert (item, outcome.lease.number) in ended, f"item {item} counts, but {outcome.lease} never ended"
        expected = plan.value_of(item)
        assert dict(outcome.values) == {"printed": expected, "written": expected}, f"item {item}: {outcome.values}"
        x, seed = plan.xs[item], plan.seed_of(item)
        output = outcome.output
        assert output is not None
        printed = (folder / output.key).read_bytes()[output.offset : output.offset + output.size_bytes]
        assert printed.decode() == short_item.printed_by(x, seed), f"item {item} printed {printed!r}"
        (kept,) = outcome.files
        whole = (folder / kept.key).read_text()
        assert kept.path == "out.json"
        assert whole == short_item.written_by(x, seed), f"item {item} kept {len(whole)} characters of another file"


def check_share(plan: Plan, account: Account, tries: list[Try], shown: int) -> None:
    """As many are done as the bag says, and enough; those that are not done had no end that counts."""
    bad = {item for item, x in enumerate(plan.xs) if x < 0}
    assert shown == len(account.done), f"{shown} items are shown as done, {len(account.done)} are"
    assert not bad & account.done.keys()
    assert len(account.done) >= plan.must_finish
    if plan.must_finish == len(plan.xs):
        assert sorted(account.done) == list(range(len(plan.xs)))
    finished = {one.item for one in tries if one.ended is not None}
    assert account.done.keys() <= finished, "more items count than ended"
    assert account.failed <= bad, f"items that cannot fail failed for good: {sorted(account.failed - bad)}"


def check_crowd(plan: Plan, tries: list[Try]) -> None:
    """No more items ran at once than may, and no item twice at once."""
    whole = [one for one in tries if one.ended is not None]
    for one in whole:
        at_once = [two for two in whole if two.started <= one.started < (two.ended or 0.0)]
        assert plan.at_once is None or len(at_once) <= plan.at_once, f"{len(at_once)} items ran at once: {at_once}"
    for one, two in itertools.combinations(whole, 2):
        if one.item == two.item:
            apart = (one.ended or 0.0) <= two.started or (two.ended or 0.0) <= one.started
            assert apart, f"item {one.item} ran twice at once: {one}, {two}"
