"""What `windfall exec` was asked for, and the folder on the local disk in which one such call keeps its things.

<session>/exec.json       the request (no secret is in it: credentials stay in the environment)
<session>/journal.jsonl   the term's journal, before it is shipped
<session>/hold.json       which term this machine holds, so that an agent that restarts goes on with it
<session>/output.log      what the script printed, before it is shipped
<session>/points/<n>/     the checkpoint restored for attempt n
<session>/held/<n>/       links to what attempt n handed over, until it is committed
<pages>/<n>/              pages and message files of attempt n (on a memory file system where there is one)
"""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass

CRASHES = "agent-crashes.log"
"""What is known of crashes of the agent; a session with this file is not removed at its end."""


@dataclass(frozen=True, slots=True)
class ExecRequest:
    """One `windfall exec`, with all defaults filled in.

    Attributes:
        argv: the script's command; empty to take the run's own.
        cwd: where it runs (and where a bundle is unpacked).
        session, pages: the folders described above.
        policy: text understood by `policies.saving`.
        provider: `local`, `aws`, `google`, `azure`, `slurm`, `kubernetes`: whose notices to watch.
        metadata_url: where the provider's metadata service is, if not at its documented address.
        retry_codes: exit codes of the script after which it is always started again.
        grace_s: how long after SIGTERM the machine lives on.
        lease_s: how long a heartbeat may stand still before another machine may take the run.
        nonce: random name of this call; what the run's log knows its holder by.
        bundle: take the folder's code along.
        new_code: replace the run's bundle with the folder's code.
        machine: what this machine is called where machines are bought; empty: by its host name.
        status: file that says where the run stands, for whoever started this (`agent.standing`); None for none.
        beliefs: file in which whoever started this leaves what the controller believes (`agent.beliefs`); None for none.
        generation: of the machines that train together; 0 for a machine that trains alone.
        node_rank: this machine's number among them; 0 leads.
        peers: host:port of each of them, in the order of their numbers; empty for a machine that trains alone.
    """

    url: str
    argv: tuple[str, ...]
    cwd: str
    session: str
    pages: str
    policy: str = "adaptive"
    provider: str = "local"
    metadata_url: str | None = None
    mttp_s: float | None = None
    keep: int | None = None
    failures_max: int = 3
    retry_codes: tuple[int, ...] = ()
    grace_s: float = 30.0
    lease_s: float = 30.0
    wait: bool = False
    bundle: bool = False
    new_code: bool = False
    isolation: str = "auto"
    uplink_bytes_per_s: float | None = None
    supervisor_pid: int = 0
    nonce: str = ""
    machine: str = ""
    status: str | None = None
    beliefs: str | None = None
    generation: int = 0
    node_rank: int = 0
    peers: tuple[str, ...] = ()

    def save(self) -> None:
        """Write the request into its session folder."""
        with open(os.path.join(self.session, "exec.json"), "w") as file:
            json.dump(dataclasses.asdict(self), file)

    def path(self, *names: str) -> str:
        """Return a path inside the session folder."""
        return os.path.join(self.session, *names)


def load(session: str) -> ExecRequest:
    """Read the request of a session folder."""
    with open(os.path.join(session, "exec.json")) as file:
        data = json.load(file)
    for name in ("argv", "peers", "retry_codes"):
        data[name] = tuple(data.get(name, ()))
    return ExecRequest(**data)
