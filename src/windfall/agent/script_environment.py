"""The script's environment variables, and the file that shows it a notice."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
from collections.abc import Sequence

from windfall.agent.exec_request import ExecRequest
from windfall.linux.listening import free_port
from windfall.ports import Clock, Restored
from windfall.structs import Struct
from windfall.terms import Notice, NoticeLevel
from windfall.wire import environment, peer_messages
from windfall.wire.python_programs import program, user_environment

_LAUNCHERS = frozenset({"torchrun", "accelerate", "deepspeed", "mpirun", "mpiexec", "srun", "horovodrun", "colossalai"})
_LAUNCHER_MODULES = frozenset({"torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"})


class ScriptStart(Struct, frozen=True):
    """One start of the script on this machine.

    Attributes:
        run_id, term: of the run that this machine, or its leader, holds.
        master_port: the leader's port at which the ranks of all machines meet; 0 for a machine that trains alone.
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
    """Write the file with a notice of this machine's end; remove it when the notice is withdrawn."""
    path = notice_file(request)
    if notice.level is NoticeLevel.WITHDRAWN:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        return
    remaining_s = None if notice.deadline is None else notice.deadline - clock.now()
    unix = None if remaining_s is None else clock.wall_time() + remaining_s
    content = {"level": notice.level.value, "seconds_left": remaining_s, "deadline_unix": unix, "source": notice.source}
    with open(f"{path}.new", "w") as file:
        json.dump(content, file)
    os.replace(f"{path}.new", path)


def inherited_environment() -> dict[str, str]:
    """Return what a script inherits of this process's environment: all but what opens the store."""
    return environment.without_store_variables(user_environment(os.environ))


def script_environment(request: ExecRequest, start: ScriptStart, argv: Sequence[str]) -> dict[str, str]:
    """Return the script's environment: this process's, with Windfall's variables for this attempt."""
    given = inherited_environment()
    env = {name: value for name, value in given.items() if not name.startswith("WINDFALL_")}
    # Python buffers its output to a pipe, and a killed script would lose it.
    env.setdefault("PYTHONUNBUFFERED", "1")
    # A tracker's run continues over restarts, unless the user has decided otherwise.
    env.setdefault("WANDB_RUN_ID", start.run_id)
    env.setdefault("WANDB_RESUME", "allow")
    # The shortest limit of cloud, orchestrator and launcher wins: it must not be torchrun's default of 30 s.
    env.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(int(request.after_sigterm_s)))
    env["PATH"] = os.pathsep.join((command_folder(request.session), env.get("PATH", os.defpath)))
    env[environment.SESSION] = os.path.join(request.pages, str(start.attempt))
    env[environment.RUN] = request.url
    env[environment.TERM] = str(start.term)
    env[environment.ATTEMPT] = str(start.attempt)
    env[environment.STEP] = str(start.restored.step)
    env[environment.NOTICE_FILE] = notice_file(request)
    env[environment.NODE_RANK], env[environment.NODE_COUNT] = str(request.node_rank), str(max(len(request.peers), 1))
    if start.restored.checkpoint is not None:
        env[environment.CHECKPOINT_DIR] = request.path("checkpoints", str(start.attempt))
        env[environment.CHECKPOINT] = start.restored.checkpoint
    if request.peers:
        env |= _rendezvous_variables(request, start, argv)
    return env


def command_folder(session: str) -> str:
    """Return a folder with nothing but this installation's `windfall`; the first call makes it.

    On the script's PATH it makes `windfall` available however this process was started, and no other program.
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


def _rendezvous_variables(request: ExecRequest, start: ScriptStart, argv: Sequence[str]) -> dict[str, str]:
    """Return the variables for the rendezvous of the ranks: Windfall's, and those of `env://` scripts.

    A launcher (torchrun) numbers its ranks itself and has its own options; for any other command this machine is one
    rank.
    """
    hosts = [peer_messages.host_and_port(address)[0] for address in request.peers]
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
    """Say whether a command is a launcher, which starts the ranks of its machine itself."""
    if not argv:
        return False
    module = argv[2] if len(argv) > 2 and argv[1] == "-m" else ""
    return os.path.basename(argv[0]) in _LAUNCHERS or module in _LAUNCHER_MODULES


def master_port(addresses: Sequence[str]) -> int:
    """Return a free TCP port of the leader (this machine); 0 if no other machine takes part."""
    if not addresses:
        return 0
    host, _ = peer_messages.host_and_port(addresses[0])
    return free_port(host)
