"""Turns the ranks' pages and message files into facts, and writes save requests and notices into the pages.

The order of reads makes the facts true.  A rank writes its acknowledgement, then its message, then its next step; a poll
reads the step first, then the messages, then the acknowledgement.  So a rank whose step is beyond a request and whose
message is missing has passed the request without handing anything over.

How a script's loop is written: whether it saves after a step, before the step's end, or never ends a step.

The time between the end of a step and an unrequested hand-over is the save's stall if the next step's work follows the
hand-over, and that work itself if `step()` follows at once.  The end of the step shows which of the two it is.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field

from windfall.agent import script_messages
from windfall.agent.script_messages import HandOver, Message, Metrics, PhaseEnded, RefusedLine
from windfall.errors import NewerFormat
from windfall.events import (
    Fact,
    MetricsReported,
    PagesRead,
    PhaseMeasured,
    PublishSave,
    RankAdvanced,
    RanksObserved,
    RankStatus,
    SaveAnswered,
    ShardHandedOver,
    StepsMeasured,
)
from windfall.results import MessageRefused
from windfall.structs import replace
from windfall.terms import Bytes, Instant, NoticeLevel, Phase, Seconds, Step
from windfall.wire import script_page

AT_ONCE_SHARE = 4
"""A step that ends within 1 / this share of a plain step after the hand-over had no work after the hand-over."""
AT_ONCE_SHARE_OF_SAVE = 10
"""The same share of the time before the hand-over, while every step has a hand-over."""
FIRST_CALL_NS = 10_000_000
"""A script whose first call is a hand-over has made its page at most this long before [ns]."""


@dataclass(slots=True)
class LoopShape:
    """One rank's loop, as far as known.

    Attributes:
        saves_first: the last hand-over was followed at once by the end of its step.
        plain_ns: duration of a step without a save; 0 if there was none.
        first_ns, work_started_ns: time of a first hand-over before any step's end, and of the start of work.
        counted_ns: when a hand-over last counted as a step.
    """

    saves_first: bool = False
    plain_ns: int = 0
    first_ns: int = 0
    work_started_ns: int = 0
    counted_ns: int = 0
    _page: tuple[int, int] = (0, 0)
    _waiting: tuple[int, int, int, int] | None = None
    _reported: bool = False

    def observe(self, step: int, step_end_ns: int) -> tuple[int, int] | None:
        """Take in the rank's position; return (step, [ns]) of work that was mistaken for a save's stall."""
        self._page = step, step_end_ns
        if self._waiting is None or step <= self._waiting[0]:
            return None
        (at_step, at_ns, before_ns, stall_ns), self._waiting = self._waiting, None
        self._check_holder(at_step, at_ns, before_ns)
        return (at_step, stall_ns) if self.saves_first and stall_ns else None

    def handed_over(self, message: HandOver, started_ns: int) -> tuple[int, bool]:
        """Take in a hand-over of a checkpoint; return its stall [ns] and whether it is the script's own save."""
        before_ns = message.stall_ns
        if message.counted:
            self.counted_ns = message.at_ns
        if not self.work_started_ns:
            self.work_started_ns = started_ns
            before_ns = before_ns or message.at_ns - started_ns
            self.first_ns = message.at_ns if self._page[1] == 0 and not message.counted else 0
        if message.at_ns and not message.counted and self._page[0] == message.step + 1:
            self._check_holder(message.step, message.at_ns, before_ns)
            self._waiting = None
        elif message.at_ns and not message.counted:
            self._waiting = message.step, message.at_ns, before_ns, 0 if self.saves_first else message.stall_ns
        return (0 if self.saves_first else message.stall_ns), message.own or self.saves_first

    def _check_holder(self, at_step: int, at_ns: int, before_ns: int) -> None:
        step, end_ns = self._page
        if step != at_step + 1 or end_ns <= at_ns:
            return
        at_once_ns = self.plain_ns / AT_ONCE_SHARE if self.plain_ns else before_ns / AT_ONCE_SHARE_OF_SAVE
        self.saves_first = end_ns - at_ns < at_once_ns

    def since_ns(self, step_end_ns: int) -> int:
        """Return when work on a first step that a hand-over ended has started [ns]; 0 if unknown."""
        if not step_end_ns or step_end_ns != self.counted_ns:
            return 0
        return self.first_ns or self.work_started_ns

    def unreported_ns(self, *, ended: bool = False) -> int:
        """Return, once, how long a script that never ends a step worked until its first hand-over [ns].

        Args:
            ended: whether the script has made its last call.
        """
        stepless = self.counted_ns > self.first_ns or (ended and self._page[1] == 0)
        if self._reported or not self.first_ns or not stepless:
            return 0
        self._reported = True
        return self.first_ns - self.work_started_ns


_WINDOW_FIRST_S = 0.25
_WINDOW_S_MAX = 5.0
"""Windows grow from the first to the second value [s]: early numbers soon, few journal rows later."""
_START = script_page.PHASES.index("start")
FOLDERS_KEPT = 8
"""Shared folders are remembered for this many steps."""


@dataclass(slots=True)
class _Rank:
    """What was last read of one rank."""

    page: memoryview
    messages_path: str
    position: int = 0
    messages: int = 0
    step: int = 0
    step_end_ns: int = 0
    ack: int = 0
    handed: tuple[int, str] | None = None
    """The last hand-over: (step, path)."""
    open_request: tuple[int, int] | None = None
    """Answered and not yet followed by a hand-over: (request, step)."""
    excluded_ns: dict[int, int] = field(default_factory=dict)
    """For step k: time after it that was not work on a step, such as stalls of saves and other phases [ns]."""
    shape: LoopShape = field(default_factory=LoopShape)


@dataclass(slots=True)
class _Folder:
    """A folder that ranks share at a step, and its hand-over, which is reported again when the folder has grown."""

    source: str
    name: str
    fact: ShardHandedOver


@dataclass(slots=True)
class _Window:
    """Finished steps of the slowest rank since the last report."""

    count: int = 0
    sum_s: float = 0.0
    longest_s: float = 0.0


def _attach(path: str) -> memoryview:
    """Map a page.

    Raises:
        NewerFormat: another version of Windfall made it.
    """
    try:
        return script_page.attach(path)
    except ValueError as error:
        raise NewerFormat(
            f"{error}; the script's Python has another version of windfall: install the same version in both"
        ) from error


class PageWatcher:
    """The agent's side of all pages of one attempt."""

    def __init__(
        self,
        folder: str,
        attempt: int,
        started: Instant,
        link: Callable[[str, str], str],
        identify: Callable[[str], str],
        *,
        positions: tuple[tuple[int, int, int], ...] = (),
    ) -> None:
        """Prepare to watch; the pages appear when the ranks first call Windfall.

        Args:
            folder: where they appear.
            attempt: whose pages they are.
            started: when the script was started.
            link: (path, a name for the hand-over) -> where it can be read from now on.
            identify: path -> fingerprint that changes when the file or folder is written again.
            positions: how far an earlier agent has read (`PagesRead`).
        """
        self._folder = folder
        self._link = link
        self._identify = identify
        self._attempt = attempt
        self._resume = {rank: (position, ack) for rank, position, ack in positions}
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
        """Return the slowest rank's current step, None before every rank has its page; safe from any thread."""
        return min(rank.page[script_page.STEP] for rank in self._ranks.values()) if self._complete else None

    # ------------------------------------------------------------------------------------------------- script -> agent

    def poll(self, now: Instant) -> list[Fact]:
        """Return what is new since the last poll."""
        facts: list[Fact] = []
        if attached_now := not self._complete:
            self._attach_all()
            if not self._complete:
                return facts
        before = self._positions()
        for number, rank in self._ranks.items():
            self._poll_rank(number, rank, now, facts)
        self._report_ranks_past_saves(facts)
        if (after := self._positions()) != before:
            facts.append(PagesRead(self._attempt, after))
        if attached_now:
            # Always last: a rank counts as silent only if its answer was looked for after its step was read.
            facts.append(self.observe())
        if now >= self._window_ends:
            self._close_window(now, facts)
        return facts

    def finish(self, now: Instant) -> list[Fact]:
        """Return what is new and the last window, however short: the script has ended or is about to."""
        self._window_ends = now
        facts = self.poll(now)
        for number, rank in self._ranks.items():
            if worked_ns := rank.shape.unreported_ns(ended=True):
                facts.append(PhaseMeasured(number, Phase.STEP, Seconds(worked_ns / 1e9)))
        return facts

    def observe(self, *, fresh: bool = False) -> RanksObserved:
        """Return what every rank is doing.

        Args:
            fresh: read the steps now; otherwise they are those of the last poll, which has also read the answers of
                ranks that are that far.  Pass a fresh observation on only after the next `poll`.
        """
        if fresh:
            steps = {number: rank.page[script_page.STEP] for number, rank in self._ranks.items()}
        else:
            steps = {number: rank.step for number, rank in self._ranks.items()}
        ranks = sorted(self._ranks.items())
        return RanksObserved(tuple(self._status(number, rank, steps[number]) for number, rank in ranks))

    def sigterm_seen_ns(self) -> int:
        """Return when the first rank received SIGTERM (monotonic), 0 if none did."""
        seen = [rank.page[script_page.SIGTERM_NS] for rank in self._ranks.values() if rank.page[script_page.SIGTERM_NS]]
        return min(seen, default=0)

    def _positions(self) -> tuple[tuple[int, int, int], ...]:
        return tuple((number, rank.position, rank.ack) for number, rank in sorted(self._ranks.items()))

    def _attach_all(self) -> None:
        names = [name for name in os.listdir(self._folder) if name.startswith("rank-") and name.endswith(".page")]
        for name in names:
            text = name[len("rank-") : -len(".page")]
            number = int(text) if text.isdecimal() and len(text) <= 9 else -1
            if number >= 0 and number not in self._ranks and name not in self._unreadable:
                try:
                    page = _attach(os.path.join(self._folder, name))
                except OSError:
                    self._unreadable.add(name)  # not a page, despite its name
                    continue
                messages = os.path.join(self._folder, script_page.messages_name(number))
                self._ranks[number] = _resume_rank(_Rank(page, messages), *self._resume.get(number, (0, 0)))
                self._windows[number] = _Window()
        expected = max((rank.page[script_page.LOCAL_WORLD] for rank in self._ranks.values()), default=1)
        self._complete = len(self._ranks) >= expected

    def _poll_rank(self, number: int, rank: _Rank, now: Instant, facts: list[Fact]) -> None:
        page = rank.page
        page[script_page.AGENT_NS] = int(now * 1e9)
        step, step_end_ns, begin_ns = (
            page[script_page.STEP],
            page[script_page.STEP_END_NS],
            page[script_page.STEP_START_NS],
        )
        messages = self._read_messages(rank) if page[script_page.MESSAGES] > rank.messages else []
        if wrong := rank.shape.observe(step, step_end_ns):
            rank.excluded_ns[wrong[0]] = max(rank.excluded_ns.get(wrong[0], 0) - wrong[1], 0)
        ack = page[script_page.ACK]
        if ack != rank.ack:
            rank.ack = ack
            rank.open_request = (ack, page[script_page.ACK_STEP])
            facts.append(SaveAnswered(number, ack, Step(page[script_page.ACK_STEP])))
        for message in messages:
            self._handle_message(number, rank, message, facts)
        if rank.open_request is not None:
            _, asked_at = rank.open_request
            if step > asked_at or (begin_ns > step_end_ns and begin_ns > page[script_page.ACK_NS]):
                rank.open_request = None
                self._advance_rank(number, asked_at, facts)
        self._measure(rank, self._windows[number], step, step_end_ns, begin_ns)

    def _measure(self, rank: _Rank, window: _Window, step: int, step_end_ns: int, begin_ns: int) -> None:
        count = step - rank.step
        if count > 0 and step_end_ns != rank.step_end_ns:
            since_ns = rank.step_end_ns
            if not since_ns and count == 1:
                since_ns = rank.shape.since_ns(step_end_ns) or (begin_ns if begin_ns < step_end_ns else 0)
            if since_ns:
                excluded_ns = sum(ns for at, ns in rank.excluded_ns.items() if at < step)
                mean_s = max(step_end_ns - since_ns - excluded_ns, 0) / count / 1e9
                window.count += count
                window.sum_s += mean_s * count
                window.longest_s = max(window.longest_s, mean_s)
                if all(at >= step for at in rank.excluded_ns):
                    rank.shape.plain_ns = int(mean_s * 1e9)
            rank.excluded_ns = {at: ns for at, ns in rank.excluded_ns.items() if at >= step}
        rank.step, rank.step_end_ns = step, step_end_ns

    def _read_messages(self, rank: _Rank) -> list[Message]:
        try:
            with open(rank.messages_path, "rb") as file:
                file.seek(rank.position)
                data = file.read()
        except OSError:
            return []  # the script has removed it; the next poll tries again
        whole = data[: data.rfind(b"\n") + 1]
        rank.position += len(whole)
        lines = whole.split(b"\n")[:-1]
        rank.messages += len(lines)
        return [script_messages.parse_line(line, rank.step) for line in lines]

    def _handle_message(self, number: int, rank: _Rank, message: Message, facts: list[Fact]) -> None:
        match message:
            case HandOver():
                self._handle_hand_over(number, rank, message, facts)
            case PhaseEnded(step, phase, duration_ns):
                rank.excluded_ns[step] = rank.excluded_ns.get(step, 0) + duration_ns
                facts.append(PhaseMeasured(number, phase, Seconds(duration_ns / 1e9)))
            case Metrics(step, numbers, refused):
                facts.append(MetricsReported(number, Step(step), numbers))
                facts += [MessageRefused(number, reason) for reason in refused]
            case RefusedLine(reason, request, step):
                facts.append(MessageRefused(number, reason))
                if request and rank.open_request is not None and request == rank.open_request[0]:
                    rank.open_request = None
                    self._advance_rank(number, step, facts)

    def _handle_hand_over(self, number: int, rank: _Rank, message: HandOver, facts: list[Fact]) -> None:
        step, stall_ns, own = message.step, message.stall_ns, message.own
        if not message.result:
            stall_ns, own = rank.shape.handed_over(message, self._work_started_ns(rank, message))
            if worked_ns := rank.shape.unreported_ns():
                facts.append(PhaseMeasured(number, Phase.STEP, Seconds(worked_ns / 1e9)))
            self._record_hand_over(number, rank, message)
        rank.excluded_ns[step] = rank.excluded_ns.get(step, 0) + stall_ns
        if message.path is None:
            self._advance_rank(number, step, facts)
            return
        name = f"{step}-{number}-{message.number}"
        shared = len(self._ranks) > 1 and not message.result and os.path.isdir(message.path)
        if shared:
            # Ranks that share a folder share its name here; the last of them links what all have written into it.
            name = next((one.name for one in self._folders.get(step, ()) if one.source == message.path), name)
        path = self._link(message.path, name)
        size, stall_s = Bytes(_size_of(path)), Seconds(stall_ns / 1e9)
        source = "" if path == message.path else message.path
        fact = ShardHandedOver(
            number, Step(step), message.request, path, size, stall_s, self._identify(path), source, message.result, own
        )
        if shared:
            known = [one for one in self._folders.get(step, ()) if one.source != message.path]
            self._folders[step] = [*known, _Folder(message.path, name, fact)]
            for old in sorted(self._folders)[:-FOLDERS_KEPT]:
                del self._folders[old]
        facts.append(fact)

    def _work_started_ns(self, rank: _Rank, message: HandOver) -> int:
        """Return since when the script has been working, as far as known: its first call, else its start [ns]."""
        first_ns = rank.page[script_page.PHASE_SINCE_NS]
        if rank.page[script_page.PHASE] == _START and 0 < first_ns < message.at_ns - FIRST_CALL_NS:
            return first_ns
        return int(self._started * 1e9)

    def _record_hand_over(self, number: int, rank: _Rank, message: HandOver) -> None:
        """Record a rank's hand-over; after a second path for a step, ranks past that step are reported again."""
        if rank.open_request is not None and message.request == rank.open_request[0]:
            rank.open_request = None
        again = rank.handed is not None and rank.handed[0] == message.step and message.path != rank.handed[1]
        rank.handed = (message.step, message.path or "")
        if again:
            self._periodic[message.step] = set()
        elif message.request == 0 and len(self._ranks) > 1:
            self._periodic.setdefault(message.step, set()).add(number)

    def _advance_rank(self, number: int, step: int, facts: list[Fact]) -> None:
        """Report that a rank has no further shard at a step; it may have written into another rank's folder before."""
        for folder in self._folders.get(step, ()):
            if folder.fact.rank != number:
                path = self._link(folder.source, folder.name)
                identity = self._identify(path)
                if (path, identity) != (folder.fact.path, folder.fact.identity):
                    size = Bytes(_size_of(path))
                    folder.fact = replace(folder.fact, path=path, size_bytes=size, identity=identity)
                    facts.append(folder.fact)
        facts.append(RankAdvanced(number, Step(step)))

    def _report_ranks_past_saves(self, facts: list[Fact]) -> None:
        """Report ranks that passed a step at which another rank made the script's own save: they have no shard of it."""
        for step, handed in list(self._periodic.items()):
            for number, rank in self._ranks.items():
                if number not in handed and rank.step > step:
                    handed.add(number)
                    self._advance_rank(number, step, facts)
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
        page = rank.page
        phase = page[script_page.PHASE]
        name = script_page.PHASES[phase] if 0 <= phase < len(script_page.PHASES) else "between"
        step, ended_ns = Step(done), page[script_page.STEP_END_NS]
        if name in {"evaluation", "compile", "data"}:
            return RankStatus(number, step, Phase(name), Instant(page[script_page.PHASE_SINCE_NS] / 1e9))
        if rank.open_request is not None:
            return RankStatus(number, step, Phase.SAVE, Instant(page[script_page.ACK_NS] / 1e9))
        if ended_ns == 0:
            begin_ns = page[script_page.STEP_START_NS]
            since = Instant(begin_ns / 1e9) if begin_ns else self._started
            return RankStatus(number, step, Phase.STEP if begin_ns else Phase.START, since)
        # The next chance to save is the end of the next step, so the wait for data counts as part of that step; a save
        # after the last step does not.
        begin_ns = ended_ns + rank.excluded_ns.get(done, 0)
        return RankStatus(number, step, Phase.STEP, Instant(begin_ns / 1e9))

    # ------------------------------------------------------------------------------------------------- agent -> script

    def publish(self, command: PublishSave) -> None:
        """Put a request into every page."""
        kind = script_page.KINDS.index(command.kind)
        for rank in self._ranks.values():
            script_page.publish(rank.page, request=command.request, target=command.step, exact=command.exact, kind=kind)

    def withdraw(self) -> None:
        """Take the request out of every page."""
        for rank in self._ranks.values():
            rank.page[script_page.TARGET] = script_page.NEVER

    def show_notice(self, level: NoticeLevel, deadline: Instant | None) -> None:
        """Show the level and the deadline to the script."""
        for rank in self._ranks.values():
            rank.page[script_page.DEADLINE_NS] = int(deadline * 1e9) if deadline is not None else 0
            rank.page[script_page.NOTICE] = script_page.LEVELS.index(level)


def _resume_rank(rank: _Rank, position: int, ack: int) -> _Rank:
    """Continue a rank where an earlier agent stopped reading; its messages show which acknowledgement is still open."""
    rank.step, rank.step_end_ns = rank.page[script_page.STEP], rank.page[script_page.STEP_END_NS]
    if position == 0 and ack == 0:
        if rank.step_end_ns:  # the last step ended before the first poll
            rank.step, rank.step_end_ns = rank.step - 1, 0
        return rank
    rank.position, rank.ack = position, ack
    read: list[Message] = []
    if position:
        with contextlib.suppress(OSError), open(rank.messages_path, "rb") as file:
            read = [script_messages.parse_line(line, rank.step) for line in file.read(position).split(b"\n")[:-1]]
    rank.messages = len(read)
    handed = [message for message in read if isinstance(message, HandOver) and not message.result]
    if handed:
        rank.handed = (handed[-1].step, handed[-1].path or "")
    if ack and all(getattr(message, "request", 0) != ack for message in read):
        rank.open_request = (ack, rank.page[script_page.ACK_STEP])
    return rank


def _size_of(path: str) -> int:
    """Return the size of a file or folder [B]; unreadable files count 0 (the upload reports them)."""
    if not os.path.isdir(path):
        return _length(path)
    return sum(_length(os.path.join(folder, name)) for folder, _, names in os.walk(path) for name in names)


def _length(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0
