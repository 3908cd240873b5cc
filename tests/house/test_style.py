"""The style of the house, as far as a program can see it."""

from __future__ import annotations

import ast
import re
import tokenize
from pathlib import Path

import pytest

from tests.house.source import PACKAGE, ROOT, functions, nodes, parse, python_files, tree_files, where

CODE_LINES_MAX_FILE = 400
LINES_MAX_FUNCTION = 60
DESCRIBED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
NO_CODE = {
    *(tokenize.ENCODING, tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE),
    *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
}
CODE = [path for folder in ("src", "tests", "examples", "benchmarks", "docs") for path in python_files(ROOT / folder)]

# (file, name): why this module keeps something that changes.
STATE_ALLOWED: dict[tuple[str, str], str] = {}
MUTABLE = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
MAKERS = frozenset(
    {"list", "dict", "set", "bytearray", "defaultdict", "deque", "Counter", "OrderedDict", "Lock", "RLock", "Event"}
    | {"Queue", "local", "ContextVar", "count", "iter", "open"}
)
MUTATORS = frozenset(
    {
        "append",
        "extend",
        "insert",
        "add",
        "update",
        "setdefault",
        "pop",
        "popitem",
        "clear",
        "remove",
        "discard",
        "sort",
    }
)


def code_lines(path: Path) -> int:
    """Lines that hold code: no blank line, comment or docstring, so that no rule punishes an explanation."""
    with path.open("rb") as file:
        tokens = [token for token in tokenize.tokenize(file.readline) if token.type not in NO_CODE]
    lines = {line for token in tokens for line in range(token.start[0], token.end[0] + 1)}
    described = [node.body[0] for node in nodes(parse(path)) if isinstance(node, DESCRIBED) and node.body]
    docstrings = [node for node in described if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)]
    return len(lines - {line for node in docstrings for line in range(node.lineno, (node.end_lineno or 0) + 1)})


def test_no_file_is_longer_than_its_subject() -> None:
    """A file has at most 400 lines of code."""
    # Which lines are code takes long to find out, and most files are short whatever is in them.
    large = [path for path in CODE if len(path.read_bytes().splitlines()) > CODE_LINES_MAX_FILE]
    long = {str(path.relative_to(ROOT)): count for path in large if (count := code_lines(path)) > CODE_LINES_MAX_FILE}

    assert long == {}


def _length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from `def` to the end, the docstring not counted."""
    docstring = node.body[0] if ast.get_docstring(node, clean=False) is not None else None
    described = docstring.end_lineno - docstring.lineno + 1 if docstring else 0
    return node.end_lineno - node.lineno + 1 - described


def test_no_function_is_longer_than_a_screen() -> None:
    """A function has at most 60 lines beside its docstring."""
    long = [
        f"{where(path, node.lineno)}: {node.name} has {_length(node)} lines"
        for path in CODE
        for node in functions(parse(path))
        if _length(node) > LINES_MAX_FUNCTION
    ]

    assert long == []


def test_packages_are_empty_at_their_top() -> None:
    """Every `__init__.py` is empty, except the one that gives the SDK its names."""
    full = [
        str(path.relative_to(ROOT))
        for path in python_files(ROOT)
        if path.name == "__init__.py" and path != PACKAGE / "__init__.py" and path.read_text().strip()
    ]

    assert full == []


def _makes_mutable(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Call):
        called = value.func.attr if isinstance(value.func, ast.Attribute) else getattr(value.func, "id", "")
        return called in MAKERS
    return isinstance(value, MUTABLE)


def _top_names(tree: ast.Module) -> dict[str, tuple[int, bool]]:
    """Name -> (line, is something that can change) of each module-level assignment."""
    found = {}
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        for target in targets:
            if isinstance(target, ast.Name):
                found[target.id] = (node.lineno, _makes_mutable(node.value))
    return found


def _changed_names(tree: ast.Module) -> set[str]:
    """Names that the module rebinds by `global`, or whose contents it changes."""
    changed: set[str] = set()
    for node in nodes(tree):
        if isinstance(node, ast.Global):
            changed |= set(node.names)
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, (ast.Store, ast.Del)):
            changed |= {node.value.id} if isinstance(node.value, ast.Name) else set()
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATORS:
            changed |= {node.func.value.id} if isinstance(node.func.value, ast.Name) else set()
    return changed


def module_state(tree: ast.Module) -> list[tuple[str, int]]:
    """Module-level names that hold state: rebound, changed in place, or mutable and not written as a constant."""
    changed = _changed_names(tree)
    globals_ = {name for node in nodes(tree) if isinstance(node, ast.Global) for name in node.names}
    constant = re.compile(r"_?[A-Z][A-Z0-9_]*$|__all__$")
    return [
        (name, line)
        for name, (line, mutable) in _top_names(tree).items()
        if name in globals_ or (mutable and (name in changed or not constant.match(name)))
    ]


def test_no_module_keeps_state() -> None:
    """Nothing at the top of a module of the product changes after its import, but for the listed exceptions."""
    found = {
        (path.relative_to(PACKAGE).as_posix(), name)
        for path in python_files(PACKAGE)
        for name, _ in module_state(parse(path))
    }

    assert found == set(STATE_ALLOWED)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("cache = {}", ["cache"]),
        ("SEEN = set()\ndef f(): SEEN.add(1)", ["SEEN"]),
        ("_current = None\ndef f():\n    global _current\n    _current = 1", ["_current"]),
        ("import threading\nlock = threading.Lock()", ["lock"]),
        ("TABLE = {1: 2}", []),
        ("VERSION = 1", []),
    ],
)
def test_module_state_is_recognised(text: str, names: list[str]) -> None:
    """A cache, a filled constant, a rebound global and a lock are state; a constant table is not."""
    assert [name for name, _ in module_state(ast.parse(text))] == names


def test_every_test_says_what_it_promises() -> None:
    """Each test function has a docstring of at least one sentence."""
    silent = [
        f"{where(path, node.lineno)}: {node.name}"
        for path in python_files(ROOT / "tests")
        for node in functions(parse(path))
        if node.name.startswith("test_") and not (ast.get_docstring(node) or "").rstrip().endswith((".", "?", "!", "`"))
    ]

    assert silent == []


def _texts() -> list[tuple[Path, str]]:
    read = []
    for path in tree_files():
        if path == Path(__file__):
            continue
        try:
            read.append((path, path.read_text("utf-8")))
        except UnicodeDecodeError:
            continue
    return read


def _hits(pattern: str) -> list[str]:
    expression = re.compile(pattern)
    return [
        f"{where(path, number)}: {line.strip()[:100]}"
        for path, text in _texts()
        for number, line in enumerate(text.splitlines(), 1)
        if expression.search(line)
    ]


def test_nothing_is_left_to_be_done_in_a_comment() -> None:
    """The tree holds no note of unfinished work."""
    assert _hits(r"\b(TODO|FIXME|XXX|HACK)\b") == []


def test_the_tree_names_no_machine() -> None:
    """No file holds the path of somebody's machine or of a temporary workplace."""
    assert _hits(r"(?<![\w.$}<-])/(work|root|Users|mnt)/|(?<![\w.$}<-])/home/(?!user\b|me\b|you\b)|/tmp/w/") == []


def test_the_tree_names_no_registry() -> None:
    """No file says where packages are downloaded from: that is the business of whoever installs."""
    assert _hits(r"(extra-)?index-url|https?://[^\s/]*(pypi|registry|artifactory|nexus|mirror)[^\s/]*/") == []
