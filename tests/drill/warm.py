"""Scripts in processes that find torch imported: a server that forks, and the command that asks it.

    python -m tests.drill.warm SOCKET            serve
    python warm.py SOCKET RANKS SCRIPT           run a script there in so many ranks, like torchrun; end as it ends

A drill starts each script three times; importing torch is most of what that takes.
"""

from __future__ import annotations

import json
import os
import socket
import sys


def ask(path: str, ranks: int, script: str) -> int:
    """Run a script; return its exit status, the first that is not 0 of several ranks."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    open_ones = []
    for rank in range(ranks):
        env = dict(os.environ)
        if ranks > 1:
            env |= {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "LOCAL_WORLD_SIZE": str(ranks),
            }
            env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(path)
        wanted = {"env": env, "cwd": os.getcwd(), "script": script}
        socket.send_fds(connection, [json.dumps(wanted).encode()], [1, 2])
        connection.shutdown(socket.SHUT_WR)
        open_ones.append(connection)
    return next((code for one in open_ones if (code := int(one.recv(16) or b"1"))), 0)


def serve(path: str) -> None:
    """Fork for each request, until the standard input ends."""
    import selectors
    import signal

    import numpy as np  # noqa: F401 - what the scripts import
    import torch
    import torch._dynamo
    import torch.distributed
    import torch.nn.parallel
    import torch.utils.data

    torch.set_num_threads(1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    print("ready", flush=True)
    select = selectors.DefaultSelector()
    select.register(listener, selectors.EVENT_READ)
    select.register(0, selectors.EVENT_READ)
    while not any(key.fd == 0 for key, _ in select.select()):
        connection, _ = listener.accept()
        if os.fork() == 0:
            _be(connection, listener)
        connection.close()


def _be(connection: socket.socket, listener: socket.socket) -> None:
    """Fork once more, so that somebody waits for the script; then be it."""
    listener.close()
    pid = os.fork()
    if pid:
        _, status = os.waitpid(pid, 0)
        connection.send(str(os.waitstatus_to_exitcode(status)).encode())
        os._exit(0)
    data, fds, _, _ = socket.recv_fds(connection, 1 << 20, 2)
    while more := connection.recv(1 << 20):
        data += more
    wanted = json.loads(data)
    connection.close()
    for target, fd in zip((1, 2), fds, strict=True):
        os.dup2(fd, target)
    os.environ.clear()
    os.environ.update(wanted["env"])
    os.chdir(wanted["cwd"])
    sys.argv, sys.path[0] = [wanted["script"]], wanted["cwd"]
    _run(wanted["script"])


def _run(script: str) -> None:
    import runpy
    import traceback

    from windfall.drill import watch

    watch.install()
    code = 0
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        serve(sys.argv[1])
    else:
        sys.exit(ask(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
