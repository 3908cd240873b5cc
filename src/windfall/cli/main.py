"""The command `windfall`: Ctrl-C, or closing the pipe that it prints to, never shows a traceback.

It imports almost nothing itself: while the verbs are imported, Ctrl-C ends the process at once, with one line.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Sequence

_ABOUT = ("--help", "-h", "--version")
INTERRUPTED = 128 + signal.SIGINT
PIPE_CLOSED = 128 + signal.SIGPIPE
"""The exit code that a shell shows for a program ended by a closed pipe, such as `cat` or `grep`."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; no traceback reaches a user.

    Args:
        argv: its words; None for those of this process, which ends with this call.
    """
    alone = argv is None and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if alone:
        signal.signal(signal.SIGINT, _interrupted)
    words = sys.argv[1:] if argv is None else argv
    try:
        if not words or (words[0] in _ABOUT and len(words) == 1):
            from windfall.cli import verb_list  # noqa: PLC0415 - Ctrl-C works before anything is loaded

            verb_list.print_about(words)
            code = 0
        else:
            code = _run(words, loaded=_restore_interrupt if alone else _ignore)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except KeyboardInterrupt:
        code = _print_interrupted()
    except RuntimeError as error:
        # Before Python 3.12 an interrupt in the middle of a class statement is wrapped.
        if not isinstance(error.__cause__, KeyboardInterrupt):
            raise
        code = _print_interrupted()
    except (BrokenPipeError, SystemExit) as error:
        # Rich, which draws the tables, exits with its own code if the pipe is closed.
        if isinstance(error, SystemExit) and not isinstance(error.__context__, BrokenPipeError):
            raise
        # The reader of the output (a pager, head) has seen enough; Python must not complain about it at exit.
        _drop_output()
        code = PIPE_CLOSED
    except OSError as error:  # the output cannot be written: a full disk
        with contextlib.suppress(OSError):
            os.write(2, f"windfall: cannot write the output: {error.strerror or error}\n".encode())
        _drop_output()
        code = 1
    if alone:
        # Nothing is left that Ctrl-C could damage.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    return code


def _run(words: Sequence[str], loaded: Callable[[], object]) -> int:
    # Imported here: Ctrl-C works before all of it is loaded.
    if words[0] == "exec":
        from windfall.cli import exec_line  # noqa: PLC0415

        request = exec_line.quick_request(words[1:])
        if request is not None:
            loaded()
            return exec_line.start(request)
    from windfall.cli import verbs  # noqa: PLC0415

    return verbs.run(words, loaded=loaded)


def _ignore() -> None:
    """Leave the signals as they are: the caller owns the process."""


def _restore_interrupt() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _interrupted(*_: object) -> None:
    """End the process: nothing has started."""
    os._exit(_print_interrupted())


def _print_interrupted() -> int:
    """Write past the streams, which the interrupted code may be using."""
    with contextlib.suppress(OSError):
        os.write(2, b"windfall: interrupted\n")
    return INTERRUPTED


def _drop_output() -> None:
    nothing = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nothing, stream)


if __name__ == "__main__":
    sys.exit(main())
