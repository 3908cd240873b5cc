"""`windfall exec`, as the parser of the command line sees it; `cli.exec_line` does the work."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from windfall.agent.exec_start import become_supervisor
from windfall.cli.exec_line import request_of
from windfall.cli.options import Duration, OptionalDuration, OptionalUrl, SavingChoice, StateFolder, Switch
from windfall.terms import DEFAULT_SAVING

_MACHINES = "Several machines"
"""The group of options for machines that train together."""


def exec_(
    url: str,
    /,
    *command: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
    policy: SavingChoice = DEFAULT_SAVING,
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
        policy: when to save against losses without a notice.
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
    become_supervisor(
        request_of(
            url,
            command,
            policy=policy,
            mttp=mttp,
            keep=keep,
            max_failures=max_failures,
            retry_codes=retry_codes,
            grace=grace,
            lease=lease,
            patience=patience,
            wait=wait,
            bundle=bundle,
            new_code=new_code,
            provider=provider,
            metadata_url=metadata_url,
            uplink=uplink,
            isolation=isolation,
            state=state,
            generation=generation,
            node_rank=node_rank,
            peers=peers,
        )
    )
