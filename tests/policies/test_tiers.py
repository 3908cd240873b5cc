"""Which stage a parameter server is in: Proteus' ratios, and what follows from them for the machines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from windfall.errors import Misuse
from windfall.policies.layout.tiers import Stage, StageRatios, active_servers, stage_of


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
