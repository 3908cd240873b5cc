"""The list of policies: what is in it can be used everywhere, and what is not is refused in a sentence."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from tests.policies.offers import JOB
from windfall.errors import Misuse
from windfall.jobs import RuntimeSpec
from windfall.policies import policy_registry
from windfall.policies.acquisition import fleet_policy, fleet_policy_list
from windfall.policies.checkpointing.decision import EVERY, parse_policy, rules, saving_policy
from windfall.policies.layout import checkpoint_rules, runtime_list
from windfall.policies.planning import job_checks
from windfall.policies.policy_registry import GROUPS, PolicyEntry, PolicyKind
from windfall.simulation import kernel_world, simulated_policies
from windfall.structs import replace


@pytest.fixture
def forget() -> Iterator[None]:
    """Forget what was loaded, before and after a test that changes the list."""
    caches = (policy_registry.entries, policy_registry.load, saving_policy)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


@pytest.fixture
def foreign(forget: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Another package with a runtime, a fleet policy, and a fleet policy that calls itself `fixed`."""
    (tmp_path / "foreign_policies.py").write_text(
        "from windfall.policies.acquisition.fleet_policy import FleetTarget\n"
        "from windfall.policies.layout.checkpoint_rules import RULES\n"
        'def hoard(view, estimates):\n    """Have everything.\n\n    More.\n    """\n    return FleetTarget(view.needs)\n'
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    points = {
        GROUPS[PolicyKind.FLEET]: {
            "hoard": "foreign_policies:hoard",
            "fixed": "foreign_policies:hoard",
            "lost": "nowhere:x",
        },
        GROUPS[PolicyKind.RUNTIME]: {"pairs": "foreign_policies:RULES"},
    }
    monkeypatch.setattr(
        policy_registry, "entry_points", lambda group: [EntryPoint(*pair, group) for pair in points[group].items()]
    )


@pytest.mark.usefixtures("foreign")
def test_another_package_adds_policies() -> None:
    """Entry points are found, loaded at their first use, described by their own words, and take nobody's name."""
    assert policy_registry.names(PolicyKind.FLEET) == (
        "fixed", "by-age", "bidbrain", "mix", "spotdnn", "optimal-deadline", "uniform-progress", "greedy-deadline",
        "explore", "hoard", "lost",
    )  # fmt: skip
    assert "foreign_policies" not in sys.modules
    assert fleet_policy_list.policy("fixed") is fleet_policy.fixed
    assert policy_registry.described(PolicyKind.FLEET, "hoard") == "Have everything."
    assert policy_registry.described(PolicyKind.RUNTIME, "pairs") == checkpoint_rules.RULES.help
    assert runtime_list.rules("pairs") is checkpoint_rules.RULES
    del sys.modules["foreign_policies"]


@pytest.mark.usefixtures("foreign")
def test_a_policy_without_its_package_says_so() -> None:
    """What is missing is named; a policy that is not there is compared with those that are."""
    with pytest.raises(Misuse, match=r"the fleet policy lost needs the package nowhere, which is not installed$"):
        fleet_policy_list.policy("lost")
    with pytest.raises(
        Misuse,
        match="the runtime bags is not installed; this installation has checkpoint, bag, paramserver, elastic, pairs",
    ):
        runtime_list.rules("bags")


@pytest.mark.usefixtures("forget")
def test_the_extra_of_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A runtime of ours whose packages are an extra says which."""
    entry = PolicyEntry(PolicyKind.RUNTIME, "rays", "rays", "no_such_package.sub:RULES", "with a cluster", extra="ray")
    monkeypatch.setattr(policy_registry, "ENTRIES", (*policy_registry.ENTRIES, entry))

    with pytest.raises(
        Misuse, match=r"the runtime rays needs the package no_such_package, .*; Windfall's extra ray has it"
    ):
        runtime_list.rules("rays")


@pytest.mark.usefixtures("forget")
def test_a_saving_policy_without_kernel_code_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A simulation says that it does not know the policy, and which ones it does know."""
    entry = PolicyEntry(
        PolicyKind.SAVING, "lunar", "lunar", "windfall.policies.checkpointing.decision:ADAPTIVE", "by the moon"
    )
    monkeypatch.setattr(policy_registry, "ENTRIES", (*policy_registry.ENTRIES, entry))
    assert parse_policy("Lunar") == "lunar"

    with pytest.raises(
        Misuse, match="the saving policy lunar cannot be simulated: it has no kernel; choose from adaptive, "
    ):
        simulated_policies.kernel_code("lunar")


def test_the_kernels_have_the_list_s_numbers() -> None:
    """Every built-in saving policy has a kernel, and the kernels' numbers are those of the list."""
    codes = {entry.name: entry.kernel for entry in policy_registry.own(PolicyKind.SAVING)}
    assert None not in codes.values()
    assert codes["young-daly"] == kernel_world.YOUNG == 4
    assert codes["never"] == kernel_world.NEVER == 0
    assert len(set(codes.values())) == len(codes)


def test_a_rule_alone_is_a_saving_policy() -> None:
    """An entry that names a scalar rule is a policy; one with an argument is found by the part before it."""
    assert saving_policy("young-daly").interval_s is rules.young_interval_s
    assert saving_policy("every:600s") is EVERY


def test_a_job_from_elsewhere_is_checked() -> None:
    """A job that did not come from a file is refused for the same reasons."""
    strange = replace(JOB, runtime=RuntimeSpec("bags"), fleet="greedy")
    assert {path for path, _ in job_checks.problems(strange)} >= {"runtime", "fleet"}
    unset = replace(JOB, runtime=RuntimeSpec(settings={"a": 1}))
    assert ("runtime.checkpoint", "has no settings; write `runtime: checkpoint`") in list(job_checks.problems(unset))
