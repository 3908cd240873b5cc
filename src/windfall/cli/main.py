"""The command line: verbs, and how an error becomes one sentence and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import cyclopts

from windfall.cli import runs
from windfall.cli.cost import cost
from windfall.cli.exec import exec_
from windfall.errors import EXIT_FAILED, EXIT_MISUSE, WindfallError

VERSION = "0.1.0"


def build() -> cyclopts.App:
    """Return the command line application."""
    app = cyclopts.App(
        name="windfall",
        help="Keep training runs alive on machines that can vanish.",
        version=VERSION,
        help_format="markdown",
        default_parameter=cyclopts.Parameter(negative=()),
        result_action="return_value",
    )
    app.command(exec_, name="exec", usage="Usage: windfall exec [OPTIONS] URL [-- COMMAND ...]")
    runs.register(app)
    app.command(cost, name="cost")
    return app


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; no traceback reaches a user."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        result = build()(arguments, exit_on_error=False, print_error=False)
    except WindfallError as error:
        return _fail(str(error), error.exit_code)
    except cyclopts.CycloptsError as error:
        return _fail(f"{' '.join(str(error).split())} (see `windfall {' '.join(arguments[:1])} --help`)", EXIT_MISUSE)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except BrokenPipeError:
        # The reader of our output (a pager, head) has seen enough; Python must not complain of it at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return EXIT_FAILED
    return result if isinstance(result, int) else 0


def _fail(sentence: str, code: int) -> int:
    print(f"windfall: {sentence}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
