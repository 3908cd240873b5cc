"""One machine of a parameter server in tiers: its servers, backups and workers, and what it reports."""

from __future__ import annotations

from collections.abc import Collection

from windfall.runtimes.tier_counts import TierCounts
from windfall.runtimes.tier_messages import Answer, PushRows, Question, ReadRows, SealPush
from windfall.runtimes.tier_server import ServerSettings, TierServer
from windfall.runtimes.tier_worker import TierWorker
from windfall.structs import replace
from windfall.tier_layout import CommittedClock, ServerLayout, TierMachine, TierReport


class TierMember:
    """A machine; it begins with the newest layout.

    Args:
        about: the machine.
        layout: the newest.
        settings: of the training.

    Attributes:
        server: parts that it serves and backs up.
        worker: data partitions that it computes on.
        committed: the newest clock that it has heard of.
        counts: what it has counted.
    """

    def __init__(self, about: TierMachine, layout: ServerLayout, settings: ServerSettings) -> None:
        self.about = about
        self.server = TierServer(about.name, layout, settings)
        self.counts = TierCounts()
        self.worker = TierWorker(about.name, layout, settings.clocks, self.counts)
        self.committed = CommittedClock(layout.term, layout.base)
        self._reports = 0

    def leave(self, leaving: bool = True) -> None:
        """Take in that this machine's end is announced, or that it is to be released, or after all is not."""
        self.about = replace(self.about, leaving=leaving)

    @property
    def needed(self) -> bool:
        """Whether the newest layout that it has seen names this machine."""
        layout, name = self.server.layout, self.about.name
        places = [(place.active, place.backup, place.next_active) for place in layout.parts]
        return any(name in place for place in places) or any(
            name in (place.holder, place.next_holder) for place in layout.data
        )

    def hear(self, layout: ServerLayout, committed: CommittedClock) -> None:
        """Take in what a coordinator says."""
        self.server.conform(layout)
        self.worker.conform(layout)
        self.server.commit(committed)
        self.committed = committed

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
            self.about,
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
            self.worker.losses(),
        )
