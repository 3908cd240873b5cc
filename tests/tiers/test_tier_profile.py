"""The constants of spotDNN's model in a job's settings: the model that they make, and how mistakes are refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.control.house import a_job
from windfall.errors import Misuse
from windfall.jobs import RuntimeSpec
from windfall.models.asp import AspModel, AspPlatform, AspWorker, AspWorkload
from windfall.policies.layout import runtime_list, tier_profile

PROFILE: dict[str, Any] = {
    "workload": {
        "parameters_mb": 0.6,
        "required_mb_per_s": 4.0,
        "alpha1": 0.1,
        "beta1": 0.2,
        "gamma2": -1e-3,
        "gamma3": 90,
        "gamma5": 0.2,
        "start_loss": 1.1,
    },
    "platform": {"server_mb_per_s": 5.0, "pcie_mb_per_s": 1e9, "margin": 0.01},
    "workers": {"small": {"batch": 3000.0, "compute_s": 0.2}, "large": {"batch": 3000.0, "compute_s": 0.1, "gpus": 2}},
}


def test_a_profile_makes_the_model() -> None:
    """Each constant at its place; one GPU and the loss's other forms need not be named."""
    expected = AspModel(
        AspWorkload("words", 0.6, 4.0, 0.1, 0.2, None, -1e-3, 90, None, 0.2, 1.1),
        AspPlatform(5.0, 1e9, 1, 0.01),
        (AspWorker("small", 1, 3000.0, 0.2), AspWorker("large", 2, 3000.0, 0.1)),
    )

    assert tier_profile.model_of(PROFILE, "words") == expected
    job = a_job(runtime=RuntimeSpec("paramserver", {"clocks": 5, "profile": PROFILE}))
    training = runtime_list.rules("paramserver").training
    assert training is not None
    assert training(job) == tier_profile.model_of(PROFILE, "gpt")
    assert runtime_list.settings_problem(job.runtime) is None


def test_a_job_without_a_profile_predicts_nothing() -> None:
    """And says where one is shown."""
    training = runtime_list.rules("paramserver").training
    assert training is not None
    with pytest.raises(Misuse, match=r"has no profile.*how-to"):
        training(a_job(runtime=RuntimeSpec("paramserver", {"clocks": 5})))


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        ((), "words.yaml", "has 'words.yaml' where a map of workload, platform, workers must be"),
        (("workload",), None, "needs workload"),
        (("workload", "gamma3"), None, "needs workload.gamma3"),
        (("workload", "gama3"), 1.0, "has no workload.gama3; there are"),
        (("workload", "alpha1"), True, "has workload.alpha1 True: write a number"),
        (("workload", "gamma1"), 5.0, "either a gamma1 or a start_loss"),
        (("workload", "gamma2"), 1.0, "gamma2"),
        (("workload", "workers_power"), 1.5, "write a number from 0"),
        (("platform", "servers"), 1.5, "has platform.servers 1.5: write a whole number"),
        (("workers",), {}, "at least one type"),
        (("workers", "small"), 3, "has 3 where a map of batch, compute_s must be (workers.small)"),
        (("workers", "small", "batch"), 1e6, "holds for batches below"),
    ],
)
def test_a_wrong_profile_is_refused(place: tuple[str, ...], value: object, says: str) -> None:
    """In words that name the constant."""
    profile: Any = copy.deepcopy(PROFILE)
    if not place:
        profile = value
    else:
        inner = profile
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = value

    problem = runtime_list.settings_problem(RuntimeSpec("paramserver", {"clocks": 5, "profile": profile}))
    assert problem is not None
    assert says in problem, problem
    assert problem.startswith("has a profile that ")


def test_a_number_that_yaml_reads_as_text_is_a_number() -> None:
    """YAML 1.1 knows 1.0e+9 alone; 1e9 is what people write."""
    platform = {"server_mb_per_s": 5, "pcie_mb_per_s": "1e9"}
    assert tier_profile.model_of({**PROFILE, "platform": platform}).platform.pcie_mb_per_s == 1e9
