"""The glossary is the law, and English is written as its native engineers write it."""

from __future__ import annotations

import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.source import PACKAGE, ROOT, python_files, tree_files, where

GLOSSARY = ROOT / "docs" / "glossary.md"

# Nouns and verbs of the first draft of this house.  None of them names a module, class, function, argument or variable.
NOT_NAMES = frozenset(
    {
        "asking",
        "belief",
        "beliefs",
        "believed",
        "books",
        "closing",
        "conductor",
        "desk",
        "doing",
        "doomed",
        "ending",
        "errand",
        "errands",
        "ground",
        "happening",
        "happenings",
        "hearing",
        "heard",
        "keeper",
        "keepers",
        "keeping",
        "likeness",
        "likes",
        "living",
        "looking",
        "obey",
        "office",
        "pose",
        "posed",
        "prospect",
        "prospects",
        "refusing",
        "said",
        "saying",
        "say",
        "spell",
        "spells",
        "spoilt",
        "standing",
        "starting",
        "stillborn",
        "stood",
        "stranger",
        "strangers",
        "taking",
        "tell",
        "tells",
        "tenure",
        "tenures",
        "told",
        "twin",
        "wish",
        "wished",
        "wishes",
    }
)
# (file, name): why this name may stay.
NAMES_ALLOWED: dict[tuple[str, str], str] = {
    ("cli/controller_process.py", "closing"): "`contextlib.closing`",
    ("cli/serve.py", "closing"): "`contextlib.closing`",
    ("providers/local/market_database.py", "closing"): "`contextlib.closing`",
    ("providers/slurm/slurm_records.py", "closing"): "`contextlib.closing`",
    ("wiring_control.py", "closing"): "`contextlib.closing`",
    ("report/bag_log.py", "tell"): "where a file is read",
}

# What a native speaker would not write, or reads twice; the phrases of the two readings among them.
PHRASES = (
    r"anew",
    r"afresh",
    r"of its like",
    r"the likes? of",
    r"let(s|ting)? go(es)? of",
    r"lets? go",
    r"is no (?!longer|more|one\b|such|less)",
    r"are no (?!longer|more|such|less)",
    r"so many",
    r"whoever",
    r"nobody",
    r"somebody",
    r"taken up",
    r"takes? up",
    r"of ours",
    r"hearsay",
    r"shall",
    r"what came of",
    r"what becomes of",
    r"in one sentence",
    r"thereby",
    r"whereupon",
    r"the begin of",
    r"its begin\b",
    r"the beginning of its like",
    r"nobody foresaw",
    r"taken up again after an error",
    r"come to nothing",
    r"came to nothing",
    r"thither|hither|hence\b",
    r"may be carried out",
    r"by how its id begins",
    r"is no verb",
    r"are so many",
    r"fallen back behind",
    r"goes on\b",
    r"going on\b",
    r"went on\b",
    r"gone on\b",
    r"go on\b",
)
_PHRASE = re.compile(r"(?<![\w-])(?:" + "|".join(PHRASES) + r")(?![\w-])", re.IGNORECASE)


def _readable() -> list[Path]:
    """The source, and every page a reader opens; the changelog and licence speak of their own time."""
    pages = [path for path in tree_files() if path.suffix == ".md" and path.name not in {"CHANGELOG.md", "LICENSE"}]
    return [*python_files(PACKAGE), *python_files(ROOT / "examples"), *pages]


def _glossary_rows() -> Iterator[tuple[str, list[str]]]:
    for line in GLOSSARY.read_text("utf-8").splitlines():
        if line.startswith("| **"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            yield cells[0].strip("* "), [word.strip() for word in cells[-1].split(",") if word.strip()]


def _lines_with(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{where(path, number)}: {found[0]!r} in: {line.strip()[:90]}"
        for path in _readable()
        if path != GLOSSARY
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if (found := pattern.search(line))
    ]


def test_the_glossary_has_one_row_for_a_word_in_order() -> None:
    """Words stand once and in alphabetical order, and no word is refused that another row defines."""
    words = [word for word, _ in _glossary_rows()]
    refused = {word for _, others in _glossary_rows() for word in others}

    assert words == sorted(set(words), key=str.casefold)
    assert refused & set(words) == set()


def test_no_page_and_no_source_uses_a_word_that_the_glossary_refuses() -> None:
    """The words of the column "not" occur nowhere: not in names, docstrings, messages, help or pages."""
    refused = [word for _, others in _glossary_rows() for word in others]
    pattern = re.compile(r"(?<![\w-])_?(?:" + "|".join(map(re.escape, refused)) + r")(?![\w-])", re.IGNORECASE)

    assert _lines_with(pattern) == []


def test_sentences_are_plain_english() -> None:
    """No phrase of the list occurs in source, pages or examples."""
    assert _lines_with(_PHRASE) == []


def _names(path: Path) -> Iterator[tuple[str, int]]:
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.NAME:
                yield token.string, token.start[0]


def test_names_are_the_fields_nouns_and_verbs() -> None:
    """No name in the source is, or is made with, a word of the first draft."""
    found = [
        f"{where(path, line)}: {name}"
        for path in python_files(PACKAGE)
        for name, line in _names(path)
        if NOT_NAMES & set(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().split("_"))
        and (path.relative_to(PACKAGE).as_posix(), name) not in NAMES_ALLOWED
    ]

    assert found == []


@pytest.mark.parametrize("text", ["the job goes on", "to train anew", "it is no verb", "so many steps", "Let go of it"])
def test_the_list_of_phrases_finds_what_it_names(text: str) -> None:
    """A sentence of the old kind is found."""
    assert _PHRASE.search(text)


@pytest.mark.parametrize("text", ["there is no longer a run", "going once", "the wording", "forgo", "is not a verb"])
def test_the_list_of_phrases_spares_plain_sentences(text: str) -> None:
    """A sentence that a native speaker would write is not found."""
    assert not _PHRASE.search(text)
