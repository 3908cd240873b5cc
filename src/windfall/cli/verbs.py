"""The command line: its verbs, and how an error becomes one message and an exit code.

What the verbs print: text from elsewhere reaches the terminal as text.

A job's name, a machine's message or a path in a store can hold escapes that move the cursor, rename the window, or hide a
line.  While a verb runs, its standard output and error show such characters instead of sending them.  A script's output
goes through `buffer`, and rich's styles go to `raw`: those are intended.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import io
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO, cast

import cyclopts
from cyclopts.help import DefaultFormatter

from windfall.errors import EXIT_FAILED, EXIT_MISUSE, WindfallError
from windfall.spelling import plain
from windfall.wiring import VERSION

if TYPE_CHECKING:
    from cyclopts.help import HelpPanel
    from rich.console import Console, ConsoleOptions


class PlainStream:
    """A text stream that prints nothing but text; otherwise it is the stream it wraps."""

    def __init__(self, raw: TextIO) -> None:
        self.raw = raw
        if isinstance(raw, io.TextIOWrapper):
            raw.reconfigure(errors="backslashreplace")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)

    def write(self, text: str) -> int:
        """Write text; its line breaks and tabs are kept."""
        return self.raw.write(plain(text, lines=True))


@contextlib.contextmanager
def plain_streams() -> Iterator[None]:
    """Make standard output and error show only text."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast("TextIO", PlainStream(stream)) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


_VERBS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "Run": (
        ("cli.run:run", "run [OPTIONS] JOB_FILE"),
        ("cli.exec:exec_", "exec [OPTIONS] URL [-- COMMAND ...]"),
        ("cli.run_verbs:stop", "stop [OPTIONS] JOB|URL"),
        ("cli.run_verbs:resume", "resume [OPTIONS] JOB"),
    ),
    "Watch": (
        ("cli.run_verbs:ps", "ps [OPTIONS] [JOB|URL ...]"),
        ("cli.run_verbs:logs", "logs [OPTIONS] JOB|URL"),
        ("cli.cost:cost", "cost [OPTIONS] JOB|URL"),
        ("cli.run_verbs:events", "events [OPTIONS] JOB|URL"),
        ("cli.run_verbs:explain", "explain [OPTIONS] JOB|URL [NUMBER]"),
        ("cli.run_verbs:replay", "replay [OPTIONS] JOB|URL"),
    ),
    "Recover": (
        ("cli.run_verbs:checkpoints", "checkpoints [OPTIONS] JOB|URL"),
        ("cli.run_verbs:get_", "get [OPTIONS] JOB|URL [FOLDER]"),
    ),
    "Plan and test": (
        ("cli.run:plan", "plan [OPTIONS] JOB_FILE"),
        ("cli.simulate:simulate", "simulate [OPTIONS] JOB_FILE"),
        ("drill.drill_verb:drill", "drill [OPTIONS] JOB_FILE | -- COMMAND ..."),
        ("cli.run_verbs:inject", "inject JOB|URL --notice DURATION|none"),
        ("lab.fit_verb:fit", "lab fit [OPTIONS] FILE"),
        ("lab.replicate_verb:replicate", "lab replicate [OPTIONS] thesis|scispot"),
        ("lab.traces_verb:inspect", "lab traces inspect [OPTIONS] TRACE"),
        ("lab.traces_verb:convert", "lab traces convert [OPTIONS] TRACE OUT"),
    ),
    "Set up and clean up": (
        ("cli.doctor:doctor", "doctor [OPTIONS] [URL]"),
        ("cli.serve:serve", "serve [OPTIONS]"),
        ("cli.rm:rm", "rm [OPTIONS] JOB|URL"),
        ("cli.gc:gc", "gc [OPTIONS]"),
        ("cli.completion:completion", "completion [bash|zsh|fish]"),
    ),
    "For other programs": (
        ("cli.backup:backup", "backup [OPTIONS] PATH"),
        ("cli.import_:import_", "import [OPTIONS] FILE"),
        ("cli.schema_verb:schema", "schema [NAME]"),
    ),
}
"""By group of the help: module of this package and function, usage."""
_PEERS: Mapping[str, str] = {
    **dict.fromkeys(("status", "queue", "list", "ls", "top", "describe"), "`windfall ps`"),
    **dict.fromkeys(("cancel", "down", "kill", "terminate"), "`windfall stop JOB`"),
    **dict.fromkeys(("launch", "submit", "up", "apply", "start"), "`windfall run JOB_FILE`"),
    **dict.fromkeys(("attach", "ssh", "tail", "log"), "`windfall logs -f JOB`"),
    **dict.fromkeys(("delete", "remove"), "`windfall rm JOB`"),
    **dict.fromkeys(("download", "restore"), "`windfall get JOB [FOLDER]`"),
    "validate": "`windfall plan JOB_FILE`",
    "check": "`windfall plan JOB_FILE` for a job file, `windfall doctor` for this machine",
    "help": "`windfall --help`",
    "version": "`windfall --version`",
}
"""What other tools call a verb, and what to type here."""

_HELP = frozenset({"--help", "-h", "--version"})
_GROUPS = {
    "lab": "Study machine lifetimes and price traces, and replicate published results.",
    "lab traces": "Inspect and convert traces of prices, availability and lifetimes.",
}
"""Help of the verbs that have subcommands."""
_METAVARS = {"STR": "TEXT", "STR...": "TEXT", "INT": "N", "FLOAT": "NUMBER"}
"""Placeholders of values, in place of Python's types."""
_NUMBERS: Mapping[type | None, str] = {int: "a whole number", float: "a number"}
_CLOSE = 0.75
"""How similar a word must be to a verb to be taken for a misspelling of it [share]."""


class _HelpFormatter(DefaultFormatter):
    """Draws the panels of the help without Python's view of parameters: arguments and options apart, no type names."""

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
        """Print a panel; one of parameters as two, arguments first."""
        arguments = [
            entry.copy(positive_names=(), positive_shorts=(), positional_label=_label(entry.positional_label))
            for entry in panel.entries
            if entry.positional_label
        ]
        others = [
            entry.copy(metavar=_METAVARS.get(entry.metavar or "", entry.metavar))
            for entry in panel.entries
            if not entry.positional_label
        ]
        if arguments:
            super().__call__(console, options, panel.copy(title="Arguments", entries=arguments))
        if others:
            super().__call__(console, options, panel.copy(entries=others))


def _label(name: str) -> str:
    """Return the placeholder of an argument, as the usage line has it."""
    return {"RUN": "JOB|URL", "RUNS": "JOB|URL"}.get(name, name.replace("-", "_"))


def build(only: str | None = None) -> cyclopts.App:
    """Return the command line application.

    Args:
        only: load only the verbs that start with this word, so that a machine that comes up for one verb does not load
            all the others; None for all.
    """
    app = cyclopts.App(
        name="windfall",
        help="Train models on machines that can be preempted.\n\n"
        "Run a job on spot machines that Windfall orders, and replaces when they are preempted:\n\n"
        "```\nwindfall run job.yaml\n```\n\n"
        "Or run a command on the machine you have.  Run the same command again, here or elsewhere, to resume:\n\n"
        "```\nwindfall exec file:///data/runs/gpt -- python train.py\n```",
        help_epilogue="Run `windfall COMMAND --help` for the arguments and options of a command.",
        usage="Usage: windfall COMMAND [OPTIONS]",
        version=VERSION,
        help_format="markdown",
        help_formatter=_HelpFormatter(),
        group_arguments=cyclopts.Group("Arguments", sort_key=0),
        group_parameters=cyclopts.Group("Options", sort_key=1),
        group_commands=cyclopts.Group("Options", sort_key=99),
        default_parameter=cyclopts.Parameter(negative=(), show_default=_shown),
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )
    parents = {"": app}
    for order, (title, verbs) in enumerate(_VERBS.items()):
        group = cyclopts.Group(title, sort_key=order)
        for number, (path, usage) in enumerate(verbs):
            *above, name = _words(usage)
            if only in (None, usage.split()[0]):
                place = _parent(parents, tuple(above), group, number)
                options: dict[str, Any] = {"help_epilogue": ""} | ({} if above else {"group": group})
                place.command(_load(path), name=name, usage=f"Usage: windfall {usage}", sort_key=number, **options)
    return app


def _words(usage: str) -> tuple[str, ...]:
    """Return the words of a verb: those before its options and arguments."""
    return tuple(itertools.takewhile(lambda word: word.isalpha() and word.islower(), usage.split()))


def _parent(
    parents: dict[str, cyclopts.App], above: tuple[str, ...], group: cyclopts.Group, order: int
) -> cyclopts.App:
    name = " ".join(above)
    if name not in parents:
        parents[name] = cyclopts.App(
            name=above[-1],
            help=_GROUPS[name],
            usage=f"Usage: windfall {name} COMMAND [OPTIONS]",
            sort_key=order,
            group=group if len(above) == 1 else None,
            group_commands=cyclopts.Group("Commands"),
            help_epilogue="",
        )
        _parent(parents, above[:-1], group, order).command(parents[name])
    return parents[name]


def _load(path: str) -> Callable[..., object]:
    module, _, name = path.partition(":")
    verb: Callable[..., object] = getattr(importlib.import_module(f"windfall.{module}"), name)
    return verb


def _shown(value: object) -> object:
    """Return a default as the help shows it; a switch that is off and an empty value are not shown."""
    return None if value is False or value in ("", (), None) else value


def run(argv: Sequence[str], loaded: Callable[[], object]) -> int:
    """Run one command and return its exit code; an error becomes one message.

    Args:
        argv: its words.
        loaded: called once the verb is loaded, before it does anything.
    """
    arguments = list(argv)
    if not arguments or not _HELP.isdisjoint(itertools.takewhile("--".__ne__, arguments)):
        return _run(arguments, loaded)  # the help holds only Windfall's own text, in colour
    with plain_streams():
        return _run(arguments, loaded)


def _run(arguments: list[str], loaded: Callable[[], object]) -> int:
    try:
        known = {usage.split()[0] for usage in _usages().values()}
        only = arguments[0] if arguments and arguments[0] in known else None
        app = build(only)
        loaded()
        result = app(arguments, exit_on_error=False, print_error=False)
        sys.stdout.flush()
    except WindfallError as error:
        return _fail(str(error), error.exit_code)
    except cyclopts.CycloptsError as error:
        return _fail(_misuse(error, arguments), EXIT_MISUSE)
    except BrokenPipeError:
        raise
    except OSError as error:
        where = f"cannot access {error.filename}" if error.filename else "system error"
        return _fail(f"{where}: {error.strerror or error}", EXIT_FAILED)
    return result if isinstance(result, int) else 0


def _usages() -> dict[str, str]:
    """Return the usage of each verb by its words."""
    return {" ".join(_words(usage)): usage for verbs in _VERBS.values() for _, usage in verbs}


def _misuse(error: cyclopts.CycloptsError, arguments: list[str]) -> str:
    usages = _usages()
    if isinstance(error, cyclopts.UnknownCommandError):
        return _unknown(arguments, tuple(usages))
    prefixes = [" ".join(arguments[:count]) for count in (3, 2, 1) if len(arguments) >= count]
    verb = next((words for words in prefixes if words in usages), "")
    if not verb:
        return f"{_reason(error)} (see `windfall --help`)"
    if isinstance(error, cyclopts.MissingArgumentError) and error.argument is not None and not error.tokens_so_far:
        names = [name for name in error.argument.names if name in arguments]
        if not names:
            option = error.argument.names[0]
            what = option if f"{option} " in usages[verb] else _label(option.removeprefix("--").upper())
            return f"{what} is missing: `windfall {usages[verb]}` (see `windfall {verb} --help`)"
    return f"{_reason(error)} (see `windfall {verb} --help`)"


def _reason(error: cyclopts.CycloptsError) -> str:
    """Return what is wrong, without Python's view of types."""
    if isinstance(error, cyclopts.CoercionError) and error.token is not None and error.target_type in _NUMBERS:
        name = error.token.keyword or (error.argument.names[0].upper() if error.argument else "the argument")
        return f"{name}: must be {_NUMBERS[error.target_type]}, not {error.token.value!r}"
    text = " ".join(str(error).split()).removesuffix(".")
    return f"{text[:1].lower()}{text[1:]}"


def _unknown(arguments: list[str], verbs: tuple[str, ...]) -> str:
    """Return the message for a verb or option that does not exist: what to type instead, if that can be known."""
    word = arguments[0] if arguments[0] not in _GROUPS else " ".join(arguments[:2])
    if word.startswith("-"):
        return f"unknown option {word!r} (see `windfall --help`)"
    if word.lower() in _PEERS:
        return f"unknown command {word!r}: use {_PEERS[word.lower()]}"
    close = difflib.get_close_matches(word.lower(), verbs, n=1, cutoff=_CLOSE)
    hint = f"did you mean {close[0]}? " if close else ""
    return f"unknown command {word!r}; {hint}`windfall --help` lists all commands"


def _fail(message: str, code: int) -> int:
    print(f"windfall: {message}", file=sys.stderr)
    return code
