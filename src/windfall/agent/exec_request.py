"""The request for one `windfall exec`: one value from the command line, or from the node agent, to the agent."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import msgspec

from windfall import codec
from windfall.agent.session_folder import REQUEST
from windfall.errors import Misuse
from windfall.structs import Struct
from windfall.terms import GRACE_S, RunOptions, Seconds

VERSION = 1


class ExecRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """One `windfall exec`, with all defaults filled in; it contains no secret: credentials stay in the environment.

    Attributes:
        argv: the script's command; empty to take the run's own.
        cwd: where it runs (and where a bundle is unpacked).
        options: how the run is saved and restarted.
        state: this machine's folder for what outlives a session.
        provider: `local`, `aws`, `google`, `azure`, `slurm`, `kubernetes`: whose notices to watch.
        metadata_url: where the provider's metadata service is, if not at its documented address.
        patience_s: how long to retry a store that does not answer.
        bundle: store the folder's code with the run.
        new_code: replace the run's bundle with the folder's code.
        machine: this machine's name at its provider; empty for its host name.
        status: file with the run's status for the node agent (`agent.status_files`); None without a node agent.
        estimates: file with the controller's estimates (`agent.status_files`); None without a node agent.
        notices: file with the notices that the node agent received (`notices.relay`); None without a node agent.
        generation: of the machines that train together; 0 for a machine that trains alone.
        node_rank: this machine's number among them; 0 leads.
        peers: host:port of each of them, in the order of their numbers; empty for a machine that trains alone.
        role, settings, assignment: of a machine of another runtime: what it is for, the job's settings of the runtime, and
            what it is told at its start.
        session, pages: the session's folders (`agent.session_folder`); empty until the session starts.
        nonce: random name of the session; identifies the holder in the run's log.
        link_bytes_per_s: what the machine's link carries each way; None for no limit.
        kernel_speed: share of the host's speed at which applications of a parameter server compute.
        turn_s: how long a turn of the application computes at the host's full speed [s]; 0 where it is not known.
        cpus, memory_gib: of the machine's type, as its provider sells it [1, GiB]; 0 where it does not say.
    """

    url: str
    argv: tuple[str, ...]
    cwd: str
    options: RunOptions
    state: str
    provider: str = "local"
    metadata_url: str | None = None
    patience_s: float = 120.0
    wait: bool = False
    bundle: bool = False
    new_code: bool = False
    isolation: str = "auto"
    uplink_bytes_per_s: float | None = None
    machine: str = ""
    status: str | None = None
    estimates: str | None = None
    notices: str | None = None
    generation: int = 0
    node_rank: int = 0
    peers: tuple[str, ...] = ()
    role: str = ""
    settings: Mapping[str, Any] = msgspec.field(default_factory=dict)
    assignment: Mapping[str, Any] = msgspec.field(default_factory=dict)
    session: str = ""
    pages: str = ""
    nonce: str = ""
    supervisor_pid: int = 0
    link_bytes_per_s: float | None = None
    kernel_speed: float = 1.0
    turn_s: float = 0.0
    cpus: float = 0.0
    memory_gib: float = 0.0

    @property
    def managed(self) -> bool:
        """Whether a node agent started this: no user is at the terminal to run a command again."""
        return self.status is not None

    @property
    def after_sigterm_s(self) -> Seconds:
        """How long the machine keeps running after SIGTERM [s]."""
        return GRACE_S if self.options.grace_s is None else self.options.grace_s

    @property
    def finished(self) -> str:
        """The folder of this machine's records of finished runs (`storage.success_record`)."""
        return os.path.join(self.state, "finished")

    def path(self, *names: str) -> str:
        """Return a path inside the session folder."""
        return os.path.join(self.session, *names)


def save(request: ExecRequest, path: str) -> None:
    """Write a request; only this user may read it."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(codec.encode_document(VERSION, "request", request))


def load(path: str) -> ExecRequest:
    """Read a request.

    Raises:
        Misuse: the file is missing or damaged.
    """
    try:
        with open(path, "rb") as file:
            # Not by the codec: a folder's name need not be valid UTF-8, and this user alone wrote the file.
            document = json.load(file)
        if document["version"] != VERSION:
            raise ValueError(f"version {VERSION} was expected")
        request: ExecRequest = codec.decode(document["request"], ExecRequest)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Misuse(f"cannot read {path}: {error}") from error
    return request


def load_session(session: str) -> ExecRequest:
    """Read the request of a session folder."""
    return load(os.path.join(session, REQUEST))
