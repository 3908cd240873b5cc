"""What a machine of a controlled job needs to start: `job.json` in the run's store, and the answer to its claim.

The store's copy contains the names of secrets, never their values.  Values are sent only in the answer to the claim,
which uses up the machine's one-time credential.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from windfall import codec, stored_forms
from windfall.errors import WRITTEN_BEFORE_RELEASE, ControllerError, NewerFormat, OlderFormat
from windfall.jobs import DEAD_MAN_S, SAVE_TIMEOUT_S, RuntimeSpec
from windfall.structs import Struct
from windfall.terms import Bundle, RunOptions, Seconds
from windfall.wire.environment import PEERS_TOKEN

VERSION = stored_forms.BOOT_DATA.version
CREDENTIAL = "WINDFALL_CREDENTIAL"
"""One-time credential, exchanged for a token of this machine at its first contact."""
CONTROLLER = "WINDFALL_CONTROLLER"
"""Base URL of the controller; if it is empty or unset, the store serves as the mailbox."""
RUN_URL = "WINDFALL_RUN_URL"
MACHINE_ID = "WINDFALL_MACHINE_ID"
"""The machine's id at the provider, set by the provider."""
PROVIDER = "WINDFALL_PROVIDER"
"""Whose notices to watch, as for `exec --provider`."""
METADATA_URL = "WINDFALL_METADATA_URL"
ADDRESS = "WINDFALL_ADDRESS"
"""Host name or address at which the job's other machines reach this one; detected if unset."""
UPLINK = "WINDFALL_UPLINK"
"""The machine's own limit on uploads, as for `exec --uplink`; unset for none."""
NETWORK = "WINDFALL_NETWORK"
"""What the machine's link carries, each way, where its provider limits it: a rate, as `UPLINK`; unset for no limit."""
KERNEL_SPEED = "WINDFALL_KERNEL_SPEED"
"""Share of the host's speed at which applications of a parameter server compute; unset for 1."""
TURN_S = "WINDFALL_TURN_S"
"""How long a turn of a parameter server's application computes at the host's full speed [s]; unset where it is not known."""
GRACE = "WINDFALL_GRACE"
"""How long the machine keeps running after SIGTERM [s], which is then final; unset where its provider does not say."""
CPUS = "WINDFALL_CPUS"
"""CPUs of the machine's type, as its provider sells it; unset where the provider does not say."""
MEMORY_GIB = "WINDFALL_MEMORY_GIB"
"""Memory of the machine's type [GiB]; as `CPUS`."""
SETUP_KEY = "WINDFALL_SETUP_KEY"
"""Name of what the job's set-up leaves behind: on a disk where it succeeded under this name it is not run again."""
RESERVED_VARIABLES = (
    GRACE,
    CPUS,
    MEMORY_GIB,
    SETUP_KEY,
    UPLINK,
    NETWORK,
    KERNEL_SPEED,
    TURN_S,
    CREDENTIAL,
    CONTROLLER,
    RUN_URL,
    MACHINE_ID,
    PROVIDER,
    METADATA_URL,
    ADDRESS,
)
"""Variables of the node agent, hidden from setup and script."""


def grace_of(environ: Mapping[str, str]) -> Seconds | None:
    """Return how long the machine keeps running after SIGTERM, as its provider says [s]; None if it does not."""
    try:
        grace_s = float(environ.get(GRACE, ""))
    except ValueError:
        return None
    return Seconds(grace_s) if 0.0 <= grace_s < math.inf else None


def kernel_speed_of(environ: Mapping[str, str]) -> float:
    """Return the share of the host's speed at which applications compute; 1 where the provider does not say."""
    try:
        speed = float(environ.get(KERNEL_SPEED, ""))
    except ValueError:
        return 1.0
    return speed if 0.0 < speed <= 1.0 else 1.0


def turn_s_of(environ: Mapping[str, str]) -> float:
    """Return how long a turn computes at the host's full speed [s]; 0 where the provider does not say."""
    try:
        turn_s = float(environ.get(TURN_S, ""))
    except ValueError:
        return 0.0
    return turn_s if 0.0 <= turn_s < math.inf else 0.0


def size_of(environ: Mapping[str, str]) -> tuple[float, float]:
    """Return the CPUs and the memory of the machine's type [GiB]; 0 where the provider does not say."""
    found = []
    for name in (CPUS, MEMORY_GIB):
        try:
            value = float(environ.get(name, ""))
        except ValueError:
            value = 0.0
        found.append(value if 0.0 < value < math.inf else 0.0)
    return found[0], found[1]


def size_variables(cpus: float, memory_gib: float) -> tuple[tuple[str, str], ...]:
    """Return the variables that `size_of` reads."""
    return tuple((name, f"{value:g}") for name, value in ((CPUS, cpus), (MEMORY_GIB, memory_gib)) if value > 0.0)


class BootData(Struct, frozen=True):
    """A job, as sent to its machines; derived from `jobs.Job` by the controller.

    Attributes:
        command: the script's command.
        setup: shell script run once on each machine before the command; None for none.
        envs: environment variables of setup and command.
        secrets: names of variables whose values are sent only in the answer to the claim.
        options: how the run is saved and restarted.
        dead_man_s: how long a machine keeps running without contact to its controller [s].
        save_timeout_s: how long the last save may take after that [s].
        nodes: number of machines that train together.
        runtime: how the job's state survives; its program runs on the machine.
        addressed: the job's machines reach one another, so each reports its address.
        bundle: the code, unpacked where the script runs; None if it is already there.
    """

    job_id: str
    command: tuple[str, ...]
    setup: str | None = None
    envs: tuple[tuple[str, str], ...] = ()
    secrets: tuple[str, ...] = ()
    options: RunOptions = RunOptions()
    dead_man_s: Seconds = DEAD_MAN_S
    save_timeout_s: Seconds = SAVE_TIMEOUT_S
    nodes: int = 1
    bundle: Bundle | None = None
    runtime: RuntimeSpec = RuntimeSpec()
    addressed: bool = False


class _Version(Struct, frozen=True):
    version: int


class ClaimResponse(Struct, frozen=True):
    """The answer to a claim; its `repr` shows neither the token nor a secret.

    Attributes:
        token: authenticates the machine's reports.
        secrets: names and values of the job's secrets; if several machines train together, also the token with which
            they authenticate each other (`environment.PEERS_TOKEN`).
    """

    token: str
    boot: BootData
    secrets: tuple[tuple[str, str], ...] = ()

    def __repr__(self) -> str:
        return f"ClaimResponse(boot={self.boot.job_id}, secrets={[name for name, _ in self.secrets]})"


def boot_to_json(boot: BootData) -> dict[str, Any]:
    """Convert boot data to what `json.dumps` accepts."""
    return {"version": VERSION, **codec.encode(boot)}


def boot_from_json(document: object) -> BootData:
    """Read boot data.

    Raises:
        NewerFormat, OlderFormat: they were written by another version of Windfall.
        ControllerError: they are damaged.
    """
    try:
        version = codec.decode(document, _Version).version
        if version > VERSION:
            raise NewerFormat(
                f"the job's data has format {version}, this Windfall reads up to {VERSION}: "
                "install the controller's version of Windfall in the machine's image"
            )
        if version < stored_forms.BOOT_DATA.oldest:
            raise OlderFormat(f"the job's data has format {version}, {WRITTEN_BEFORE_RELEASE}: submit the job again")
        assert isinstance(document, dict), "it has a version"
        present = stored_forms.BOOT_DATA.upgraded(document, version) if version < VERSION else document
        boot: BootData = codec.decode(present, BootData)
    except ValueError as error:
        raise ControllerError(f"the job's data for its machines is damaged ({error})") from error
    return boot


def claimed_to_json(claimed: ClaimResponse) -> dict[str, Any]:
    """Convert the answer to a claim to what `json.dumps` accepts."""
    return {"token": claimed.token, "boot": boot_to_json(claimed.boot), "secrets": dict(claimed.secrets)}


def claimed_from_json(document: object) -> ClaimResponse:
    """Read the answer to a claim.

    Raises:
        NewerFormat: it was sent by a newer controller.
        ControllerError: it is damaged; the message does not quote it.
    """
    if not isinstance(document, dict) or not isinstance(document.get("token"), str) or "boot" not in document:
        raise ControllerError("the controller's answer to this machine's claim is invalid")
    secrets = document.get("secrets") or {}
    if not isinstance(secrets, dict):
        raise ControllerError("the controller's answer to this machine's claim contains no secrets")
    values = tuple((str(name), str(value)) for name, value in secrets.items())
    return ClaimResponse(document["token"], boot_from_json(document["boot"]), values)


def missing_secrets(boot: BootData, secrets: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    """Return the names of the secrets that the machine needs to run the job and does not have."""
    needed = {*boot.secrets, *((PEERS_TOKEN,) if boot.nodes > 1 or boot.addressed else ())}
    return tuple(sorted(needed - {name for name, _ in secrets}))
