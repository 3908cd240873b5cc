"""The environment of Ray's processes on a job's machines; Ray reads it when it is imported.

Uses only the standard library, and no other module of Windfall.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from types import MappingProxyType

CLUSTER: Mapping[str, str] = MappingProxyType(
    {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "token",
        # What Ray writes to standard error is of its own inside; what matters reaches us as errors of calls.
        "RAY_BACKEND_LOG_LEVEL": "fatal",
        # Who is lost is the coordinator's to say, much sooner; a node that is only slow must not be ended by Ray.
        "RAY_health_check_initial_delay_ms": "5000",
        "RAY_health_check_period_ms": "1000",
        "RAY_health_check_timeout_ms": "5000",
        "RAY_health_check_failure_threshold": "5",
        "RAY_gcs_rpc_server_reconnect_timeout_s": "15",
        # Ray starts its workers with niceness 15, and a machine whose actor hardly runs is taken for lost.
        "RAY_worker_niceness": "0",
    }
)


TOKEN, MODE = "RAY_AUTH_TOKEN", "RAY_AUTH_MODE"


def given_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return Ray's variables for machines that join a cluster that is there.

    Args:
        environ: of the job, with the cluster's token, if it has one.
    """
    return {**CLUSTER, MODE: "token" if environ.get(TOKEN) else "disabled"}


def ray_environment(secret: str) -> dict[str, str]:
    """Return Ray's variables for machines that share a secret; the token does not tell the secret."""
    return {**CLUSTER, "RAY_AUTH_TOKEN": hashlib.sha256(f"ray {secret}".encode()).hexdigest()}
