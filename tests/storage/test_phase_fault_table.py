"""In every phase of a run every fault of its store ends as a user would want; no cell is untried."""

from __future__ import annotations

import pytest

from tests.storage.phase_fault_table import AWAY, FAULTS, PHASES, cell


@pytest.mark.trial("A3")
@pytest.mark.parametrize("phase", PHASES)
def test_each_fault_in_a_phase_is_borne(phase: str) -> None:
    """At each operation of the phase: a fault that passes changes nothing; a store that is gone for good is told, and 75."""
    wanted = dict.fromkeys(FAULTS, "same") | {AWAY: "75"}
    assert {fault: cell(phase, fault) for fault in FAULTS} == wanted
