"""What users say of Slurm: the site, in the configuration file, and of a job, in the job file's `slurm:` block."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path

from windfall.errors import Misuse
from windfall.providers.job_blocks import BlockKey, BlockKind
from windfall.providers.provider_settings import ProviderSettings
from windfall.providers.slurm.slurm_tables import read_duration_s
from windfall.structs import Struct
from windfall.terms import BlockValue, Seconds
from windfall.units import duration_s, size_bytes

POLL_S = Seconds(30.0)
"""How old a listing may be by default [s]: one `squeue` for all jobs of a user twice a minute."""
_NAME = r"[A-Za-z0-9][A-Za-z0-9_.@-]*"
_DURATION = r"(?=.*[1-9])([0-9]+(\.[0-9]+)?(ms|s|m|h|d))+"
"""What `units.duration_s` reads, above zero."""
_SLURM_TIME = r"[0-9]+-[0-9]{1,2}(:[0-9]{2}){0,2}|[0-9]{1,3}:[0-9]{2}(:[0-9]{2})?"
"""As `sbatch --time` reads it, but for a bare number: `04:00:00`, `30:00`, `1-12`."""
_SIZE = r"(?=.*[1-9])[0-9]+(\.[0-9]+)? *([kKMGT]i?)?B"
ACCOUNT = BlockKey("account", BlockKind.TEXT, "The account that pays (`sbatch --account`).", "physics", pattern=_NAME)
QOS = BlockKey("qos", BlockKind.TEXT, "The quality of service (`sbatch --qos`).", "low", pattern=_NAME)
BLOCK = (
    ACCOUNT,
    QOS,
    BlockKey(
        "gres",
        BlockKind.TEXT,
        "Generic resources of each machine (`sbatch --gres`), instead of the whole node's.",
        "gpu:a100:1",
        pattern=r"[A-Za-z0-9_./:,=-]+",
    ),
    BlockKey(
        "constraint",
        BlockKind.TEXT,
        "Features that each node must have (`sbatch --constraint`).",
        "infiniband",
        pattern=r"[A-Za-z0-9_.&|()\[\]*:,-]+",
    ),
    BlockKey(
        "time",
        BlockKind.TEXT,
        "Time limit of each machine (`sbatch --time`), instead of the partition's own.",
        "4h",
        pattern=rf"{_DURATION}|(?=.*[1-9])({_SLURM_TIME})",
    ),
    BlockKey(
        "cpus", BlockKind.WHOLE, "CPUs of each machine, instead of the whole node's.", "8", least=1, most=100_000
    ),
    BlockKey(
        "memory", BlockKind.TEXT, "Memory of each machine, instead of the whole node's.", "32GB", pattern=_SIZE
    ),
)  # fmt: skip
"""The keys of a job's block."""
SITE = (
    BlockKey(
        "login",
        BlockKind.TEXT,
        "Where `ssh` leads to Slurm's commands; without it they are on this host.",
        "me@login.example.org",
        pattern=r"[A-Za-z0-9_][A-Za-z0-9_.@-]*",
    ),
    BlockKey(
        "partitions",
        BlockKind.TEXT,
        "The partitions to use, with commas between them; without it all.",
        "low,high",
        pattern=rf"{_NAME}(,{_NAME})*",
    ),
    ACCOUNT,
    QOS,
    BlockKey(
        "folder",
        BlockKind.TEXT,
        "A folder that the nodes reach under the same name; without it one in the installation's.",
        "/home/me/windfall-machines",
        pattern=r"/[^\x00-\x1f'\"]+",
    ),
    BlockKey(
        "python",
        BlockKind.TEXT,
        "The Python on the nodes that has Windfall; without it the controller's own.",
        "/home/me/venv/bin/python",
        pattern=r"/[^\x00-\x1f'\"]+",
    ),
    BlockKey("poll", BlockKind.TEXT, "How old a listing of the queue may be.", "30s", pattern=_DURATION),
    BlockKey(
        "queue_wait",
        BlockKind.TEXT,
        "How long a queued machine is waited for before it is given up; without it for ever.",
        "2h",
        pattern=_DURATION,
    ),
    BlockKey(
        "usd_per_unit_hour",
        BlockKind.NUMBER,
        "What an hour of one billing unit costs (TRESBillingWeights; a CPU where nothing is weighted); without it nothing.",
        "0.02",
        least=0.0,
        most=1e6,
    ),
)
"""The keys of the configuration file, beside `limits`."""


class SlurmSettings(Struct, frozen=True):
    """How an installation uses a site.

    Attributes:
        login: empty for this host.
        partitions: empty for all.
        folder: what machines start from, on a disk that the nodes reach too.
        python: empty for the controller's own.
    """

    folder: Path
    login: str = ""
    partitions: frozenset[str] = frozenset()
    account: str = ""
    qos: str = ""
    python: str = ""
    poll_s: Seconds = POLL_S
    queue_wait_s: Seconds | None = None
    usd_per_unit_hour: float = 0.0
    origin: str = ""


def read_settings(installation: Path, settings: ProviderSettings) -> SlurmSettings:
    """Return the settings of an installation; `job_blocks` has checked each value.

    Raises:
        Misuse: there is a login node and no folder on it.
    """
    given = dict(settings.site)
    login = str(given.get("login", ""))
    if login and "folder" not in given:
        raise Misuse(
            f"{settings.origin}: providers.slurm needs folder beside login: an absolute path on {login} that its nodes reach"
        )
    wait = given.get("queue_wait")
    return SlurmSettings(
        folder=Path(str(given["folder"])) if "folder" in given else installation.absolute() / "slurm",
        login=login,
        partitions=frozenset(str(given["partitions"]).split(",")) if "partitions" in given else frozenset(),
        account=str(given.get("account", "")),
        qos=str(given.get("qos", "")),
        python=str(given.get("python", "")),
        poll_s=duration_s(str(given["poll"]), "poll") if "poll" in given else POLL_S,
        queue_wait_s=None if wait is None else duration_s(str(wait), "queue_wait"),
        usd_per_unit_hour=float(given.get("usd_per_unit_hour", 0.0)),
        origin=settings.origin,
    )


def time_limit_s(block: Mapping[str, BlockValue]) -> Seconds | None:
    """Return the time limit that a job's block asks for [s]; None if it leaves that to the partition."""
    if "time" not in block:
        return None
    text = str(block["time"])
    return Seconds(read_duration_s(text)) if re.fullmatch(_SLURM_TIME, text) else duration_s(text, "time")


def request_options(block: Mapping[str, BlockValue], settings: SlurmSettings) -> tuple[str, ...]:
    """Return what a job's block adds to `sbatch`, the installation's account and QOS where it names none."""
    options = []
    for name, otherwise in (("account", settings.account), ("qos", settings.qos), ("gres", ""), ("constraint", "")):
        if value := block.get(name, otherwise):
            options.append(f"--{name}={value}")
    if (limit_s := time_limit_s(block)) is not None:
        # Slurm counts in minutes; a part of one would be a limit that is over before the job says.
        options.append(f"--time={math.ceil(limit_s / 60.0)}")
    if "cpus" in block:
        options.append(f"--cpus-per-task={block['cpus']}")
    if "memory" in block:
        options.append(f"--mem={math.ceil(size_bytes(str(block['memory']), 'memory') / 2**20)}M")
    return tuple(options)
