"""What running items report of the metric by which they may be stopped: the new part of a file of each, about once a second.

A curve has at most `POINTS` values, spread over the run; its first and last, its smallest and largest are always among them.
Where nothing grew, an item costs one call of the system; a bag without a rule costs nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Sequence
from pathlib import Path

from windfall.agent import item_files
from windfall.agent.item_rule_call import RuleCall
from windfall.bags import Bag, GrantedItem, ItemLease, MetricCurve, ResultRule, StopItem
from windfall.core import item_stops
from windfall.core.item_runner import CurvesRead, RunnerFact
from windfall.core.item_table import number_of
from windfall.ports import Clock
from windfall.terms import Seconds

LOOK_S = Seconds(1.0)
"""The time between two looks at the files [s]."""
POINTS = 32
READ_BYTES = 4 << 20
"""What is read of a file at one look; the rest at the next ones [B]."""
LAST_READS = 16
"""Of an item that has ended, this number of such parts is still read."""
LINE_BYTES_MAX = 1 << 20
"""A line that is longer, and is not at its end yet, is passed over [B]."""
_AT_ONCE = 4 * POINTS


class MetricFile:
    """The file of an item that has its metric.

    Args:
        folder: of the item.
        rule: of the metric.
        stop: says how far the item is.
        before_s: its work at its start, as it continues from a save [s].

    Attributes:
        points: values after their progress, oldest first: a share of the run if the rule has steps, else a time [s].
    """

    def __init__(self, folder: Path, rule: ResultRule, stop: StopItem, before_s: float = 0.0) -> None:
        self.points: list[tuple[float, float]] = []
        self._path = folder / (item_files.OUTPUT if rule.file == item_files.PRINTED else rule.file)
        self._rule, self._stop, self._before_s = rule, stop, before_s
        self._offset, self._inode, self._changed_ns = 0, 0, 0
        self._rest = b""
        self._step = 0.0
        self._read_at = 0.0
        self._digest = b""
        if self._path.is_symlink():
            # It is a file of the code, which no item has written yet.
            self._pass_over()

    def _pass_over(self) -> None:
        with contextlib.suppress(OSError):
            found = os.stat(self._path)
            self._inode, self._changed_ns, self._offset = found.st_ino, found.st_mtime_ns, found.st_size

    def read(self, run_s: float, *, last: bool = False) -> bool:
        """Take in what is new; return whether a value is.

        Args:
            run_s: how long the item has run, without what it had done before [s].
            last: it has ended, so that a last line without an end is whole.
        """
        try:
            found = os.stat(self._path)
        except OSError:
            return False
        now = self._before_s + run_s
        if self._rule.regex is None:
            if (found.st_ino, found.st_mtime_ns, found.st_size) == (self._inode, self._changed_ns, self._offset):
                return False
            self._inode, self._changed_ns, self._offset = found.st_ino, found.st_mtime_ns, found.st_size
            fresh = self._read_document(now)
        else:
            if found.st_ino != self._inode or found.st_size < self._offset:
                self._inode, self._offset, self._rest, self._step = found.st_ino, 0, b"", 0.0
                self.points.clear()
            fresh = False
            for _ in range(LAST_READS if last else 1):
                if self._offset < found.st_size:
                    fresh |= self._read_lines(now)
            if last:
                fresh |= self._take(self._rest, now)
        self._read_at = now
        return fresh

    def shares(self, run_s: float) -> MetricCurve:
        """Return the curve of an item that has ended by shares of its run, which took this long [s]."""
        whole_s = 1.0 if self._stop.steps is not None else max(self._before_s + run_s, 1e-9)
        return tuple((_rounded(min(at / whole_s, 1.0)), value) for at, value in self.points)

    def curve(self) -> MetricCurve:
        """Return the curve of an item that runs."""
        return tuple((_rounded(at), value) for at, value in self.points)

    def _read_lines(self, now: float) -> bool:
        """Read the next part of the file as far as its lines are whole."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read(READ_BYTES)
        except OSError:
            return False
        self._offset += len(data)
        lines, end, rest = (self._rest + data).rpartition(b"\n")
        self._rest = rest if len(rest) <= LINE_BYTES_MAX else b""
        return self._take(lines + end, now)

    def _take(self, data: bytes, now: float) -> bool:
        """Take in the values in some lines; without steps they are spread over the time since the last look."""
        assert self._rule.regex is not None
        text = data.decode(errors="replace")
        steps = [] if self._stop.steps is None else list(re.finditer(self._stop.steps, text, re.MULTILINE))
        values: list[tuple[float, float]] = []
        place = 0
        for match in re.finditer(self._rule.regex, text, re.MULTILINE):
            value = _number(match)
            line_end = text.find("\n", match.end())
            while place < len(steps) and (line_end < 0 or steps[place].start() < line_end):
                step = _number(steps[place])
                self._step, place = self._step if step is None else step, place + 1
            if value is not None:
                values.append((self._progress(), value))
        for match in steps[place:]:
            self._step = self._step if (step := _number(match)) is None else step
        if self._stop.steps is None:
            each = (now - self._read_at) / max(len(values), 1)
            values = [(self._read_at + each * number, value) for number, (_, value) in enumerate(values, 1)]
        self._add(values)
        return bool(values)

    def _progress(self) -> float:
        return min(max(self._step / self._stop.steps_of, 0.0), 1.0)

    def _read_document(self, now: float) -> bool:
        """Read a file of JSON, if it is whole and says anything else than before."""
        try:
            data = self._path.read_bytes()
        except OSError:
            return False
        digest = hashlib.blake2b(data, digest_size=16).digest()
        text = data.decode(errors="replace")
        value = number_of(item_files.value_of(self._rule, text))
        if value is None or digest == self._digest:
            return False
        self._digest = digest
        if self._stop.steps is None:
            at = now
        else:
            *_, step = (None, *(_number(found) for found in re.finditer(self._stop.steps, text, re.MULTILINE)))
            self._step = self._step if step is None else step
            at = self._progress()
        self._add([(at, value)])
        return True

    def _add(self, values: Sequence[tuple[float, float]]) -> None:
        if len(values) > _AT_ONCE:
            numbers = [value for _, value in values]
            kept = {0, len(values) - 1, numbers.index(min(numbers)), numbers.index(max(numbers))}
            values = [values[place] for place in sorted(kept | set(range(0, len(values), len(values) // _AT_ONCE + 1)))]
        for one in values:
            self.points.append(one)
            if len(self.points) > POINTS:
                _thin(self.points)


def _thin(points: list[tuple[float, float]]) -> None:
    """Remove the value that leaves the smallest gap; neither an end, nor the smallest, nor the largest."""
    values = [value for _, value in points]
    kept = {values.index(min(values)), values.index(max(values))}
    inner = (place for place in range(1, len(points) - 1) if place not in kept)
    del points[min(inner, key=lambda place: points[place + 1][0] - points[place - 1][0])]


def _number(match: re.Match[str]) -> float | None:
    return number_of(item_files.parsed(match[min(match.re.groups, 1)] or ""))


def _rounded(progress: float) -> float:
    return round(progress, 4)


class ItemMetrics:
    """The metrics of a machine's items.

    Args:
        bag: may have a rule that stops items.
        clock: time.
        call: asks the user's function; None without one.
    """

    def __init__(self, bag: Bag, clock: Clock, call: RuleCall | None) -> None:
        self._bag, self._stop, self._clock, self._call = bag, bag.stop_item, clock, call
        self._files: dict[ItemLease, tuple[GrantedItem, MetricFile, float]] = {}
        self._looked_at = clock.now()

    def started(self, item: GrantedItem, folder: Path, before_s: float) -> None:
        """Read an item's metric from now on; `before_s` of its work are in the save from which it continues."""
        if self._stop is None or item.lease.item == self._bag.reduce_item:
            return
        rule = next(rule for rule in self._bag.results if rule.name == self._stop.metric)
        file = MetricFile(folder, rule, self._stop, before_s)
        # What the save brought along is of the time before.
        file.read(0.0)
        self._files[item.lease] = (item, file, self._clock.now())

    def facts(self) -> list[RunnerFact]:
        """Return what is new, if it is time to look."""
        if self._stop is None:
            return []
        facts: list[RunnerFact] = [] if self._call is None else [*self._call.answers()]
        if (now := self._clock.now()) < self._looked_at + LOOK_S:
            return facts
        self._looked_at = now
        fresh = [lease for lease, (_, file, since) in self._files.items() if file.read(now - since)]
        if self._call is None:
            curves = {lease: self._files[lease][1].curve() for lease in fresh}
            return [*facts, CurvesRead(curves)] if curves else facts
        for lease in fresh:
            item, file, _ = self._files[lease]
            parameters = dict(zip(self._bag.parameters, item.values, strict=True))
            self._call.ask(lease, parameters, [value for _, value in file.points])
        return facts

    def ended(self, lease: ItemLease, run_s: float) -> MetricCurve:
        """Return the whole curve of an item that has ended, if items are compared with it; its folder may go."""
        found = self._files.pop(lease, None)
        if self._call is not None:
            self._call.forget(lease)
        if found is None or not item_stops.compares(self._bag):
            return ()
        found[1].read(run_s, last=True)
        return found[1].shares(run_s)

    def close(self) -> None:
        """End the process of the user's function."""
        if self._call is not None:
            self._call.close()
