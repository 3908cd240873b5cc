"""What a machine of a controlled job needs to begin: `job.json` in the run's store, and the answer to its claim.

The store's copy has the names of secrets and never a value.  Values come only with the claim, which costs the machine its
one-time credential.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from windfall.errors import ControllerError, NewerFormat
from windfall.jobs import DEAD_MAN_S, SAVE_TIMEOUT_S
from windfall.terms import Bundle, Seconds
from windfall.wire.environment import PEERS_TOKEN

VERSION = 1
GRACE_S = Seconds(30.0)
"""How long a machine lives on after SIGTERM, if the job does not say [s]."""
CREDENTIAL = "WINDFALL_CREDENTIAL"
"""One-time: exchanged for a token of this machine at its first contact."""
CONTROLLER = "WINDFALL_CONTROLLER"
"""Base URL of the controller; empty or unset where it cannot be reached: then the store is the mailbox."""
RUN_URL = "WINDFALL_RUN_URL"
MACHINE_ID = "WINDFALL_MACHINE_ID"
"""The provider's name of the machine, set by the provider."""
PROVIDER = "WINDFALL_PROVIDER"
"""Whose notices are watched, as `exec --provider` understands it."""
METADATA_URL = "WINDFALL_METADATA_URL"
ADDRESS = "WINDFALL_ADDRESS"
"""Host name or address at which the job's other machines reach this one; found out if unset."""
UPLINK = "WINDFALL_UPLINK"
"""The machine's own limit on uploads, as `exec --uplink` takes it; unset for none."""
KEPT = (UPLINK, CREDENTIAL, CONTROLLER, RUN_URL, MACHINE_ID, PROVIDER, METADATA_URL, ADDRESS)
"""Variables that are the keeper's own: neither setup nor script find them."""


LEASE_S = Seconds(30.0)
"""How long a heartbeat may stand still, if the job does not say [s]."""


@dataclass(frozen=True, slots=True)
class BootData:
    """A job as its machines see it; made from `jobs.Job` by the controller.

    Attributes:
        command: the script's.
        setup: run by a shell once on each machine before the script; None for none.
        envs: variables of setup and script.
        secrets: names of variables whose values come with the claim alone.
        policy, keep, failures_max, retry_codes: as `windfall exec` takes them.
        grace_s: how long a machine lives on after SIGTERM.
        lease_s: how long a heartbeat may stand still before another machine may take the run.
        dead_man_s: how long a machine goes on without a word of its controller.
        save_timeout_s: how long the last save may take then.
        nodes: how many machines train together.
        bundle: the code, unpacked where the script runs; None if it is there already.
        uplink: as `windfall exec --uplink` takes it; None: as the machine says.
    """

    job_id: str
    command: tuple[str, ...]
    setup: str | None = None
    envs: tuple[tuple[str, str], ...] = ()
    secrets: tuple[str, ...] = ()
    policy: str = "adaptive"
    keep: int | None = None
    failures_max: int = 3
    retry_codes: tuple[int, ...] = ()
    grace_s: Seconds = GRACE_S
    lease_s: Seconds = LEASE_S
    dead_man_s: Seconds = DEAD_MAN_S
    save_timeout_s: Seconds = SAVE_TIMEOUT_S
    nodes: int = 1
    bundle: Bundle | None = None
    uplink: str | None = None


@dataclass(frozen=True, slots=True)
class Claimed:
    """The answer to a claim; its text shows neither the token nor a secret.

    Attributes:
        token: with which the machine reports.
        secrets: name and value of each of the job's; where several machines train together also that of the token by
            which they know one another (`environment.PEERS_TOKEN`).
    """

    token: str
    boot: BootData
    secrets: tuple[tuple[str, str], ...] = ()

    def __repr__(self) -> str:
        return f"Claimed(boot={self.boot.job_id}, secrets={[name for name, _ in self.secrets]})"


def boot_to_json(boot: BootData) -> dict[str, Any]:
    """Turn boot data into what `json.dumps` accepts."""
    return {"v": VERSION, **asdict(boot)}


def boot_from_json(said: object) -> BootData:
    """Read boot data.

    Raises:
        NewerFormat: a newer controller wrote them.
        ControllerError: they are damaged.
    """
    try:
        if not isinstance(said, dict):
            raise TypeError(f"an object was expected, not {type(said).__name__}")
        if int(said["v"]) > VERSION:
            raise NewerFormat(
                f"the job was written for machines of format {said['v']}, this Windfall reads up to {VERSION}: "
                "install the controller's version of Windfall in the machine's image"
            )
        given = {field.name: said[field.name] for field in fields(BootData) if field.name in said}
        given["command"] = tuple(str(word) for word in given["command"])
        given["envs"] = tuple((str(name), str(value)) for name, value in given.get("envs", ()))
        given["retry_codes"] = tuple(int(code) for code in given.get("retry_codes", ()))
        given["secrets"] = tuple(str(name) for name in given.get("secrets", ()))
        given["bundle"] = None if given.get("bundle") is None else Bundle(**given["bundle"])
        return BootData(**given)
    except (KeyError, TypeError, ValueError) as error:
        raise ControllerError(f"the job's data for its machines cannot be read ({error!r})") from error


def claimed_to_json(claimed: Claimed) -> dict[str, Any]:
    """Turn the answer to a claim into what `json.dumps` accepts."""
    return {"token": claimed.token, "boot": boot_to_json(claimed.boot), "secrets": dict(claimed.secrets)}


def claimed_from_json(said: object) -> Claimed:
    """Read the answer to a claim.

    Raises:
        NewerFormat: a newer controller gave it.
        ControllerError: it is damaged; what it carries is not quoted.
    """
    if not isinstance(said, dict) or not isinstance(said.get("token"), str) or "boot" not in said:
        raise ControllerError("the controller's answer to this machine's claim cannot be read")
    secrets = said.get("secrets") or {}
    if not isinstance(secrets, dict):
        raise ControllerError("the controller's answer to this machine's claim has no values of its secrets")
    values = tuple((str(name), str(value)) for name, value in secrets.items())
    return Claimed(said["token"], boot_from_json(said["boot"]), values)


def missing_secrets(boot: BootData, secrets: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    """Return the names of what a machine must have before it may run the job and does not have."""
    needed = {*boot.secrets, *((PEERS_TOKEN,) if boot.nodes > 1 else ())}
    return tuple(sorted(needed - {name for name, _ in secrets}))
