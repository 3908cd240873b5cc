"""The storm of a bag: dispatchers and runners on machines that vanish, with a store that doubles, delays and loses operations.

Dispatcher and runners are the product's own; only the commands of items are simulated.  Replay a failure with
`python -m tests.storms.items --seed N [--bug NAME]`.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import random
from collections import Counter
from collections.abc import Iterator
from functools import partial

from tests.storms import planted_items
from tests.storms.item_client import BagClient
from tests.storms.item_curves import CurveWitness
from tests.storms.item_scene import ROWS_EACH, BagMachine, draw
from tests.storms.item_sizes import SizeWitness
from tests.storms.item_stops import StopWitness
from tests.support.checks import Violation, demand
from tests.support.simulated_store import Actor, Faults, World
from windfall.bags import (
    GrantedItem,
    ItemEnd,
    ItemGrant,
    ItemLease,
    ItemOutcome,
    ItemRecord,
    ItemState,
    TableState,
)
from windfall.core.item_runner import (
    EndAnnounced,
    GrantRead,
    ItemEnded,
    ItemRunner,
    KillItem,
    LeaveAsked,
    ReportWritten,
    RunnerFact,
    RunnerIdentity,
    StartItem,
    WriteReport,
)
from windfall.core.item_table import ItemTable
from windfall.errors import StoreError
from windfall.ports import Create, Put, SimpleOp, Steps
from windfall.runtimes.item_dispatcher import ItemDispatcher, order_of
from windfall.storage.store_operations import get, pause, put
from windfall.terms import Instant, Seconds
from windfall.wire import bag_layout

ECHO = 0.1
"""The chance that a grant is overwritten at once by the one before it, which a slow request carried; calm or not."""
SPARE_S = 300.0
"""Once nothing goes wrong any more, a bag ends in the time of its items one after the other, tries included, and this."""
REDUCE_S = 20.0
CLIENT_S = 1200.0
"""A client has added its last items by then."""
LEAVE_S = 20.0
"""Runners kill what runs within this time of the bag's end, if nothing goes wrong: a grant that was overwritten by an older one
is written again after `AGAIN_S`, at the next turn."""


class BagStorm:
    """One seed."""

    def __init__(self, seed: int) -> None:
        self.scene = draw(seed)
        self.rng = random.Random(f"storm {seed}")
        self.tally: Counter[str] = Counter()
        self.world = World(seed, Faults(calm_at=self.scene.calm_s), self._observed, lambda actor: None)
        self.names = itertools.count()
        self.machines: list[BagMachine] = []
        self.gone: set[str] = set()
        self.mirror = self._table()
        self.reduced: list[ItemLease] = []
        self.counted: dict[int, ItemLease] = {}
        self.stops = StopWitness(self.scene.bag, self.tally)
        self.sizes = SizeWitness(self.scene.bag, self.tally)
        self.curves = CurveWitness(self.scene, self.tally)
        self.finished: set[ItemLease] = set()
        self.started: set[ItemLease] = set()
        self.dispatchers: list[Actor] = []
        self.reported: dict[str, dict[ItemLease, int]] = {}
        self.grants: dict[str, bytes] = {}
        self.losers: set[str] = set()
        self.client = self._new_client(seed)
        for part, key in enumerate(self.scene.bag.rows):
            rows = [(float(item),) for item in range(self.scene.bag.items)][part * ROWS_EACH : (part + 1) * ROWS_EACH]
            self.world.store.put(key, bag_layout.rows_to_bytes(rows))
        if self.scene.carried:
            record = ItemRecord(1, "before", self.world_time(), carried=tuple(map(self._before, self.scene.carried)))
            self.world.store.put(bag_layout.item_record_key(1), bag_layout.record_to_bytes(record))
            self._recorded(record)

    def _table(self) -> ItemTable:
        bag = self.scene.bag
        return ItemTable(bag, order_of(bag), () if bag.weight is None else range(bag.items))

    def _before(self, item: int) -> tuple[str, ItemOutcome]:
        outcome = ItemOutcome(ItemLease(item, 2), ItemEnd.DONE, 0, self.world_time(), Seconds(1.0))
        return "runner of an earlier run", outcome

    def _new_client(self, seed: int) -> BagClient | None:
        lives = self.scene.client_lives
        return (
            None
            if lives is None
            else BagClient(self.world, self.scene.total, seed, self.tally, self.mirror, lives=lives)
        )

    # --------------------------------------------------------------------------------------------------------- the truth

    def _observed(self, actor: Actor, op: SimpleOp, result: object) -> None:
        """What the log says is what counts: each record as it is created."""
        if self.client is not None:
            self.client.observed(actor, op)
        if isinstance(op, Create) and result is True and op.key.startswith("items/log/"):
            record = bag_layout.record_from_bytes(op.data)
            self._recorded(record)
        elif isinstance(op, Create) and op.key.startswith("items/log/") and not self.world.calm:
            self.tally["a record was there"] += 1
            self.losers.add(actor.name)
        elif isinstance(op, Put) and op.key.startswith(bag_layout.STATES):
            self._state_written(actor, op)
        elif isinstance(op, Put) and op.key.endswith("/grant.json"):
            self._answered(bag_layout.grant_from_bytes(op.data))
            self._echo(op)
            if actor.name in self.losers and self.rng.random() < 0.5:
                self.tally["killed after it lost its record"] += 1
                self.world.kill(actor)
            self.losers.discard(actor.name)

    def _answered(self, grant: ItemGrant) -> None:
        """A runner forgets what was answered, so each outcome must be in the log by then, or count no more."""
        for lease, sequence in self.reported.get(grant.runner, {}).items():
            newest = self.mirror.lease(lease.item) == lease and self.mirror.state(lease.item) is ItemState.LEASED
            demand(sequence > grant.answers or not newest, f"only what is in the log is answered: {lease}")

    def _state_written(self, actor: Actor, op: Put) -> None:
        """A state says what the records say; it may be lost, damaged, or the last thing that a dispatcher did."""
        state = bag_layout.state_from_bytes(op.data)
        demand(state.number <= self.mirror.number, "a state is written after its records")
        demand(state == self._folded(state.number), f"a state is what its records say: {state.number}")
        fate = self.rng.random()
        if fate < 0.1:
            del self.world.store.objects[op.key]
            self.tally["a state was lost"] += 1
        elif fate < 0.3:
            damaged = bytearray(op.data)
            damaged[self.rng.randrange(len(damaged))] ^= 1 << self.rng.randrange(8)
            # One bit mostly makes it unreadable; another number of items makes it read as the state of another moment.
            readable = op.data.replace(b'"fresh":', b'"fresh":1', 1)
            self.world.store.objects[op.key] = self.rng.choice([bytes(damaged), readable])
            self.tally["a state was damaged"] += 1
        if self.rng.random() < 0.3:
            self.world.kill(actor)
            self.tally["killed after a state, before the next record"] += 1

    def _folded(self, number: int) -> TableState:
        """What the first records say, without any state."""
        table = self._table()
        for place in range(1, number + 1):
            table.apply(bag_layout.record_from_bytes(self.world.store.objects[bag_layout.item_record_key(place)]))
        return table.keep()

    def _echo(self, op: Put) -> None:
        """Overwrite a grant by an older one, as a request that was long under way does."""
        before, self.grants[op.key] = self.grants.get(op.key), op.data
        if before is not None and before != op.data and self.rng.random() < ECHO:
            self.tally["an older grant came last"] += 1
            self.world.at(self.rng.uniform(0.0, 0.05), lambda: self.world.store.put(op.key, before))

    def _recorded(self, record: ItemRecord) -> None:
        bag = self.scene.bag
        for runner, outcome in record.outcomes:
            item = outcome.lease.item
            if item == bag.reduce_item:
                self._reduced(outcome)
                continue
            demand(item not in self.counted, f"an item is counted once: {item}")
            demand(outcome.lease in self.finished, f"what counts was run to its end: {outcome.lease}")
            newest = self.mirror.lease(item).number
            demand(outcome.lease.number == newest, f"only the newest lease counts: {outcome.lease}, not {newest}")
            if outcome.end.is_done:
                demand(outcome.values == {"y": 2.0 * item}, f"an item's result is its own: {item}")
                self.counted[item] = outcome.lease
            self.tally[f"outcome {outcome.end}"] += 1
            del runner
        for ended in record.ended:
            self.tally[f"lease {ended.end}"] += 1
            ran = ended.end is ItemEnd.RETURNED and ended.lease in self.finished
            demand(not ran, f"what a runner has finished is not run again while it lives: {ended}")
        self.stops.recorded(record, self.mirror)
        self.sizes.recorded(record, self.mirror)
        self.curves.recorded(record, self.mirror, self.world.time)
        self.mirror.apply(record)
        self.stops.applied(self.mirror)
        self.sizes.applied(self.mirror)
        self.curves.applied(record, self.mirror)
        self._lose_one_that_stops(record)
        self.counted |= {outcome.lease.item: outcome.lease for _, outcome in record.carried}
        if self.client is not None:
            self.client.recorded(record, self.mirror)
        held = [lease.item for runner in self.mirror.runners for lease in self.mirror.leases(runner)]
        demand(len(held) == len(set(held)), "an item is in the hands of one runner")
        counts = self.mirror.counts
        demand(counts.done == len(self.counted), f"what is counted is done: {counts.done}, {len(self.counted)}")
        if bag.at_once_max is not None:
            demand(counts.leased <= bag.at_once_max, f"no more at once than allowed: {counts.leased}")

    def _lose_one_that_stops(self, record: ItemRecord) -> None:
        """Lose a machine before it can know what to stop, so that verdicts are left without an outcome."""
        leases = {one.lease for one in record.stopped if not self.world.calm and self.rng.random() < 0.6}
        for machine in [one for one in self.machines if leases & one.running.keys()]:
            self.world.at(0.0, partial(self._lose, machine, told=True))

    def _reduced(self, outcome: ItemOutcome) -> None:
        others = [lease for runner in self.mirror.runners for lease in self.mirror.leases(runner)]
        demand(others == [outcome.lease], f"the reduce step runs when all items are over: {others}")
        demand(outcome.lease in self.finished, "what counts was run to its end")
        self.reduced.append(outcome.lease)
        self.tally["reduced"] += 1
        self.tally["reduced again"] += outcome.lease.number > 1

    # ----------------------------------------------------------------------------------------------------------- dispatchers

    def keep(self, actor: Actor, turn_s: float) -> Steps[object]:
        """A dispatcher's process."""
        dispatcher = ItemDispatcher(
            actor, self.scene.bag, lambda: f"n{next(self.names)}", state_every=self.scene.state_every
        )
        while True:
            with contextlib.suppress(StoreError):
                yield from dispatcher.turn(gone=tuple(self.gone))
            yield from pause(turn_s)

    def new_dispatcher(self) -> None:
        turn_s = self.scene.turns_s[len(self.dispatchers) % 4]
        actor = self.world.actor(f"dispatcher-{next(self.names)}", "here")
        self.world.start(actor, self.keep(actor, turn_s))
        self.dispatchers.append(actor)
        self.tally[f"dispatcher with turns of {turn_s:g} s"] += 1

    # ----------------------------------------------------------------------------------------------------------- runners

    def new_machine(self) -> None:
        number = len(self.machines)
        machine = BagMachine(f"m-{number}", self.scene.room(number))
        self.machines.append(machine)
        self._start_runner(machine)

    def _start_runner(self, machine: BagMachine) -> None:
        machine.running = {}
        machine.actor = self.world.actor(f"{machine.name}-{next(self.names)}", machine.name)
        self.world.start(machine.actor, self.run(machine.actor, machine))

    def run(self, actor: Actor, machine: BagMachine) -> Steps[object]:
        """A runner's process: turns, with its reads and writes between them."""
        who = RunnerIdentity(
            actor.name, machine.name, machine.room, self.scene.bag.item_timeout_s, self.scene.bag.reduce_item
        )
        runner = ItemRunner(who, actor.now())
        facts: list[RunnerFact] = []
        while not runner.over:
            facts += [*self.curves.facts(actor.name, machine.running, self.world.time), *self._ended(machine)]
            if machine.ends_at is not None:
                facts.append(EndAnnounced(Instant(actor.now() + machine.ends_at - self.world.time)))
            for action in runner.react(actor.now(), tuple(facts)):
                match action:
                    case StartItem(item):
                        self._begin(machine, item)
                    case KillItem(lease, end):
                        self._kill(machine, lease, end)
                    case WriteReport(report):
                        for outcome in report.outcomes:
                            self.reported.setdefault(actor.name, {}).setdefault(outcome.lease, report.sequence)
                        machine_report = put(
                            bag_layout.runner_report_key(actor.name), bag_layout.report_to_bytes(report)
                        )
                        self._writes(actor, machine_report)
            facts = [ReportWritten(0)] if self._written(actor) else []
            try:
                data = yield from get(bag_layout.grant_key(actor.name))
            except StoreError:
                data = None
            if data is not None:
                grant: ItemGrant = bag_layout.grant_from_bytes(data)
                facts.append(GrantRead(grant))
                if grant.leave and self.mirror.runners[actor.name].left and machine.ends_at is None:
                    facts.append(LeaveAsked(now=True))
                    self.tally["a runner was given up"] += 1
            yield from pause(self.rng.uniform(0.05, 0.5))
        self.tally["runner over"] += 1
        return None

    def _writes(self, actor: Actor, steps: Steps[None]) -> None:
        """Write beside the runner's own loop, as its thread does; a write that fails is forgotten."""
        self.writing = getattr(self, "writing", {})
        helper = self.world.actor(f"{actor.name}-writer", actor.host)
        self.writing[actor.name] = helper

        def writes() -> Steps[object]:
            with contextlib.suppress(StoreError):
                yield from steps

        self.world.start(helper, writes())

    def _written(self, actor: Actor) -> bool:
        helper = getattr(self, "writing", {}).get(actor.name)
        return helper is None or helper.finished or helper.dead

    def _begin(self, machine: BagMachine, item: GrantedItem) -> None:
        own = () if item.lease.item == self.scene.bag.reduce_item else (float(item.lease.item),)
        demand(item.values == own, f"an item has its own parameters: {item}")
        demand(item.lease.item not in self.scene.carried, f"what an earlier run has done does not run: {item}")
        self.sizes.begins(item, [machine.items[lease] for lease in machine.running], machine.room)
        demand(item.lease not in self.started, f"a lease is started once: {item.lease}")
        self.started.add(item.lease)
        machine.running[item.lease] = self.world.time + self._run_s(item)
        machine.items[item.lease] = item
        self.tally["item started"] += 1

    def _run_s(self, item: GrantedItem) -> float:
        if item.lease.item == self.scene.bag.reduce_item:
            return REDUCE_S
        return self.scene.run_s[item.lease.item] * (1.0 if item.cpus is None else self.scene.slower[item.cpus])

    def _kill(self, machine: BagMachine, lease: ItemLease, end: ItemEnd) -> None:
        demand(lease in machine.running, f"only what runs is killed: {lease}")
        self.curves.killed(lease, end)
        machine.running[lease] = {ItemEnd.TIMED_OUT: -1.0, ItemEnd.STOPPED: -3.0}.get(end, -2.0)
        self.tally[f"killed {end}"] += 1

    def _ended(self, machine: BagMachine) -> list[RunnerFact]:
        facts: list[RunnerFact] = []
        for lease, at in tuple(machine.running.items()):
            if at > self.world.time:
                continue
            del machine.running[lease]
            fails = lease.item != self.scene.bag.reduce_item and lease.number <= self.scene.fails[lease.item]
            own = ItemEnd.FAILED if fails else ItemEnd.DONE
            end = {-1.0: ItemEnd.TIMED_OUT, -2.0: ItemEnd.FAILED, -3.0: ItemEnd.STOPPED}.get(at, own)
            self.curves.ended(lease, end, self.world.time)
            values = {"y": 2.0 * lease.item} if end.is_done else {}
            if at != -2.0:
                self.finished.add(lease)
            item = machine.items.pop(lease)
            run_s, code = Seconds(self._run_s(item)), 0 if end is ItemEnd.DONE else 1
            outcome = ItemOutcome(lease, end, code, self.world_time(), run_s, values=values, cpus=item.cpus)
            facts.append(ItemEnded(self.curves.outcome(outcome)))
        return facts

    def world_time(self) -> float:  # type: ignore[override]
        return 1_800_000_000.0 + self.world.time

    # ------------------------------------------------------------------------------------------------------------- faults

    def _trouble(self) -> None:
        """Once in a while something ends: a dispatcher, a runner's program, a machine, with or without a notice."""
        world, rng = self.world, self.rng
        if not world.calm:
            fate = rng.choice(
                ["dispatcher", "second dispatcher", "runner", "machine", "machine", "notice", "late news"]
            )
            alive = [one for one in self.machines if one.alive]
            if fate == "dispatcher":
                world.kill(self.dispatchers[-1])
                self.tally["dispatcher killed"] += 1
            elif fate == "second dispatcher":
                self.new_dispatcher()
                self.tally["two dispatchers"] += 1
            elif alive:
                one = rng.choice(alive)
                if fate == "runner":
                    assert one.actor is not None
                    world.kill(one.actor)
                elif fate == "machine":
                    self._lose(one, told=True)
                elif fate == "late news":
                    self._lose(one, told=False)
                elif one.ends_at is None:
                    one.ends_at = world.time + rng.uniform(1.0, 40.0)
                    world.at(one.ends_at - world.time, lambda: self._lose(one, told=True))
                    self.tally["notice"] += 1
            world.at(rng.expovariate(1.0 / 15.0), self._trouble)

    def _lose(self, machine: BagMachine, *, told: bool) -> None:
        if not machine.alive:
            return
        machine.alive, machine.running = False, {}
        assert machine.actor is not None
        self.world.kill(machine.actor)
        self.tally["machine lost"] += 1
        if told:
            self.gone.add(machine.name)

    def _tend(self) -> None:
        """What the fleet does: a machine for each that is gone, a program for each that has ended, a dispatcher."""
        while sum(not one.dead for one in self.dispatchers) < self.scene.dispatchers:
            self.new_dispatcher()
        for machine in self.machines:
            actor = machine.actor
            assert actor is not None
            over = actor.dead or actor.finished
            if machine.alive and over and machine.ends_at is None and not self.mirror.closed:
                self._start_runner(machine)
        if not self.mirror.closed:
            while sum(one.alive for one in self.machines) < self.scene.machines:
                self.new_machine()
            self.world.at(1.0, self._tend)

    def storm(self) -> BagStorm:
        """Run it."""
        self.world.at(0.0, self._tend)
        self.world.at(self.rng.expovariate(1.0 / 15.0), self._trouble)
        limit_s = self.scene.calm_s + sum(map(self.scene.at_most_s, range(self.scene.total))) + SPARE_S
        if self.client is not None:
            limit_s += CLIENT_S
        while not self.mirror.closed and self.world.time < limit_s:
            demand(self.world.step(), "something goes on")
        self._ended_well()
        return self

    def _ended_well(self) -> None:
        self.world.run(max(self.world.time, self.scene.calm_s + 60.0) + LEAVE_S)
        # What runs below a program that has died has died with it.
        busy = [one.name for one in self.machines if one.alive and one.actor and not one.actor.dead and one.running]
        demand(not busy, f"nothing runs on for a bag that is over: {busy}")
        bag, counts = self.scene.bag, self.mirror.counts
        demand(self.mirror.closed, f"the bag ends in bounded time: {counts}")
        demand(counts.queued == 0 and counts.leased == 0, f"nothing is left open: {counts}")
        if self.client is not None:
            self.client.ended_well(self.mirror)
        hopeless = [item for item in range(self.scene.total) if self.scene.fails[item] > bag.retries_max]
        enough = self.scene.is_enough(self.counted) or bool(self.mirror.converged)
        if not bag.grows and not enough:
            demand(counts.done + counts.failed == bag.items, f"a bag fails once every item has ended: {counts}")
        demand(len(self.reduced) == (bag.reduce is not None and enough), f"reduced once: {self.reduced}")
        failing = {item for item in hopeless if self.scene.fails[item] == 99} - set(self.scene.carried)
        demand(not set(self.counted) & failing - self.curves.stopped, "what fails is not done")
        demand(self._folded(self.mirror.number) == self.mirror.keep(), "the log alone says how it ended")


@contextlib.contextmanager
def _no_bug() -> Iterator[None]:
    yield


def storm(seed: int, bug: str | None = None) -> BagStorm:
    """Run a seed, with a planted bug if one is named."""
    with _no_bug() if bug is None else planted_items.bug(bug):
        try:
            return BagStorm(seed).storm()
        except Exception as error:
            again = f"python -m tests.storms.items --seed {seed}" + (f" --bug '{bug}'" if bug else "")
            raise Violation(f"{error!r}\nreplay: {again}") from error


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--bug", choices=sorted(planted_items.BUGS))
    arguments = parser.parse_args()
    print(storm(arguments.seed, arguments.bug).tally)


if __name__ == "__main__":
    main()
