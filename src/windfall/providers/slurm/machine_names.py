"""The names of machines.

`slurm-12` is job 12, `slurm-12_3` task 3 of the array 12, `slurm-12.1` node 1 of the gang in job 12.
"""

from __future__ import annotations

_PREFIX = "slurm-"


def machine_name(job: str, rank: int | None = None) -> str:
    """Return a machine's name.

    Args:
        job: as Slurm's commands name it.
        rank: of its node in a job of several; None for a job of one.
    """
    return f"{_PREFIX}{job}" if rank is None else f"{_PREFIX}{job}.{rank}"


def job_of(machine_id: str) -> str:
    """Return the job of a machine as Slurm's commands name it."""
    return machine_id.removeprefix(_PREFIX).partition(".")[0]


def index_of(machine_id: str) -> int:
    """Return the index of a machine's files in its order's folder."""
    _, separator, index = machine_id.replace("_", ".").partition(".")
    return int(index) if separator else 0
