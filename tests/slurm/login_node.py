"""A login node on loopback: a real sshd with keys and configuration of its own, and the `ssh` of somebody who may use it.

It needs no root.  Run by root, sshd wants a user `sshd` and a folder `/run/sshd`: it gets both in a mount namespace of its own.
"""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.slurm.cluster import SlurmCluster
from tests.slurm.packages import SlurmUnavailable, find_sshd

KNOWN, STRANGER = "login", "stranger"
"""Names of the login node: for one whose key it knows, and for one whose key it refuses."""
LIMIT_S = 10.0
_ENTER = """\
mount -t tmpfs none /run && mkdir -m 755 /run/sshd || exit 1
{ cat /etc/passwd; echo 'sshd:x:64999:65534::/run/sshd:/usr/sbin/nologin'; } > passwd
mount --bind passwd /etc/passwd || exit 1
exec "$@"
"""
_INHERITED = ("PATH", "SLURM_CONF", "LD_LIBRARY_PATH", "PYTHONPATH")


@contextmanager
def login_node(cluster: SlurmCluster, folder: Path) -> Iterator[Mapping[str, str]]:
    """Run one, on which the site's commands are found; the environment of somebody who has only `ssh`."""
    if shutil.which("ssh") is None:
        pytest.skip("there is no ssh here")
    try:
        sshd, libraries = find_sshd()
    except SlurmUnavailable as error:
        pytest.skip(str(error))
    folder.mkdir()
    port = _free_port()
    _configure(folder, port, cluster.environment())
    line = [str(sshd), "-D", "-e", "-f", str(folder / "sshd_config")]
    if os.geteuid() == 0:
        line = ["unshare", "--mount", "sh", "-c", _ENTER, "sh", *line]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            line, cwd=folder, env=os.environ | {"LD_LIBRARY_PATH": libraries}, stdout=log, stderr=log
        )
    try:
        _until_it_listens(process, port, folder / "log")
        yield _only_ssh(folder)
    finally:
        process.terminate()
        process.wait()


def _configure(folder: Path, port: int, environ: Mapping[str, str]) -> None:
    for key in ("host", KNOWN, STRANGER):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True)
    given = " ".join(f'"{name}={environ[name]}"' for name in _INHERITED if name in environ)
    (folder / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/{KNOWN}.pub\n"
        f"StrictModes no\nPidFile none\nUsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
        f"SetEnv {given}\n"
    )
    (folder / "ssh_config").write_text(
        "".join(
            f"Host {name}\n  HostName 127.0.0.1\n  Port {port}\n  IdentityFile {folder}/{name}\n  IdentitiesOnly yes\n"
            f"  IdentityAgent none\n  UserKnownHostsFile {folder}/known_hosts\n  StrictHostKeyChecking accept-new\n"
            for name in (KNOWN, STRANGER)
        )
    )


def _only_ssh(folder: Path) -> dict[str, str]:
    """An environment in which `ssh` reads this node's configuration, as it would that of the home, and Slurm is nowhere."""
    program = folder / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(str(shutil.which("ssh")))} -F {folder}/ssh_config "$@"\n')
    program.chmod(0o755)
    keep = ("PYTHONPATH", "HOME", "LANG", "VIRTUAL_ENV")
    return {name: os.environ[name] for name in keep if name in os.environ} | {"PATH": f"{program.parent}:/usr/bin:/bin"}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _until_it_listens(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    end = time.monotonic() + LIMIT_S
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert process.poll() is None, log.read_text("utf-8", "replace")
        assert time.monotonic() < end, f"sshd does not listen: {log.read_text('utf-8', 'replace')}"
        time.sleep(0.05)
