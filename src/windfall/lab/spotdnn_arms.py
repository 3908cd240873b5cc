"""spotDNN's workloads with their constants, and the strategies that it is compared with.

**Arms** (section V-A, Tables I, V and VI): *spotDNN* is Algorithm 1 at spot prices, *on demand* the same at the others;
*Srifty+* searches all plans with spotDNN's model, here exactly; *CM-DARE+* is Algorithm 1 with a cluster's speed as the sum of
what its GPUs do alone, without contention for servers and bus; *Homo-slow* and *Homo-fast* have as many workers as spotDNN's
plan, all of its slowest or its fastest type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Final

from windfall.lab import spotdnn_published as paper
from windfall.lab.spotdnn_published import Plan
from windfall.models.asp import AspModel, AspPlatform, AspWorker, AspWorkload, worker_of_speed
from windfall.policies.planning.exact_provisioning import cheapest_plan
from windfall.policies.planning.provisioning import ProvisioningProblem
from windfall.policies.planning.sliding_window import sliding_window
from windfall.structs import replace

PLATFORM: Final = AspPlatform(paper.SERVER_MB_PER_S, paper.PCIE_MB_PER_S)
_ENDLESS: Final = 1e30
"""A bandwidth beside which no transfer takes any time [MB/s]."""


def _workload(name: str, constants: Mapping[str, float]) -> AspWorkload:
    return AspWorkload(name=name, gamma4=None, **constants)


@cache
def resnet() -> AspModel:
    """ResNet-110 with the repository's constants, rounded as its prototype does."""
    load = _workload("ResNet-110", paper.RESNET)
    types = tuple(
        worker_of_speed(name, gpus=gpus, batch=gpus * batch, samples_per_s=speed, workload=load, platform=PLATFORM)
        for name, gpus, batch, speed in zip(
            paper.TYPES, paper.GPUS, paper.RESNET_GPU_BATCH, paper.RESNET_SAMPLES_PER_S, strict=True
        )
    )
    return AspModel(load, PLATFORM, types, as_prototype=True)


@cache
def resnet_without_contention() -> AspModel:
    """ResNet-110 as CM-DARE+ has it, with fitted speeds of single GPUs."""
    load = replace(_workload("ResNet-110 without contention", paper.RESNET), required_mb_per_s=_ENDLESS)
    types = tuple(
        AspWorker(name, gpus, gpus * batch, batch / paper.RESNET_IDEAL_PER_GPU[gpu])
        for name, gpu, gpus, batch in zip(paper.TYPES, paper.GPU, paper.GPUS, paper.RESNET_GPU_BATCH, strict=True)
    )
    return AspModel(load, AspPlatform(_ENDLESS, _ENDLESS), types, as_prototype=True)


def resnet_of(arm: str) -> AspModel:
    """ResNet-110 as an arm predicts it."""
    return resnet_without_contention() if arm == "CM-DARE+" else resnet()


@cache
def inception() -> AspModel:
    """Inception-v3 with FITTED constants."""
    types = tuple(
        AspWorker(name, gpus, gpus * paper.INCEPTION_GPU_BATCH[gpu], paper.INCEPTION_COMPUTE_S[gpu])
        for name, gpu, gpus in zip(paper.TYPES, paper.GPU, paper.GPUS, strict=True)
    )
    return AspModel(_workload("Inception-v3", paper.INCEPTION), PLATFORM, types)


def paid_prices(arm: str, prices: Sequence[float]) -> tuple[float, ...]:
    """Return what an arm pays, where spot machines have these prices [USD/h]."""
    return paper.ON_DEMAND_PRICES if arm == "on demand" else tuple(prices)


def provisioned(
    arm: str, model: AspModel, goal: tuple[float, float], prices: Sequence[float], quotas: Sequence[int]
) -> Plan | None:
    """Return the plan of an arm; None: there is none.

    Args:
        arm: one of `paper.ARMS`.
        model: what the arm predicts with.
        goal: loss, and time [s].
        prices: of spot machines by type [USD/h].
        quotas: by type.
    """
    problem = ProvisioningProblem(model, tuple(quotas), paid_prices(arm, prices), *goal)
    found = cheapest_plan(problem).plan if arm == "Srifty+" else sliding_window(problem)
    return None if found is None else as_plan(found.counts)


def homogeneous(plan: Sequence[int], place: int) -> Plan:
    """Return a plan of as many workers, all of one type.

    Args:
        plan: whose workers are counted.
        place: of the type.
    """
    return as_plan([sum(plan) if other == place else 0 for other in range(len(plan))])


def as_plan(counts: Sequence[int]) -> Plan:
    """Return counts as a plan of the five types."""
    one, two, three, four, five = counts
    return one, two, three, four, five
