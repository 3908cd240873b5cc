"""The command line: its verbs, how an error becomes one message and an exit code, and shell completion.

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
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO, cast, get_args, get_origin

import cyclopts
from cyclopts.help import DefaultFormatter

import windfall
from windfall.cli.verb_list import INTRODUCTION, PEERS, SUBCOMMANDS, VERBS
from windfall.errors import EXIT_FAILED, EXIT_MISUSE, WindfallError
from windfall.spelling import plain

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


_HELP = frozenset({"--help", "-h", "--version"})
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
        help=INTRODUCTION[0],
        usage="Usage: windfall COMMAND [OPTIONS]",
        version=windfall.__version__,
        help_format="markdown",
        help_formatter=_HelpFormatter(),
        group_arguments=cyclopts.Group("Arguments", sort_key=0),
        group_parameters=cyclopts.Group("Options", sort_key=1),
        default_parameter=cyclopts.Parameter(negative=(), show_default=_shown),
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )
    parents = {"": app}
    for number, verb in enumerate(itertools.chain.from_iterable(VERBS.values())):
        *above, name = verb.words
        if only in (None, verb.words[0]):
            place = _parent(parents, tuple(above), number)
            place.command(_load(verb.path), name=name, usage=f"Usage: windfall {verb.usage}", sort_key=number)
    return app


def _parent(parents: dict[str, cyclopts.App], above: tuple[str, ...], order: int) -> cyclopts.App:
    name = " ".join(above)
    if name not in parents:
        parents[name] = cyclopts.App(
            name=above[-1],
            help=SUBCOMMANDS[name],
            usage=f"Usage: windfall {name} COMMAND [OPTIONS]",
            sort_key=order,
            group_commands=cyclopts.Group("Commands"),
        )
        _parent(parents, above[:-1], order).command(parents[name])
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
        known = {words.split()[0] for words in _usages()}
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
    return {" ".join(verb.words): verb.usage for verbs in VERBS.values() for verb in verbs}


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
    if (
        isinstance(error, cyclopts.CoercionError)
        and error.token is not None
        and get_origin(error.target_type) is Literal
    ):
        name = error.token.keyword or (
            error.argument.names[0].lstrip("-").upper() if error.argument else "the argument"
        )
        *others, last = map(str, get_args(error.target_type))
        choices = f"{', '.join(others)} or {last}" if others else last
        return f"{name}: {error.token.value!r} is not supported; choose {choices}"
    text = " ".join(str(error).split()).removesuffix(".")
    if isinstance(error, cyclopts.UnknownOptionError):
        text = text.replace(": ", " ", 1).replace(". Did you mean", "; did you mean").replace(". ", "; ")
    return f"{text[:1].lower()}{text[1:]}"


def _unknown(arguments: list[str], verbs: tuple[str, ...]) -> str:
    """Return the message for a verb or option that does not exist: what to type instead, if that can be known."""
    word = arguments[0] if arguments[0] not in SUBCOMMANDS else " ".join(arguments[:2])
    if word.startswith("-"):
        return f"unknown option {word!r} (see `windfall --help`)"
    if word.lower() in PEERS:
        return f"unknown command {word!r}: use {PEERS[word.lower()]}"
    close = difflib.get_close_matches(word.lower(), (*verbs, *PEERS), n=1, cutoff=_CLOSE)
    hint = f"did you mean {PEERS.get(close[0], f'`windfall {close[0]}`')}? " if close else ""
    return f"unknown command {word!r}; {hint}`windfall --help` lists all commands"


def _fail(message: str, code: int) -> int:
    print(f"windfall: {message}", file=sys.stderr)
    return code


Shell = Literal["bash", "zsh", "fish"]


def completion(shell: Shell | None = None, /) -> int:
    """Print the completion script of a shell.

    Add this line to `~/.bashrc` (or `~/.zshrc`, with `zsh`):

    `eval "$(windfall completion bash)"`

    For fish: `windfall completion fish > ~/.config/fish/completions/windfall.fish`

    Args:
        shell: bash, zsh or fish; by default the shell you use.
    """
    from windfall.cli.verbs import build  # noqa: PLC0415 - it loads this verb

    print(build().generate_completion(prog_name="windfall", shell=shell or _own_shell()))
    return 0


def _own_shell() -> Shell:
    name = Path(os.environ.get("SHELL", "")).name
    return "zsh" if name == "zsh" else "fish" if name == "fish" else "bash"
