"""Which machine trains which stage, and what is sent."""

from __future__ import annotations

import itertools
import random

import pytest

from windfall.errors import Misuse
from windfall.policies.shapes.stage_placement import Sources, StageGrid, moves_to, place_stages
from windfall.shape_layout import STORE, StagePlace, StateMove


def _lacked(grid: StageGrid, order: tuple[str, ...], held: dict[str, frozenset[int]]) -> int:
    stages = len(grid.cut) - 1
    return sum(
        len(set(range(grid.cut[number % stages], grid.cut[number % stages + 1])) - held[machine])
        for number, machine in enumerate(order)
    )


@pytest.mark.parametrize("seed", range(20))
def test_places_move_the_fewest_layers(seed: int) -> None:
    """No other assignment moves less: all of them are tried."""
    rng = random.Random(seed)
    stages, pipelines = rng.choice([(1, 3), (2, 2), (4, 1), (2, 1)])
    cut = (0, *sorted(rng.sample(range(1, 8), stages - 1)), 8)
    machines = [f"m{number}" for number in range(pipelines * stages + rng.randint(0, 1))]
    held = {machine: frozenset(rng.sample(range(8), rng.randint(0, 5))) for machine in machines}
    grid = StageGrid(cut, pipelines)

    places = place_stages(grid, machines, held)

    found = _lacked(grid, tuple(place.machine for place in places), held)
    assert found == min(_lacked(grid, order, held) for order in itertools.permutations(machines, pipelines * stages))


def test_a_large_layer_counts_for_more_than_several_small_ones() -> None:
    """The machine with the one large layer keeps it, though another one lacks fewer layers there; and senders share bytes."""
    held = {"a": frozenset({0, 1, 3}), "b": frozenset({2})}

    assert [place.machine for place in place_stages(StageGrid((0, 2, 4), 1), ["a", "b"], held)] == ["a", "b"]
    assert [place.machine for place in place_stages(StageGrid((0, 2, 4), 1, (1, 1, 1, 9)), ["a", "b"], held)] == [
        "b",
        "a",
    ]
    both = Sources({"a": frozenset({0, 1, 2}), "b": frozenset({0, 1, 2})})
    needed = {"c": (0,), "d": (1,), "e": (2,)}
    assert [move.source for move in moves_to(needed, both)] == ["a", "b", "a"]
    assert [move.source for move in moves_to(needed, both, (9, 1, 1))] == ["a", "b", "b"]


def test_machines_stay_where_they_are() -> None:
    """Of assignments that move nothing, the one in which connections stay."""
    before = (StagePlace(0, 0, "b"), StagePlace(0, 1, "c"), StagePlace(1, 0, "a"), StagePlace(1, 1, "d"))
    held = {"a": frozenset({0}), "b": frozenset({0}), "c": frozenset({1}), "d": frozenset({1})}

    assert place_stages(StageGrid((0, 1, 2), 2), ["a", "b", "c", "d"], held, before) == before


def test_too_few_machines_are_refused() -> None:
    """A shape that needs more machines is a mistake of the caller."""
    with pytest.raises(Misuse, match=r"1 machines for shape 2x1: it needs 2"):
        place_stages(StageGrid((0, 1), 2), ["a"], {})


def test_each_layer_is_sent_once_by_the_one_that_sent_least() -> None:
    """Two replicas share the sending, and what stays is not sent."""
    sources = Sources({"a": frozenset({0, 1}), "b": frozenset({0, 1}), "c": frozenset({0})})

    moves = moves_to({"c": range(2), "d": range(2)}, sources)

    assert moves == (StateMove(1, 2, "a", "c"), StateMove(0, 2, "b", "d"))


def test_who_leaves_and_the_store_come_last() -> None:
    """A machine that leaves sends what no other one has, the store what no machine has."""
    sources = Sources({"a": frozenset({0}), "gone": frozenset({0, 1})}, frozenset({"gone"}), stored=True)

    moves = moves_to({"new": range(3)}, sources)

    assert moves == (StateMove(0, 1, "a", "new"), StateMove(1, 2, "gone", "new"), StateMove(2, 3, STORE, "new"))


def test_the_backup_sends_rather_than_a_machine_that_may_be_gone_before_it_has_sent() -> None:
    """Who leaves sends only what not even the backup has."""
    held = {"backup": frozenset({0, 1}), "gone": frozenset({0, 1, 2})}
    sources = Sources(held, frozenset({"backup"}), leaving=frozenset({"gone"}))

    assert moves_to({"new": range(3)}, sources) == (StateMove(0, 2, "backup", "new"), StateMove(2, 3, "gone", "new"))


def test_a_layer_that_none_has_is_an_error() -> None:
    """It is not replaced by anything."""
    with pytest.raises(Misuse, match="layer 1 is needed at new, and neither a machine nor the store has it"):
        moves_to({"new": range(2)}, Sources({"a": frozenset({0})}))
