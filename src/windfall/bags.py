"""Bags of jobs: many items that run one command with different parameters.  Imports only `terms`.

An *item* is one point of the parameter space.  The *dispatcher* leases items to *runners*, one on each machine; a lease is
an item and a number, which grows each time the item is leased.  An outcome counts if its lease is the newest one of its
item, and once the dispatcher's record with it is in the log of the bag; so an item is finished once, whatever machines do
that were given up.

What dispatcher and runner tell each other are whole states, not steps: a message that is lost, doubled or late changes nothing.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping

import msgspec

from windfall.structs import Struct, Tagged
from windfall.terms import Seconds, WallTime

VERSION = 1
"""Version of all documents here."""
Value = str | int | float | bool
"""A parameter, or a result, of an item."""
RETRIES_MAX = 2
"""How often an item that failed is tried again, if the bag does not say."""
STOP_ITEMS_MIN = 5
"""How many items are done before `Bag.stop_when` may end a bag, if the bag does not say."""
STOP_DONE_MIN = 5
"""How many items are done before `Bag.stop_item` compares with them, if the bag does not say."""
STOP_MEDIAN_FROM = 0.3
"""From which share of its run an item is compared with the median of others, if the bag does not say [1]."""
CLIENT_SILENT_S = Seconds(60.0)
"""How long the client of a bag that grows may be silent, if the bag does not say [s]."""


_ROUNDING = 1e-12


class ItemState(enum.StrEnum):
    """What has become of an item."""

    QUEUED = "queued"
    LEASED = "leased"
    """A runner has it, and runs it or is about to."""
    DONE = "done"
    FAILED = "failed"
    """It failed more often than it may."""
    DISCARDED = "discarded"
    """The bag ended without it, because the share that must finish was reached, or the bag was stopped."""


class ItemEnd(enum.StrEnum):
    """How a lease ended."""

    DONE = "done"
    FAILED = "failed"
    """The command failed, or its results were not there."""
    TIMED_OUT = "timed-out"
    """It took longer than an item may."""
    RETURNED = "returned"
    """Its machine gave it back, because it had to leave."""
    LOST = "lost"
    """Its machine was lost, or its runner was not heard of."""
    DISCARDED = "discarded"
    """The bag ended."""
    STOPPED = "stopped"
    """Its metric said that the rest of its run is not worth it (`Bag.stop_item`); what it has so far are its results."""

    @property
    def is_done(self) -> bool:
        """Whether the item is done by it, and never runs again."""
        return self in (ItemEnd.DONE, ItemEnd.STOPPED)


class ResultRule(Tagged, frozen=True):
    """Where a result is found in the files that an item leaves.

    Attributes:
        name: of the result.
        file: relative to the item's folder; `-` is what it printed.
        regex: the last match counts, its first group if it has one; None for a file of JSON.
        key: for JSON, the keys that lead to the value, separated by dots; empty for the name itself.
    """

    name: str
    file: str
    regex: str | None = None
    key: str = ""


class RestartRule(Tagged, frozen=True):
    """What an item that is preempted continues from.

    Attributes:
        files: patterns of files that the command writes; the newest whole file of each is kept, together with the others.
        signal: number of the signal that makes the command save when its machine's end is announced; 0 for none.
        save_s: how long the command takes to save [s]; None for as long as it takes to store the files.
    """

    files: tuple[str, ...] = ()
    signal: int = 0
    save_s: Seconds | None = None


class StopWhen(Tagged, frozen=True):
    """When a bag is over though items are left; exactly one rule is set (`policies.planning.early_stopping`).

    Attributes:
        metric: a result; an item whose result is no number does not count.
        items_min: the bag ends at no fewer done items.
        above, below: over once an item's metric is beyond.
        no_gain: over once this number of items in turn did not improve the best; with `goal`, `min` or `max`.
        standard_error: over once the mean of the metric is known so well.
    """

    metric: str
    items_min: int = STOP_ITEMS_MIN
    above: float | None = None
    below: float | None = None
    no_gain: int | None = None
    goal: str = "min"
    standard_error: float | None = None


class StopItem(Tagged, frozen=True):
    """When one running item is stopped; exactly one of `above`, `below`, `median` and `call` is set.

    Attributes:
        metric: a result, whose values are read while the item runs.
        above, below: stopped once a value is beyond.
        median: `min` or `max`, the better values: stopped if its best so far is worse than what items that are done had on
            average by the same share of their run, in the median.
        from_progress: not before this share of its run [1].
        done_min: `median` needs this number of items that are done.
        call: FILE.py:FUNCTION of the user's code, which is asked instead.
        steps: an expression that finds the step in the file of the metric; None: progress follows from the time.
        steps_of: the step at the end of a run.
    """

    metric: str
    above: float | None = None
    below: float | None = None
    median: str | None = None
    from_progress: float = 0.0
    done_min: int = STOP_DONE_MIN
    call: str | None = None
    steps: str | None = None
    steps_of: float = 1.0


MetricCurve = tuple[tuple[float, float], ...]
"""What an item reported of its metric, oldest first: each value after its progress, which is a share of the item's run [1], or
where a running item's share is not known, for how long it had run [s]."""


class Bag(Tagged, frozen=True):
    """A bag, as a job carries it in the settings of its runtime.

    Attributes:
        items: how many there are.
        parameters: their names, in the order of each row.
        rows: keys of the objects with the rows, in order; all but the last one have `rows_each`.
        rows_each: how many rows an object has.
        finish: the share of all items that must be done [1].
        item_timeout_s: how long an item may take [s]; None for no limit.
        retries_max: how often an item that failed is tried again.
        retry_codes: exit codes after which it is always tried again, without being counted.
        at_once_max: the most items in the hands of all runners together; None for no limit.
        cores: what one item needs of a machine's processors.
        smaller: smaller numbers of processors with which an item can run too, the largest first.
        memory_gib: what it needs of a machine's memory [GiB]; None if that limits nothing.
        ranks: how many MPI ranks it has; None for a program without.
        nodes: on how many machines of one allocation it runs; with more than 1 its ranks are shared equally by them.
        weight: the parameter that says how much an item counts towards `finish`; None if all count the same.
        reduce: the shell text that runs once when the items are over; None for none.
        seed: of the order of the items, and of the items themselves.
        shuffled: whether items run in random order rather than in that of the rows.
        results: what is read from the files of each item that is done.
        restart: what an item that is preempted continues from.
        stop_when: when it is over though items are left; None for never.
        collect: patterns of files that are kept of each item that is done; where the bag grows, also of one that failed.
        grows: a client adds items while the bag runs; then `items` is 0 and `rows` is empty.
        client_silent_s: a bag that grows is closed if its client was not heard of for so long [s].
        inputs: names of the parameters whose values are keys of objects that a machine fetches before the item starts.
        stop_item: when one running item is stopped; None for never.
    """

    items: int
    parameters: tuple[str, ...]
    rows: tuple[str, ...]
    rows_each: int
    finish: float = 1.0
    item_timeout_s: Seconds | None = None
    retries_max: int = RETRIES_MAX
    retry_codes: tuple[int, ...] = ()
    at_once_max: int | None = None
    cores: float = 1.0
    memory_gib: float | None = None
    ranks: int | None = None
    nodes: int = 1
    weight: str | None = None
    reduce: str | None = None
    seed: int = 0
    shuffled: bool = True
    results: tuple[ResultRule, ...] = ()
    collect: tuple[str, ...] = ()
    restart: RestartRule = RestartRule()
    grows: bool = False
    client_silent_s: Seconds = CLIENT_SILENT_S
    inputs: tuple[str, ...] = ()
    stop_when: StopWhen | None = None
    smaller: tuple[float, ...] = ()
    stop_item: StopItem | None = None

    @property
    def sizes(self) -> tuple[float, ...]:
        """The numbers of processors with which an item can run, the one that it wants first."""
        return (self.cores, *self.smaller)

    @property
    def must_finish(self) -> int:
        """How many items must be done, if all count the same."""
        # 0.07 x 100 is 7.000000000000001, and 7 items are 7 %.
        return max(1, math.ceil(self.finish * self.items * (1.0 - _ROUNDING)))

    @property
    def reduce_item(self) -> int:
        """The number under which the reduce step is leased: the one after the last item's; -1 without one."""
        return -1 if self.reduce is None else self.items


class AddedItems(Tagged, frozen=True):
    """What the client of a bag that grows asks for: an object of its create-only sequence.

    Attributes:
        rows: of the items that it adds; their numbers follow those of the items before.
        cancelled: items that it does not need any more.
        sealed: no rows follow; the bag is over once all its items have ended.
    """

    rows: tuple[tuple[Value, ...], ...] = ()
    cancelled: tuple[int, ...] = ()
    sealed: bool = False


class ItemLease(Tagged, frozen=True):
    """An item in a runner's hands, under a number that grows with each lease of the item, from 1."""

    item: int
    number: int


class StoredOutput(Tagged, frozen=True):
    """Where what an item printed is stored: a part of an object."""

    key: str
    offset: int
    size_bytes: int


class StoredItemFile(Tagged, frozen=True):
    """A file that is kept of an item: its path in the item's folder, and its object."""

    path: str
    key: str
    size_bytes: int


class SavedItemFile(Tagged, frozen=True):
    """A file of an item's save: its path in the item's folder, its object, and the digest of its content."""

    path: str
    key: str
    size_bytes: int
    digest: str


class ItemSave(Tagged, frozen=True):
    """Files from which an item can continue; it exists once this document does, after all of its files.

    Attributes:
        lease: under which it was made.
        place: of the saves of this lease, from 1.
        files: the newest file last.
        work_s: of the item's work, what is in it: of this try, and of the save from which the try started [s].
    """

    lease: ItemLease
    place: int
    files: tuple[SavedItemFile, ...]
    work_s: Seconds = Seconds(0.0)


class ItemOutcome(Tagged, frozen=True):
    """How a lease ended, as its runner says.

    Attributes:
        exit_code: as a shell shows it; None if the command did not end by itself.
        problem: one sentence about a failure; empty for none.
        started_at, run_s: when it started, by the runner's clock, and how long it ran [s].
        values: the results.
        cpus: on how many processors it ran, where they were fewer than it wants.
        stopped: why it was stopped; empty if it was not.
        curve: of `Bag.stop_item`, if items that are done are compared with: by shares of its run.
    """

    lease: ItemLease
    end: ItemEnd
    exit_code: int | None
    started_at: WallTime
    run_s: Seconds
    problem: str = ""
    values: Mapping[str, Value] = msgspec.field(default_factory=dict)
    output: StoredOutput | None = None
    files: tuple[StoredItemFile, ...] = ()
    cpus: float | None = None
    stopped: str = ""
    curve: MetricCurve = ()


class RunnerRoom(Struct, frozen=True):
    """How many items a runner runs at once.

    Attributes:
        slots: items on the wanted number of processors.
        cores: that number.
        spare_cpus: processors that are left beside them, for items on fewer.
        items_max: the most items of any kind, by memory; None for `slots`.
    """

    slots: int
    cores: float = 1.0
    spare_cpus: float = 0.0
    items_max: int | None = None


class StoppedLease(Tagged, frozen=True):
    """An item that is to be stopped while it runs, and why."""

    lease: ItemLease
    reason: str


class RunnerReport(Tagged, frozen=True):
    """The newest state of a runner, in its own object.

    Attributes:
        runner: unique; a machine whose program starts again has another one.
        sequence: grows with each report.
        slots: how many items it runs at once.
        wants: how many items it would have in its hands; 0 if it is about to leave.
        grant: number of the newest grant that it has read; 0 for none.
        holds: the leases in its hands, those that run first.
        ran_s: how long those have run [s].
        outcomes: those that no grant has acknowledged.
        leaves: it will ask for nothing more.
        spare_cpus: processors that are too few for an item of the wanted number, and on which no smaller one runs or waits.
        curves: of `Bag.stop_item`, of those that run and have reported; as long as `ran_s`, unless all are empty.
        stops: running items that the user's function stops.
        rule_problem: why that function cannot be asked; empty if it can.
    """

    runner: str
    machine_id: str
    sequence: int
    slots: int
    wants: int
    grant: int
    holds: tuple[ItemLease, ...] = ()
    outcomes: tuple[ItemOutcome, ...] = ()
    leaves: bool = False
    ran_s: tuple[Seconds, ...] = ()
    spare_cpus: float = 0.0
    curves: tuple[MetricCurve, ...] = ()
    stops: tuple[StoppedLease, ...] = ()
    rule_problem: str = ""


class GrantedItem(Tagged, frozen=True):
    """A lease, with the item's parameters, and on how many processors it runs if they are fewer than it wants."""

    lease: ItemLease
    values: tuple[Value, ...]
    cpus: float | None = None


class ItemGrant(Tagged, frozen=True):
    """All that a runner has leases for now, in its own object; an item that is not there is given up at once.

    Attributes:
        number: that of the dispatcher's record.
        answers: the newest report that the dispatcher has read; outcomes up to it need not be told again.
        closed: the bag is over.
        leave: this runner gets nothing more, and gives back what it has not started.
        stops: of the items, those that are to be stopped.
    """

    runner: str
    number: int
    answers: int
    items: tuple[GrantedItem, ...] = ()
    closed: bool = False
    leave: bool = False
    stops: tuple[StoppedLease, ...] = ()


class LeaseEnd(Tagged, frozen=True):
    """A lease that ended without an outcome that counts."""

    lease: ItemLease
    end: ItemEnd
    runner: str


class ItemRecoveryAction(enum.StrEnum):
    """What is done with an item that was preempted while it ran."""

    AGAIN = "run again"
    """Ahead of the items that have not run yet."""
    LAST = "run last"
    """After them, so that it only runs if it is needed."""
    DISCARD = "discard"
    """Not at all, unless others fail in such number that it is needed."""
    SMALLER = "restart smaller"
    """Ahead of all others, on fewer processors."""


class RecoveryCost(Tagged, frozen=True):
    """What an action is expected to cost.

    Attributes:
        action: as the policy names it.
        cost: in the unit of its decision; None if it has no end.
        done_s: expected time until the item is done, or the one in its place [s]; None if it has no end.
        possible: whether it could be chosen.
        reason: in words.
    """

    action: str
    cost: float | None
    done_s: float | None
    possible: bool
    reason: str


class ItemRecovery(Tagged, frozen=True):
    """The decision on an item that was preempted while it ran, with its numbers.

    Attributes:
        ran_s, saved_s: how long it had run, and how much of its work is saved [s].
        item_s: how long an item takes, as measured [s]; None if none was measured yet.
        unit: of the costs: USD, or slot-hours where the price is not known.
        costs: of each action.
        cpus: on how many processors it runs again, if they are fewer than it wants.
    """

    item: int
    action: ItemRecoveryAction
    reason: str
    ran_s: Seconds
    saved_s: Seconds
    item_s: Seconds | None
    unit: str
    costs: tuple[RecoveryCost, ...] = ()
    cpus: float | None = None


class SizedItem(Tagged, frozen=True):
    """An item that runs on fewer processors than it wants, after a preemption, or in a trial that measures its time there."""

    item: int
    cpus: float
    trial: bool = False


class SizeTimes(Tagged, frozen=True):
    """What was measured of items on a smaller number of processors.

    Attributes:
        timed, timed_s: how many items were measured, and how long they took together [s].
        tried: how many were to run on it in a trial.
    """

    cpus: float
    timed: int = 0
    timed_s: float = 0.0
    tried: int = 0


class ItemLeases(Tagged, frozen=True):
    """Items that a runner gets; each has the next number of its item."""

    runner: str
    items: tuple[int, ...]


class ItemRecord(Tagged, frozen=True):
    """A record of the bag's log: what a turn of the dispatcher changed.

    Attributes:
        number: of the record, from 1.
        nonce: random; tells whose record it is if an answer was lost.
        at: by the dispatcher's clock.
        joined: new runners, with their machines.
        outcomes: those that count, each with its runner.
        ended: leases that ended without one.
        leased: what runners get.
        carried: items that an earlier run of the same bag has done, each with its runner there; they come before all others.
        reducing: why the items are over, in the record after which the reduce step may be leased; empty in all others.
        left: runners that get nothing more.
        retried: requests to run the failed items again, each of which is taken in once; a bag that was over is open again.
        closed: whether the bag is over: nothing is leased after this record.
        reason: why it is over.
        added: of a bag that grows, how many items each of the client's next objects added.
        cancelled: queued items that the client does not need any more.
        sealed: the client adds nothing more.
        recovered: the decisions on items that were preempted while they ran; of `ended`, those without one run again.
        revived: items that were discarded after a preemption and are needed after all, since others failed.
        converged: why `Bag.stop_when` ends the bag, in the record with which it does; empty in all others.
        trials: items that run next, on fewer processors, to measure their time there.
        stopped: running items that `Bag.stop_item` stops from now on: verdicts, each of which is made once for a lease.
        rule_problem: why the function of `Bag.stop_item` cannot be asked, in the first record that knows it.
    """

    number: int
    nonce: str
    at: WallTime
    joined: tuple[tuple[str, str], ...] = ()
    outcomes: tuple[tuple[str, ItemOutcome], ...] = ()
    ended: tuple[LeaseEnd, ...] = ()
    leased: tuple[ItemLeases, ...] = ()
    carried: tuple[tuple[str, ItemOutcome], ...] = ()
    reducing: str = ""
    left: tuple[str, ...] = ()
    retried: tuple[str, ...] = ()
    closed: bool = False
    reason: str = ""
    added: tuple[int, ...] = ()
    cancelled: tuple[int, ...] = ()
    sealed: bool = False
    recovered: tuple[ItemRecovery, ...] = ()
    revived: tuple[int, ...] = ()
    converged: str = ""
    trials: tuple[SizedItem, ...] = ()
    stopped: tuple[StoppedLease, ...] = ()
    rule_problem: str = ""

    @property
    def answers(self) -> bool:
        """Whether what runners reported is taken in with it: a record that only lets items wait comes before that."""
        return not (self.retried or self.trials)


class RetryRequest(Tagged, frozen=True):
    """A user's request, in its own object, to run the items again that have failed when the dispatcher takes it in.

    Attributes:
        user: who made it.
        at: by the user's clock.
    """

    user: str
    at: WallTime


class KeptRunnerState(Tagged, frozen=True):
    """A runner in a `TableState`.

    Attributes:
        leases: the items in its hands, oldest first, each with the number of the record by which it got it.
    """

    runner: str
    machine_id: str
    left: bool
    leases: tuple[tuple[int, int], ...]


class TableState(Tagged, frozen=True):
    """All that the records up to a number make of the items, so that a dispatcher that starts again need not read them.

    Attributes:
        number: of the last record that is in it.
        fresh: how many items of the order have been leased at least once.
        returned: items that came back and wait, in their order.
        states: of all items, a byte each, compressed by zlib.
        numbers: of the newest lease of all items, 4 bytes each, the low one first, compressed by zlib.
        failures: how often items failed, those that did.
        retried: requests to run the failed items again that are in it.
        rounds: how often the bag was over and was opened again.
        carried: how many items an earlier run of the bag had done.
        reducing: why the items are over, once the reduce step waits or runs.
        starts: of a bag that grows, the first item of each of the client's objects.
        sealed: no items are added any more.
        last: items that run after all others, in their order.
        dropped: items that were discarded after a preemption, in their order.
        timed, timed_s: how many items were measured, and how long they took together [s].
        metrics: of `Bag.stop_when`, in the order in which items ended, 8 bytes each, the low one first, compressed by zlib.
        converged: why `Bag.stop_when` has ended the bag.
        sized: items that wait or run on fewer processors, in their order.
        sizes: what was measured on each smaller number of processors.
        verdicts: why items in runners' hands are stopped.
        curves: of the items that were done last, oldest first.
        rule_problem: why the function of `Bag.stop_item` cannot be asked.
    """

    number: int
    closed: bool
    reason: str
    fresh: int
    returned: tuple[int, ...]
    states: bytes
    numbers: bytes
    failures: tuple[tuple[int, int], ...]
    runners: tuple[KeptRunnerState, ...]
    retried: tuple[str, ...]
    rounds: int
    carried: int
    reducing: str
    starts: tuple[int, ...]
    sealed: bool
    last: tuple[int, ...]
    dropped: tuple[int, ...]
    timed: int
    timed_s: float
    metrics: bytes
    converged: str
    sized: tuple[SizedItem, ...] = ()
    sizes: tuple[SizeTimes, ...] = ()
    verdicts: tuple[tuple[int, str], ...] = ()
    curves: tuple[MetricCurve, ...] = ()
    rule_problem: str = ""
