"""What fleet policies for jobs that can use more or fewer machines have in common: settings, and the runtime's scaling."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from windfall.jobs import Job
from windfall.policies.acquisition.bidbrain import Application
from windfall.policies.layout import runtime_list
from windfall.policies.layout.runtime_list import Scaling


def problem(
    settings: Mapping[str, Any], *, whole: Sequence[str], numbers: Sequence[str], flags: Sequence[str] = ()
) -> str | None:
    """Return what is wrong with settings; None if they are valid.

    Args:
        settings: as the job file has them.
        whole: names of the whole numbers from 1.
        numbers: of the numbers above zero.
        flags: of those that are true or false.
    """
    for name, value in settings.items():
        if name not in {*whole, *numbers, *flags}:
            return f"has no setting {name!r}; it has {', '.join((*whole, *numbers, *flags))}"
        if name in flags:
            if not isinstance(value, bool):
                return f"{name} must be true or false, not {value!r}"
        elif name in whole:
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                return f"{name} must be a whole number from 1, not {value!r}"
        elif isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 < value < math.inf:
            return f"{name} must be a number above zero, not {value!r}"
    return None


def needs_scaling(job: Job) -> str | None:
    """Return why a job cannot have a policy that chooses how many machines it has; None if it can."""
    scaling = runtime_list.scaling_of(job)
    if scaling is None:
        return f"needs a runtime whose jobs can use more or fewer machines; {job.runtime.name} needs a fixed number"
    if scaling.machines_max is None and "machines_max" not in job.fleet_settings:
        return "needs machines_max: the runtime sets no limit"
    return None


def machines_max(job: Job, scaling: Scaling) -> float:
    """Return the most machines that work on a job: the lower of the runtime's and the job's limit."""
    limits = (scaling.machines_max, job.fleet_settings.get("machines_max"))
    return min((limit for limit in limits if limit is not None), default=math.inf)


def application(scaling: Scaling) -> Application:
    """Return how a runtime reacts to changes of its fleet."""
    return Application(scaling.eviction_s, scaling.change_s, scaling.loss_per_core)
