"""Looks at the Ray cluster that a job file names, before anything is bought for it."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import socket
import subprocess
from collections.abc import Mapping

from windfall.cli.ray_probe import REFUSED
from windfall.errors import Misuse
from windfall.extras import install
from windfall.policies.layout import tier_rules
from windfall.policies.policy_registry import PARAMSERVER
from windfall.spec.job_file import JobFile
from windfall.wire.python_programs import program
from windfall.wire.ray_environment import TOKEN, given_environment

CONNECT_MAX_S = 5.0
ANSWER_MAX_S = 60.0
"""The first import of Ray takes many seconds on a slow disk [s]."""
KEY = f"runtime.{PARAMSERVER}.ray"


def check_cluster(file: JobFile) -> None:
    """Refuse a job whose machines could not join the cluster that its job file names; nothing if it names none.

    Raises:
        Misuse: nothing answers there, its token is missing or another, or it has another version of Ray or Python.
    """
    if file.runtime is None or file.runtime.name != PARAMSERVER:
        return
    address = tier_rules.job_of(file.runtime.settings).ray
    if not address:
        return
    try:
        own = importlib.metadata.version("ray"), platform.python_version()
    except importlib.metadata.PackageNotFoundError:
        raise Misuse(
            f"{KEY}: to look at the cluster before it buys, this computer needs Ray: {install(PARAMSERVER)}"
        ) from None
    _check_answer(address)
    versions = _versions(address, _token(file))
    if versions != own:
        theirs, ours = (f"Ray {ray} and Python {python}" for ray, python in (versions, own))
        raise Misuse(
            f"{KEY}: the cluster at {address} has {theirs}, and here is {ours}: its machines must have the same; install "
            f"ray=={versions[0]} under that Python, here and by setup, or leave {KEY} out"
        )


def _token(file: JobFile) -> str:
    """Return the cluster's token as the job's machines will have it; empty if they have none."""
    if TOKEN in file.secrets:
        return os.environ.get(TOKEN, "")
    return file.envs.get(TOKEN, "")


def _check_answer(address: str) -> None:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_MAX_S).close()
    except OSError as error:
        raise Misuse(
            f"{KEY}: nothing answers at {address} ({error.strerror or error}): write host:port of the head of your Ray "
            "cluster, as `ray start --head` printed it"
        ) from None


def _versions(address: str, token: str) -> tuple[str, str]:
    """Return which versions a cluster has, of Ray and Python.

    Raises:
        Misuse: it does not say.
    """
    found = _asked(address, {})
    if found is not None and token:
        raise Misuse(f"{KEY}: the cluster at {address} takes no token: remove {TOKEN} from secrets and envs")
    if found is None and not token:
        raise Misuse(f"{KEY}: the cluster at {address} asks for a token: export {TOKEN}, and write secrets: [{TOKEN}]")
    if found is None:
        found = _asked(address, {TOKEN: token})
    if found is None:
        raise Misuse(
            f"{KEY}: the cluster at {address} refuses the token in {TOKEN}: export the one that its head was started with"
        )
    return found


def _asked(address: str, token: Mapping[str, str]) -> tuple[str, str] | None:
    """Return which versions a cluster has; None if it refuses this token.

    Raises:
        Misuse: it does not answer as Ray does.
    """
    plain = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    try:
        asked = subprocess.run(
            program("windfall.cli.ray_probe", address), env={**plain, **given_environment(token), **token},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ANSWER_MAX_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise _no_ray(address, "no answer") from None
    if asked.returncode == REFUSED:
        return None
    lines = asked.stdout.splitlines()
    if asked.returncode or not lines:
        message_lines = asked.stderr.strip().splitlines()
        raise _no_ray(address, message_lines[-1] if message_lines else "no answer")
    ray, python = json.loads(lines[-1])
    return str(ray), str(python)


def _no_ray(address: str, why: str) -> Misuse:
    return Misuse(
        f"{KEY}: what answers at {address} is no head of a Ray cluster ({why}): write the port that `ray start --head` printed"
    )
