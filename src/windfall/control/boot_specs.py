"""What a job's machine starts with: the same for every call with the same order."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable

from windfall.jobs import Job, settings_for
from windfall.market import BootImage, BootSecret, BootSetup, BootSpec, Offer
from windfall.structs import replace
from windfall.wire import boot_data

Equip = Callable[[str, BootSpec], BootSpec]
"""(provider, spec) -> the spec with the image, the way of the agent and the command that this provider's machines need."""


def on_this_host(_: str, spec: BootSpec) -> BootSpec:
    """Leave a spec as it is: the machine has what the controller has."""
    return spec


def make_boot(
    job: Job,
    offer: Offer,
    *,
    argv: tuple[str, ...],
    controller: str,
    credential: str,
    lent: Iterable[tuple[str, str]],
    equip: Equip,
) -> BootSpec:
    """Return what a machine of a job starts with.

    Args:
        job: its job.
        offer: what is bought; the job's block for its provider goes along.
        argv: the command that runs the node agent on this host.
        controller: URL of the controller.
        credential: the machine's one-time credential.
        lent: further secret variables that this provider's machines get.
        equip: adds what this provider's machines need.
    """
    spec = BootSpec(
        argv,
        env=(
            (boot_data.RUN_URL, job.run_url),
            (boot_data.CONTROLLER, controller),
            *boot_data.size_variables(offer.cpus, offer.memory_gib),
        ),
        secrets=(BootSecret(boot_data.CREDENTIAL, credential), *(BootSecret(name, value) for name, value in lent)),
        credential=boot_data.CREDENTIAL,
        block=settings_for(job, offer.provider),
    )
    return _with_setup(job, equip(offer.provider, spec))


def _with_setup(job: Job, spec: BootSpec) -> BootSpec:
    if job.setup is None:
        return spec
    key = setup_key(job.setup, None if job.bundle is None else job.bundle.digest, spec.image)
    return replace(spec, setup=BootSetup(job.setup, key), env=(*spec.env, (boot_data.SETUP_KEY, key)))


def setup_key(command: str, code: str | None, image: BootImage | None) -> str:
    """Return the name of what a set-up leaves behind: the same command, code and image give the same name."""
    parts = [command, code, None if image is None else [image.name, image.container]]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]
