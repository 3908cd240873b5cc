"""Lifetimes of SciSpot's machine types: as the paper fits them, and with the machines that users stopped counted."""

from __future__ import annotations

import enum
from functools import cache

import numpy as np

from windfall.lab import scispot_published as paper
from windfall.lab.scispot_published import H
from windfall.models.exact.makespan import Array, SurvivalTable, tabulate
from windfall.models.lifetimes.families import Blended, BlendedAsPrinted
from windfall.policies.planning.selection import MachineChoice, ScoredChoice, published_expected_s, score

_CELL_S = 60.0


class FitOrigin(enum.StrEnum):
    """Which lifetimes a prediction rests on."""

    PUBLISHED = "lifetimes as published"
    CENSORED = "lifetimes, censored"


@cache
def lifetimes_of_type(cpus: int, source: FitOrigin) -> SurvivalTable:
    """Return the lifetimes of n1-highcpu machines.

    Args:
        cpus: of the type.
        source: as published: equation 1 fitted to the type's preempted machines alone, ended at 24.3 h, where the paper's F
            exceeds 1; censored: the normalised form by maximum likelihood.
    """
    if source is FitOrigin.CENSORED:
        early, tau1_h, tau2_h = paper.CENSORED_FITS[cpus]
        end_s = paper.CENSORED_END_H * H
        law = Blended.mixed(early, tau1_h * H, tau2_h * H, end_s=end_s, observed_s=end_s)
        return tabulate(law.log_survival, until_s=25.0 * H, cell_s=_CELL_S)
    scale, b_h, tau1_h, tau2_h = paper.TYPE_FITS[cpus]
    printed = BlendedAsPrinted(scale, b_h * H, tau1_h * H, tau2_h * H)

    def log_survival(ages_s: Array) -> Array:
        alive = np.where(ages_s >= paper.OVER_H * H, 0.0, 1.0 - printed.cdf(ages_s) + printed.cdf(0.0))
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(np.clip(alive, 0.0, 1.0)))

    return tabulate(log_survival, until_s=25.0 * H, cell_s=_CELL_S)


def choice_of(cpus: int, source: FitOrigin, runtime_s: float | None = None) -> MachineChoice:
    """Return a preemptible type with its price in 2019 and its lifetimes."""
    lifetimes = lifetimes_of_type(cpus, source)
    usd_per_hour = cpus * paper.CPU_USD_PER_HOUR
    return MachineChoice(f"n1-highcpu-{cpus}", cpus, usd_per_hour, lifetimes.mean_left_s(), runtime_s, lifetimes)


def predicted(app: str, source: FitOrigin) -> dict[int, ScoredChoice]:
    """Return what a job of 64 cores is expected to need on each type whose running time is printed, by CPUs."""
    choices = [choice_of(cpus, source, base_h * H) for cpus, (base_h, _) in paper.RUNS_H[app].items()]
    return {int(one.choice.cores): one for one in score(choices, paper.SELECTION_CORES)}


def chosen_cpus(app: str, source: FitOrigin) -> int:
    """Return the type with the least expected cost."""
    found = predicted(app, source)
    return min(found, key=lambda cpus: found[cpus].usd or 0.0)


def exosphere_cpus(app: str, source: FitOrigin) -> int:
    """Return ExoSphere's choice by price and mean time to failure: all cost the same per core, so the longest mean."""
    return max(paper.RUNS_H[app], key=lambda cpus: lifetimes_of_type(cpus, source).mean_left_s())


def longer_pct(runtime_h: float, cpus: int, cores: int, source: FitOrigin) -> float:
    """Return what losses add to a job on fresh machines, exactly [% of its time]."""
    (one,) = score([choice_of(cpus, source, runtime_h * H)], cores)
    return 100.0 * ((one.expected_s or 0.0) / (runtime_h * H) - 1.0)


def assumed_pct(runtime_h: float, cpus: int, cores: int) -> float:
    """Return what equation 3 adds with the mean times to failure that the authors' notebook assumes [% of its time]."""
    expected_h = published_expected_s(runtime_h, paper.ASSUMED_MTTF_H[cpus], -(-cores // cpus))
    return 100.0 * (expected_h / runtime_h - 1.0)
