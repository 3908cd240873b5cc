"""What a script finds when it starts, and what it is shown of this machine's end."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from windfall.agent.session import ExecRequest
from windfall.ports import Clock, Restored
from windfall.terms import Notice, NoticeLevel
from windfall.wire import environment, peers
from windfall.wire.programs import program, users_environment

_LAUNCHERS = frozenset({"torchrun", "accelerate", "deepspeed", "mpirun", "mpiexec", "srun", "horovodrun", "colossalai"})
_LAUNCHER_MODULES = frozenset({"torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"})


@dataclass(frozen=True, slots=True)
class Start:
    """One start of the script on this machine.

    Attributes:
        run_id, term: of the run as this machine, or its leader, holds it.
        master_port: where the ranks of all machines meet, on the leader's machine; 0 for a machine that trains alone.
    """

    run_id: str
    term: int
    attempt: int
    restored: Restored
    master_port: int = 0


def notice_file(request: ExecRequest) -> str:
    """Return the path of the file that appears when a notice arrives."""
    return os.path.join(request.pages, "notice.json")


def show_notice(request: ExecRequest, notice: Notice, clock: Clock) -> None:
    """Write the file that says what is known of this machine's end; remove it when nothing is known any more."""
    path = notice_file(request)
    if notice.level is NoticeLevel.WITHDRAWN:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        return
    left_s = None if notice.deadline is None else notice.deadline - clock.now()
    unix = None if left_s is None else clock.wall() + left_s
    content = {"level": notice.level.value, "seconds_left": left_s, "deadline_unix": unix, "source": notice.source}
    with open(f"{path}.new", "w") as file:
        json.dump(content, file)
    os.replace(f"{path}.new", path)


def script_environment(request: ExecRequest, start: Start, argv: Sequence[str]) -> dict[str, str]:
    """Return the environment of the script: this one's, plus ours, minus what belonged to an earlier attempt."""
    given = environment.without_lent(users_environment(os.environ))
    env = {name: value for name, value in given.items() if not name.startswith("WINDFALL_")}
    # A script whose output is a pipe would otherwise hold it back, and a killed one would lose it.
    env.setdefault("PYTHONUNBUFFERED", "1")
    # A tracker run goes on over restarts unless the user decided otherwise.
    env.setdefault("WANDB_RUN_ID", start.run_id)
    env.setdefault("WANDB_RESUME", "allow")
    # The tightest of cloud, orchestrator and launcher wins: torchrun's own 30 s must not be it.
    env.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(int(request.after_sigterm_s)))
    env["PATH"] = os.pathsep.join((own_command(request.session), env.get("PATH", os.defpath)))
    env[environment.SESSION] = os.path.join(request.pages, str(start.attempt))
    env[environment.RUN] = request.url
    env[environment.TERM] = str(start.term)
    env[environment.ATTEMPT] = str(start.attempt)
    env[environment.STEP] = str(start.restored.step)
    env[environment.NOTICE_FILE] = notice_file(request)
    env[environment.NODE_RANK], env[environment.NODE_COUNT] = str(request.node_rank), str(max(len(request.peers), 1))
    if start.restored.checkpoint is not None:
        env[environment.CHECKPOINT_DIR] = request.path("points", str(start.attempt))
        env[environment.CHECKPOINT] = start.restored.checkpoint
    if request.peers:
        env |= _meeting_place(request, start, argv)
    return env


def own_command(session: str) -> str:
    """Return a folder that holds nothing but `windfall`, the one that runs here: it is made at the first call.

    A script finds it by its PATH however this Windfall was started, and no other program of its environment.
    """
    folder = os.path.join(session, "bin")
    path = os.path.join(folder, "windfall")
    if not os.path.exists(path):
        os.makedirs(folder, mode=0o700, exist_ok=True)
        with open(f"{path}.new", "w") as file:
            file.write(f'#!/bin/sh\nexec {shlex.join(program("windfall.cli.main"))} "$@"\n')
            os.fchmod(file.fileno(), 0o700)
        os.replace(f"{path}.new", path)
    return folder


def _meeting_place(request: ExecRequest, start: Start, argv: Sequence[str]) -> dict[str, str]:
    """Return where the ranks meet, in our words, and in those of `env://` scripts.

    A launcher (torchrun) numbers its ranks itself and is told by its own options; for any other command this machine is
    one rank.
    """
    hosts = [peers.host_and_port(address)[0] for address in request.peers]
    port = str(start.master_port)
    found = {
        environment.MASTER_ADDR: hosts[0],
        environment.MASTER_PORT: port,
        environment.NODE_ADDRESSES: ",".join(hosts),
        "MASTER_ADDR": hosts[0],
        "MASTER_PORT": port,
    }
    if not is_launcher(argv):
        rank, count = str(request.node_rank), str(len(request.peers))
        found |= {"RANK": rank, "WORLD_SIZE": count, "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    return found


def is_launcher(argv: Sequence[str]) -> bool:
    """Say whether a command is one that starts the ranks of its machine itself."""
    if not argv:
        return False
    module = argv[2] if len(argv) > 2 and argv[1] == "-m" else ""
    return os.path.basename(argv[0]) in _LAUNCHERS or module in _LAUNCHER_MODULES


def free_port(addresses: Sequence[str]) -> int:
    """Return a TCP port of the leader (this machine) on which nobody listens now; 0 if no other machine takes part."""
    if not addresses:
        return 0
    host, _ = peers.host_and_port(addresses[0])
    with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        port: int = probe.getsockname()[1]
    return port
