"""An item of the tests: it notes its start and its end, and prints and writes a value that its parameter and seed decide.

`short_item.py X SEED SECONDS RANKS`; with more than one rank it starts them, waits for all, and fails if one does.
The standard library's smallest modules only: forty of these run in a few seconds.
"""

import os
import sys
import time

SEED_OF_BAD = 3
"""Items whose parameter is below zero fail with this exit code."""
LINES = 4000


def value_of(x: int, seed: int) -> int:
    """What an item computes."""
    return (seed * 2654435761 + x * 40503 + 12345) % (1 << 32)


def printed_by(x: int, seed: int) -> str:
    """All that an item prints."""
    return f"value = {value_of(x, seed)}\n"


def written_by(x: int, seed: int) -> str:
    """The whole file `out.json` of an item."""
    lines = ", ".join(str((value_of(x, seed) + line) % 9973) for line in range(LINES))
    return f'{{"lines": [{lines}], "value": {value_of(x, seed)}}}\n'


def note(what: str) -> None:
    """Write a line in one piece to the file that all tries of all items share."""
    words = (what, os.environ["WINDFALL_ITEM"], os.environ["WINDFALL_ATTEMPT"], sys.argv[2], repr(time.time()))
    fd = os.open(os.environ["NOTES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(fd, (" ".join(words) + "\n").encode())
    os.close(fd)


def run_ranks(seconds: str, ranks: int) -> int:
    """Run the ranks, and end all with the first that fails."""
    line = [sys.executable, "-I", "-S", os.path.realpath(__file__), "rank", seconds]
    pids = {os.spawnv(os.P_NOWAIT, sys.executable, line) for _ in range(ranks)}
    failed = 0
    while pids:
        pid, status = os.wait()
        pids.discard(pid)
        if status and not failed:
            failed = 1
            for other in pids:
                os.kill(other, 9)
    return failed


def main() -> int:
    """Run as an item, or as one of its ranks."""
    if sys.argv[1] == "rank":
        time.sleep(float(sys.argv[2]))
        return 0
    x, seed, seconds, ranks = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    note("start")
    text = written_by(x, seed)
    with open("out.json", "w") as file:
        file.write(text[: len(text) // 2])
        file.flush()
        if ranks > 1:
            if failed := run_ranks(seconds, ranks):
                return failed
        else:
            time.sleep(float(seconds))
        file.write(text[len(text) // 2 :])
    sys.stdout.write(printed_by(x, seed))
    if x < 0:
        return SEED_OF_BAD
    note("end")
    return 0


if __name__ == "__main__":
    sys.exit(main())
