"""Words of a profile: machines as they are limited, what they train, and what was seen of it."""

from __future__ import annotations

from collections.abc import Mapping

from windfall.models.asp_turns import TurnRun
from windfall.policies.layout.tier_rules import TierJob
from windfall.runtimes.machine_limits import MachineLimits
from windfall.structs import Struct


class ProfiledProgram(Struct, frozen=True):
    """What is trained.

    Attributes:
        job: its settings.
        argv: of a script; of an application not used.
        folder: of the user's code.
        environ: variables of the job.
    """

    job: TierJob
    argv: tuple[str, ...]
    folder: str
    environ: Mapping[str, str]


class MachineSize(Struct, frozen=True):
    """A machine type as machines of it are limited.

    Attributes:
        kind: the machine type.
        slots: turns that it computes at once.
        limits: of its kernels and its link.
        memory_gib: of the machine [GiB].
    """

    kind: str
    slots: int
    limits: MachineLimits
    memory_gib: float


class IdleTable(Struct, frozen=True):
    """The parameters of workers that compute nothing.

    Attributes:
        rows: that a turn pulls and pushes.
        width: of a row, in numbers of 8 bytes.
    """

    rows: int
    width: int


class ProfileTraining(Struct, frozen=True):
    """One training.

    Attributes:
        reliable: machines that serve.
        workers: that compute.
        program: what they train; a table for workers that compute nothing.
        turns: after which it ends.
        until: or at this time of the clock.
    """

    reliable: tuple[MachineSize, ...]
    workers: tuple[MachineSize, ...]
    program: ProfiledProgram | IdleTable
    turns: int
    until: float


class SeenTraining(Struct, frozen=True, eq=False):
    """What a training showed.

    Attributes:
        run: its turns.
        busy: share of the host's cores that was busy meanwhile.
    """

    run: TurnRun
    busy: float
