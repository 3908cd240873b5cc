"""A machine of an elastic training: it becomes what the newest layout says, and votes with the others at each step's end."""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from windfall.errors import EXIT_RETRY, WindfallError
from windfall.policies.shapes.spill_rule import spill_is_due
from windfall.ports import ObjectStore
from windfall.runtimes.shape_backup import BackupLink, senders_of
from windfall.runtimes.shape_links import LinkBroken, Links
from windfall.runtimes.shape_states import HeldStates, LayerState, packed, unpacked
from windfall.runtimes.shape_store import load_layer, save_layers, stored_step
from windfall.runtimes.shape_terms import MemberTerms, check_same, checked_checkpoint
from windfall.runtimes.shape_times import TransferTimes
from windfall.runtimes.shape_watch import TERMS, ShapeWatch, broken_key, ends, lost_of, ready_key, version_of
from windfall.shape_layout import STORE, ShapeLayout, StagePlace, StateMove
from windfall.wire.shape_files import StoredStep

MOVE = 8
"""Tag of messages."""
_LOOK_S = 0.002
SAVE_AGAIN_S = 1.0
"""Between two tries to save what no other machine may have [s]."""
ALONE = "alone"


class Vote(NamedTuple):
    """What all machines together have found in a step.

    Attributes:
        losses: of each micro-batch.
        squares: sum of squares of each layer's gradient.
        bad: what is not finite, in words; empty if nothing.
        leaves: for which layout all leave this one after the step; None: they stay.
    """

    losses: list[float]
    squares: list[float]
    bad: str
    leaves: ShapeLayout | None


class ShapeMember:
    """This machine.

    Args:
        held: states of layers.
        watch: of the coordinator; None: this machine trains alone.
        terms: of the training.
        objects: the run's store; None: there are no checkpoints.

    Attributes:
        layout: that it has made; None before the first.
        step: the last one that it has finished.
        stage: its place in the layout; None if it trains nothing.
        links: of the machines that train.
        replicas: of its stage's, where sums go over a group of their own.
        backup: its connection to the backup, if it feeds one.
        serves: the connection of a backup to those who feed it.
        transfers: how long what it received took.
    """

    def __init__(
        self, held: HeldStates, watch: ShapeWatch | None, terms: MemberTerms, objects: ObjectStore | None
    ) -> None:
        self.held, self._watch, self._terms, self._objects = held, watch, terms, objects
        self.machine = watch.place.machine if watch is not None else ALONE
        self.layout: ShapeLayout | None = None
        self.step, self._term = 0, 0
        self.stage: StagePlace | None = None
        self.links: Links | None = None
        self.replicas: Links | None = None
        self.backup: BackupLink | None = None
        self.serves: Links | None = None
        self.transfers = TransferTimes()
        self._links: list[Links] = []
        self._stopped = False
        self._alarm = threading.Event()
        self._store: Any = None
        self._making: ShapeLayout | None = None
        self._leaves: ShapeLayout | None = None
        self._trained_first = True
        self._stored: StoredStep | None = None
        self._saving: threading.Thread | None = None
        self._wait_over = threading.Event()
        self._not_saved: WindfallError | None = None
        self._spilled_s, self._spill_took_s = time.monotonic(), 0.0
        self._step_s: list[float] = []

    # -------------------------------------------------------------------------------------------------------------- layouts

    def next_layout(self) -> ShapeLayout | None:
        """Wait for a layout that this machine is to make; None: training is over."""
        if self._watch is None:
            return _alone(len(self.held.layers)) if self.layout is None else None
        layout, self._leaves = self._leaves, None
        if layout is None:
            layout = self._watch.next_layout(self._is_wanted)
        if layout is None:
            # What it would do is done by others now; started again, it is a new machine.
            raise SystemExit(EXIT_RETRY)
        return None if layout.over else layout

    def _is_wanted(self, layout: ShapeLayout) -> bool:
        if layout.version <= version_of(self.layout):
            return False
        # Who has given up a step does not know which one the others have finished; a backup gets all that it lacks.
        known = not self._stopped or layout.term != self._term or layout.backup == self.machine
        return known or ends(layout) or not layout.stages

    def make(self, layout: ShapeLayout) -> None:
        """Become what a layout says.

        Raises:
            LinkBroken: a machine is lost meanwhile, or the layout is given up.
            Misuse: this machine's script differs from the others'.
        """
        began_s = time.monotonic()
        old, stopped = self.layout, self._stopped
        if self.backup is not None and not layout.stop and layout.step is None:
            self.backup.leave()
        self._close()
        self._wait_over.set()
        self._wait_over = threading.Event()
        self._making = layout
        self._alarm.clear()
        self._see_term(layout)
        if layout.stop or not layout.stages:
            self._wait_in(layout)
            return
        self._stopped = False
        self._update(stopped=False, broken=(), term=self._term)
        if layout.step is not None:
            self.step = layout.step
            self.held.go_to(layout.step)
        trains = [place.machine for place in layout.places]
        named = dict.fromkeys(
            [*trains, *(one for move in layout.moves for one in (move.source, move.target)), layout.backup]
        )
        everybody = sorted(one for one in named if one)
        if self.machine in everybody:
            was_there = layout.step is None and not stopped and old is not None and bool(old.layers(self.machine))
            self._meet(layout, everybody, was_there=was_there)
        self.layout = layout
        self.stage = next((place for place in layout.places if place.machine == self.machine), None)
        self._trained_first = False
        self._step_s = []
        self._update(
            layout=layout.version, held=self.held.ranges(), trained=self.step,
            moved_s=time.monotonic() - began_s,
        )  # fmt: skip

    def _see_term(self, layout: ShapeLayout) -> None:
        if layout.term == self._term + 1:
            self.held.take_back(layout.base)
        elif layout.term > self._term:
            self.held.forget()
        if layout.term != self._term:
            self._term, self.step = layout.term, layout.base
        if layout.checkpoint > 0:
            self.held.forget_first_values()

    def _wait_in(self, layout: ShapeLayout) -> None:
        """Do nothing in a layout, but save what it says."""
        self._stopped, self.layout, self.stage = True, layout, None
        self._update(stopped=True, layout=layout.version, term=self._term, held=self.held.ranges(), trained=self.step)
        mine = [move for move in layout.moves if move.source == self.machine and move.target == STORE]
        numbers = [number for move in mine for number in range(move.first, move.end)]
        numbers = [number for number in numbers if self.held.has(number, self.step)]
        if numbers and self.step > 0:
            self.save(numbers, whole=False, until=self._wait_over)

    def _meet(self, layout: ShapeLayout, everybody: Sequence[str], *, was_there: bool) -> None:
        """Connect to the other machines of a layout, and get what this one lacks."""
        if self._watch is not None:
            self._watch.guard(layout, self._on_change)
        store = self._store_of(layout, everybody)
        links = self._group(store, layout, "all", everybody)
        if layout.step is None:
            # Only those who trained the layout before know after which step it was left.
            step = torch.tensor([self.step if was_there else -1], device=self._terms.device)
            links.max_all(step)
            self.step = int(step)
        links.probe()
        self._move(layout, links)
        trains = sorted({place.machine for place in layout.places})
        if self.machine in trains:
            self.links = links if list(everybody) == trains else self._group(store, layout, "train", trains)
            place = next(place for place in layout.places if place.machine == self.machine)
            same = [one.machine for one in layout.places if one.stage == place.stage]
            if not self._terms.deterministic and len(same) > 1:
                whole = same if layout.stages > 1 else None
                self.replicas = self._group(store, layout, f"stage{place.stage}", same) if whole else self.links
        if layout.backup is not None:
            feeds = [layout.backup, *senders_of(layout)]
            if self.machine in feeds:
                link = self._group(store, layout, "backup", feeds)
                if self.machine == layout.backup:
                    self.serves = link
                else:
                    self.backup = BackupLink(link, layout.backup, self._is_given_up)

    def _store_of(self, layout: ShapeLayout, everybody: Sequence[str]) -> Any:
        """Wait until all are there, and return the store in which they meet."""
        if self._watch is None or len(everybody) == 1:
            return None
        try:
            store = self._store = self._watch.store()
            self._agree(store)
            store.set(ready_key(layout.version, self.machine), b"1")
            keys = [ready_key(layout.version, one) for one in everybody]
            self._wait(lambda: bool(store.check(keys)))
        except (OSError, RuntimeError) as error:
            raise LinkBroken(f"the coordinator's store does not answer: {error}") from None
        return store

    def _is_given_up(self) -> bool:
        """Return whether the layout has been given up, as far as the coordinator's store says at this moment."""
        try:
            return self._alarm.is_set() or bool(self._store.check([broken_key(version_of(self._making))]))
        except RuntimeError:
            # With the store its machine is lost, which may well be the backup.
            return False

    def _agree(self, store: Any) -> None:
        """Check that this machine's script and packages are the others'."""
        mine = json.dumps(dict(self._terms.same), sort_keys=True)
        check_same(self._terms.same, json.loads(store.compare_set(TERMS, "", mine)), "another machine")

    def _group(self, store: Any, layout: ShapeLayout, name: str, machines: Sequence[str]) -> Links:
        prefix = dist.PrefixStore(f"shape/{layout.version}/{name}", store) if store is not None else None
        address = self._watch.place.address if self._watch is not None else ""
        links = Links(
            prefix, machines, self.machine, address=address, device=self._terms.device, wait=self._wait,
            transfers=self.transfers,
        )  # fmt: skip
        self._links.append(links)
        if self._alarm.is_set():
            # It came before this group was among those that it ends.
            raise LinkBroken("the layout was given up")
        return links

    def _wait(self, ready: Callable[[], bool]) -> None:
        """Wait for something, as long as the layout holds."""
        while not ready():
            if self._alarm.wait(_LOOK_S):
                raise LinkBroken("the layout was given up")

    def _on_change(self, newer: ShapeLayout | None) -> None:
        """Called by the watch's thread: end all waits if this layout has been given up."""
        if newer is None or ends(newer):
            self._alarm.set()
            for links in list(self._links):
                links.abort()
        elif self.backup is not None and self._making is not None and newer.backup != self._making.backup:
            # It may hang, and then none could vote to leave it.
            self.backup.abort()

    # ---------------------------------------------------------------------------------------------------------------- moves

    def _move(self, layout: ShapeLayout, links: Links) -> None:
        for move in layout.moves:
            if move.source == self.machine:
                for number in range(move.first, move.end):
                    assert self.held.has(number, self.step), (layout, self.step, self.held.ranges())
                    links.send_bytes(packed(self.held.state(number)), move.target, MOVE)
        for move in layout.moves:
            if move.target == self.machine:
                for number in range(move.first, move.end):
                    stored = move.source == STORE
                    self.held.put(
                        number, self._loaded(number) if stored else unpacked(links.receive_bytes(move.source, MOVE))
                    )
        links.sent()
        wanted = range(len(self.held.layers)) if layout.backup == self.machine else layout.layers(self.machine)
        missing = [number for number in wanted if not self.held.has(number, self.step)]
        assert not missing, (layout, self.step, missing, self.held.ranges())

    def _loaded(self, number: int) -> LayerState:
        """Return a layer's state from the newest checkpoint, or as the script built it."""
        if self.step == 0:
            first = self.held.first_values(number)
            assert first is not None, "a training with a checkpoint goes back to its start"
            return first
        assert self._objects is not None, "a checkpoint without a store"
        if self._stored is None or self._stored.step != self.step:
            self._stored = checked_checkpoint(self._objects, self.step, self._terms.same)
        return unpacked(torch.frombuffer(bytearray(load_layer(self._objects, self._stored, number)), dtype=torch.uint8))

    # ---------------------------------------------------------------------------------------------------------------- steps

    def vote(self, losses: Mapping[int, float], micro_batches: int, squares: Mapping[int, float]) -> Vote:
        """Tell all what this machine has found in a step, and hear what the others have; then the step may be applied.

        Raises:
            LinkBroken: a peer is lost: no machine knows whether the step counts.
        """
        assert self.links is not None
        if self.backup is not None:
            self.backup.arrived()
        newest = self._planned()
        voted = version_of(newest)
        layers = len(self.held.layers)
        low = float("-inf")
        numbers = [float(voted), -float(voted), 0.0, *[low] * micro_batches, *[low] * layers]
        for first, found, ahead in ((3, losses, layers), (3 + micro_batches, squares, 0)):
            size = micro_batches if found is losses else layers
            for number, value in found.items():
                if value - value == 0.0:
                    numbers[first + number] = value
                else:
                    # The largest is taken: losses before gradients, and the first of each.
                    numbers[2] = max(numbers[2], 1.0 + ahead + size - 1 - number)
        vector = torch.tensor(numbers, dtype=torch.float64, device=self._terms.device)
        self.links.max_all(vector)
        high, least, bad, *rest = vector.tolist()
        agreed = high == -least and newest is not self.layout
        self._leaves = newest if agreed else None
        return Vote(
            rest[:micro_batches], rest[micro_batches:], _bad_words(int(bad), micro_batches, layers), self._leaves
        )

    def _planned(self) -> ShapeLayout | None:
        """Return the newest layout for which this one can be left at a step boundary; else this one."""
        newest = self._watch.newest if self._watch is not None else None
        if newest is None or newest.version <= version_of(self.layout) or ends(newest):
            return self.layout
        return newest

    def finished(self, step_s: float) -> None:
        """Say that a step counts."""
        self.step += 1
        if not self._trained_first:
            # Until then the states that others may have to begin again from are held.
            assert self.layout is not None
            self.held.keep_only(self.layout.layers(self.machine))
            self._trained_first = True
        self._step_s = [*self._step_s[-9:], step_s]
        self._update(trained=self.step, held=self.held.ranges(), step_s=sum(self._step_s) / len(self._step_s))

    @property
    def step_s(self) -> float:
        """Median time of its newest steps in this layout; 0 before the first [s]."""
        return statistics.median(self._step_s) if self._step_s else 0.0

    def served(self, step: int) -> None:
        """Say that the backup holds a step."""
        self.step = step
        self._update(trained=step, held=self.held.ranges())
        if self._is_saved(step) or self._spills():
            self.save(range(len(self.held.layers)), whole=step == self._terms.steps)

    def _spills(self) -> bool:
        saving = self._saving is not None and self._saving.is_alive()
        # Checkpoints by steps need no others.
        if saving or self._terms.save_every:
            return False
        return spill_is_due(time.monotonic() - self._spilled_s, self._spill_took_s, self._terms.spill_every_s)

    def save_own(self) -> None:
        """Save this machine's layers if it is the one that does, and the time has come."""
        assert self.layout is not None
        if (
            self.layout.backup is None
            and self.stage is not None
            and self.stage.pipeline == 0
            and self._is_saved(self.step)
        ):
            self.save(self.layout.layers(self.machine), whole=self.step == self._terms.steps)

    def _is_saved(self, step: int) -> bool:
        every = self._terms.save_every
        return step > 0 and (step == self._terms.steps or (every > 0 and step % every == 0))

    def save(self, numbers: Sequence[int], *, whole: bool, until: threading.Event | None = None) -> None:
        """Put layers into the store, in the background.

        Args:
            numbers: of the layers.
            whole: wait until they are there.
            until: try again until this is set; None: once.

        Raises:
            StoreError: they could not be saved, and `whole` was asked for.
        """
        objects = self._objects
        if objects is None:
            return
        if self._saving is not None:
            self._saving.join()
        states = {number: packed(self.held.state(number)) for number in numbers}
        terms = json.dumps(dict(self._terms.same), sort_keys=True).encode()
        step, term, layers = self.step, self._term, len(self.held.layers)

        began_s = self._spilled_s = time.monotonic()

        def save() -> None:
            while True:
                try:
                    put()
                    self._not_saved, self._spill_took_s = None, time.monotonic() - began_s
                except WindfallError as error:
                    # The next checkpoint may be possible again; the last one must be.
                    self._not_saved = error
                    if until is not None and not until.wait(SAVE_AGAIN_S):
                        continue
                return

        def put() -> None:
            save_layers(
                objects,
                StoredStep(step, term),
                {number: one.numpy().tobytes() for number, one in states.items()},
                layers,
                terms,
            )

        self._not_saved = None
        self._saving = threading.Thread(target=save, daemon=True)
        self._saving.start()
        if whole:
            self._saving.join()
            if self._not_saved is not None:
                raise self._not_saved

    # ------------------------------------------------------------------------------------------------------------------ ends

    def give_up(self, broken: LinkBroken) -> None:
        """Give up a step: report what is held, and wait for a layout that says from which step all continue."""
        lost = lost_of(self._store, version_of(self._making), self.machine, broken.peers)
        lost = () if self._alarm.is_set() else lost
        if self._watch is not None and not self._alarm.is_set():
            self._watch.post(broken_key(version_of(self._making)), b"1")
        self._close()
        self._stopped, self._leaves = True, None
        self._update(stopped=True, broken=lost, held=self.held.ranges())

    def load_last(self) -> None:
        """Put the state after the last step into all layers."""
        objects, steps = self._objects, self._terms.steps
        if self._watch is None or objects is None or stored_step(objects, steps) is None:
            return
        self.step = steps
        for number in range(len(self.held.layers)):
            if not self.held.has(number, steps):
                self.held.put(number, self._loaded(number))

    def close(self) -> None:
        """End."""
        self._close()
        self._wait_over.set()
        if self._saving is not None:
            self._saving.join()
        if self._watch is not None:
            self._watch.close()

    def _close(self) -> None:
        if self._watch is not None:
            self._watch.unguard()
        for links in self._links:
            links.close()
        if self.backup is not None:
            self.backup.close()
        self._links, self.links, self.replicas, self.backup, self.serves = [], None, None, None, None

    def fail(self, words: str) -> None:
        """Report that the user's program cannot continue."""
        self._update(failure=words)

    def _update(self, **changes: Any) -> None:
        if self._watch is not None:
            self._watch.update(**changes)


def _bad_words(bad: int, micro_batches: int, layers: int) -> str:
    if not bad:
        return ""
    if bad > layers:
        return f"the loss of micro-batch {micro_batches - (bad - layers)}"
    return f"the gradient of layer {layers - bad}"


def _alone(layers: int) -> ShapeLayout:
    """Return the layout of a machine that trains alone."""
    moves = (StateMove(0, layers, STORE, ALONE),)
    place = StagePlace(0, 0, ALONE)
    return ShapeLayout(
        1,
        1,
        1,
        1,
        0,
        1,
        1,
        (0, layers),
        (place,),
        (),
        moves,
        step=0,
        stop=False,
        redone=0,
        checkpoint=0,
        backup=None,
        because="alone",
    )
