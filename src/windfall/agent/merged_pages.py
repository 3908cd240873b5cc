"""The pages of several machines, merged so that the reducer can treat them as those of one machine.

An observation is complete only if it covers the ranks of every machine.  While a request waits for agreement, no
observation is passed on before every machine has published the request and polled its pages afterwards: so an
observation that decides always shows a rank that has passed the step on another machine.  A machine's hand-overs precede
the observation that could find its ranks silent, because each machine's facts keep their order.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from windfall.events import (
    Fact,
    PagesRead,
    RankAdvanced,
    RanksObserved,
    RankStatus,
    SaveAnswered,
    ShardHandedOver,
    StepsMeasured,
)
from windfall.structs import replace
from windfall.terms import Instant, Seconds, Step

_EARLY_MAX = 256
"""Limit on hand-overs and answers that wait until every machine's ranks are known; beyond it the oldest are dropped."""

_NEVER = Instant(0.0)


@dataclass(slots=True)
class _NodePages:
    """The newest observation of one machine's pages, started at `at` on the leader's clock."""

    ranks: dict[int, RankStatus] = field(default_factory=dict)
    published: int = 0
    at: Instant = _NEVER


def qualified_path(node: int, path: str) -> str:
    """Return `node:path`; for the leader (node 0) the path itself, which starts with a slash."""
    return path if node == 0 else f"{node}:{path}"


def split_path(qualified: str) -> tuple[int, str]:
    """Return the node rank and the path of a `qualified_path`."""
    if qualified.startswith("/"):
        return 0, qualified
    node, _, path = qualified.partition(":")
    return int(node), path


class MergedPages:
    """The pages of one attempt on all machines of a generation."""

    def __init__(self, nodes: int) -> None:
        self._nodes = [_NodePages() for _ in range(nodes)]
        self._request = 0
        self._early: deque[Fact] = deque(maxlen=_EARLY_MAX)
        self._complete = False
        self._periodic: dict[int, set[int]] = {}
        self._exits: dict[int, int] = {}

    def publish_request(self, request: int) -> None:
        """Note that a request is being published on every machine (0: it was withdrawn)."""
        self._request = request

    def take(
        self, node: int, facts: list[Fact], *, now: Instant, at: Instant, published: int, latency_s: float, quiet: bool
    ) -> list[Fact]:
        """Take in the facts of one machine's pages; return the facts that the reducer receives now.

        Args:
            node: the machine's node rank; 0 is the leader.
            facts: in the machine's own order.
            now: the leader's clock.
            at: when the poll started, or earlier, on the leader's clock.
            published: the newest request that was in the machine's pages before the poll.
            latency_s: the round trip to the farthest machine [s].
            quiet: return an observation only if it is the one that was awaited.
        """
        out: list[Fact] = []
        for fact in facts:
            if isinstance(fact, RanksObserved):
                opened = self._update(node, fact, at, published)
                if opened or (self._complete and self._all_published and not quiet):
                    out += [*self._take_early(), self._combined(now, latency_s)]
            elif isinstance(fact, (ShardHandedOver, RankAdvanced, SaveAnswered)):
                named = self._qualified(node, fact)
                if self._complete:
                    out.append(named)
                else:
                    self._early.append(named)
            elif node == 0 or not isinstance(fact, (StepsMeasured, PagesRead)):
                # All ranks step together: one machine's step times are those of all.
                out.append(fact)
        return out + self._ranks_past_saves()

    @property
    def has_partial_saves(self) -> bool:
        """Whether a rank's own save waits for ranks of other machines to join or to pass it."""
        return bool(self._periodic)

    def exited(self, node: int, status: int) -> int | None:
        """Record a script's exit; once all have exited return the first status that is not 0, or 0."""
        self._exits.setdefault(node, status)
        if len(self._exits) < len(self._nodes):
            return None
        return self.first_failure or 0

    @property
    def request_published(self) -> int:
        """The request that waits for an observation of every machine; 0 for none."""
        return self._request

    @property
    def first_failure(self) -> int | None:
        """The first exit status that was not 0; None while there is none."""
        return next((status for status in self._exits.values() if status != 0), None)

    def has_exited(self, node: int) -> bool:
        """Whether a machine's script has exited."""
        return node in self._exits

    def _update(self, node: int, observation: RanksObserved, at: Instant, published: int) -> bool:
        """Return whether this observation completes the picture, or is the one that a request waited for."""
        before = self._complete and self._all_published
        node_pages = self._nodes[node]
        for status in observation.ranks:
            known = node_pages.ranks.get(status.rank)
            if known is None or known.step <= status.step:
                node_pages.ranks[status.rank] = status
        node_pages.published, node_pages.at = max(node_pages.published, published), at
        self._complete = all(node_pages.ranks for node_pages in self._nodes)
        return self._complete and self._all_published and not before

    @property
    def _all_published(self) -> bool:
        return all(node_pages.published >= self._request for node_pages in self._nodes)

    def _take_early(self) -> list[Fact]:
        early = list(self._early)
        self._early.clear()
        return early

    def _combined(self, now: Instant, latency_s: float) -> RanksObserved:
        statuses = {rank: status for node_pages in self._nodes for rank, status in node_pages.ranks.items()}
        age_s = max(now - min(node_pages.at for node_pages in self._nodes), 0.0)
        ranks = tuple(statuses[rank] for rank in sorted(statuses))
        return RanksObserved(ranks, Seconds(age_s), Seconds(latency_s))

    def _qualified(self, node: int, fact: Fact) -> Fact:
        if isinstance(fact, ShardHandedOver):
            if fact.request == 0 and not fact.result:
                self._periodic.setdefault(fact.step, set()).add(fact.rank)
            return replace(fact, path=qualified_path(node, fact.path))
        if isinstance(fact, RankAdvanced) and fact.step in self._periodic:
            self._periodic[fact.step].add(fact.rank)
        return fact

    def _ranks_past_saves(self) -> list[Fact]:
        """Report ranks that passed a step at which another rank made the script's own save: they have no shard of it."""
        out: list[Fact] = []
        if not self._complete:
            return out
        for step, handed in list(self._periodic.items()):
            for node_pages in self._nodes:
                for rank, status in node_pages.ranks.items():
                    if rank not in handed and status.step > step:
                        handed.add(rank)
                        out.append(RankAdvanced(rank, Step(step)))
            if all(rank in handed for node_pages in self._nodes for rank in node_pages.ranks):
                del self._periodic[step]
        return out
