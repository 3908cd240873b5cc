"""How an order becomes one job: the options of `sbatch`, the script that it runs, and what its machines start from.

    FOLDER/TOKEN/boot-K.json      what machine K runs, secrets included; for its owner alone, gone once machine K has read it
    FOLDER/TOKEN/started-K        machine K has started, and never starts again
    FOLDER/TOKEN/request-K.json   the provider's request to machine K: release or preemption
    FOLDER/TOKEN/output-*.log     what the machines print

An order's folder is removed a week after its last machine has ended.

The batch script starts the machines as one step, because Slurm warns the steps of a job at the start of the grace of a
preemption, and its batch shell only at the end of it.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from windfall.errors import ProviderError
from windfall.market import BootSpec, Order
from windfall.providers.slurm import slurm_tables
from windfall.providers.slurm.slurm_commands import Commands, error_of
from windfall.providers.slurm.slurm_settings import SlurmSettings, request_options
from windfall.providers.slurm.slurm_site import NodeKind, asks_for_part
from windfall.structs import Struct
from windfall.terms import WallTime
from windfall.wire.python_programs import program

BOOT_BYTES_MAX = 1 << 20
_START = "windfall.providers.slurm.node_start"
_WRITE = """\
umask 077
mkdir -p "$1" || exit 1
cd "$1" || exit 1
cat > boot.part || exit 1
shift
for name in "$@"; do cp boot.part "$name" || exit 1; done
rm boot.part
"""
_REQUEST = """\
umask 077
cd "$1" 2>/dev/null || exit 0
data=$(cat)
shift
for name in "$@"; do printf %s "$data" > "$name.part" && mv "$name.part" "$name" || exit 1; done
"""
_REMOVE = 'cd "$1" 2>/dev/null || exit 1; shift; rm -rf -- "$@"'
_WIPE = 'cd "$1" 2>/dev/null && rm -f boot-*.json boot.part; exit 0'


class Submission(Struct, frozen=True):
    """A job to submit.

    Attributes:
        count: machines: nodes of one job if they are a gang, otherwise jobs of one array.
    """

    order: Order
    count: int
    folder: Path
    options: tuple[str, ...]
    script: str

    @property
    def argv(self) -> tuple[str, ...]:
        """The command that submits it; its script is the input."""
        return ("sbatch", "--parsable", *self.options, *self._identity())

    @property
    def trial(self) -> tuple[str, ...]:
        """The command that says whether it could run, and submits nothing."""
        return ("sbatch", "--test-only", *self.options)

    def _identity(self) -> tuple[str, ...]:
        array = () if self.order.gang or self.count == 1 else (f"--array=0-{self.count - 1}",)
        output = self.folder / ("output-%a.log" if array else "output.log")
        return (
            f"--job-name={self.order.token}",
            "--dependency=singleton",
            f"--comment={slurm_tables.order_tag(self.order)}",
            f"--output={output}",
            *array,
        )


def submission(order: Order, kind: NodeKind, boot: BootSpec, settings: SlurmSettings) -> Submission:
    """Return the job of an order."""
    block = dict(boot.block)
    folder = settings.folder / order.token
    options = [
        "--no-requeue",
        "--open-mode=append",
        f"--partition={order.offer.zone}",
        f"--nodes={order.count_max if order.gang else 1}",
        "--ntasks-per-node=1",
        f"--chdir={settings.folder.parent if not settings.login else '/'}",
        *request_options(block, settings),
    ]
    if not asks_for_part(block):
        options += ["--exclusive", f"--mincpus={kind.cpus}", *_all_gpus(kind)]
    return Submission(order, order.count_max, folder, tuple(options), _script(folder, settings))


def _all_gpus(kind: NodeKind) -> tuple[str, ...]:
    if not kind.accelerators:
        return ()
    name = (kind.accelerator or "").lower()
    return (f"--gres=gpu:{kind.accelerators}" if name == "gpu" else f"--gres=gpu:{name}:{kind.accelerators}",)


def _script(folder: Path, settings: SlurmSettings) -> str:
    start = (settings.python, "-P", "-m", _START) if settings.python else program(_START)
    # A machine whose sisters are gone is no allocation: the step ends as one.
    step = ("srun", "--kill-on-bad-exit=1", "--wait=1", "--cpu-bind=none", *start, str(folder))
    lines = (
        "#!/bin/sh",
        "# Starts the machines of one order of Windfall.",
        'export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-}"',
        '[ -n "$SRUN_CPUS_PER_TASK" ] || unset SRUN_CPUS_PER_TASK',
        f"exec {shlex.join(step)}",
    )
    return "\n".join(lines) + "\n"


def write_boot(
    commands: Commands, job: Submission, boot: BootSpec, settings: SlurmSettings, facts: Mapping[str, object]
) -> None:
    """Leave what the machines start from in the order's folder.

    Args:
        commands: where the folder is reached.
        job: the order's.
        boot: what a machine runs, with its secrets.
        settings: the installation's.
        facts: what a machine must know of its partition.

    Raises:
        ProviderError: the folder cannot be written.
    """
    controller = program("")[0]
    argv = [settings.python if settings.python and word == controller else word for word in boot.argv]
    data = json.dumps({"argv": argv, "env": boot.environment(), **facts}).encode()
    if len(data) > BOOT_BYTES_MAX:
        raise ProviderError(
            f"the job's variables need {len(data)} bytes, more than the {BOOT_BYTES_MAX} of a machine's start"
        )
    names = [f"boot-{number}.json" for number in range(job.count)]
    result = commands.run(("sh", "-c", _WRITE, "sh", str(job.folder), *names), data)
    if result.code != 0:
        raise ProviderError(
            f"cannot write {job.folder} on {commands.where} ({result.errors.strip().splitlines()[-1:] or ['?']}): set "
            "providers.slurm.folder to a folder that this host and the nodes can write"
        )


def write_request(commands: Commands, folder: Path, indexes: Sequence[int], **request: object) -> None:
    """Ask machines of an order for something, through their folder: also a machine whose node Slurm has given up reads it.

    Raises:
        ProviderUnreachable: it could not be left there.
    """
    names = [f"request-{index}.json" for index in indexes]
    result = commands.run(("sh", "-c", _REQUEST, "sh", str(folder), *names), json.dumps(request).encode())
    if result.code != 0:
        raise error_of("sh", commands.where, result)


def wipe(commands: Commands, folder: Path) -> None:
    """Remove what an order's machines would start from; requests and output stay."""
    commands.run(("sh", "-c", _WIPE, "sh", str(folder)))


def remove_folders(commands: Commands, folder: Path, tokens: Sequence[str]) -> bool:
    """Remove the folders of orders, output included; return whether they are gone."""
    return commands.run(("sh", "-c", _REMOVE, "sh", str(folder), *tokens)).code == 0


def preempt_request(at: WallTime) -> dict[str, object]:
    """Return the request to end at a moment."""
    return {"preempt_at": at}
