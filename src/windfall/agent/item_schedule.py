"""How often the items of a machine save, by what the controller tells of its losses and what saves have taken here."""

from __future__ import annotations

import threading

from windfall.agent.exec_request import ExecRequest
from windfall.agent.status_files import EstimatesFile
from windfall.bags import RestartRule
from windfall.events import EstimatesChanged
from windfall.models.preemption_rates import UNKNOWN, PreemptionHistory, providers
from windfall.policies.checkpointing.item_save_plan import ItemSavePlan, plan_item_saves
from windfall.ports import Clock
from windfall.structs import replace

STORE_S = 0.1
"""How long a save takes to store before one was timed [s]."""
_SMOOTHING = 0.3


class ItemSchedule:
    """The estimates, and the schedule from them; thread-safe.

    Args:
        request: of the node agent.
        rule: of the bag.
        clock: time.
    """

    def __init__(self, request: ExecRequest, rule: RestartRule, clock: Clock) -> None:
        provider = request.provider if request.provider in providers() else UNKNOWN
        self._losses = PreemptionHistory(provider, mttp_given_s=request.options.mttp_s)
        self._estimates = EstimatesFile(request.estimates, clock)
        self._rule, self._clock, self._started = rule, clock, clock.now()
        self._store_s, self._work_s, self._items = STORE_S, 0.0, 0
        self._lock = threading.Lock()

    def item_done(self, run_s: float) -> None:
        """Take in how long an item took that was not interrupted [s]."""
        with self._lock:
            self._items += 1
            self._work_s += (run_s - self._work_s) * max(1.0 / self._items, _SMOOTHING)

    def stored(self, took_s: float) -> None:
        """Take in how long it took to store a save [s]."""
        with self._lock:
            self._store_s += (took_s - self._store_s) * _SMOOTHING

    def plan(self, run_s: float = 0.0) -> ItemSavePlan:
        """Return how often an item saves that has run for so long [s]."""
        with self._lock:
            for fact in self._estimates.changes():
                if isinstance(fact, EstimatesChanged):
                    self._take(fact)
            # Of one that runs longer than others nothing is known.
            known = self._items > 0 and run_s <= self._work_s
            save_s = self._store_s if self._rule.save_s is None else self._rule.save_s
            age_s = self._clock.now() - self._started
            return plan_item_saves(
                self._losses,
                age_s=age_s,
                work_s=self._work_s if known else None,
                save_s=save_s,
                durable_s=save_s + self._store_s,
            )

    def _take(self, fact: EstimatesChanged) -> None:
        losses = self._losses
        self._losses = replace(
            losses,
            mttp_given_s=losses.mttp_given_s if fact.mttp_s is None else fact.mttp_s,
            restart_given_s=losses.restart_given_s if fact.restart_s is None else fact.restart_s,
        )
