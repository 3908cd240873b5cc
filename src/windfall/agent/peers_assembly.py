"""What the pages of several machines say, put together so that the reducer may believe it as if it were one machine.

A look is complete only if it covers the ranks of every machine.  While a request waits for agreement no look leaves
here before every machine has published the request and looked again afterwards: a rank on another machine that went past
the step unseen is therefore always in the look that decides.  What a machine's own ranks handed over comes before the
look that could find them silent, because each machine's facts keep their order.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

from windfall.events import (
    Fact,
    PagesRead,
    RankMovedOn,
    RanksObserved,
    RankStatus,
    SaveAnswered,
    ShardHandedOver,
    StepsMeasured,
)
from windfall.terms import Instant, Seconds, Step

_EARLY_MAX = 256
"""Hand-overs and answers that wait until every machine's ranks are known; of more the oldest are forgotten."""


_NEVER = Instant(0.0)


@dataclass(slots=True)
class _Portion:
    """The newest look at one machine's pages, begun at `at` on the leader's clock."""

    ranks: dict[int, RankStatus] = field(default_factory=dict)
    published: int = 0
    at: Instant = _NEVER


def address_of(node: int, path: str) -> str:
    """Return the name of a path on a machine: the leader's own is the path itself, which begins with a slash."""
    return path if node == 0 else f"{node}:{path}"


def place_of(address: str) -> tuple[int, str]:
    """Return the machine and the path that `address_of` named."""
    if address.startswith("/"):
        return 0, address
    node, _, path = address.partition(":")
    return int(node), path


class Assembly:
    """One attempt of the script on all machines of a generation."""

    def __init__(self, nodes: int) -> None:
        self._portions = [_Portion() for _ in range(nodes)]
        self._asked = 0
        self._early: deque[Fact] = deque(maxlen=_EARLY_MAX)
        self._complete = False
        self._periodic: dict[int, set[int]] = {}
        self._exits: dict[int, int] = {}

    def ask(self, request: int) -> None:
        """A request is being published on every machine (0: it was taken back)."""
        self._asked = request

    def take(
        self, node: int, facts: list[Fact], *, now: Instant, at: Instant, published: int, link_s: float, quiet: bool
    ) -> list[Fact]:
        """Take in what one machine's pages say; return what the reducer shall hear of it now.

        Args:
            node: which machine; 0 is the leader.
            facts: in the machine's own order.
            now: the leader's clock.
            at: when the look was begun, or earlier, on the leader's clock.
            published: the newest request that stood in the machine's pages before the look.
            link_s: the round trip to the farthest machine [s].
            quiet: tell of a look only if it is the one that was waited for.
        """
        out: list[Fact] = []
        for fact in facts:
            if isinstance(fact, RanksObserved):
                opened = self._update(node, fact, at, published)
                if opened or (self._complete and self._open and not quiet):
                    out += [*self._first_words(), self._look(now, link_s)]
            elif isinstance(fact, (ShardHandedOver, RankMovedOn, SaveAnswered)):
                named = self._named(node, fact)
                if self._complete:
                    out.append(named)
                else:
                    self._early.append(named)
            elif node == 0 or not isinstance(fact, (StepsMeasured, PagesRead)):
                # Steps are taken together: those of one machine are those of all.
                out.append(fact)
        return out + self._bystanders()

    @property
    def waits_for_bystanders(self) -> bool:
        """Whether a rank's own save waits to be joined, or passed, by ranks of other machines."""
        return bool(self._periodic)

    def exited(self, node: int, status: int) -> int | None:
        """A machine's script has ended; return the status of the whole once all have: the first that is not 0."""
        self._exits.setdefault(node, status)
        if len(self._exits) < len(self._portions):
            return None
        return self.first_failure or 0

    @property
    def asked(self) -> int:
        """The request that waits for every machine's look; 0 if none does."""
        return self._asked

    @property
    def first_failure(self) -> int | None:
        """The first status of a machine's script that was not 0."""
        return next((status for status in self._exits.values() if status != 0), None)

    def has_exited(self, node: int) -> bool:
        """Whether a machine's script has ended."""
        return node in self._exits

    def _update(self, node: int, look: RanksObserved, at: Instant, published: int) -> bool:
        """Return whether this look makes the whole complete, or opens what waited for it."""
        before = self._complete and self._open
        portion = self._portions[node]
        for status in look.ranks:
            known = portion.ranks.get(status.rank)
            if known is None or known.step <= status.step:
                portion.ranks[status.rank] = status
        portion.published, portion.at = max(portion.published, published), at
        self._complete = all(part.ranks for part in self._portions)
        return self._complete and self._open and not before

    @property
    def _open(self) -> bool:
        return all(portion.published >= self._asked for portion in self._portions)

    def _first_words(self) -> list[Fact]:
        early = list(self._early)
        self._early.clear()
        return early

    def _look(self, now: Instant, link_s: float) -> RanksObserved:
        statuses = {rank: status for portion in self._portions for rank, status in portion.ranks.items()}
        age_s = max(now - min(portion.at for portion in self._portions), 0.0)
        ranks = tuple(statuses[rank] for rank in sorted(statuses))
        return RanksObserved(ranks, Seconds(age_s), Seconds(link_s))

    def _named(self, node: int, fact: Fact) -> Fact:
        if isinstance(fact, ShardHandedOver):
            if fact.request == 0 and not fact.result:
                self._periodic.setdefault(fact.step, set()).add(fact.rank)
            return replace(fact, path=address_of(node, fact.path))
        if isinstance(fact, RankMovedOn) and fact.step in self._periodic:
            self._periodic[fact.step].add(fact.rank)
        return fact

    def _bystanders(self) -> list[Fact]:
        """Ranks that went past a step at which another rank saved by the user's own schedule have no part in it."""
        out: list[Fact] = []
        if not self._complete:
            return out
        for step, handed in list(self._periodic.items()):
            for portion in self._portions:
                for rank, status in portion.ranks.items():
                    if rank not in handed and status.step > step:
                        handed.add(rank)
                        out.append(RankMovedOn(rank, Step(step)))
            if all(rank in handed for portion in self._portions for rank in portion.ranks):
                del self._periodic[step]
        return out
