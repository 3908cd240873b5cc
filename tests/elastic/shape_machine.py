"""A machine of the storm of shapes, which does what `shape_layout` asks of machines; connections are other machines' fields.

What it trains is a history: the term in which each step was trained.  Layers at one step of one timeline have the same one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tests.support.checks import demand
from windfall.shape_layout import STORE, ShapeLayout, ShapeReport, StateMove

History = tuple[int, ...]
LAYERS, STEPS, MICRO_BATCHES = 6, 20, 8


@dataclass
class Group:
    """The machines that train in a layout, as they hear one another.

    Attributes:
        votes: of each step, the newest version that each machine has heard of, and the histories of its layers.
        ends: step after which all leave, once it is decided, and the next version.
    """

    votes: dict[int, dict[str, int]] = field(default_factory=dict)
    histories: dict[int, set[History]] = field(default_factory=dict)
    ends: tuple[int, int] | None = None


@dataclass
class Network:
    """What machines see of one another.

    Attributes:
        machines: all, dead ones too.
        groups: by version of the layout.
        stored: history of each checkpoint in the store, by step and term.
        finished: takes a machine, and the step that it has finished.
        mail: takes what a machine sends to the backup: its layers of a step.
    """

    machines: dict[str, ElasticMachine] = field(default_factory=dict)
    groups: dict[int, Group] = field(default_factory=dict)
    stored: dict[tuple[int, int], History] = field(default_factory=dict)
    parts: dict[tuple[int, int], dict[int, History]] = field(default_factory=dict)
    finished: Callable[[ElasticMachine, int], None] = lambda machine, step: None
    send: Callable[[Callable[[], None]], None] = lambda message: message()

    def group(self, layout: ShapeLayout) -> Group:
        """Return the group of a layout."""
        return self.groups.setdefault(layout.version, Group())

    def checkpoint(self, step: int) -> History:
        """Return a checkpoint: of several of one step the one of the newest term."""
        return self.stored[max(key for key in self.stored if key[0] == step)] if step else ()

    def save(self, step: int, term: int, layers: Mapping[int, History]) -> None:
        """Take in a part of a checkpoint, which counts once it is whole."""
        part = self.parts.setdefault((step, term), {})
        part |= layers
        if len(part) == LAYERS:
            demand(len(set(part.values())) == 1, f"a checkpoint is of one timeline: {part}")
            self.stored[step, term] = part[0]

    def newest_stored(self) -> int:
        """Return the newest step that is whole in the store."""
        return max((step for step, _ in self.stored), default=0)


class ElasticMachine:
    """A machine; `state` is `up`, `cut off` (from the coordinator alone), `hangs` or `dead`; `ends_s` is its announced end."""

    def __init__(self, name: str, reliable: bool, started_s: float, network: Network, save_every: int) -> None:
        self.name, self.reliable, self.started_s, self.network = name, reliable, started_s, network
        self.save_every = save_every
        self.state, self.leaving, self.built = "up", False, False
        self.record = self.coordinator = self.term = self.made = self.number = self.trained = 0
        self.seen: ShapeLayout | None = None
        self.current: ShapeLayout | None = None
        self.making: ShapeLayout | None = None
        self.planned: ShapeLayout | None = None
        self.voted: ShapeLayout | None = None
        self.leaves: ShapeLayout | None = None
        self.at = 0
        self.stopped = False
        self.broken: set[str] = set()
        self.layers: dict[int, dict[int, History]] = {}
        self.taken: dict[int, History] = {}
        self.outbox: dict[int, dict[int, History]] = {}
        self.arrived: dict[int, dict[int, History]] = {}
        self.backs_up: bool = False
        self.ends_s = math.inf

    # ------------------------------------------------------------------------------------------------------------ the frame

    def report(self) -> ShapeReport:
        """Return what it says of itself."""
        self.number += 1
        held = sorted((step, layer) for layer, states in self.layers.items() for step in states)
        return ShapeReport(
            self.name, self.reliable, self.started_s, self.leaving, self.number, self.coordinator, self.name,
            LAYERS if self.built else 0, self.term, self.made, self.stopped,
            tuple((layer, layer + 1, step) for step, layer in held), self.trained,
            tuple(sorted(self.broken)), STEPS if self.built else 0, MICRO_BATCHES,
        )  # fmt: skip

    def hear(self, layout: ShapeLayout) -> None:
        """Take in a layout."""
        if layout.record <= self.record:
            return
        self.record, self.coordinator = layout.record, layout.coordinator
        if self.seen is not None and layout.version == self.seen.version:
            return
        self.seen = layout
        self._enter_term(layout)
        if layout.over:
            return
        if layout.stop:
            self._stop()
            self.made = layout.version
        elif layout.step is not None:
            self._begin(layout)
        elif not layout.stages:
            self._wait(layout)
        else:
            self._follow(layout)

    def _enter_term(self, layout: ShapeLayout) -> None:
        if layout.term == self.term:
            return
        # It slept through the stop between: those with whom it trained are gone.
        self._stop()
        newest = layout.base if layout.term == self.term + 1 else -1
        self.layers = {
            layer: kept
            for layer, states in self.layers.items()
            if (kept := {step: history for step, history in states.items() if step <= newest})
        }
        self.term, self.trained, self.at = layout.term, layout.base, layout.base
        self.stopped = False
        self.broken.clear()
        self.arrived.clear()

    def _stop(self) -> None:
        self.current = self.making = self.planned = self.leaves = None
        self.stopped = True

    def _begin(self, layout: ShapeLayout) -> None:
        self.current = self.planned = self.leaves = None
        self.stopped, self.making = False, layout
        self.backs_up = False
        self.broken.clear()
        self.taken.clear()
        if self._is_needed(layout):
            assert layout.step is not None
            self.at = layout.step
        else:
            self.making, self.made = None, layout.version

    def _wait(self, layout: ShapeLayout) -> None:
        if self.current is not None or (self.backs_up and not self.stopped):
            self.planned = layout
        else:
            self._rest(layout)

    def _rest(self, layout: ShapeLayout) -> None:
        """Stop, and save what a layout that waits says."""
        self._stop()
        self.made = layout.version
        self.trained = max(self.trained, self.at)
        asked = [move for move in layout.moves if move.source == self.name and move.target == STORE]
        wanted = [layer for move in asked for layer in range(move.first, move.end)]
        part = {layer: self.layers[layer][self.at] for layer in wanted if self.at in self.layers.get(layer, {})}
        step, term = self.at, self.term
        if part and step:
            self.network.send(lambda: self.network.save(step, term, part))

    def _follow(self, layout: ShapeLayout) -> None:
        """Take in a planned layout."""
        if self.current is not None:
            self.planned = layout
        elif self.stopped and self.name != layout.backup:
            return
        elif self.backs_up and layout.backup == self.name and not any(one.target == self.name for one in layout.moves):
            self.made = layout.version
        elif self._is_needed(layout):
            self._make(layout)
        else:
            self.backs_up, self.made = False, layout.version

    def _make(self, layout: ShapeLayout) -> None:
        self.making = layout
        self.backs_up = False
        self.taken.clear()

    def _is_needed(self, layout: ShapeLayout) -> bool:
        return bool(layout.layers(self.name)) or layout.backup == self.name

    # -------------------------------------------------------------------------------------------------------------- training

    def turn(self) -> None:
        """Do what is next."""
        if not self.built:
            self.built = True
        elif self.making is not None:
            self._take_state(self.making)
        elif self.current is not None:
            self._train(self.current)
        elif self.backs_up and not self.stopped:
            self._back_up()

    def _take_state(self, layout: ShapeLayout) -> None:
        """Take a layer that it lacks; once it lacks none, it has made the layout."""
        for move in layout.moves:
            if move.target == self.name:
                for layer in range(move.first, move.end):
                    if layer not in self.taken and not self._take_layer(layout, move, layer):
                        return
        self.making = None
        for layer, history in self.taken.items():
            self.layers.setdefault(layer, {})[len(history)] = history
            self.at = len(history)
        wanted = layout.layers(self.name) or range(LAYERS)
        demand(
            all(self.at in self.layers.get(layer, {}) for layer in wanted),
            f"{self.name} has all layers of step {self.at} in layout {layout.version}: {self.layers}",
        )
        self.made, self.stopped = layout.version, False
        if layout.backup == self.name:
            self.backs_up = True
            self.layers = {layer: {self.at: self.layers[layer][self.at]} for layer in wanted}
            self._trim_arrived()
            if self.at == STEPS:
                self._store()
        else:
            self.current = layout
            # What is not trained here any more would only be older.
            self.layers = {
                layer: states for layer, states in self.layers.items() if layer in wanted or self.at in states
            }

    def _take_layer(self, layout: ShapeLayout, move: StateMove, layer: int) -> bool:
        """Take a layer if it is there; return whether it needed no turn."""
        if move.source == STORE:
            assert layout.step is not None
            self.taken[layer] = self.network.checkpoint(layout.step)
            return True
        source = self.network.machines[move.source]
        sent = source.sends(layout, layer)
        if sent is not None:
            self.taken[layer] = sent
            return False
        if source.state == "dead" or source.gave_up(layout):
            self._break({move.source} if source.state == "dead" else set())
        return False

    def sends(self, layout: ShapeLayout, layer: int) -> History | None:
        """Return a layer that it sends in a layout; None if it cannot now."""
        if self.state == "dead":
            return None
        if layout.step is None:
            return self.outbox.get(layout.version, {}).get(layer)
        if self.seen is None or self.seen.version != layout.version:
            return None
        return self.layers.get(layer, {}).get(layout.step)

    def gave_up(self, layout: ShapeLayout) -> bool:
        """Whether it has stopped in a layout, or since."""
        return self.stopped and self.seen is not None and self.seen.version >= layout.version

    def lose_connection(self) -> None:
        """Lose the connection to another one that trains."""
        self._break(set())

    def _break(self, broken: set[str]) -> None:
        self.broken |= broken
        self._stop()

    def _train(self, layout: ShapeLayout) -> None:
        if self.leaves is not None:
            # Whoever feeds the backup leaves once that has the last step.
            if self._backed_up(layout):
                self._leave(self.leaves)
            return
        group, step = self.network.group(layout), self.at + 1
        votes = group.votes.setdefault(step, {})
        members = {place.machine for place in layout.places}
        if self.at >= STEPS:
            self._save(layout)
            self.leaves = self.planned
            return
        if self.name not in votes:
            histories = group.histories.setdefault(step, set())
            histories |= {self.layers[layer][self.at] for layer in layout.layers(self.name)}
            demand(len(histories) == 1, f"all begin step {step} from one state: {histories} in layout {layout.version}")
            # What it hears of after its vote is for the next step.
            self.voted = self.planned
            votes[self.name] = layout.version if self.planned is None else self.planned.version
        elif votes.keys() >= members:
            if self._backed_up(layout):
                self._finish(layout, step, votes[self.name] if len(set(votes.values())) == 1 else layout.version)
        else:
            absent = [self.network.machines[name] for name in members - votes.keys()]
            gone = [one for one in absent if one.state == "dead" or one.gave_up(layout) or one.made > layout.version]
            if gone:
                self._break({one.name for one in gone if one.state == "dead"})

    def _backed_up(self, layout: ShapeLayout) -> bool:
        """Whether the backup has this machine's step, or none waits for it."""
        backup = self.network.machines.get(layout.backup or "")
        if backup is None or backup.state == "dead":
            return True
        if backup.gave_up(layout):
            # It says so: who finished a step then might have two more than the backup.
            return backup.seen is not None and not backup.seen.stop
        return backup.backs_up and backup.term == self.term and backup.at >= self.at

    def _finish(self, layout: ShapeLayout, step: int, version: int) -> None:
        for layer in layout.layers(self.name):
            states = self.layers[layer]
            states[step] = (*states[self.at], layout.term)
            self.layers[layer] = {kept: states[kept] for kept in (self.at, step) if kept in states}
        self.at = self.trained = step
        self.network.finished(self, step)
        trained = {layer: self.layers[layer][step] for layer in layout.layers(self.name)}
        backup = self.network.machines.get(layout.backup or "")
        if backup is not None:
            term = self.term
            self.network.send(lambda: backup.receive(term, step, trained))
        if version > layout.version:
            self.network.group(layout).ends = (step, version)
            self.leaves = self.voted
        else:
            self._save(layout)

    def _leave(self, layout: ShapeLayout) -> None:
        """Leave the layout before after its last step."""
        assert self.current is not None
        mine = self.current.layers(self.name)
        self.outbox = {layout.version: {layer: self.layers[layer][self.at] for layer in mine}}
        self.current = self.planned = self.leaves = None
        if layout.layers(self.name):
            self._make(layout)
        elif layout.stages:
            self.made = layout.version
        else:
            self._rest(layout)

    def _save(self, layout: ShapeLayout) -> None:
        """Write this machine's part of a checkpoint, where there is no backup that does."""
        if layout.backup is None and (self.at % self.save_every == 0 or self.at == STEPS):
            part = {layer: self.layers[layer][self.at] for layer in layout.layers(self.name)}
            step, term = self.at, self.term
            self.network.send(lambda: self.network.save(step, term, part))

    # ------------------------------------------------------------------------------------------------------------ the backup

    def receive(self, term: int, step: int, trained: Mapping[int, History]) -> None:
        """Take in what a step made of some layers."""
        if self.state != "dead" and term == self.term and not self.stopped:
            arrived = self.arrived.setdefault(step, {})
            for layer, history in trained.items():
                demand(arrived.get(layer, history) == history, f"replicas have the same: {arrived}, {trained}")
                arrived[layer] = history

    def _trim_arrived(self) -> None:
        self.arrived = {step: layers for step, layers in self.arrived.items() if step > self.at}

    def _back_up(self) -> None:
        arrived = self.arrived.get(self.at + 1, {})
        if len(arrived) == LAYERS:
            self.at += 1
            demand(len(set(arrived.values())) == 1, f"the backup is of one timeline: {arrived}")
            self.layers = {layer: {self.at: history} for layer, history in arrived.items()}
            self.trained = self.at
            self._trim_arrived()
            if self.at % self.save_every == 0 or self.at == STEPS:
                self._store()
        elif self.planned is not None:
            self._await_end(self.planned)

    def _await_end(self, layout: ShapeLayout) -> None:
        """Stop once it has the last step before all wait, or once that will not come."""
        former = [group for group in self.network.groups.values() if group.ends and group.ends[1] == layout.version]
        sending = [self.network.machines[name] for name in layout.left]
        if (former and former[0].ends == (self.at, layout.version)) or all(
            one.state == "dead" or one.stopped for one in sending
        ):
            self._rest(layout)

    def _store(self) -> None:
        states = {layer: states[self.at] for layer, states in self.layers.items()}
        step, term = self.at, self.term
        self.network.send(lambda: self.network.save(step, term, states))
