"""The command line: verbs, and how an error becomes one sentence and an exit code."""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Callable, Sequence

import cyclopts

from windfall.cli.streams import plain_streams
from windfall.errors import EXIT_FAILED, EXIT_MISUSE, WindfallError
from windfall.spelling import nearest
from windfall.wiring import VERSION

_VERBS: tuple[tuple[str, str], ...] = (
    ("run:run", "run [-y] [-d] [--inject TEXT] [--set KEY=VALUE] [--json] JOB.yaml"),
    ("run:plan", "plan [--all] [--inject TEXT] [--set KEY=VALUE] [--json] JOB.yaml"),
    (
        "simulate:simulate",
        "simulate [--trials N] [--policy LIST] [--trace FILE] [--model NAME] [--plot FILE] [--json] [OPTIONS] JOB.yaml",
    ),
    ("drill:drill", "drill [OPTIONS] JOB.yaml | -- COMMAND ..."),
    ("exec:exec_", "exec [OPTIONS] URL [-- COMMAND ...]"),
    ("runs:ps", "ps [--json] [JOB | URL ...]"),
    ("runs:logs", "logs [-f] JOB | URL"),
    ("cost:cost", "cost [--plot FILE] [--json] JOB | URL"),
    ("runs:stop", "stop [--now] [--no-wait] JOB | URL"),
    ("runs:resume", "resume [-d] JOB"),
    ("runs:get_", "get [--point POINT | --result NAME | --results] [--json] JOB | URL [DEST]"),
    ("runs:points", "points [--results] [--json] JOB | URL"),
    ("runs:inject", "inject JOB | URL --notice 30s|none"),
    ("runs:events", "events [--machines] [--json] JOB | URL"),
    ("runs:explain", "explain [--machines] [--json] JOB | URL [NUMBER]"),
    ("runs:replay", "replay [--json] JOB | URL"),
    ("doctor:doctor", "doctor [OPTIONS] [URL]"),
    ("removing:rm", "rm [-y] [--json] JOB | URL"),
    ("gc:gc", "gc [-y] [--json]"),
    ("serve:serve", "serve [OPTIONS]"),
    ("import_:import_", "import [--json] FILE"),
    ("backup:backup", "backup [--step N | --result NAME] PATH"),
    ("schema:schema", "schema [NAME]"),
    ("lab_fit:fit", "lab fit [--limit 24h] [--by COLUMN] [--plot FILE [--dark]] [--seed N] [--json] FILE.csv"),
    ("lab_replicate:replicate", "lab replicate [--item NAME] [--data FILE] [--plot FOLDER] [--json] thesis|scispot"),
    ("lab_traces:inspect", "lab traces inspect [OPTIONS] TRACE"),
    ("lab_traces:convert", "lab traces convert [--to windfall] [OPTIONS] TRACE OUT"),
)
"""Module of this package and function, usage; in the order in which a newcomer needs them."""


_HELP = frozenset({"--help", "-h", "--version"})
_GROUPS = {
    "lab": "For study: how long machines live, and traces of them.",
    "lab traces": "Look at traces of prices, machines and lives, and convert them.",
}
"""What verbs of several words have in common."""


def build(only: str | None = None) -> cyclopts.App:
    """Return the command line application.

    Args:
        only: load the verbs that begin with this word alone, so that a machine that comes up for one verb does not load
            all the others; None for all.
    """
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
        suppress_keyboard_interrupt=False,
    )
    groups = {"": app}
    for order, (path, usage) in enumerate(_VERBS):
        *above, name = _words(usage)
        if only in (None, usage.split()[0]):
            place = _group(groups, tuple(above), order)
            place.command(_load(path), name=name, usage=f"Usage: windfall {usage}", sort_key=order)
    return app


def _words(usage: str) -> tuple[str, ...]:
    """Return the words of a verb: those before its options and arguments."""
    return tuple(itertools.takewhile(lambda word: word.isalpha() and word.islower(), usage.split()))


def _group(groups: dict[str, cyclopts.App], above: tuple[str, ...], order: int) -> cyclopts.App:
    name = " ".join(above)
    if name not in groups:
        groups[name] = cyclopts.App(name=above[-1], help=_GROUPS[name], sort_key=order)
        _group(groups, above[:-1], order).command(groups[name])
    return groups[name]


def _load(path: str) -> Callable[..., object]:
    module, _, name = path.partition(":")
    verb: Callable[..., object] = getattr(importlib.import_module(f"windfall.cli.{module}"), name)
    return verb


def _shown(value: object) -> object:
    """Return a default as the help shows it; that a switch is off goes without saying."""
    return None if value is False else value


def run(argv: Sequence[str], loaded: Callable[[], object]) -> int:
    """Run one command and return its exit code; an error is a sentence.

    Args:
        argv: its words.
        loaded: called once the verb is loaded, before it does anything.
    """
    arguments = list(argv)
    if not arguments or not _HELP.isdisjoint(itertools.takewhile("--".__ne__, arguments)):
        return _run(arguments, loaded)  # our own words alone, in colour
    with plain_streams():
        return _run(arguments, loaded)


def _run(arguments: list[str], loaded: Callable[[], object]) -> int:
    try:
        known = {usage.split()[0] for _, usage in _VERBS}
        only = arguments[0] if arguments and arguments[0] in known else None
        app = build(only)
        loaded()
        result = app(arguments, exit_on_error=False, print_error=False)
        sys.stdout.flush()
    except WindfallError as error:
        return _fail(str(error), error.exit_code)
    except cyclopts.CycloptsError as error:
        return _fail(_misused(error, arguments), EXIT_MISUSE)
    except BrokenPipeError:
        raise
    except OSError as error:
        where = f" at {error.filename}" if error.filename else ""
        return _fail(f"this machine refused{where}: {error.strerror or error}", EXIT_FAILED)
    return result if isinstance(result, int) else 0


def _misused(error: cyclopts.CycloptsError, arguments: list[str]) -> str:
    usages = {" ".join(_words(usage)): usage for _, usage in _VERBS}
    said = [" ".join(arguments[:count]) for count in (3, 2, 1) if len(arguments) >= count]
    verb = next((words for words in said if words in usages), "")
    if isinstance(error, cyclopts.UnknownCommandError):
        wrong = arguments[0] if arguments[0] not in _GROUPS else " ".join(arguments[:2])
        what = "option" if wrong.startswith("-") else "verb"
        known = ("--help", "--version") if what == "option" else (*usages, "--help")
        return f"there is no {what} {wrong!r}; {nearest(wrong, known)}"
    if not verb:
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
