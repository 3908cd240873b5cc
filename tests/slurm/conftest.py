"""Clusters for tests, ended with the test; where there is no Slurm to have, the test skips and says why."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.slurm.cluster import SlurmCluster, no_slurm
from tests.slurm.configuration import ClusterSettings

StartSlurm = Callable[..., SlurmCluster]


@pytest.fixture
def start_slurm(record_property: Callable[[str, object], None]) -> Iterator[StartSlurm]:
    """`start_slurm(nodes=2)` starts a cluster with these fields of `ClusterSettings`; all end with the test, if not before."""
    with ExitStack() as running:

        def start(**settings: Any) -> SlurmCluster:
            wanted = ClusterSettings(**settings)
            if reason := no_slurm(accounting=wanted.accounting):
                pytest.skip(reason)
            cluster = running.enter_context(SlurmCluster(wanted))
            record_property("slurm", cluster.run("sinfo", "--version"))
            return cluster

        yield start
