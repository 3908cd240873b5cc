"""What the controller heard of each machine, on any channel: which reports are news, and who is silent.

Times are those of this process's monotonic clock, so that no jump of a wall clock makes anybody silent; a controller that
was itself stopped gives everybody the benefit of the doubt.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from windfall.fleet import MachineHeard, MachineSilent, Report
from windfall.terms import Instant, Seconds

_SHIFT_S = 2.0
"""An announced end that moves by more than this is news."""


@dataclass(slots=True)
class _Ear:
    """What one machine last said, and when it was last said of it that it is silent."""

    heard_at: Instant
    report: Report | None = None
    taken_at: Instant | None = None
    silent_told_at: Instant | None = None


class Hearing:
    """The newest report of each machine of a job, and when it came."""

    def __init__(self, silent_after_s: Seconds) -> None:
        self._silent_after_s = silent_after_s
        self._ears: dict[str, _Ear] = {}
        self._looked_at: Instant | None = None

    def hear(self, reports: Iterable[Report], channel: str, now: Instant, journal_now: Instant) -> list[MachineHeard]:
        """Take reports in; return those that say something new.

        Args:
            reports: as they came.
            channel: which way.
            now: monotonic time of this process.
            journal_now: the same moment on the journal clock.
        """
        news = []
        for report in reports:
            ear = self._ears.setdefault(report.machine_id, _Ear(now))
            if ear.report is not None and report.life == ear.report.life and report.sequence <= ear.report.sequence:
                continue  # the slower channel brings what the faster one told before: that is no sign of life
            taken_at = None if report.taken_in_s is None else Instant(journal_now + report.taken_in_s)
            if ear.silent_told_at is not None or _is_news(ear, report, taken_at):
                news.append(MachineHeard(report, channel, taken_at))
                ear.taken_at = taken_at
            ear.heard_at, ear.silent_told_at, ear.report = now, None, report
        return news

    def newest(self) -> dict[str, Report]:
        """Return the newest report of each machine."""
        return {name: ear.report for name, ear in self._ears.items() if ear.report is not None}

    def silent(self, alive: Iterable[str], now: Instant) -> list[MachineSilent]:
        """Return the machines that have become silent, and again and again those that still are.

        The driver may have taken something else for a sign of life meanwhile: it must not then believe in it for ever.

        Args:
            alive: machines that should be heard; the others are forgotten.
            now: monotonic time of this process.
        """
        paused_s = 0.0 if self._looked_at is None else max(0.0, now - self._looked_at - self._silent_after_s / 2)
        self._looked_at = now
        expected = set(alive)
        self._ears = {
            machine_id: ear
            for machine_id, ear in self._ears.items()
            if machine_id in expected or now - ear.heard_at < self._silent_after_s
        }
        found = []
        for machine_id in sorted(expected):
            ear = self._ears.setdefault(machine_id, _Ear(now))
            told_at = ear.silent_told_at
            if paused_s:
                ear.heard_at = now
                ear.silent_told_at = None if told_at is None else now
            elif now - (ear.heard_at if told_at is None else told_at) > self._silent_after_s:
                ear.silent_told_at = now
                found.append(MachineSilent(machine_id, Seconds(now - ear.heard_at)))
        return found


def _is_news(ear: _Ear, report: Report, taken_at: Instant | None) -> bool:
    """Say whether a report differs in what a driver decides by; steps and sequence numbers grow all the time."""
    old = ear.report
    if old is None or (taken_at is None) != (ear.taken_at is None):
        return True
    if taken_at is not None and ear.taken_at is not None and abs(taken_at - ear.taken_at) > _SHIFT_S:
        return True
    return _substance(old) != _substance(report)


def _substance(report: Report) -> tuple[object, ...]:
    return (
        report.life,
        report.doing,
        report.term,
        report.exit_code,
        report.level,
        report.generation,
        report.address,
        report.sentence,
        report.mute,
    )
