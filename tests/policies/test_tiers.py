"""Which stage a parameter server is in: Proteus' ratios, and what follows from them for the machines."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as some

from windfall.errors import Misuse
from windfall.policies.layout.tiers import (
    SERVERS_APART,
    Stage,
    StageRatios,
    TierMachine,
    TierPlacement,
    active_servers,
    place_tiers,
    stage_of,
)


@pytest.mark.parametrize(
    ("reliable", "transient", "stage"),
    [(4, 0, 1), (8, 8, 1), (8, 9, 2), (4, 60, 2), (4, 61, 3), (1, 15, 2), (1, 16, 3), (1, 63, 3)],
)
def test_a_stage_begins_above_its_ratio(reliable: int, transient: int, stage: int) -> None:
    """Section 3.3: "for ratios greater than 1:1, AgileML uses stage 2, and for ratios greater than 15:1, it uses stage 3"."""
    assert stage_of(reliable, transient, StageRatios()) == stage


def test_without_a_reliable_machine_there_is_no_stage() -> None:
    """Nothing would keep the state; the sentence says so."""
    with pytest.raises(Misuse, match="0 reliable machines: at least one must keep the state"):
        stage_of(0, 8, StageRatios())


@given(some.integers(1, 50), some.integers(0, 500), some.integers(0, 500))
def test_more_transient_machines_never_bring_an_earlier_stage(reliable: int, few: int, more: int) -> None:
    """Whatever the numbers."""
    assert stage_of(reliable, few, StageRatios()) <= stage_of(reliable, few + more, StageRatios())


def test_other_ratios_move_the_stages() -> None:
    """As they are measured on a cluster."""
    ratios = StageRatios(stage_2_above=2.5, stage_3_above=11.8)

    assert [stage_of(4, transient, ratios) for transient in (10, 11, 47, 48)] == [
        Stage.SERVERS_ON_RELIABLE, Stage.SERVERS_ON_TRANSIENT, Stage.SERVERS_ON_TRANSIENT, Stage.RELIABLE_ONLY_BACK_UP
    ]  # fmt: skip


def test_half_of_the_transient_machines_serve() -> None:
    """Section 6.4; one alone serves too."""
    assert [active_servers(transient) for transient in (1, 2, 3, 60)] == [1, 1, 1, 30]


NAMES = ("r1", "t1", "t2", "t3", "t4")


def machines(*names: str, **other: TierMachine) -> list[TierMachine]:
    """Return machines: `r...` are reliable, `t...` are not; those named later have joined later."""
    return [other.get(name, TierMachine(name, name.startswith("r"), float(order))) for order, name in enumerate(names)]


def anywhere(parts: int, data: int) -> TierPlacement:
    """Return a placement before anything is placed."""
    return TierPlacement(("",) * parts, ("",) * parts, ("",) * data)


def test_the_longest_running_half_of_the_transient_machines_serves() -> None:
    """Those that serve already come first."""
    placed = place_tiers(machines(*NAMES), anywhere(4, 10), StageRatios())
    assert set(placed.servers) == {"t1", "t2"}

    again = place_tiers(machines("r1", "t0", *NAMES[1:]), placed, StageRatios())
    assert set(again.servers) == {"t1", "t2"}


def test_a_faster_machine_computes_on_more_data_partitions() -> None:
    """In proportion to its speed."""
    fast = TierMachine("t1", False, speed=3.0)
    placed = place_tiers(machines("r1", "t1", t1=fast), anywhere(2, 8), StageRatios())

    assert Counter(placed.holders) == {"t1": 6, "r1": 2}


def test_servers_apart_compute_nothing_while_there_are_workers() -> None:
    """Reliable machines serve all parts however many workers there are, and compute once there are none."""
    placed = place_tiers(machines(*NAMES), anywhere(4, 10), SERVERS_APART)
    assert all(one.startswith("r") for one in placed.servers)
    assert all(one.startswith("t") for one in placed.holders)

    alone = place_tiers(machines("r1"), placed, SERVERS_APART)
    assert set(alone.holders) == {"r1"}


def test_data_return_to_a_machine_that_has_them() -> None:
    """Where it has room for them."""
    now = TierPlacement(("r1",), ("r1",), ("t1", "t1", "t2", "t2"))
    loaded = TierMachine("t3", False, 3.0, loaded=frozenset({2}))
    placed = place_tiers(machines("r1", "t2", "t3", t3=loaded), now, StageRatios(5.0, 9.0))

    assert placed.holders[2] == "t2"
    assert set(placed.holders) == {"r1", "t2", "t3"}
    gone = place_tiers(machines("r1", "t3", t3=loaded), now, StageRatios(5.0, 9.0))
    assert gone.holders[2] == "t3"


def test_a_machine_that_leaves_has_nothing() -> None:
    """It is as if it were gone already."""
    leaving = TierMachine("t1", False, leaving=True)
    placed = place_tiers(machines(*NAMES, t1=leaving), anywhere(4, 10), StageRatios())

    assert "t1" not in {*placed.servers, *placed.holders}


def test_the_last_reliable_machine_keeps_the_state_though_it_leaves() -> None:
    """Until it is gone, or another one is there."""
    leaving = TierMachine("r1", True, leaving=True)

    assert set(place_tiers(machines("r1", "t1", r1=leaving), anywhere(2, 4), StageRatios()).backups) == {"r1"}
    assert set(place_tiers(machines("r1", "r2", r1=leaving), anywhere(2, 4), StageRatios()).backups) == {"r2"}


@given(some.integers(1, 3), some.integers(0, 9), some.integers(1, 12), some.integers(1, 20), some.integers(0, 3))
def test_all_is_shared_evenly_and_what_fits_stays_where_it_is(
    reliable: int, transient: int, parts: int, data: int, more: int
) -> None:
    """Nothing moves if no machine comes or goes; if some come, all that moves goes to them, unless the stage changes."""
    names = [f"r{number}" for number in range(reliable)] + [f"t{number}" for number in range(transient)]
    placed = place_tiers(machines(*names), anywhere(parts, data), StageRatios(0.0, 1e9))
    for pieces in (placed.servers, placed.backups, placed.holders):
        counts = Counter(pieces)
        assert max(counts.values()) - min(counts.values(), default=0) <= 1

    assert place_tiers(machines(*names), placed, StageRatios(0.0, 1e9)) == placed
    new = [f"t{transient + number}" for number in range(more)]
    later = place_tiers(machines(*names, *new), placed, StageRatios(0.0, 1e9))
    moved = {to for before, to in zip(placed.holders, later.holders, strict=True) if before != to}
    assert moved <= set(new)
