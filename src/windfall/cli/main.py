"""The command `windfall`: nobody who presses Ctrl-C, or closes the pipe that it prints to, is shown a traceback.

Imports next to nothing itself: while the verbs are imported, Ctrl-C ends the process at once, in one line.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Sequence

INTERRUPTED = 128 + signal.SIGINT
PIPE_CLOSED = 128 + signal.SIGPIPE
"""What a shell shows of a program that a closed pipe has ended, as it does for `cat` and `grep`."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; no traceback reaches a user.

    Args:
        argv: its words; None for those of this process, which then ends with this call.
    """
    alone = argv is None and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if alone:
        signal.signal(signal.SIGINT, _interrupted)
    try:
        from windfall.cli import verbs  # noqa: PLC0415 - Ctrl-C is heard before all of it is loaded

        code = verbs.run(sys.argv[1:] if argv is None else argv, loaded=_listen if alone else _nothing)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except KeyboardInterrupt:
        code = _say_interrupted()
    except (BrokenPipeError, SystemExit) as error:
        # Rich, which draws the tables, leaves with a code of its own where the pipe is closed.
        if isinstance(error, SystemExit) and not isinstance(error.__context__, BrokenPipeError):
            raise
        # The reader of our output (a pager, head) has seen enough; Python must not complain of it at its end.
        _drop_output()
        code = PIPE_CLOSED
    if alone:
        # Nothing is left that Ctrl-C could spoil.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    return code


def _nothing() -> None:
    """Leave the signals as they are: the process is somebody else's."""


def _listen() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _interrupted(*_: object) -> None:
    """End the process: nothing has begun."""
    os._exit(_say_interrupted())


def _say_interrupted() -> int:
    """Write past the streams, which the interrupted code may be in the middle of."""
    with contextlib.suppress(OSError):
        os.write(2, b"windfall: interrupted\n")
    return INTERRUPTED


def _drop_output() -> None:
    nothing = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nothing, stream)


if __name__ == "__main__":
    sys.exit(main())
