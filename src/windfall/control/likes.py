"""What follows from a job alone: what its machines begin with, by what its like is found again, how often to look."""

from __future__ import annotations

import json
from collections.abc import Mapping

from windfall.control.looking import LOCAL_PACE, Pace
from windfall.jobs import Job
from windfall.ports import Provider
from windfall.terms import Seconds
from windfall.wire.boot import BootData


def boot_data(job: Job) -> BootData:
    """Return what a job's machines need to begin."""
    return BootData(
        job_id=job.job_id,
        command=job.command,
        setup=job.setup,
        envs=job.envs,
        secrets=tuple(secret.name for secret in job.secrets),
        policy=job.checkpointing.policy,
        keep=job.checkpointing.keep,
        failures_max=job.recovery.failures_max,
        retry_codes=job.recovery.retry_codes,
        # On one machine's disk nothing is slow: a short lease makes take-overs quick.
        lease_s=Seconds(5.0 if job.run_url.startswith("file://") else 30.0),
        dead_man_s=job.dead_man_s,
        save_timeout_s=job.checkpointing.save_timeout_s,
        nodes=job.nodes,
        bundle=job.bundle,
    )


def likeness(job: Job) -> str:
    """Return by what runs of the same job find one another: its name, its command, its machines; not its code.

    A script that is changed a little still tells more of its next run than nothing does.
    """
    return json.dumps([job.user, job.name, list(job.command), job.nodes])


def pace_of(job: Job, providers: Mapping[str, Provider]) -> Pace:
    """Return how often to look: often if only the local market can serve the job."""
    names = {want.provider for want in job.wants}
    names = set(providers) if None in names else {name for name in names if name is not None}
    return LOCAL_PACE if names <= {"local"} else Pace()
