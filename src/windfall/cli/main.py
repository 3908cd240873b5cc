"""The command line: verbs, and how an error becomes one sentence and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

import cyclopts

from windfall.cli import runs
from windfall.cli.backup import backup
from windfall.cli.cost import cost
from windfall.cli.doctor import doctor
from windfall.cli.exec import exec_
from windfall.cli.gc import gc
from windfall.cli.import_ import import_
from windfall.cli.run import plan, run
from windfall.cli.schema import schema
from windfall.cli.serve import serve
from windfall.errors import EXIT_FAILED, EXIT_MISUSE, WindfallError
from windfall.spelling import nearest
from windfall.wiring import VERSION

_VERBS: tuple[tuple[Callable[..., object], str], ...] = (
    (run, "run [-y] [-d] [--inject TEXT] [--set KEY=VALUE] [--json] JOB.yaml"),
    (plan, "plan [--all] [--inject TEXT] [--set KEY=VALUE] [--json] JOB.yaml"),
    (exec_, "exec [OPTIONS] URL [-- COMMAND ...]"),
    (runs.ps, "ps [--json] [JOB | URL ...]"),
    (runs.logs, "logs [-f] JOB | URL"),
    (cost, "cost [--plot FILE] [--json] JOB | URL"),
    (runs.stop, "stop [--now] [--no-wait] JOB | URL"),
    (runs.resume, "resume [-d] JOB"),
    (runs.get_, "get [--point POINT] [--json] JOB | URL [DEST]"),
    (runs.points, "points [--json] JOB | URL"),
    (runs.inject, "inject JOB | URL --notice 30s|none"),
    (runs.events, "events [--machines] [--json] JOB | URL"),
    (runs.explain, "explain [--machines] [--json] JOB | URL [NUMBER]"),
    (runs.replay, "replay [--json] JOB | URL"),
    (doctor, "doctor [OPTIONS] [URL]"),
    (gc, "gc [-y] [--json]"),
    (serve, "serve [OPTIONS]"),
    (import_, "import [--json] FILE"),
    (backup, "backup [--step N] PATH"),
    (schema, "schema [NAME]"),
)
"""In the order in which a newcomer needs them."""


def build() -> cyclopts.App:
    """Return the command line application."""
    app = cyclopts.App(
        name="windfall",
        help="Keep training runs alive on machines that can vanish.  Buy them, and replace those that are taken:\n\n"
        "```\nwindfall run job.yaml\n```\n\n"
        "Or use the machine you have; the same line again, here or elsewhere, goes on where the last machine left off:\n\n"
        "```\nwindfall exec file:///data/runs/gpt -- python train.py\n```",
        version=VERSION,
        help_format="markdown",
        default_parameter=cyclopts.Parameter(negative=(), show_default=_shown),
        result_action="return_value",
    )
    for order, (verb, usage) in enumerate(_VERBS):
        app.command(verb, name=usage.split()[0], usage=f"Usage: windfall {usage}", sort_key=order)
    return app


def _shown(value: object) -> object:
    """Return a default as the help shows it; that a switch is off goes without saying."""
    return None if value is False else value


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; no traceback reaches a user."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        result = build()(arguments, exit_on_error=False, print_error=False)
    except WindfallError as error:
        return _fail(str(error), error.exit_code)
    except cyclopts.CycloptsError as error:
        return _fail(_misused(error, arguments), EXIT_MISUSE)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except BrokenPipeError:
        # The reader of our output (a pager, head) has seen enough; Python must not complain of it at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return EXIT_FAILED
    except OSError as error:
        where = f" at {error.filename}" if error.filename else ""
        return _fail(f"this machine refused{where}: {error.strerror or error}", EXIT_FAILED)
    return result if isinstance(result, int) else 0


def _misused(error: cyclopts.CycloptsError, arguments: list[str]) -> str:
    usages = {usage.split()[0]: usage for _, usage in _VERBS}
    verb = arguments[0] if arguments else ""
    if isinstance(error, cyclopts.UnknownCommandError):
        what = "option" if verb.startswith("-") else "verb"
        known = ("--help", "--version") if what == "option" else (*usages, "--help")
        return f"there is no {what} {verb!r}; {nearest(verb, known)}"
    if verb not in usages:
        return f"{' '.join(str(error).split())} (see `windfall --help`)"
    if isinstance(error, cyclopts.MissingArgumentError) and error.argument is not None and not error.tokens_so_far:
        names = [name for name in error.argument.names if name in arguments]
        if not names:
            what = error.argument.names[0]
            wanted = what if f"{what} " in usages[verb] else what.removeprefix("--").upper()
            return f"{wanted} is missing: `windfall {usages[verb]}` (see `windfall {verb} --help`)"
    return f"{' '.join(str(error).split())} (see `windfall {verb} --help`)"


def _fail(sentence: str, code: int) -> int:
    print(f"windfall: {sentence}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
