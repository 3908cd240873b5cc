"""Values derived from a job alone: its machines' boot data, its fingerprint, its polling intervals."""

from __future__ import annotations

import json
from collections.abc import Mapping

from windfall.control.poller import LOCAL_PACE, PollingPace
from windfall.jobs import Job
from windfall.ports import Provider
from windfall.structs import replace
from windfall.terms import GRACE_S, Seconds
from windfall.wire.boot_data import BootData

_DISK_LEASE_S = Seconds(5.0)
"""A local disk is never slow, so a short lease makes takeovers quick [s]."""


def boot_data(job: Job) -> BootData:
    """Return what a job's machines need to start."""
    options = replace(job.options, grace_s=GRACE_S)
    if job.run_url.startswith("file://"):
        options = replace(options, lease_s=_DISK_LEASE_S)
    return BootData(
        job_id=job.job_id,
        command=job.command,
        setup=job.setup,
        envs=job.envs,
        secrets=tuple(secret.name for secret in job.secrets),
        options=options,
        dead_man_s=job.dead_man_s,
        save_timeout_s=job.checkpointing.save_timeout_s,
        nodes=job.nodes,
        bundle=job.bundle,
    )


def fingerprint(job: Job) -> str:
    """Return what makes two jobs similar: user, name, command and number of machines, but not the code.

    Measurements of a slightly changed script still predict its next run better than none.
    """
    return json.dumps([job.user, job.name, list(job.command), job.nodes])


def pace_of(job: Job, providers: Mapping[str, Provider]) -> PollingPace:
    """Return the polling intervals: short ones if only the local market can serve the job."""
    names = {want.provider for want in job.resources}
    names = set(providers) if None in names else {name for name in names if name is not None}
    return LOCAL_PACE if names <= {"local"} else PollingPace()
