"""Asks a Ray cluster which versions it has: `python -m windfall.cli.ray_probe HOST:PORT`, in an environment as a machine's.

A process of its own, because Ray reads its token when it is imported.
"""

from __future__ import annotations

import importlib
import json
import sys

REFUSED, SILENT = 3, 4
"""Exit codes: the cluster refuses the token, or this one without a token; nothing there answers as Ray does."""


def main() -> int:
    """Print the versions as JSON, [Ray's, Python's]."""
    # Ray's own client; there is no public call that neither joins the cluster nor needs its dashboard.
    from ray._common.usage.usage_lib import get_cluster_metadata  # noqa: PLC0415 - Ray is an extra
    from ray.exceptions import AuthenticationError, RayError  # noqa: PLC0415

    client = importlib.import_module("ray._raylet").GcsClient
    try:
        found = get_cluster_metadata(client(address=sys.argv[1]))
    except AuthenticationError:
        return REFUSED
    except (RayError, RuntimeError, ConnectionError) as error:
        print(str(error).strip().partition("\n")[0], file=sys.stderr)
        return SILENT
    if not found:
        return SILENT
    print(json.dumps([found["ray_version"], found["python_version"]]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
