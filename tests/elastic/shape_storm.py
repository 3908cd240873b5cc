"""A storm of an elastic training: machines join, leave, vanish, hang and are cut off; reports come late, in any order or never.

The coordinator is the real one; machines do what `shape_layout` says.  The truth is kept outside: who has finished which step
in which term, and which steps each term took back.  In the end the state in the store has each step once, and none that was
taken back.

    python -m tests.elastic.shape_storm --seed 7
"""

from __future__ import annotations

import argparse
import math
import random
from collections import Counter
from collections.abc import Callable

from tests.elastic.shape_machine import LAYERS, STEPS, ElasticMachine, Network
from tests.support.checks import Violation, demand
from windfall.core import shape_decisions
from windfall.core.shape_coordinator import ShapeCoordinator, ShapePatience
from windfall.core.shape_decisions import (
    ShapeChoice,
    ShapeFacts,
    ShapeMoment,
    first_layout,
    taken_by_next_shape_coordinator,
)
from windfall.models.shapes import IDLE, Shape, all_shapes
from windfall.shape_layout import STORE, ShapeLayout, ShapeReport
from windfall.structs import replace

TURNS_MAX = 40_000
PATIENCE = ShapePatience(
    lost_after_s=900.0,
    reliable_lost_after_s=1500.0,
    broken_lost_after_s=300.0,
    missed_lost_after_s=150.0,
    paused_after_s=300.0,
    listen_s=4000.0,
)
DEPTHS = (1, 2, 3, 5)
LATE_MAX = 40
MACHINES = 8
NOTICE_S = 4800.0
"""Notices in time: long enough for a change that is under way, which takes up to 1,600 s here, and for the one after it [s]."""
STATUS_RATE = 0.1


class ShapeStorm:
    """One seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"shapes {seed}")
        self.tally: Counter[str] = Counter()
        self.gentle = self.rng.random() < 0.3
        self.faults = self.rng.randint(2, 14)
        self.fault_rate = self.rng.choice((0.002, 0.005, 0.01))
        self.fickle = self.rng.random() < 0.3
        self.least = self.rng.choice((1, 1, 1, 2, 3))
        self.save_every = self.rng.choice((1, 3, 5, 100))
        self.change_s = 50.0 if self.gentle else self.rng.choice((100.0, 400.0, 800.0))
        self.turns, self.born, self.now_s = 0, 0, 0.0
        self.network = Network(finished=self._finished, send=self._send)
        self.late: list[Callable[[], object]] = []
        self.status = (0, 0)
        self.log = [first_layout(0)]
        self.coordinator: ShapeCoordinator | None = self._coordinator(self.log[0])
        self.known_redone = self.reported = 0
        self.newest = 0
        self.bases: dict[int, int] = {}
        self.running: ShapeLayout | None = None
        for _ in range(1 if self.gentle else self.rng.choice((0, 1, 1, 1, 2))):
            self._add(True)
        for _ in range(self.rng.randint(1, 5)):
            self._add(False)

    def _coordinator(self, layout: ShapeLayout) -> ShapeCoordinator:
        term, step = self.status
        return ShapeCoordinator(layout, self._choose, PATIENCE, self.now_s, step if term == layout.term else 0)

    def _add(self, reliable: bool) -> None:
        self.born += 1
        name = f"{'r' if reliable else 't'}{self.born}"
        self.network.machines[name] = ElasticMachine(name, reliable, float(self.born), self.network, self.save_every)

    def _choose(self, moment: ShapeMoment) -> ShapeChoice:
        """Choose a shape by a rule of the seed: some policies keep what fits, some want another shape now and then."""
        if moment.ready < self.least:
            return ShapeChoice(IDLE, "too few")
        shape, because = self._wanted(moment)
        dropped = Shape(moment.whole, moment.shape.stages) if moment.whole >= 1 else IDLE
        dropped = dropped if dropped.machines >= self.least else IDLE
        return ShapeChoice(shape, because, self.change_s, dropped, self.change_s / 8.0, self._cut(shape))

    def _cut(self, shape: Shape) -> tuple[int, ...]:
        """Cut the layers anywhere, by the seed; fickle policies cut a shape anew now and then."""
        whim = self.turns // 2500 if self.fickle else 0
        chance = random.Random(f"{self.born % 5} {shape} {whim}")
        if chance.random() < 0.5:
            return ()
        return (0, *sorted(chance.sample(range(1, LAYERS), shape.stages - 1)), LAYERS)

    def _wanted(self, moment: ShapeMoment) -> tuple[Shape, str]:
        fitting = all_shapes(moment.ready, [depth for depth in DEPTHS if depth == 1 or depth < LAYERS])
        whim = self.turns // 1500 if self.fickle else 0
        chooser = random.Random(f"{self.born % 7} {moment.ready} {whim}")
        if not self.fickle and moment.shape in fitting and chooser.random() < 0.5:
            return moment.shape, "it fits"
        return chooser.choice(fitting), "this one"

    def run(self) -> Counter[str]:
        """Play until training is over.

        Raises:
            Violation: a promise is broken.
        """
        while self.turns < TURNS_MAX:
            self.turns += 1
            # With many machines each has its turn more seldom: none is silent by that.
            self.now_s += min(1.0, MACHINES / len(self.network.machines))
            if self.log[-1].over:
                self._compare()
                return self.tally
            if self.faults and self.rng.random() < self.fault_rate:
                self.faults -= 1
                self._fault()
            elif self.faults or self.turns % 50 or self._able():
                self._step()
            else:
                self._add(False)
        raise Violation(f"once nothing goes wrong any more, training ends: {self.log[-1]}")

    def _able(self) -> bool:
        """Whether there are machines enough, once faults have ended."""
        return len([one for one in self._up(False) if not one.leaving and not self._is_lost(one)]) >= self.least

    def _is_lost(self, machine: ElasticMachine) -> bool:
        return self.coordinator is not None and machine.name in self.coordinator.lost

    def _up(self, reliable: bool) -> list[ElasticMachine]:
        return [one for one in self.network.machines.values() if one.state == "up" and one.reliable is reliable]

    def _step(self) -> None:
        machine = self.rng.choice(
            [one for one in self.network.machines.values() if one.state in {"up", "cut off"}] or [None]
        )
        if machine is None:
            self._add(False)
            return
        if machine.state == "cut off":
            machine.turn()
            return
        (step,) = self.rng.choices(
            (self._hear, self._report, self._turn, self._coordinate, self._late), (3, 3, 8, 3, 1)
        )
        step(machine)

    # ------------------------------------------------------------------------------------------------------------- messages

    def _send(self, message: Callable[[], object]) -> None:
        """Deliver a message now or later."""
        if self.rng.random() < 0.7:
            message()
        else:
            self.late.append(message)
            if len(self.late) > LATE_MAX:
                self.late.pop(0)()

    def _late(self, machine: ElasticMachine) -> None:
        del machine
        if self.late:
            self.late.pop(self.rng.randrange(len(self.late)))()
            self.tally["a message came late"] += 1

    def _hear(self, machine: ElasticMachine) -> None:
        """A machine reads the newest layout, or has read an older one."""
        machine.hear(self.rng.choice(self.log[-3:]))
        if self._is_lost(machine) and self.rng.random() < 0.2:
            machine.state = "dead"

    def _report(self, machine: ElasticMachine) -> None:
        ends_in_s = machine.ends_s - self.now_s
        report, roll = machine.report(), self.rng.random()
        report = replace(report, ends_in_s=ends_in_s if machine.leaving and ends_in_s < math.inf else None)
        if roll < 0.8:
            self._take(report)
        if roll > 0.7 and roll < 0.95:
            self.late.append(lambda: self._take(report))

    def _take(self, report: ShapeReport) -> None:
        if self.coordinator is None:
            return
        self.coordinator.take(report, self.now_s)
        if self.coordinator.reports.get(report.machine) is report and report.term == self.log[-1].term:
            self.reported = max(self.reported, report.trained)

    def _turn(self, machine: ElasticMachine) -> None:
        machine.turn()
        if machine.leaving and (self.now_s > machine.ends_s or machine.name in self._released()):
            machine.state = "dead"
            self.tally["a machine left in time"] += 1

    def _released(self) -> frozenset[str]:
        if self.coordinator is None:
            return frozenset()
        coordinator = self.coordinator
        facts = ShapeFacts(coordinator.reports, coordinator.lost, self.network.newest_stored())
        return shape_decisions.released(coordinator.layout, facts)

    # ----------------------------------------------------------------------------------------------------------- coordinator

    def _coordinate(self, machine: ElasticMachine) -> None:
        del machine
        if self.coordinator is None:
            layout = taken_by_next_shape_coordinator(self.log[-1])
            self.log.append(layout)
            self.coordinator = self._coordinator(layout)
            # Of what was trained on machines that are lost it knows what the status says.
            self.reported = self.coordinator.trained
            self.tally["a coordinator followed"] += 1
            return
        if self.rng.random() < STATUS_RATE:
            self.status = (self.log[-1].term, self.reported)
        layout = self.coordinator.next(self.now_s, self.network.newest_stored())
        if layout is None:
            return
        demand(layout.record == len(self.log) + 1, f"records have no gap: {layout}")
        self._check(layout)
        self.log.append(layout)
        self.coordinator.written(layout)

    def _check(self, layout: ShapeLayout) -> None:
        before = self.log[-1]
        self.tally[
            "stop" if layout.stop else "begin" if layout.step is not None else "plan" if layout.stages else "wait"
        ] += 1
        for words in ("drops their pipelines", "the layout is given up"):
            if words in layout.because:
                self.tally[words] += 1
        demand(layout.redone >= before.redone, "what is redone is not forgotten")
        if layout.stages and not layout.stop:
            placed = [place.machine for place in layout.places]
            demand(len(set(placed)) == len(placed) == layout.pipelines * layout.stages, f"one place each: {layout}")
        if layout.term != before.term:
            self._check_begin(layout)

    def _check_begin(self, layout: ShapeLayout) -> None:
        """Check a layout that begins a term, also one that waits at a step which is saved."""
        lost = max(0, self.newest - layout.base)
        if self._survives():
            demand(
                lost <= 1, f"at most one step is redone while each layer has a replica or the backup: {lost}, {layout}"
            )
            self.tally["a loss was survived"] += 1
        elif self.newest:
            self.tally["a stage was lost with all that had it"] += 1
        if self.gentle:
            demand(not lost, f"nothing is redone after notices in time: {layout}")
        self.known_redone += max(0, self.reported - layout.base)
        self.reported = layout.base
        demand(
            layout.redone == self.known_redone, f"what is reported and redone is counted: {layout}, {self.known_redone}"
        )
        from_store = any(move.source == STORE for move in layout.moves)
        self.tally["all waited while a step was saved"] += not layout.stages
        if from_store:
            self.bases.clear()
            self.tally["all went to a checkpoint"] += bool(layout.base)
        else:
            self.bases = {term: min(base, layout.base) for term, base in self.bases.items()}
            self.bases[layout.term] = layout.base
        self.newest, self.running = layout.base, None

    def _survives(self) -> bool:
        """Whether each stage of the layout that was trained last has a machine, or the backup is there."""
        layout = self.running
        if layout is None:
            return False
        backup = self.network.machines.get(layout.backup or "")
        if backup is not None and self._alive(backup) and backup.backs_up:
            return True
        alive = {place.stage for place in layout.places if self._alive(self.network.machines[place.machine])}
        return len(alive) == layout.stages

    def _alive(self, machine: ElasticMachine) -> bool:
        return machine.state == "up" and not self._is_lost(machine)

    def _finished(self, machine: ElasticMachine, step: int) -> None:
        layout = machine.current
        assert layout is not None
        if self.running is None or layout.version >= self.running.version:
            self.running = layout
        if self._alive(machine) and layout.term == self.log[-1].term:
            self.newest = max(self.newest, step)

    # ---------------------------------------------------------------------------------------------------------------- faults

    def _fault(self) -> None:
        calm = [self._join, self._notice, self._notice]
        rough = [self._short_notice, self._tight_notice, self._tight_notice, self._lose_some, self._lose_some,
                 self._lose_stage, self._lose_backup, self._cut_off, self._hang, self._break,
                 self._lose_in_a_change, self._lose_coordinator, self._lose_all]  # fmt: skip
        self.rng.choice(calm if self.gentle else calm + rough)()

    def _join(self) -> None:
        for _ in range(self.rng.randint(1, 3)):
            self._add(False)
        self.tally["machines joined"] += 1

    def _notice(self) -> None:
        """Announce the end of machines, in time."""
        for machine in self._up(False):
            if self.rng.random() < self.rng.choice((0.3, 0.3, 1.0)):
                machine.leaving, machine.ends_s = True, min(machine.ends_s, self.now_s + NOTICE_S)
        if self.gentle or self.rng.random() < 0.7:
            self._add(False)
        self.tally["machines were told to leave"] += 1

    def _short_notice(self) -> None:
        """Machines whose end is announced are gone before they were replaced."""
        for machine in self._up(False):
            if machine.leaving or self.rng.random() < 0.3:
                machine.leaving, machine.state = True, "dead"
        self.tally["a notice was too short"] += 1

    def _tight_notice(self) -> None:
        """Announce an end that comes too soon for most changes: the machine is gone by then, replaced or not."""
        placed = [one for one in self._up(False) if self.log[-1].layers(one.name)]
        for machine in self.rng.sample(placed, min(len(placed), self.rng.choice((1, 1, 2)))):
            machine.leaving, machine.ends_s = True, min(machine.ends_s, self.now_s + self.rng.uniform(50.0, 900.0))
        if self.rng.random() < 0.5:
            self._add(False)
        self.tally["a notice was tight"] += 1

    def _lose(self, machine: ElasticMachine) -> None:
        machine.state = "dead"
        self.tally["a machine vanished"] += 1

    def _lose_some(self) -> None:
        there = self._up(False)
        for machine in self.rng.sample(there, min(len(there), self.rng.choice((1, 1, 2)))):
            self._lose(machine)
        if self.rng.random() < 0.6:
            self._add(False)

    def _lose_stage(self) -> None:
        layout = self.log[-1]
        if layout.places:
            stage = self.rng.randrange(max(place.stage for place in layout.places) + 1)
            for place in layout.places:
                if place.stage == stage and self.network.machines[place.machine].state == "up":
                    self._lose(self.network.machines[place.machine])
            self.tally["a whole stage vanished"] += 1
            self._add(False)

    def _lose_backup(self) -> None:
        there = self._up(True)
        if there:
            self._lose(self.rng.choice(there))
            self.tally["a reliable machine vanished"] += 1
        if self.rng.random() < 0.8:
            self._add(True)

    def _cut_off(self) -> None:
        there = self._up(False)
        if there:
            self.rng.choice(there).state = "cut off"
            self.tally["a machine was cut off"] += 1

    def _hang(self) -> None:
        """A machine does nothing, though its connections stand; some do more later."""
        hanging = [one for one in self.network.machines.values() if one.state == "hangs"]
        if hanging and self.rng.random() < 0.5:
            self.rng.choice(hanging).state = "up"
            return
        there = self._up(False)
        if there:
            self.rng.choice(there).state = "hangs"
            self.tally["a machine hung"] += 1

    def _break(self) -> None:
        """A connection breaks between two that live."""
        training = [one for one in self._up(False) if one.current is not None or one.making is not None]
        if training:
            self.rng.choice(training).lose_connection()
            self.tally["a connection broke"] += 1

    def _lose_in_a_change(self) -> None:
        """Lose an end of a move, or one that leaves, before it is over; or let it hang, which only its silence shows."""
        layout = self.log[-1]
        ends = {*layout.left, *(name for move in layout.moves for name in (move.source, move.target))}
        changing = [one for one in self._up(False) if one.name in ends and one.made < layout.version]
        if changing and self.rng.random() < 0.5:
            self._lose(self.rng.choice(changing))
            self.tally["a machine vanished in a migration"] += 1
        elif changing:
            self.rng.choice(changing).state = "hangs"
            self.tally["a machine hung in a migration"] += 1

    def _lose_coordinator(self) -> None:
        self.coordinator = None
        if self.rng.random() < 0.3:
            self._lose_some()

    def _lose_all(self) -> None:
        for machine in self._up(False):
            if self.rng.random() < 0.8:
                self._lose(machine)
        self._add(False)
        self.tally["nearly all vanished"] += 1

    # ----------------------------------------------------------------------------------------------------------------- the end

    def _compare(self) -> None:
        history = self.network.checkpoint(STEPS)
        demand(len(history) == STEPS, f"each step is trained once: {history}")
        for term, base in self.bases.items():
            demand(
                all(of >= term for of in history[base:]), f"no step that was taken back counts: {history}, {self.bases}"
            )


def storm(seed: int) -> Counter[str]:
    """Play a seed; a violation says how to play it again."""
    try:
        return ShapeStorm(seed).run()
    except Exception as error:
        error.add_note(f"replay: python -m tests.elastic.shape_storm --seed {seed}")
        raise


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, required=True)
    print(storm(parser.parse_args().seed))
