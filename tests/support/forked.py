"""Many short trainings in processes of their own for the price of one import: a server that forks for each."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]


def serve(main: Callable[[], str]) -> None:
    """Run `main` in a child for each line of input (the child's environment), and print what it returns as one line."""
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            os.environ.update(json.loads(line))
            try:
                sys.stdout.write(f"RESULT {main()}\n")
            except BaseException:
                sys.stdout.write(f"FAILED {json.dumps(traceback.format_exc())}\n")
            sys.stdout.flush()
            os._exit(0)
        os.waitpid(pid, 0)


def sigterm_to_all() -> None:
    """Have another process send SIGTERM to this one and to its workers, as a machine that goes down does."""
    workers = [str(child.pid) for child in multiprocessing.active_children()]
    subprocess.run(["kill", "-TERM", str(os.getpid()), *workers], check=True)


@contextmanager
def server(module: str) -> Iterator[Callable[[dict[str, str]], str]]:
    """Start a module that serves; yield the function that runs one training under an environment."""
    command = [sys.executable, "-W", "ignore", "-m", module]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)

    def run(variables: dict[str, str]) -> str:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(variables) + "\n")
        process.stdin.flush()
        for line in process.stdout:
            kind, _, rest = line.partition(" ")
            if kind == "FAILED":
                raise AssertionError(json.loads(rest))
            if kind == "RESULT":
                return rest.strip()
        raise AssertionError("the training ended without a word")

    try:
        yield run
    finally:
        process.communicate(timeout=60)
