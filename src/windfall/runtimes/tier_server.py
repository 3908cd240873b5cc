"""One machine's servers and backups of a parameter server in tiers, as step functions: nothing here waits or sends.

The machine makes itself as the newest layout that it has seen wants it: `conform` does at once what can be done here,
`questions` is what it asks others for the rest, again and again until that is done.  So any message may be lost, come twice or
late, and a machine may miss layouts.

Source: Proteus (EuroSys 2017), section 3.3.
"""

from __future__ import annotations

from collections.abc import Collection

from windfall.runtimes.parameter_partition import (
    BackupPartition,
    ParameterPartition,
    PushAnswer,
    Values,
)
from windfall.runtimes.tier_messages import (
    Answer,
    BackedUp,
    BackUpChanges,
    CopyPart,
    PartCopy,
    PartRest,
    PushRows,
    PushTaken,
    Question,
    ReadRows,
    RefusalReason,
    Refused,
    RowsRead,
    SealPush,
    TakeOverPart,
)
from windfall.structs import Struct
from windfall.tier_layout import CommittedClock, ServerLayout, StoredClock

LATER = Refused(RefusalReason.LATER)


class ServerSettings(Struct, frozen=True):
    """What servers are told of a training.

    Attributes:
        staleness: by how many clocks a read may miss what others pushed; 0: bulk-synchronous; None: any number.
        back_up_every: clocks between two messages to a backup.
        clocks: training ends with this one.
    """

    staleness: int | None
    back_up_every: int
    clocks: int


class TierServer:
    """The parts that a machine serves, and those that it backs up.

    Args:
        machine: its name.
        layout: the newest that it has seen.
        settings: of the training.

    Attributes:
        layout: the newest that it has seen.
    """

    def __init__(self, machine: str, layout: ServerLayout, settings: ServerSettings) -> None:
        self.machine, self.layout, self.settings = machine, layout, settings
        self._parts: dict[int, ParameterPartition] = {}
        self._backups: dict[int, BackupPartition] = {}
        self._copies: dict[int, PartCopy] = {}
        self._moves: dict[int, int] = {}
        self._handed_over: dict[int, PartRest] = {}
        self._backed_up: dict[int, int] = {}
        self._to_save: dict[int, tuple[StoredClock, Values]] = {}
        self._saved: dict[int, StoredClock] = {}

    # ------------------------------------------------------------------------------------------------ what the coordinator says

    def conform(self, layout: ServerLayout) -> None:
        """Make everything as a layout wants it; one that is not newer changes nothing."""
        if layout.version <= self.layout.version:
            return
        before, self.layout = self.layout, layout
        if layout.term > before.term:
            self._begin_term(before.term)
        for part in [part for part in self._parts if not self._belongs(part)]:
            self._drop(part)
        for part in set(self._parts) - set(self._handed_over):
            self._refuse_former_holders(part)

    def commit(self, committed: CommittedClock) -> None:
        """Keep nothing for a roll-back to before a clock that all backups have."""
        if committed.term != self.layout.term:
            return
        for part in self._parts.values():
            part.forget(committed.clock)
        for number, backup in self._backups.items():
            if backup.clock < committed.clock:
                backup.go_to(committed.clock)
            stored = StoredClock(committed.term, committed.clock)
            saved = max(self._saved.get(number, StoredClock()), self._to_save.get(number, (StoredClock(),))[0])
            if committed.save and backup.clock == committed.clock and saved < stored:
                self._to_save[number] = (stored, backup.copy())

    # ---------------------------------------------------------------------------------------------------------- what others ask

    def answer(self, question: Question, sender: str) -> Answer:
        """Return the answer to a question.

        Raises:
            Misuse: a push that no part may keep.
        """
        if isinstance(question, BackUpChanges):
            return self._back_up(question)
        if isinstance(question, CopyPart):
            return self._copy(question)
        part = self._parts.get(question.part)
        if part is None:
            return LATER if isinstance(question, TakeOverPart) else self._served_elsewhere(question.part)
        return (
            self._hand_over(question, sender, part)
            if isinstance(question, TakeOverPart)
            else self._serve(question, part)
        )

    # ------------------------------------------------------------------------------------------------------ what it asks others

    def questions(self, backing_up: Collection[int] = ()) -> list[tuple[str, Question]]:
        """Return what it asks, and which machine.

        Args:
            backing_up: parts whose changes are on their way to their backups, so that none need be gathered.
        """
        asked: list[tuple[str, Question]] = []
        for number, place in enumerate(self.layout.parts):
            part = self._parts.get(number)
            if part is not None and number not in self._handed_over:
                if number in backing_up:
                    continue
                asked += [(place.backup, question) for question in self._changes_to_send(number, part)]
            elif part is None and self.machine == place.active:
                asked.append((place.backup, CopyPart(number, self.layout.term)))
            elif part is None and self.machine == place.next_active:
                copy = self._copies.get(number)
                asked.append(
                    (place.backup, CopyPart(number, self.layout.term))
                    if copy is None
                    else (place.active, TakeOverPart(number, self.layout.term, place.move, copy.clock))
                )
        return asked

    def take(self, question: Question, answer: Answer) -> None:
        """Take in the answer to a question that it asked."""
        number = question.part
        if isinstance(answer, BackedUp):
            if answer.term == self.layout.term:
                self._backed_up[number] = max(answer.newest, self._backed_up.get(number, 0))
        elif isinstance(answer, PartCopy):
            self._open(number, answer)
        elif isinstance(answer, PartRest):
            self._take_over(number, answer)
        elif isinstance(question, TakeOverPart) and answer == Refused(RefusalReason.COPY_TOO_OLD):
            copy = self._copies.get(number)
            if copy is not None and copy.clock == question.since:
                del self._copies[number]

    # ------------------------------------------------------------------------------------------------------ what the store does

    def to_load(self) -> dict[int, StoredClock]:
        """Return which checkpoint of which part it needs; that of term 0 and clock 0 are the first values."""
        return {
            number: self.layout.checkpoint
            for number, place in enumerate(self.layout.parts)
            if place.backup == self.machine and number not in self._backups
        }

    def loaded(self, part: int, stored: StoredClock, values: Values) -> None:
        """Take in a part of a checkpoint that it needs."""
        if self.to_load().get(part) == stored:
            self._backups[part] = BackupPartition(values, stored.clock, self.layout.term)

    def to_save(self) -> dict[int, tuple[StoredClock, Values]]:
        """Return what it has to write to the store, by part."""
        return dict(self._to_save)

    def saved(self, part: int, stored: StoredClock) -> None:
        """Take in that a part is in the store."""
        if self._to_save.get(part, (None,))[0] == stored:
            del self._to_save[part]
        self._saved[part] = max(stored, self._saved.get(part, stored))

    # ---------------------------------------------------------------------------------------------------------- what it reports

    def backup_clocks(self) -> dict[int, frozenset[int]]:
        """Return to which clocks each part can go that is backed up here."""
        return {number: backup.clocks for number, backup in self._backups.items()}

    def saved_clocks(self) -> dict[int, StoredClock]:
        """Return the newest checkpoint of each part that it has written."""
        return dict(self._saved)

    def copied_clocks(self) -> dict[int, StoredClock]:
        """Return the newest checkpoint of each part that it has written, or has a copy for."""
        return {**self._saved, **{part: stored for part, (stored, _) in self._to_save.items()}}

    def taken_over(self) -> dict[int, int]:
        """Return each part that it has taken over, with the version of the layout in which the move began."""
        return dict(self._moves)

    def sealed(self) -> dict[tuple[int, int], tuple[int, int]]:
        """Return, of each part here and each fenced data partition, its number and the clock up to which it is sealed."""
        return {
            (number, data): (place.number, part.fence(data, place.number))
            for number, part in self._parts.items()
            if number not in self._handed_over
            for data, place in enumerate(self.layout.data)
            if place.fenced
        }

    # ------------------------------------------------------------------------------------------------------------------- inside

    def _begin_term(self, before: int) -> None:
        """Go back to where a term begins, or drop what cannot."""
        layout = self.layout
        for number, part in list(self._parts.items()):
            # One that missed a term may have clocks that the others did again.
            goes_back = (
                before == layout.term - 1
                and layout.restored < layout.term
                and layout.parts[number].active == self.machine
                and number not in self._handed_over
                and part.clock >= layout.base
            )
            if goes_back:
                part.roll_back(layout.base, layout.term)
            else:
                self._drop(number)
        for number, backup in list(self._backups.items()):
            if layout.restored > before or layout.parts[number].backup != self.machine:
                del self._backups[number]
            else:
                backup.roll_back(layout.base, layout.term)
        self._copies.clear()
        self._moves.clear()
        self._handed_over.clear()
        self._backed_up.clear()

    def _belongs(self, number: int) -> bool:
        place = self.layout.parts[number]
        if self.machine == place.active:
            return True
        return self.machine == place.next_active and self._moves.get(number) == place.move

    def _drop(self, number: int) -> None:
        for kept in (self._parts, self._copies, self._moves, self._handed_over, self._backed_up):
            kept.pop(number, None)

    def _refuse_former_holders(self, number: int) -> None:
        part = self._parts[number]
        for data, place in enumerate(self.layout.data):
            if place.number > part.holder(data):
                if not place.fenced:
                    part.resolve(data, place.start - 1)
                part.fence(data, place.number)

    def _changes_to_send(self, number: int, part: ParameterPartition) -> list[BackUpChanges]:
        every = self.settings.back_up_every
        until = part.clock if part.clock >= self.settings.clocks else part.clock // every * every
        since = max(self._backed_up.get(number, 0), part.oldest)
        return [BackUpChanges(number, part.changes(since, until))] if until > since else []

    def _serve(self, question: ReadRows | PushRows | SealPush, part: ParameterPartition) -> Answer:
        if question.part in self._handed_over:
            serves = self.layout.parts[question.part].next_active or ""
            return Refused(RefusalReason.MOVED, serves, self.layout.version)
        if isinstance(question, ReadRows):
            may = question.term == part.term and part.may_read(question.clock, self.settings.staleness)
            return RowsRead(part.read(question.rows), part.clock) if may else LATER
        return PushTaken(_taken(part, question))

    def _served_elsewhere(self, number: int) -> Answer:
        """Say which machine serves a part that is not here, so that no worker waits here for it."""
        place = self.layout.parts[number]
        if self.machine in (place.active, place.next_active):
            return LATER
        return Refused(RefusalReason.MOVED, place.active, self.layout.version)

    def _back_up(self, question: BackUpChanges) -> Answer:
        backup = self._backups.get(question.part)
        if backup is None:
            return LATER
        backup.take(question.changes)
        return BackedUp(backup.term, backup.newest)

    def _copy(self, question: CopyPart) -> Answer:
        backup = self._backups.get(question.part)
        if backup is None or not question.term == backup.term == self.layout.term:
            return LATER
        return PartCopy(backup.term, backup.clock, backup.copy())

    def _hand_over(self, question: TakeOverPart, sender: str, part: ParameterPartition) -> Answer:
        place = self.layout.parts[question.part]
        if (question.term, question.move, sender) != (self.layout.term, place.move, place.next_active):
            return LATER
        rest = self._handed_over.get(question.part)
        if rest is None:
            if question.since < part.oldest:
                return Refused(RefusalReason.COPY_TOO_OLD)
            rest = PartRest(place.move, question.since, part.hand_over(question.since))
            self._handed_over[question.part] = rest
        return rest if rest.since == question.since else LATER

    def _open(self, number: int, copy: PartCopy) -> None:
        place, layout = self.layout.parts[number], self.layout
        if copy.term != layout.term or number in self._parts:
            return
        if self.machine == place.active:
            numbers = [data.number for data in layout.data]
            fresh = self.settings.staleness != 0
            self._parts[number] = ParameterPartition(
                copy.values, numbers, fresh_reads=fresh, clock=copy.clock, term=copy.term
            )
        elif self.machine == place.next_active:
            self._copies.setdefault(number, copy)

    def _take_over(self, number: int, rest: PartRest) -> None:
        place, copy = self.layout.parts[number], self._copies.get(number)
        if copy is None or number in self._parts or self.machine != place.next_active:
            return
        if (rest.move, rest.since, rest.rest.term) != (place.move, copy.clock, self.layout.term):
            return
        self._parts[number] = ParameterPartition.taken_over(copy.values, rest.rest)
        self._moves[number] = rest.move
        del self._copies[number]
        self._refuse_former_holders(number)


def _taken(part: ParameterPartition, question: PushRows | SealPush) -> PushAnswer:
    return part.seal(question.push) if isinstance(question, SealPush) else part.push(question.push, question.changes)
