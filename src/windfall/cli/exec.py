"""`windfall exec`: check the command line and become the supervisor."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from windfall.agent.exec_request import ExecRequest
from windfall.agent.exec_start import become_supervisor
from windfall.cli.options import Duration, OptionalDuration, OptionalUrl, StateFolder, Switch
from windfall.cli.state_folder import web_address
from windfall.errors import Misuse
from windfall.notices import notice_sources
from windfall.policies.checkpointing.decision import parse_policy
from windfall.spelling import nearest
from windfall.storage.object_stores import check_url, folder_url
from windfall.storage.store_retry import patience_s
from windfall.terms import RunOptions, Seconds
from windfall.units import duration_s, rate_bytes_per_s
from windfall.wire.peer_messages import host_and_port

_SCHEMES = ("file", "s3", "gs", "az")
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - a memory file system: pages on a disk would be written back
_MACHINES = "Several machines"
"""The group of options for machines that train together."""


def exec_(
    url: str,
    /,
    *command: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
    policy: Annotated[str, Parameter(metavar="POLICY")] = "adaptive",
    mttp: OptionalDuration = None,
    keep: int | None = None,
    max_failures: int = 3,
    retry_codes: Annotated[str, Parameter(metavar="CODES")] = "",
    grace: OptionalDuration = None,
    lease: Duration = "30s",
    patience: OptionalDuration = None,
    wait: Switch = False,
    bundle: Switch = False,
    new_code: Switch = False,
    provider: Annotated[str, Parameter(metavar="NAME")] = "auto",
    metadata_url: OptionalUrl = None,
    uplink: Annotated[str | None, Parameter(metavar="RATE")] = None,
    isolation: Annotated[str, Parameter(metavar="MODE")] = "auto",
    state: StateFolder = None,
    generation: Annotated[int, Parameter(group=_MACHINES)] = 0,
    node_rank: Annotated[int, Parameter(group=_MACHINES)] = 0,
    peers: Annotated[str, Parameter(group=_MACHINES, metavar="HOST:PORT,...")] = "",
) -> int:
    """Run a command on this machine; run the same command again, on any machine, to resume.

    Takes the run at URL, restores its newest checkpoint, runs the command and saves.  If the script fails, it is
    restarted.  If the machine is preempted, exec saves and exits with code 75.

    Exit codes: 0 done, 1 failed, 2 wrong command line, 6 stopped by a user, 75 run the same command again.

    Example: `windfall exec s3://lab/run42 -- python train.py`

    Args:
        url: where the run is stored: a folder, file://, s3://, gs:// or az://.
        command: after `--`; without it, the run's own command.
        policy: when to save against losses without a notice: adaptive, optimal, thesis, young-daly, never, "every 100
            steps" or "every 10m".
        mttp: mean time to preemption, if you know it, such as 3h; otherwise learned from the run.
        keep: how many of the script's own periodic checkpoints to keep; all by default.
        retry_codes: exit codes of the script that always restart it and do not count as failures: "75,137".
        max_failures: give up after the script has failed this often.
        grace: how long this machine keeps running after SIGTERM, such as Slurm's --signal or Kubernetes' grace period
            (default: 30s).
        lease: without a heartbeat for this long, another machine may take the run.
        patience: keep retrying a store that does not answer for this long, then exit with code 75 (default: 2m).
        wait: wait while another machine holds the run; otherwise exit with code 75.
        bundle: store the code in this folder with the run, so that `windfall exec URL` is enough on other machines.
        new_code: replace the run's bundle with the code in this folder.
        provider: whose preemption notices to watch: auto, aws, google, azure, slurm, kubernetes or local.
        metadata_url: address of the provider's metadata service, if not the usual one.
        uplink: limit uploads to this rate, such as 20MB/s.
        isolation: how all processes of the script are ended with the run: auto, namespace or subreaper.
        state: folder for this machine's own files (default: $XDG_STATE_HOME/windfall).
        generation: number of this set of machines, higher than that of every earlier set.
        node_rank: this machine's number among --peers; 0 is the coordinator.
        peers: address of every machine that trains together, in the order of their numbers; the port of the first must
            be free.  They authenticate with $WINDFALL_PEERS_TOKEN.
    """
    place = absolute_url(url)
    check_url(place)
    request = ExecRequest(
        url=place,
        argv=_checked_command(command, url),
        cwd=_current_folder(),
        options=RunOptions(
            policy=parse_policy(policy),
            keep=_at_least(keep, 1, "--keep"),
            failures_max=_at_least(max_failures, 1, "--max-failures") or 1,
            retry_codes=_codes(retry_codes),
            grace_s=None if grace is None else Seconds(duration_s(grace, "--grace")),
            lease_s=Seconds(_lease(lease)),
            mttp_s=None if mttp is None else Seconds(_positive(mttp, "--mttp")),
        ),
        state=str(state or state_folder()),
        provider=provider_of(provider),
        metadata_url=_metadata_address(metadata_url),
        patience_s=patience_s() if patience is None else duration_s(patience, "--patience"),
        wait=wait,
        bundle=bundle or new_code,
        new_code=new_code,
        isolation=one_of(isolation, ("auto", "namespace", "subreaper"), "--isolation"),
        uplink_bytes_per_s=None if uplink is None else rate_bytes_per_s(uplink, "--uplink"),
        generation=generation,
        node_rank=node_rank,
        peers=_peers(peers, node_rank, generation),
    )
    become_supervisor(request)


def _peers(text: str, node_rank: int, generation: int) -> tuple[str, ...]:
    """Return the addresses of the machines that train together.

    Raises:
        Misuse: --peers, --node-rank and --generation do not fit together.
    """
    if not text:
        if node_rank or generation:
            raise Misuse("--node-rank and --generation need --peers: the addresses of all machines")
        return ()
    addresses = tuple(address.strip() for address in text.split(","))
    for address in addresses:
        try:
            host_and_port(address)
        except ValueError as error:
            raise Misuse(f"--peers: {error}; give one address per machine, separated by commas") from error
    if len(addresses) < 2:
        raise Misuse(f"--peers: {text!r} is a single machine; leave --peers out to train on one machine")
    if not 0 <= node_rank < len(addresses):
        raise Misuse(f"--node-rank: must be 0 to {len(addresses) - 1} for the machines in --peers, not {node_rank}")
    if generation < 1:
        raise Misuse("--generation: --peers needs a generation number, 1 or more")
    return addresses


def state_folder() -> Path:
    """Return the folder for this machine's own files."""
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(base) / "windfall"


def absolute_url(url: str) -> str:
    """Return the URL of a run; a path becomes a file:// URL.

    Raises:
        Misuse: it is empty, or the scheme of a store is not followed by two slashes.
    """
    if not url.strip():
        check_url("")
    scheme, colon, rest = url.partition(":")
    if colon and scheme in _SCHEMES and not rest.startswith("//"):
        raise Misuse(f"{url} is not a URL: write {scheme}://{'/' if scheme == 'file' else ''}{rest.lstrip('/')}")
    return url if re.match("[a-z0-9]+://", url) else folder_url(url)


def _current_folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError as error:
        raise Misuse(
            "the current folder no longer exists: change to the folder that the command must run in"
        ) from error


def _checked_command(command: tuple[str, ...], url: str) -> tuple[str, ...]:
    if not command or shutil.which(command[0]) is not None:
        return command
    if "/" not in url and shutil.which(url) is not None:
        line = shlex.join((url, *command))
        raise Misuse(f"the URL of the run is missing: `windfall exec URL -- {line}`; URL can be a folder")
    name = command[0]
    if "/" in name and os.path.isdir(name):
        raise Misuse(f"{name} is a folder, not a command: give the program to run")
    if "/" in name and os.path.exists(name):
        raise Misuse(f"{name} is not executable: `chmod +x {name}`, or give its interpreter (python {name})")
    raise Misuse(f"{name}: no such command; give one on PATH, or a path relative to {os.getcwd()}")


def _positive(text: str, option: str) -> float:
    length_s = duration_s(text, option)
    if length_s <= 0:
        raise Misuse(f"{option}: must be more than 0, for example 3h, not {text!r}")
    return length_s


def provider_of(name: str) -> str:
    """Return whose notices to watch: the named provider's, or with `auto` the detected provider's.

    Raises:
        Misuse: there is no such provider.
    """
    chosen = one_of(name, ("auto", *notice_sources.names()), "--provider")
    return notice_sources.detect(os.environ) if chosen == "auto" else chosen


def _metadata_address(url: str | None) -> str | None:
    return None if url is None else web_address(url, "--metadata-url", "http://169.254.169.254")


def _codes(text: str) -> tuple[int, ...]:
    codes = [word.strip() for word in text.split(",") if word.strip()]
    if not all(word.isdecimal() and 1 <= int(word) <= 255 for word in codes):
        raise Misuse(f"--retry-codes: must be exit codes separated by commas, for example 75,137, not {text!r}")
    return tuple(int(word) for word in codes)


def _lease(text: str) -> float:
    lease_s = duration_s(text, "--lease")
    if lease_s < 1:
        raise Misuse(f"--lease: must be at least 1s, because a store needs time to answer, not {text!r}")
    return lease_s


def one_of(value: str, allowed: tuple[str, ...], option: str) -> str:
    """Return the value of an option that allows only some values.

    Raises:
        Misuse: another value; the message suggests the nearest.
    """
    if value not in allowed:
        raise Misuse(f"{option}: unknown value {value!r}; {nearest(value, allowed)}")
    return value


def _at_least(value: int | None, least: int, option: str) -> int | None:
    if value is not None and value < least:
        raise Misuse(f"{option}: must be at least {least}, not {value}")
    return value
