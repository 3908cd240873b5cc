"""Clusters for tests, ended with the test; where there is no Slurm to have, the test skips and says why."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.slurm.cluster import ClusterSettings, SlurmCluster, no_slurm

StartSlurm = Callable[..., SlurmCluster]


@pytest.fixture
def start_slurm(record_property: Callable[[str, object], None]) -> Iterator[StartSlurm]:
    """Start a cluster with the settings of `ClusterSettings`; all that a test started end with it."""
    with ExitStack() as running:

        def start(**settings: object) -> SlurmCluster:
            wanted = ClusterSettings(**settings)
            if reason := no_slurm(accounting=wanted.accounting):
                pytest.skip(reason)
            cluster = running.enter_context(SlurmCluster(wanted))
            record_property("slurm", cluster.run("sinfo", "--version"))
            return cluster

        yield start
