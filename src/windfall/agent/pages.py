"""What the ranks' pages and message files say, as facts; and the requests that go the other way.

The order of reads is what makes the facts true.  A rank writes its acknowledgement, then its message, then its next
step; a look reads the step first, then the messages, then the acknowledgement.  So a rank whose step lies beyond a
request, and whose message is not there, has really gone on without handing anything over.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from windfall.agent import messages
from windfall.agent.loop_form import FIRST_CALL_NS, LoopForm
from windfall.agent.messages import HandOver, Message, Metrics, PhaseEnded, Refused
from windfall.errors import NewerFormat
from windfall.events import (
    Fact,
    MetricsReported,
    PagesRead,
    PhaseMeasured,
    PublishSave,
    RankMovedOn,
    RanksObserved,
    RankStatus,
    SaveAnswered,
    ShardHandedOver,
    StepsMeasured,
)
from windfall.results import MessageRefused
from windfall.terms import Bytes, Instant, NoticeLevel, Phase, Seconds, Step
from windfall.wire import page

_WINDOW_FIRST_S = 0.25
_WINDOW_S_MAX = 5.0
"""Windows grow from the first to the second: early numbers soon, few journal rows later."""
_START = page.PHASES.index("start")
FOLDERS_KEPT = 8
"""Of so many steps it is remembered which folders ranks shared."""


@dataclass(slots=True)
class _Rank:
    """What was last seen of one rank."""

    words: memoryview
    messages_path: str
    position: int = 0
    messages: int = 0
    step: int = 0
    step_end_ns: int = 0
    ack: int = 0
    handed: tuple[int, str] | None = None
    """What was handed over last: (step, path)."""
    open_request: tuple[int, int] | None = None
    """Answered and not yet followed by a hand-over: (request, step)."""
    excluded_ns: dict[int, int] = field(default_factory=dict)
    """Time inside the interval after step k that was not work on a step: stalls of saves, other phases."""
    form: LoopForm = field(default_factory=LoopForm)


@dataclass(slots=True)
class _Folder:
    """A folder that ranks share at a step: the hand-over that keeps it, which is told again when it has grown."""

    source: str
    name: str
    fact: ShardHandedOver


@dataclass(slots=True)
class _Window:
    """Finished steps of the slowest rank since the last report."""

    count: int = 0
    sum_s: float = 0.0
    longest_s: float = 0.0


def _attached(path: str) -> memoryview:
    """Map a page.

    Raises:
        NewerFormat: another version of Windfall made it.
    """
    try:
        return page.attach(path)
    except ValueError as error:
        raise NewerFormat(
            f"{error}: the script imports another windfall than the one that started it; install the same in both"
        ) from error


class PageWatcher:
    """The agent's side of all pages of one attempt."""

    def __init__(
        self,
        folder: str,
        attempt: int,
        started: Instant,
        keep: Callable[[str, str], str],
        identify: Callable[[str], str],
        *,
        marks: tuple[tuple[int, int, int], ...] = (),
    ) -> None:
        """Begin to watch; the pages appear when the ranks first call Windfall.

        Args:
            folder: where they appear.
            attempt: whose pages they are.
            started: when the script was started.
            keep: (path, a name for the hand-over) -> where it can be read from now on.
            identify: path -> what changes when it is written again.
            marks: how far an earlier agent has read (`PagesRead`).
        """
        self._folder = folder
        self._keep = keep
        self._identify = identify
        self._attempt = attempt
        self._resume = {rank: (position, ack) for rank, position, ack in marks}
        self._started = started
        self._ranks: dict[int, _Rank] = {}
        self._complete = False
        self._windows: dict[int, _Window] = {}
        self._window_s = _WINDOW_FIRST_S
        self._window_ends = started
        self._periodic: dict[int, set[int]] = {}
        self._folders: dict[int, list[_Folder]] = {}
        self._unreadable: set[str] = set()

    @property
    def attached(self) -> bool:
        """Whether every rank of this machine has its page."""
        return self._complete

    def step(self) -> int | None:
        """Return the slowest rank's step now, None before every rank has its page; any thread may ask."""
        return min(rank.words[page.STEP] for rank in self._ranks.values()) if self._complete else None

    # ------------------------------------------------------------------------------------------------- script -> agent

    def look(self, now: Instant) -> list[Fact]:
        """Return what is new since the last look."""
        facts: list[Fact] = []
        if attached_now := not self._complete:
            self._attach_all()
            if not self._complete:
                return facts
        before = self._marks()
        for number, rank in self._ranks.items():
            self._look_at(number, rank, now, facts)
        self._find_bystanders(facts)
        if (after := self._marks()) != before:
            facts.append(PagesRead(self._attempt, after))
        if attached_now:
            # Last, as always: a step counts as silent only if the answer to its request was looked for after it.
            facts.append(self.observe())
        if now >= self._window_ends:
            self._close_window(now, facts)
        return facts

    def finish(self, now: Instant) -> list[Fact]:
        """Return what is new, and the last window however short it is: the script has ended or is about to."""
        self._window_ends = now
        facts = self.look(now)
        for number, rank in self._ranks.items():
            if worked_ns := rank.form.untold_ns(ended=True):
                facts.append(PhaseMeasured(number, Phase.STEP, Seconds(worked_ns / 1e9)))
        return facts

    def observe(self, *, fresh: bool = False) -> RanksObserved:
        """Return what every rank is doing.

        Args:
            fresh: read the steps now; otherwise they are those of the last look, which has read what ranks that are
                so far have answered.  A fresh look must be taken in only after the next `look`.
        """
        if fresh:
            steps = {number: rank.words[page.STEP] for number, rank in self._ranks.items()}
        else:
            steps = {number: rank.step for number, rank in self._ranks.items()}
        ranks = sorted(self._ranks.items())
        return RanksObserved(tuple(self._status(number, rank, steps[number]) for number, rank in ranks))

    def sigterm_seen_ns(self) -> int:
        """Return when the first rank received SIGTERM (monotonic), 0 if none did."""
        seen = [rank.words[page.SIGTERM_NS] for rank in self._ranks.values() if rank.words[page.SIGTERM_NS]]
        return min(seen, default=0)

    def _marks(self) -> tuple[tuple[int, int, int], ...]:
        return tuple((number, rank.position, rank.ack) for number, rank in sorted(self._ranks.items()))

    def _attach_all(self) -> None:
        names = [name for name in os.listdir(self._folder) if name.startswith("rank-") and name.endswith(".page")]
        for name in names:
            text = name[len("rank-") : -len(".page")]
            number = int(text) if text.isdecimal() and len(text) <= 9 else -1
            if number >= 0 and number not in self._ranks and name not in self._unreadable:
                try:
                    words = _attached(os.path.join(self._folder, name))
                except OSError:
                    self._unreadable.add(name)  # something else has a page's name
                    continue
                messages = os.path.join(self._folder, page.messages_name(number))
                self._ranks[number] = _resumed(_Rank(words, messages), *self._resume.get(number, (0, 0)))
                self._windows[number] = _Window()
        expected = max((rank.words[page.LOCAL_WORLD] for rank in self._ranks.values()), default=1)
        self._complete = len(self._ranks) >= expected

    def _look_at(self, number: int, rank: _Rank, now: Instant, facts: list[Fact]) -> None:
        words = rank.words
        words[page.AGENT_NS] = int(now * 1e9)
        step, step_end_ns, began_ns = words[page.STEP], words[page.STEP_END_NS], words[page.STEP_BEGIN_NS]
        said = self._read_messages(rank) if words[page.MESSAGES] > rank.messages else []
        if wrong := rank.form.look(step, step_end_ns):
            rank.excluded_ns[wrong[0]] = max(rank.excluded_ns.get(wrong[0], 0) - wrong[1], 0)
        ack = words[page.ACK]
        if ack != rank.ack:
            rank.ack = ack
            rank.open_request = (ack, words[page.ACK_STEP])
            facts.append(SaveAnswered(number, ack, Step(words[page.ACK_STEP])))
        for message in said:
            self._understand(number, rank, message, facts)
        if rank.open_request is not None:
            _, asked_at = rank.open_request
            if step > asked_at or (began_ns > step_end_ns and began_ns > words[page.ACK_NS]):
                rank.open_request = None
                self._move_on(number, asked_at, facts)
        self._measure(rank, self._windows[number], step, step_end_ns, began_ns)

    def _measure(self, rank: _Rank, window: _Window, step: int, step_end_ns: int, began_ns: int) -> None:
        count = step - rank.step
        if count > 0 and step_end_ns != rank.step_end_ns:
            since_ns = rank.step_end_ns
            if not since_ns and count == 1:
                since_ns = rank.form.since_ns(step_end_ns) or (began_ns if began_ns < step_end_ns else 0)
            if since_ns:
                excluded_ns = sum(ns for at, ns in rank.excluded_ns.items() if at < step)
                mean_s = max(step_end_ns - since_ns - excluded_ns, 0) / count / 1e9
                window.count += count
                window.sum_s += mean_s * count
                window.longest_s = max(window.longest_s, mean_s)
                if all(at >= step for at in rank.excluded_ns):
                    rank.form.plain_ns = int(mean_s * 1e9)
            rank.excluded_ns = {at: ns for at, ns in rank.excluded_ns.items() if at >= step}
        rank.step, rank.step_end_ns = step, step_end_ns

    def _read_messages(self, rank: _Rank) -> list[Message]:
        try:
            with open(rank.messages_path, "rb") as file:
                file.seek(rank.position)
                data = file.read()
        except OSError:
            return []  # the script has removed it; what comes is looked for again
        whole = data[: data.rfind(b"\n") + 1]
        rank.position += len(whole)
        lines = whole.split(b"\n")[:-1]
        rank.messages += len(lines)
        return [messages.read(line, rank.step) for line in lines]

    def _understand(self, number: int, rank: _Rank, message: Message, facts: list[Fact]) -> None:
        match message:
            case HandOver():
                self._understand_hand_over(number, rank, message, facts)
            case PhaseEnded(step, phase, duration_ns):
                rank.excluded_ns[step] = rank.excluded_ns.get(step, 0) + duration_ns
                facts.append(PhaseMeasured(number, phase, Seconds(duration_ns / 1e9)))
            case Metrics(step, numbers, refused):
                facts.append(MetricsReported(number, Step(step), numbers))
                facts += [MessageRefused(number, reason) for reason in refused]
            case Refused(reason, request, step):
                facts.append(MessageRefused(number, reason))
                if request and rank.open_request is not None and request == rank.open_request[0]:
                    rank.open_request = None
                    self._move_on(number, step, facts)

    def _understand_hand_over(self, number: int, rank: _Rank, said: HandOver, facts: list[Fact]) -> None:
        step, stall_ns, own = said.step, said.stall_ns, said.own
        if not said.result:
            stall_ns, own = rank.form.handed_over(said, self._at_work_ns(rank, said))
            if worked_ns := rank.form.untold_ns():
                facts.append(PhaseMeasured(number, Phase.STEP, Seconds(worked_ns / 1e9)))
            self._note(number, rank, said)
        rank.excluded_ns[step] = rank.excluded_ns.get(step, 0) + stall_ns
        if said.path is None:
            self._move_on(number, step, facts)
            return
        name = f"{step}-{number}-{said.number}"
        shared = len(self._ranks) > 1 and not said.result and os.path.isdir(said.path)
        if shared:
            # Ranks that name one folder go on naming one; the last of them keeps what all have written into it.
            name = next((one.name for one in self._folders.get(step, ()) if one.source == said.path), name)
        path = self._keep(said.path, name)
        size, stall_s = Bytes(_size_of(path)), Seconds(stall_ns / 1e9)
        source = "" if path == said.path else said.path
        fact = ShardHandedOver(
            number, Step(step), said.request, path, size, stall_s, self._identify(path), source, said.result, own
        )
        if shared:
            known = [one for one in self._folders.get(step, ()) if one.source != said.path]
            self._folders[step] = [*known, _Folder(said.path, name, fact)]
            for old in sorted(self._folders)[:-FOLDERS_KEPT]:
                del self._folders[old]
        facts.append(fact)

    def _at_work_ns(self, rank: _Rank, said: HandOver) -> int:
        """Return since when a script that hands over is known to have been at work: its first call, else its start."""
        first_ns = rank.words[page.PHASE_SINCE_NS]
        if rank.words[page.PHASE] == _START and 0 < first_ns < said.at_ns - FIRST_CALL_NS:
            return first_ns
        return int(self._started * 1e9)

    def _note(self, number: int, rank: _Rank, said: HandOver) -> None:
        """Note who has spoken of a step: of one that has two paths, who is past it has to be told again."""
        if rank.open_request is not None and said.request == rank.open_request[0]:
            rank.open_request = None
        again = rank.handed is not None and rank.handed[0] == said.step and said.path != rank.handed[1]
        rank.handed = (said.step, said.path or "")
        if again:
            self._periodic[said.step] = set()
        elif said.request == 0 and len(self._ranks) > 1:
            self._periodic.setdefault(said.step, set()).add(number)

    def _move_on(self, number: int, step: int, facts: list[Fact]) -> None:
        """A rank has no (further) part at a step; it may have written into the folder of another before."""
        for folder in self._folders.get(step, ()):
            if folder.fact.rank != number:
                path = self._keep(folder.source, folder.name)
                identity = self._identify(path)
                if (path, identity) != (folder.fact.path, folder.fact.identity):
                    size = Bytes(_size_of(path))
                    folder.fact = replace(folder.fact, path=path, size_bytes=size, identity=identity)
                    facts.append(folder.fact)
        facts.append(RankMovedOn(number, Step(step)))

    def _find_bystanders(self, facts: list[Fact]) -> None:
        """Ranks that went past a step at which another rank saved by the user's own schedule have no part in it."""
        for step, handed in list(self._periodic.items()):
            for number, rank in self._ranks.items():
                if number not in handed and rank.step > step:
                    handed.add(number)
                    self._move_on(number, step, facts)
            if len(handed) == len(self._ranks):
                del self._periodic[step]

    def _close_window(self, now: Instant, facts: list[Fact]) -> None:
        self._window_s = min(self._window_s * 2, _WINDOW_S_MAX)
        self._window_ends = Instant(now + self._window_s)
        slowest = min(self._ranks, key=lambda number: self._ranks[number].step)
        window = self._windows[slowest]
        self._windows = {number: _Window() for number in self._ranks}
        if window.count:
            step = Step(self._ranks[slowest].step)
            mean_s, longest_s = Seconds(window.sum_s / window.count), Seconds(window.longest_s)
            facts.append(StepsMeasured(step, window.count, mean_s, longest_s))
        facts.append(self.observe())

    def _status(self, number: int, rank: _Rank, done: int) -> RankStatus:
        words = rank.words
        phase = words[page.PHASE]
        name = page.PHASES[phase] if 0 <= phase < len(page.PHASES) else "between"
        step, ended_ns = Step(done), words[page.STEP_END_NS]
        if name in {"evaluation", "compile", "data"}:
            return RankStatus(number, step, Phase(name), Instant(words[page.PHASE_SINCE_NS] / 1e9))
        if rank.open_request is not None:
            return RankStatus(number, step, Phase.SAVE, Instant(words[page.ACK_NS] / 1e9))
        if ended_ns == 0:
            began_ns = words[page.STEP_BEGIN_NS]
            since = Instant(began_ns / 1e9) if began_ns else self._started
            return RankStatus(number, step, Phase.STEP if began_ns else Phase.START, since)
        # The next chance to save comes at the end of the next step, so that the wait for data counts into it; a save
        # after the last step is no part of the next one.
        began_ns = ended_ns + rank.excluded_ns.get(done, 0)
        return RankStatus(number, step, Phase.STEP, Instant(began_ns / 1e9))

    # ------------------------------------------------------------------------------------------------- agent -> script

    def publish(self, command: PublishSave) -> None:
        """Put a request into every page."""
        kind = page.KINDS.index(command.kind)
        for rank in self._ranks.values():
            page.publish(rank.words, request=command.request, target=command.step, exact=command.exact, kind=kind)

    def withdraw(self) -> None:
        """Take the request out of every page."""
        for rank in self._ranks.values():
            rank.words[page.TARGET] = page.NEVER

    def show_notice(self, level: NoticeLevel, deadline: Instant | None) -> None:
        """Show the level and the deadline to the script."""
        for rank in self._ranks.values():
            rank.words[page.DEADLINE_NS] = int(deadline * 1e9) if deadline is not None else 0
            rank.words[page.NOTICE] = page.LEVELS.index(level)


def _resumed(rank: _Rank, position: int, ack: int) -> _Rank:
    """Take up a rank where an earlier agent stopped reading; its unanswered acknowledgement is found in its messages."""
    rank.step, rank.step_end_ns = rank.words[page.STEP], rank.words[page.STEP_END_NS]
    if position == 0 and ack == 0:
        if rank.step_end_ns:  # the last step so far has ended before anybody looked
            rank.step, rank.step_end_ns = rank.step - 1, 0
        return rank
    rank.position, rank.ack = position, ack
    read: list[Message] = []
    if position:
        with contextlib.suppress(OSError), open(rank.messages_path, "rb") as file:
            read = [messages.read(line, rank.step) for line in file.read(position).split(b"\n")[:-1]]
    rank.messages = len(read)
    handed = [message for message in read if isinstance(message, HandOver) and not message.result]
    if handed:
        rank.handed = (handed[-1].step, handed[-1].path or "")
    if ack and all(getattr(message, "request", 0) != ack for message in read):
        rank.open_request = (ack, rank.words[page.ACK_STEP])
    return rank


def _size_of(path: str) -> int:
    """Return the bytes under a file or folder; what cannot be looked at counts nothing (the upload will say so)."""
    if not os.path.isdir(path):
        return _length(path)
    return sum(_length(os.path.join(folder, name)) for folder, _, names in os.walk(path) for name in names)


def _length(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0
