"""A policy's name is written once, in the list; core and control know neither a runtime nor a provider by name or type."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.source import PACKAGE, nodes, parse, python_files, where
from windfall.policies import policy_registry
from windfall.policies.policy_registry import PolicyKind
from windfall.providers import provider_list

BLIND = ("core", "control")
"""Rooms that know what a runtime or provider can do, and not which one it is."""
NAMED = {entry.name for entry in policy_registry.ENTRIES} - {"bag", "checkpoint", "every"}
"""Names of policies that are no other word of the product."""
DEFAULTS = {"terms.py": "adaptive", "jobs.py": "fixed"}
"""The lowest rooms name the default of each kind, which the list takes from there."""
LAB = "lab"
"""The papers' columns are called as in the papers."""


def _silent(tree: ast.Module) -> set[int]:
    """Docstrings, which nothing reads."""
    return {
        id(node.value) for node in nodes(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }


def texts(tree: ast.Module, words: set[str]) -> Iterator[tuple[int, str]]:
    """Yield each text that is exactly one of the words, with its line."""
    silent = _silent(tree)
    for node in nodes(tree):
        text = node.value if isinstance(node, ast.Constant) and id(node) not in silent else None
        if isinstance(text, str) and text in words:
            yield getattr(node, "lineno", 0), text


def branches(tree: ast.Module, words: set[str]) -> Iterator[tuple[int, str]]:
    """Yield each test of a type, or case of a match, whose class is named like an implementation of one of the words."""
    for node in nodes(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("isinstance", "issubclass")
        ):
            kinds = [part.id for part in ast.walk(node.args[1]) if isinstance(part, ast.Name)]
        elif isinstance(node, ast.MatchClass):
            kinds = [part.id for part in ast.walk(node.cls) if isinstance(part, ast.Name)]
        else:
            continue
        for kind in kinds:
            if any(kind.lower().startswith(word) for word in words) and kind.endswith(("Provider", "Runtime", "Rules")):
                yield node.lineno, kind
            if kind in ("RuntimeRules", "Provider", "Runtime"):
                yield node.lineno, kind


def _runtimes_and_providers() -> set[str]:
    return {entry.name for entry in policy_registry.own(PolicyKind.RUNTIME)} | set(provider_list.names())


@pytest.mark.parametrize("room", BLIND)
def test_no_runtime_or_provider_is_named(room: str) -> None:
    """No text is the name of a runtime or provider: what differs between them is a field of what they say of themselves."""
    files = python_files(PACKAGE / room)
    found = [
        f"{where(path, line)}: {text}" for path in files for line, text in texts(parse(path), _runtimes_and_providers())
    ]

    assert found == []


@pytest.mark.parametrize("room", BLIND)
def test_no_branch_on_the_type_of_one(room: str) -> None:
    """No `isinstance` and no `match` asks which runtime or provider it has."""
    files = python_files(PACKAGE / room)
    words = _runtimes_and_providers()
    found = [f"{where(path, line)}: {text}" for path in files for line, text in branches(parse(path), words)]

    assert found == []


def _allowed(path: Path, text: str) -> bool:
    inside = path.relative_to(PACKAGE).as_posix()
    return inside.startswith((f"{LAB}/", "policies/policy_registry.py")) or DEFAULTS.get(inside) == text


def test_a_policy_is_named_once() -> None:
    """Outside the list of policies no text is the name of one: a new one would have to be added there too."""
    found = [
        f"{where(path, line)}: {text}"
        for path in python_files(PACKAGE)
        for line, text in texts(parse(path), NAMED)
        if not _allowed(path, text)
    ]

    assert found == []


def test_the_rules_see_what_they_are_for() -> None:
    """A comparison, a table's key, a type and a case are found; docstrings and longer texts are not."""
    bad = 'if name == "local": pass\nx = {"thesis": 1}\n'
    good = '"""local"""\nz = "the local disk"\n'
    typed = "if isinstance(one, LocalProvider): pass\nmatch one:\n    case CheckpointRuntime(): pass\nisinstance(one, Offer)\n"

    assert [line for line, _ in texts(ast.parse(bad), {"local", "thesis"})] == [1, 2]
    assert list(texts(ast.parse(good), {"local"})) == []
    assert sorted(line for line, _ in branches(ast.parse(typed), {"local", "checkpoint"})) == [1, 3]


def test_every_row_of_the_list_leads_somewhere() -> None:
    """Names are unique by kind, every place exists, and every row has a sentence for users."""
    for kind in PolicyKind:
        rows = policy_registry.own(kind)
        assert rows, kind
        assert len({row.name for row in rows}) == len(rows)
        for row in rows:
            assert policy_registry.load(kind, row.name) is not None
            assert row.help
            assert not row.help.endswith(".")
