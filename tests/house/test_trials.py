"""The register of trials: each finding that was worth mending is held by a test of the default suite."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

from tests.house.source import ROOT, nodes, parse, python_files

TESTS = ROOT / "tests"
COUNTS = {"A": range(1, 9), "B": range(1, 8), "C": range(1, 4), "D": range(1, 5), "E": range(1, 5), "G": range(1, 15)}
WANTED = {f"{letter}{number}" for letter, numbers in COUNTS.items() for number in numbers} | {"F5", "F6"}
MISSING: frozenset[str] = frozenset()
"""Findings whose test is still to come; nothing is ever added here."""


def _marks(nodes: list[ast.expr]) -> tuple[set[str], bool]:
    """The trial numbers among decorators (or the elements of `pytestmark`), and whether `slow` is among them."""
    numbers: set[str] = set()
    for node in nodes:
        for call in ast.walk(node):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.mark.trial":
                numbers |= {str(ast.literal_eval(argument)) for argument in call.args}
    return numbers, any(ast.unparse(node).startswith("pytest.mark.slow") for node in nodes)


def _of_module(tree: ast.Module) -> list[ast.expr]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            return node.value.elts if isinstance(node.value, ast.List | ast.Tuple) else [node.value]
    return []


def marked(file: Path, *, slow: bool) -> dict[str, set[str]]:
    """Test name -> the trial numbers that it holds; with `slow` those of `make verify` too."""
    tree = parse(file)
    module = _of_module(tree)
    found: dict[str, set[str]] = defaultdict(set)
    for node in nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            numbers, is_slow = _marks([*module, *node.decorator_list])
            if numbers and (slow or not is_slow):
                found[node.name] |= numbers
    return found


def registered() -> set[str]:
    """Every trial number that a test of the default suite holds."""
    files = [file for file in python_files(TESTS) if not file.is_relative_to(TESTS / "red")]
    return {number for file in files for numbers in marked(file, slow=False).values() for number in numbers}


def test_each_finding_is_held_by_a_test() -> None:
    """Whoever takes such a test away, or makes it slow, sees here which finding nothing holds any more."""
    missing = WANTED - registered() - MISSING
    assert not missing, f"no test of `make test` is marked with {sorted(missing)}"


def test_no_test_names_a_finding_that_is_not_one() -> None:
    """A number that was mistyped would hold nothing."""
    letters = {f"{letter}{number}" for letter in "ABCDEFG" for number in range(1, 17)}
    assert registered() <= letters, f"not findings: {sorted(registered() - letters)}"


@pytest.mark.parametrize(
    ("text", "fast", "all_"),
    [
        ('@pytest.mark.trial("A1")\ndef test_a(): ...', {"A1"}, {"A1"}),
        ('@pytest.mark.slow\n@pytest.mark.trial("A1")\ndef test_a(): ...', set(), {"A1"}),
        ('pytestmark = [pytest.mark.trial("B2", "B3")]\ndef test_a(): ...', {"B2", "B3"}, {"B2", "B3"}),
        (
            '@pytest.mark.parametrize("a", [pytest.param(1, marks=pytest.mark.trial("A2"))])\ndef test_a(a): ...',
            {"A2"},
            {"A2"},
        ),
        ('class TestA:\n    @pytest.mark.trial("G1")\n    def test_a(self): ...', {"G1"}, {"G1"}),
        ('@pytest.mark.trial("A1")\ndef helper(): ...', set(), set()),
    ],
)
def test_marks_are_found_where_pytest_finds_them(text: str, fast: set[str], all_: set[str], tmp_path: Path) -> None:
    """On a function, in a class, for a module; slow tests hold nothing in the default suite."""
    (tmp_path / "test_x.py").write_text(text)
    for slow, expected in ((False, fast), (True, all_)):
        found = marked(tmp_path / "test_x.py", slow=slow)
        assert set().union(*found.values()) == expected
