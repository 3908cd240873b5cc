"""Which stage a parameter server in tiers is in, by how many machines can vanish for each one that cannot.

Stage 1: servers on the reliable machines; the transient ones only compute.  Stage 2: active servers on half of the transient
machines, backups of their state on the reliable ones.  Stage 3: as stage 2, and the reliable machines compute nothing, so that
a backup's traffic slows no worker down.

Source: A. Harlap et al., "Proteus: agile ML elasticity through tiered reliability in dynamic resource markets", EuroSys 2017,
sections 3.2, 3.3 ("Stage Transitions") and 6.4.
"""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Callable, Sequence

from windfall.errors import Misuse
from windfall.structs import Struct, replace
from windfall.tier_layout import TierMachine


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
        reliable_computes: in stages 1 and 2 reliable machines compute too; if not, they do only while there is no other.
    """

    stage_2_above: float = 1.0
    stage_3_above: float = 15.0
    reliable_computes: bool = True


SERVERS_APART = StageRatios(math.inf, math.inf, reliable_computes=False)
"""Reliable machines serve and compute nothing, transient ones compute: spotDNN's parameter servers and workers."""


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


class TierPlacement(Struct, frozen=True):
    """Where parts and data partitions should be.

    Attributes:
        servers, backups: of each part, the machine that should serve it and the one that should back it up.
        holders: of each data partition, the machine that should compute on it.
    """

    servers: tuple[str, ...]
    backups: tuple[str, ...]
    holders: tuple[str, ...]


def place_tiers(machines: Sequence[TierMachine], now: TierPlacement, ratios: StageRatios) -> TierPlacement:
    """Return where parts and data partitions should be, with few moves from where they are.

    Servers are the reliable machines in stage 1, each of the parts that it backs up, so that a copy is there; later the
    longest-running half of the transient ones, those that serve first.  In stage 3 the reliable machines compute nothing.
    Data partitions are shared out by speed; one whose holder is gone returns to a machine that has its data, where there is
    one.

    Args:
        machines: all that are there.
        now: where they are; machines that are not there any more are named too.
        ratios: above which the later stages begin.

    Raises:
        Misuse: there is no reliable machine.

    Source: Proteus (EuroSys 2017), sections 3.2, 3.3 and 6.4.
    """
    reliable, transient = _staying(machines)
    stage = stage_for(machines, ratios)
    backups = _shared(now.backups, [replace(machine, speed=1.0, loaded=frozenset()) for machine in reliable])
    servers = backups
    if stage > Stage.SERVERS_ON_RELIABLE:
        serving = frozenset(now.servers)
        eldest = sorted(transient, key=lambda one: (one.name not in serving, one.started_s, one.name))
        alike = [replace(server, speed=1.0, loaded=frozenset()) for server in eldest[: active_servers(len(transient))]]
        servers = _shared(now.servers, alike)
    apart = stage is Stage.RELIABLE_ONLY_BACK_UP or bool(transient and not ratios.reliable_computes)
    workers = transient if apart else [*reliable, *transient]
    return TierPlacement(servers, backups, _shared(now.holders, workers))


def stage_for(machines: Sequence[TierMachine], ratios: StageRatios) -> Stage:
    """Return the stage for machines; those that leave count for nothing, but the last reliable ones; raises as `stage_of`."""
    reliable, transient = _staying(machines)
    return stage_of(len(reliable), len(transient), ratios)


def _staying(machines: Sequence[TierMachine]) -> tuple[list[TierMachine], list[TierMachine]]:
    """Return the reliable and the transient machines that do not leave."""
    reliable = [machine for machine in machines if machine.reliable]
    # The last ones keep the state until they are gone.
    reliable = [machine for machine in reliable if not machine.leaving] or reliable
    return reliable, [machine for machine in machines if not machine.reliable and not machine.leaving]


def _shared(now: Sequence[str], machines: Sequence[TierMachine]) -> tuple[str, ...]:
    """Return a machine for each piece: in number by speed, where it is if that machine has not too many."""
    held = Counter(now)
    exact = {machine.name: len(now) * machine.speed / sum(one.speed for one in machines) for machine in machines}
    free = {name: int(share) for name, share in exact.items()}
    spare = sorted(exact, key=lambda name: (held[name] <= free[name], free[name] - exact[name], name))
    for name in spare[: len(now) - sum(free.values())]:
        free[name] += 1
    placed: dict[int, str] = {}
    fits: tuple[Callable[[int, TierMachine], bool], ...] = (
        lambda piece, machine: now[piece] == machine.name,
        lambda piece, machine: piece in machine.loaded,
        lambda *_: True,
    )
    for fit in fits:
        for piece in sorted(set(range(len(now))) - placed.keys()):
            found = [machine.name for machine in machines if free[machine.name] and fit(piece, machine)]
            if found:
                placed[piece] = max(found, key=lambda name: free[name])
                free[placed[piece]] -= 1
    return tuple(placed[piece] for piece in range(len(now)))
