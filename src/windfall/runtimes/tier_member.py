"""One machine of a parameter server in tiers: its servers, backups and workers, and what it reports."""

from __future__ import annotations

from collections.abc import Collection

from windfall.runtimes.tier_counts import TierCounts
from windfall.runtimes.tier_messages import Answer, PushRows, Question, ReadRows, SealPush
from windfall.runtimes.tier_server import ServerSettings, TierServer
from windfall.runtimes.tier_worker import TierWorker
from windfall.tier_layout import CommittedClock, ServerLayout, TierReport


class TierMember:
    """A machine; it begins with the newest layout.

    Args:
        machine: its name.
        layout: the newest.
        settings: of the training.

    Attributes:
        server: parts that it serves and backs up.
        worker: data partitions that it computes on.
        counts: what it has counted.
    """

    def __init__(self, machine: str, layout: ServerLayout, settings: ServerSettings) -> None:
        self.machine = machine
        self.server = TierServer(machine, layout, settings)
        self.counts = TierCounts()
        self.worker = TierWorker(machine, layout, settings.clocks, self.counts)
        self._reports = 0

    def hear(self, layout: ServerLayout, committed: CommittedClock) -> None:
        """Take in what a coordinator says."""
        self.server.conform(layout)
        self.worker.conform(layout)
        self.server.commit(committed)

    def questions(self, backing_up: Collection[int] = ()) -> list[tuple[str, Question]]:
        """Return what it asks, and which machine; `backing_up` as in `TierServer.questions`."""
        return self.server.questions(backing_up) + self.worker.questions()

    def take(self, question: Question, answer: Answer) -> None:
        """Take in the answer to a question that it asked."""
        asker = self.worker if isinstance(question, (ReadRows, PushRows, SealPush)) else self.server
        asker.take(question, answer)

    def report(self) -> TierReport:
        """Return what it says of itself."""
        self._reports += 1
        return TierReport(
            self.machine,
            self._reports,
            self.server.layout.coordinator,
            self.server.layout.term,
            self.server.backup_clocks(),
            self.server.taken_over(),
            self.server.sealed(),
            self.worker.loaded_data(),
            self.worker.released(),
            self.server.saved_clocks(),
            self.server.copied_clocks(),
            self.worker.done(),
            self.counts.now,
        )
