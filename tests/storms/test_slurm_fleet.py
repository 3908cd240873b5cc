"""On a site with Slurm's habits, whatever they do together, a job buys no machine too many and ends, its hours Slurm's own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest

from tests.storms import planted_slurm
from tests.storms.slurm_fleet import storm
from tests.support.checks import Violation

QUICK = 30
ALL = 1000
CAUGHT_WITHIN = 60
QUICK_BUGS = ("second of a name kept", "unseen end billed until found", "completing taken for gone")
VISITED = (
    *("pending Priority", "pending Resources", "pending ReqNodeNotAvail", "pending Dependency"),
    *(
        "pending QOSMaxJobsPerUserLimit",
        "pending AssocGrpCpuLimit",
        "pending PartitionConfig",
        "pending BadConstraints",
    ),
    *("sbatch timed out, and the job is there", "sbatch came twice", "a second of a name"),
    *("sbatch doubled", "sbatch carried out late", "sbatch reply lost", "scancel reply lost", "killed at sbatch"),
    *(
        "slurmctld away",
        "slurmctld killed",
        "sbatch before the nodes reported",
        "started again under its number",
        "started before",
        "released before its start",
    ),
    *("preempted with a grace", "preempted without a grace", "completed in the grace", "time limit"),
    *("NODE_FAIL", "NODE_FAIL with living processes", "a lost node's machine read its release"),
    *("a machine that lives on is fenced", "requeued by an admin"),
    *("sacct lags", "billed until it was last seen", "an array", "a gang"),
    *("controller killed", "controller paused", "controller replaced", "outage 3600", "order unanswered"),
    *("machine preempted", "machine failed", "machine stopped", "zombie released", "credentials refused"),
    *("ended done", "ended failed", "ended stopped"),
)
"""The habits that storms must have been through, or they prove nothing."""


def storms(seeds: Iterable[int]) -> Counter[str]:
    """Run seeds and return what they visited."""
    visited: Counter[str] = Counter()
    for seed in seeds:
        visited += storm(seed).tally
    return visited


@pytest.mark.timeout(120)
def test_slurm_storms_keep_every_promise() -> None:
    """One live machine a slot, one job a token, a bill that is the cluster's account, an empty queue at the end."""
    visited = storms(range(QUICK))
    print(f"{QUICK} storms, {visited['bought']} orders, {visited['machine started']} machines")
    assert visited["machine started"] > QUICK


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_thousand_slurm_storms_keep_every_promise() -> None:
    """The same over a thousand seeds, in which each of Slurm's habits occurs."""
    visited = storms(range(ALL))
    print(f"{ALL} storms, {visited['bought']} orders, {visited['machine started']} machines")
    assert [what for what in VISITED if not visited[what]] == []


def violation(seed: int, name: str) -> str | None:
    """Return what a storm with a planted bug says, None if it goes unnoticed."""
    try:
        storm(seed, name)
    except Violation as found:
        return str(found)
    return None


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK_BUGS else pytest.mark.slow) for name in planted_slurm.BUGS]
)
def test_a_planted_slurm_bug_is_caught(name: str) -> None:
    """Each bug that a Slurm provider must not have breaks a promise within sixty seeds, and says how to replay it."""
    caught = next((words for seed in range(CAUGHT_WITHIN) if (words := violation(seed, name))), None)
    assert caught is not None, f"{name!r} went unnoticed in {CAUGHT_WITHIN} storms"
    assert f"--bug '{name}'" in caught


def test_the_same_seed_is_the_same_slurm_storm() -> None:
    """A storm is replayed by its seed alone, journal row by row and command by command."""
    first, second = storm(3), storm(3)
    assert first.rows == second.rows
    assert first.tally == second.tally
    assert first.site.calls == second.site.calls
