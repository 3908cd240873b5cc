"""The script with which a bare Linux machine starts: it needs sh and Python 3.11, and ends as the node agent.

A provider hands it to the machine as user data, as a container's command, or over ssh.  It may be readable by others, so
it holds no secret unless the provider says which: `embed` is for the one-time credential of a cloud whose user data is
the only way in.  Otherwise the provider leaves `secrets.json` in the machine's folder, readable by its owner alone.
"""

from __future__ import annotations

import json
import shlex
from importlib import resources

from windfall.market import BootSpec

NODE_AGENT = ("python3", "-P", "-m", "windfall.cli.node_agent_process")
"""The node agent, on a machine whose Python is found on PATH."""
USER_DATA_BYTES_MAX = 16 * 1024
"""What AWS takes as user data [B], the least of the clouds."""
_PYTHON_MIN = (3, 11)
_CONTAINER = """\
for engine in docker podman; do
  command -v "$engine" >/dev/null 2>&1 && exec "$engine" run --rm --network=host {variables} {image} {argv}
done
echo 'windfall: this machine has neither docker nor podman' >&2
exit 69
"""
_PYTHON = """\
command -v python3 >/dev/null 2>&1 || {{ echo 'windfall: this machine has no python3' >&2; exit 69; }}
python3 -c 'import sys; sys.exit(sys.version_info < {version})' || {{
  echo 'windfall: this machine needs Python {least} or newer' >&2; exit 69; }}
exec python3 -c {program} {plan}
"""


def start_script(spec: BootSpec, *, embed: frozenset[str] = frozenset()) -> str:
    """Return the script.

    Args:
        spec: what the machine is to run, with the image that it has and the archive of the agent if that is not on it.
        embed: names of the secrets that the script may hold.
    """
    variables = [*spec.env, *((one.name, one.value) for one in spec.secrets if one.name in embed)]
    lines = ["#!/bin/sh", "# Starts the node agent of Windfall.", "set -eu", "umask 077"]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in variables]
    return "\n".join(lines) + "\n" + _body(spec)


def _body(spec: BootSpec) -> str:
    if spec.image is not None and spec.image.container:
        # Names alone: the values are in this shell's environment, and in no command line.
        names = [name for name, _ in spec.env] + [secret.name for secret in spec.secrets]
        return _CONTAINER.format(
            variables=" ".join(f"--env {name}" for name in names),
            image=shlex.quote(spec.image.name),
            argv=shlex.join(spec.argv),
        )
    plan = {
        "url": "" if spec.agent is None else spec.agent.url,
        "sha256": "" if spec.agent is None else spec.agent.sha256,
        "argv": list(spec.argv),
    }
    source = resources.files("windfall.wire").joinpath("agent_start.py").read_text("utf-8")
    return _PYTHON.format(
        version=_PYTHON_MIN,
        least=".".join(str(number) for number in _PYTHON_MIN),
        program=shlex.quote(source),
        plan=shlex.quote(json.dumps(plan)),
    )
