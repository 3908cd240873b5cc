"""The help, and the answer to words that are not verbs: what a user of another tool types first."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys

import cyclopts
import pytest

from windfall.cli.main import main
from windfall.cli.verb_list import VERBS, help_text
from windfall.cli.verbs import build
from windfall.errors import EXIT_MISUSE

GROUPS = ["Run", "Watch", "Recover", "Plan and test", "Set up and clean up", "For other programs", "Options"]
PYTHON = re.compile(r"\b(STR|INT|FLOAT|PATH\.\.\.|None|True|False)\b|\(\)|\[default: \]|--empty-|--no-(?!wait)")


def _help(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main([*words, "--help"]) == 0
    return capsys.readouterr().out


def _verbs() -> list[tuple[str, ...]]:
    """Every verb by its words, and what stands above verbs of several words."""
    found: list[tuple[tuple[str, ...], cyclopts.App]] = [((), build())]
    for words, app in found:
        found += [((*words, name), app[name]) for name in app if not name.startswith("-")]
    return [words for words, _ in found]


def test_the_help_groups_the_verbs(capsys: pytest.CaptureFixture[str]) -> None:
    """Every verb is in one group, and the groups are in the order in which a newcomer needs them."""
    shown = _help(capsys)

    assert re.findall(r"^([A-Z].+)\n  [-a-z]", shown, re.MULTILINE) == GROUPS
    for verb in (words[0] for words in _verbs() if len(words) == 1):
        assert len(re.findall(rf"^  {verb} ", shown, re.MULTILINE)) == 1, verb


def test_the_help_says_of_a_verb_what_the_verb_says_of_itself() -> None:
    """The list is made without loading the verbs, so their first sentences stand in it too."""
    for verb in (verb for verbs in VERBS.values() for verb in verbs):
        module, _, name = verb.path.partition(":")
        documented = inspect.getdoc(getattr(importlib.import_module(f"windfall.{module}"), name)) or ""
        assert verb.summary == " ".join(documented.partition("\n\n")[0].split())


@pytest.mark.parametrize("width", [40, 80, 100])
def test_the_help_fits_its_terminal(width: int) -> None:
    """Examples may be wider than a narrow window; nothing else is."""
    lines = [line for line in help_text(width).splitlines() if not line.startswith("    windfall ")]
    assert max(map(len, lines)) <= width


def test_help_and_version_load_neither_the_verbs_nor_the_parser() -> None:
    """`windfall --help` is what a user types most in the first hour."""
    for word in ("--help", "-h", "--version"):
        code = f"import sys; from windfall.cli.main import main; main([{word!r}]); print(*sys.modules, file=sys.stderr)"
        loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr.split()
        assert {"cyclopts", "rich", "msgspec", "windfall.wiring"}.isdisjoint(loaded)


@pytest.mark.trial("F4")
@pytest.mark.parametrize("words", _verbs(), ids=" ".join)
def test_no_help_shows_python(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """An argument is not an option as well, no type or empty default of Python is shown, and 80 columns are enough."""
    shown = _help(capsys, *words)

    assert PYTHON.findall(shown) == []
    assert re.findall(r"^│ [* ] +[A-Z_|]+ --.*$", shown, re.MULTILINE) == []
    assert shown.startswith("Usage: windfall")


@pytest.mark.trial("F4")
@pytest.mark.parametrize(
    ("word", "verb"),
    [
        *((word, "windfall ps") for word in ("status", "queue", "list", "top")),
        *((word, "windfall stop JOB") for word in ("cancel", "down", "kill")),
        *((word, "windfall run JOB_FILE") for word in ("launch", "submit", "up")),
        *((word, "windfall logs -f JOB") for word in ("ssh", "attach")),
        *((word, "windfall rm JOB") for word in ("delete", "remove")),
        ("download", "windfall get JOB [FOLDER]"),
        ("validate", "windfall plan JOB_FILE"),
        ("check", "windfall doctor"),
    ],
)
def test_what_other_tools_call_a_verb_is_answered_with_ours(
    word: str, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line with what to type, exit code 2."""
    assert main([word]) == EXIT_MISUSE

    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"windfall: unknown command {word!r}: use `windfall ")
    assert f"`{verb}`" in printed.err
    assert printed.err.count("\n") == 1
    assert word not in {words[0] for words in _verbs() if words}


@pytest.mark.trial("F4")
@pytest.mark.parametrize(
    ("word", "verb"),
    [
        ("checkpoint", "checkpoints"),
        ("lgos", "logs"),
        ("simulat", "simulate"),
        ("stopp", "stop"),
        ("staus", "ps"),
        ("xyzzy", None),
        ("pool", None),
    ],
)
def test_only_a_close_spelling_is_taken_for_a_mistake(
    word: str, verb: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """A word that is not nearly a verb is answered with `--help`, not with a guess."""
    assert main([word]) == EXIT_MISUSE

    said = capsys.readouterr().err
    assert ("did you mean" in said) == (verb is not None)
    assert verb is None or f"did you mean `windfall {verb}`?" in said
    assert "windfall --help" in said
