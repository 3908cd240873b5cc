"""Every module is there for somebody: a verb, a program that a verb starts, or a name that scripts import."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from tests.house.source import PACKAGE, imports, module_name, nodes, parse, python_files

# What users and processes of ours start or import by name.
SCRIPTS_IMPORT = frozenset(
    {
        "windfall",
        "windfall.elastic",
        "windfall.paramserver",
        "windfall.sdk.torch",
        "windfall.sdk.transformers",
        "windfall.sdk.lightning",
    }
)
COMMANDS = frozenset({"windfall.cli.main", "windfall.wire.metadata_server", "windfall.wire.agent_archive"})

# Module -> why no verb reaches it.
UNREACHED: dict[str, str] = {
    **dict.fromkeys(
        ("windfall.apps.cnn", "windfall.apps.lda", "windfall.apps.mlr"),
        "an application of the parameter server, which job files name; no other module does",
    ),
    **dict.fromkeys(
        ("windfall.apps.cnn_memory", "windfall.apps.pictures"),
        "a part of the application windfall.apps.cnn",
    ),
}


@cache
def _modules() -> dict[str, Path]:
    return {module_name(path): path for path in python_files(PACKAGE)}


def _texts(tree: ast.Module) -> set[str]:
    """Modules named in strings: programs that are started with `-m`, and the table of verbs."""
    words = [node.value for node in nodes(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    named = {word for text in words for word in re.findall(r"windfall(?:\.[a-z_]+)+", text)}
    verbs = {
        f"windfall.{text.partition(':')[0]}"
        for text in words
        if re.fullmatch(r"[a-z_]+(?:\.[a-z_]+)+:[A-Za-z_]+", text)
    }
    return named | verbs


def _type_checking(tree: ast.Module) -> set[int]:
    """The lines that only a type checker reads."""
    blocks = [
        node
        for node in nodes(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    ]
    return {line for node in blocks for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}


def reached(start: frozenset[str], *, programs: bool) -> set[str]:
    """Return the modules that a process that starts with any of `start` can load; with `programs` also what it starts."""
    found: set[str] = set()
    waiting = [name for name in start if name in _modules()]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        tree = parse(_modules()[name])
        unread = _type_checking(tree)
        uses = {use.name for use in imports(tree) if use.line not in unread} | (_texts(tree) if programs else set())
        for use in uses:
            parts = use.split(".")
            waiting += [
                ".".join(parts[:end]) for end in (len(parts), len(parts) - 1) if ".".join(parts[:end]) in _modules()
            ]
    return found


def test_a_verb_a_program_or_a_script_reaches_every_module() -> None:
    """No file lives for its tests alone, but for the listed ones; and no listed one is reached."""
    found = reached(COMMANDS | SCRIPTS_IMPORT, programs=True)
    unreached = {name for name, path in _modules().items() if path.name != "__init__.py" and name not in found}

    assert unreached == set(UNREACHED)


def test_jobs_and_runs_need_neither_drill_nor_lab() -> None:
    """From what a run's own processes start with, no module of the top floor is loaded."""
    programs = frozenset(
        {"windfall.cli.exec", "windfall.cli.run", "windfall.cli.agent_process", "windfall.cli.node_agent_process"}
        | {"windfall.cli.controller_process", "windfall.providers.local.market_daemon"}
    )

    found = reached(programs, programs=False)

    assert {name for name in found if name.startswith(("windfall.drill.", "windfall.lab."))} == set()
