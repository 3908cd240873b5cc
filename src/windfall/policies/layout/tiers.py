"""Which stage a parameter server in tiers is in, by how many machines can vanish for each one that cannot.

Stage 1: servers on the reliable machines; the transient ones only compute.  Stage 2: active servers on half of the transient
machines, backups of their state on the reliable ones.  Stage 3: as stage 2, and the reliable machines compute nothing, so that
a backup's traffic slows no worker down.

Source: A. Harlap et al., "Proteus: agile ML elasticity through tiered reliability in dynamic resource markets", EuroSys 2017,
sections 3.2, 3.3 ("Stage Transitions") and 6.4.
"""

from __future__ import annotations

import enum

from windfall.errors import Misuse
from windfall.structs import Struct


class Stage(enum.IntEnum):
    """Where the servers are, and which machines compute."""

    SERVERS_ON_RELIABLE = 1
    """Servers on reliable machines; all machines compute."""
    SERVERS_ON_TRANSIENT = 2
    """Active servers on transient machines, backups on reliable ones; all machines compute."""
    RELIABLE_ONLY_BACK_UP = 3
    """As stage 2, and reliable machines compute nothing."""


class StageRatios(Struct, frozen=True):
    """Above how many transient machines for each reliable one a stage begins; section 6.4's by default.

    Attributes:
        stage_2_above, stage_3_above: transient machines / reliable machines.
    """

    stage_2_above: float = 1.0
    stage_3_above: float = 15.0


def stage_of(reliable: int, transient: int, ratios: StageRatios) -> Stage:
    """Return the stage for a number of machines.

    Args:
        reliable: machines that cannot be preempted.
        transient: machines that can.
        ratios: above which the later stages begin.

    Raises:
        Misuse: there is no reliable machine, which would leave the state without a backup.

    Example:
        Of 4 reliable machines, with 4 transient ones: stage 1; with 60, which is just 15:1: stage 2; with 61: stage 3.
    """
    if reliable < 1:
        raise Misuse(f"{reliable} reliable machines: at least one must keep the state when all transient ones are lost")
    if transient <= ratios.stage_2_above * reliable:
        return Stage.SERVERS_ON_RELIABLE
    if transient <= ratios.stage_3_above * reliable:
        return Stage.SERVERS_ON_TRANSIENT
    return Stage.RELIABLE_ONLY_BACK_UP


def active_servers(transient: int) -> int:
    """Return how many transient machines serve in stages 2 and 3: half of them (section 6.4), and at least one."""
    return max(1, transient // 2)
