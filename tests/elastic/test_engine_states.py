"""What a machine holds of layers: two steps, copies of its own, and nothing that was taken back."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from windfall.errors import LogDamaged, StoreUnreachable
from windfall.runtimes.shape_layers import layers_of
from windfall.runtimes.shape_member import ShapeMember
from windfall.runtimes.shape_states import HeldStates, LayerState, captured, install, packed, unpacked
from windfall.runtimes.shape_store import load_layer, newest_checkpoint, save_layers, stored_step
from windfall.runtimes.shape_terms import MemberTerms
from windfall.storage.object_stores import open_store
from windfall.wire.shape_files import StoredStep


def held_at(step: int, layers: int = 2) -> HeldStates:
    """Linear layers with Adam that have made some steps, each one alike."""
    torch.manual_seed(0)
    modules = [torch.nn.Linear(2, 2) for _ in range(layers)]
    held = HeldStates(layers_of(modules, lambda parameters: torch.optim.Adam(parameters, lr=0.1)))
    for number in range(layers):
        first = held.first_values(number)
        assert first is not None
        held.put(number, first)
    for _ in range(step):
        update(held, range(layers))
    return held


def update(held: HeldStates, numbers: Any) -> None:
    """Make a step."""
    held.begin_update(numbers)
    for number in numbers:
        module, optimizer, *_ = held.layers[number]
        for one in module.parameters():
            one.grad = torch.ones_like(one)
        optimizer.step()
    held.end_update(numbers)


def bits(state: LayerState) -> bytes:
    return packed(state).numpy().tobytes()


def test_the_state_before_the_last_step_can_be_had_back() -> None:
    """After going back a machine has every number of that step, the optimizer's too, and makes the same step again."""
    before, after = held_at(3), held_at(4)
    assert after.ranges() == ((0, 2, 3), (0, 2, 4))

    after.go_to(3)

    assert after.ranges() == ((0, 2, 3),)
    assert [bits(after.state(number)) for number in range(2)] == [bits(before.state(number)) for number in range(2)]
    update(after, range(2))
    assert bits(after.state(0)) == bits(held_at(4).state(0))


def test_states_that_are_taken_back_are_not_held() -> None:
    """Of what is newer than the base nothing is left; a layer of which no older state is held is forgotten."""
    held = held_at(4)
    held.keep_only([0])
    held.take_back(3)
    assert held.ranges() == ((0, 1, 3),)

    held.take_back(2)
    assert held.ranges() == ()


def test_held_layers_are_told_as_ranges_oldest_first() -> None:
    """Adjacent layers of a step are one range."""
    held = held_at(1, layers=4)
    update(held, [0, 1, 3])

    assert held.ranges() == ((2, 3, 0), (0, 4, 1), (0, 2, 2), (3, 4, 2))


def test_a_state_survives_the_wire() -> None:
    """Parameters, the optimizer's numbers and counters are the same after packing, and another layer takes them over."""
    held, other = held_at(3), held_at(0)

    other.put(0, unpacked(packed(held.state(0))))

    assert other.has(0, 3)
    assert bits(other.state(0)) == bits(held.state(0))
    assert captured(other.layers[0], 3).tensors["optimizer/0/step"] == 3


@pytest.mark.parametrize("cut", [1, 9, 40, 300])
def test_a_damaged_state_is_found(cut: int) -> None:
    """Bytes that are cut off are an error, and no half state."""
    with pytest.raises(ValueError, match=r"bytes|shape|size|offset|Expecting|delimiter|invalid"):
        unpacked(packed(held_at(2).state(0))[:-cut])


def test_a_state_is_a_copy() -> None:
    """What is installed or kept does not change with the layer."""
    held = held_at(1)
    kept = held.state(0).copied()
    was = bits(kept)

    install(held.layers[0], kept)
    update(held, [0])

    assert bits(kept) == was


def test_a_checkpoint_counts_once_all_layers_of_a_term_are_there(tmp_path: Path) -> None:
    """Layers of a step from two terms are never one checkpoint; of a step the newest term counts; the two newest steps stay."""
    objects = open_store(str(tmp_path))
    assert not save_layers(objects, StoredStep(5, 1), {0: b"old"}, 2, b"{}")
    assert not save_layers(objects, StoredStep(5, 2), {1: b"new1"}, 2, b"{}")
    assert newest_checkpoint(objects) == 0

    assert save_layers(objects, StoredStep(5, 2), {0: b"new0"}, 2, b"{}")
    assert newest_checkpoint(objects) == 5
    assert stored_step(objects, 5) == StoredStep(5, 2)
    assert load_layer(objects, StoredStep(5, 2), 0) == b"new0"
    with pytest.raises(LogDamaged, match="the checkpoint of step 5 has no shapes/checkpoints/00000005-0001/layer-0001"):
        load_layer(objects, StoredStep(5, 1), 1)

    for step in (6, 7):
        save_layers(objects, StoredStep(step, 2), {0: b"0", 1: b"1"}, 2, b"{}")
    assert newest_checkpoint(objects) == 7
    assert stored_step(objects, 5) is None
    assert stored_step(objects, 6) is not None


class Refusing:
    """A store that does not answer for some writes."""

    def __init__(self, folder: Path, refusals: int) -> None:
        self._store, self.refusals = open_store(str(folder)), refusals

    def put(self, key: str, data: bytes) -> None:
        self.refusals -= 1
        if self.refusals >= 0:
            raise StoreUnreachable("no answer")
        self._store.put(key, data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def test_what_is_saved_while_all_wait_is_saved_again_if_the_store_refuses(tmp_path: Path) -> None:
    """Until it answers; once the wait is over nothing is tried any more."""
    store: Any = Refusing(tmp_path, 2)
    member = ShapeMember(held_at(3), None, MemberTerms({"layers": 2}, 9, 0, False, "cpu"), store)
    member.step = 3
    over = threading.Event()
    over.set()

    member.save([0, 1], whole=False, until=over)
    member.close()
    assert (store.refusals, newest_checkpoint(store)) == (1, 0)
    member.save([0, 1], whole=True, until=threading.Event())
    assert newest_checkpoint(store) == 3


def test_the_backup_spills_its_state_so_that_not_all_is_lost_with_it(tmp_path: Path) -> None:
    """As often as it is told, without checkpoints by steps; with these it does not."""
    for save_every, stored in ((0, 3), (100, 0)):
        store = open_store(str(tmp_path / str(save_every)))
        terms = MemberTerms({"layers": 2}, 900, save_every, False, "cpu", spill_every_s=0.0)
        member = ShapeMember(held_at(3), None, terms, store)

        member.served(3)
        member.close()

        assert newest_checkpoint(store) == stored
