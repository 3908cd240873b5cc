"""Core, control and job file know providers by the list and by what they can do, never by name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.house.source import PACKAGE, nodes, parse, python_files, where
from windfall.providers import provider_list

ROOMS = ("core", "control", "spec")


def _docstrings(tree: ast.Module) -> set[int]:
    """Texts that nothing reads: docstrings of modules, classes, functions and attributes."""
    return {
        id(node.value)
        for node in nodes(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    }


def named(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield each text that is, or begins like a place with, the name of a provider, with its line."""
    is_named = re.compile(rf"({'|'.join(map(re.escape, provider_list.names()))})(/.*)?")
    inside = re.compile(rf"infra: *({'|'.join(map(re.escape, provider_list.names()))})\b")
    silent = _docstrings(tree)
    for node in nodes(tree):
        text = node.value if isinstance(node, ast.Constant) and id(node) not in silent else None
        if isinstance(text, str) and (is_named.fullmatch(text) or inside.search(text)):
            yield getattr(node, "lineno", 0), text


def test_no_provider_is_named_in_core_control_or_spec() -> None:
    """A branch on a provider's name, or a message with one, would have to change for the next provider."""
    found = [
        f"{where(path, line)}: {text}"
        for room in ROOMS
        for path in python_files(PACKAGE / room)
        for line, text in named(parse(path))
    ]

    assert found == []


def test_a_named_provider_is_found() -> None:
    """The rule sees a comparison, an example in a message and a place; it spares a docstring and another word."""
    bad = 'if name == "local": pass\nx = "local/zone-a"\ny = "write `resources: {infra: local}`"\n'
    good = '"""local"""\nz = "the local disk"\n'

    assert sorted(line for line, _ in named(ast.parse(bad))) == [1, 2, 3]
    assert list(named(ast.parse(good))) == []


def test_every_row_of_the_list_is_whole() -> None:
    """Names are unique, and each provider says what it is, which settings it takes and what its keys are for."""
    names = provider_list.names()

    assert len(set(names)) == len(names)
    for entry in provider_list.PROVIDERS:
        assert entry.help
        assert all(key.help.endswith(".") and key.example for key in entry.block)
        assert bool(entry.extra) == bool(entry.client)
    assert not set(names) & set(provider_list.names_later())
