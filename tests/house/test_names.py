"""One name, one thing: classes and files are called differently over the whole package."""

from __future__ import annotations

import ast
from collections import defaultdict

from tests.house.source import PACKAGE, nodes, parse, python_files

# Name -> why several classes have it.
CLASSES_ALLOWED = {
    "Checkpoint": "`windfall.sdk.torch.Checkpoint` is what a script writes; `terms.Checkpoint` is what the store holds",
    "Notice": "`windfall.Notice` is what a script sees of `terms.Notice`",
    "WindfallCallback": "each framework has its own, and users import it from there",
}
# Stem -> why several files have it.
FILES_ALLOWED: dict[str, str] = {}


def test_every_class_has_a_name_of_its_own() -> None:
    """No two classes share a name, so that a name in a traceback, a journal or a question means one thing."""
    found = defaultdict(list)
    for path in python_files(PACKAGE):
        for node in nodes(parse(path)):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(path.relative_to(PACKAGE).as_posix())

    assert {name: files for name, files in found.items() if len(files) > 1 and name not in CLASSES_ALLOWED} == {}
    assert {name for name in CLASSES_ALLOWED if len(found[name]) < 2} == set(), "an exception that nothing needs"


def test_every_file_has_a_name_of_its_own() -> None:
    """No two modules share a name, so that `job_loop` in a talk or a log is one file."""
    found = defaultdict(list)
    for path in python_files(PACKAGE):
        if path.name != "__init__.py":
            found[path.stem].append(path.relative_to(PACKAGE).as_posix())

    assert {stem: files for stem, files in found.items() if len(files) > 1 and stem not in FILES_ALLOWED} == {}
