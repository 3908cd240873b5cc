"""Writes the pages of `docs/reference` that come from the code: `make docs`.

A test compares what this program would write with what is in the tree, so that the pages are never out of date.
"""

from __future__ import annotations

import ast
import inspect
import io
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from rich.console import Console

from windfall import errors, events, fleet, results, terms
from windfall.cli import main as command
from windfall.cli.verbs import build as build_cli
from windfall.core import lifecycle
from windfall.wire import environment, layout

REFERENCE = Path(__file__).parent / "reference"
HEAD = "<!-- Made by docs/build.py from {source}: change it there, then `make docs`. -->\n\n"


def documented(body: list[ast.stmt]) -> Iterator[tuple[str, ast.expr | None, str]]:
    """Yield name, value and the string below it for each assignment of a module or class."""
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name = node.target.id
        else:
            continue
        described = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        yield name, node.value, " ".join(str(after.value.value).split()) if described else ""


def tree_of(module: ModuleType) -> ast.Module:
    """Return a module's syntax tree."""
    return ast.parse(inspect.getsource(module))


def prose(text: str | None) -> str:
    """Return a docstring as Markdown: its paragraphs, and its attributes as a list."""
    lines, listed = [], False
    for line in inspect.cleandoc(text or "").splitlines():
        if line.strip() == "Attributes:":
            listed = True
        elif listed and line.strip():
            name, colon, rest = line.strip().partition(": ")
            starts = line.startswith("    ") and not line.startswith("     ") and colon
            lines.append(f"- `{name}`: {rest}" if starts else f"  {line.strip()}")
        else:
            lines.append(line)
    return "\n".join(lines).strip()


def page_environment() -> str:
    """The environment variables a script finds."""
    lines = [HEAD.format(source="wire/environment.py"), "# Environment variables\n\n"]
    lines.append(prose(environment.__doc__) + "\n\n| variable | what it says |\n|---|---|\n")
    for name, value, meaning in documented(tree_of(environment).body):
        if isinstance(value, ast.Constant):
            lines.append(f"| `{value.value}` | {meaning or name.capitalize().replace('_', ' ') + '.'} |\n")
    return "".join(lines)


def page_errors() -> str:
    """The tree of errors and the exit codes."""
    text, tree = inspect.cleandoc(errors.__doc__ or "").split("\n\n", 2)[:2]
    codes = {
        errors.EXIT_DONE: "the run is done",
        errors.EXIT_FAILED: "the run failed, or the verb could not do its work",
        errors.EXIT_MISUSE: "the command line, a value or a file cannot be used",
        errors.EXIT_INFEASIBLE: "no plan meets the wishes: nothing that can be bought does what was asked",
        errors.EXIT_BUDGET: "the job was stopped: by its budget or its longest duration, after a save",
        errors.EXIT_STOPPED: "stopped by `windfall stop` or Ctrl-C: not done, and nobody should start it again unasked",
        errors.EXIT_FORGOTTEN: "a drill: the script does not resume as it was",
        errors.EXIT_AGAIN: "start the same line again: preempted, held by a live machine, or taken over",
        command.INTERRUPTED: "Ctrl-C before anything was begun, or of a verb that only looks",
        command.PIPE_CLOSED: "whoever read the output (`| head`) has closed the pipe",
    }
    table = "".join(f"| {code} | {meaning} |\n" for code, meaning in codes.items())
    drawn = textwrap.indent(textwrap.dedent(tree), "    ")
    head = HEAD.format(source="errors.py") + "# Errors and exit codes\n\n| code | meaning |\n|---|---|\n"
    return f"{head}{table}\n{text}\n\n{drawn}\n"


def page_lifecycle() -> str:
    """The legal moves, drawn from the tables that the code obeys."""
    parts = [
        HEAD.format(source="core/lifecycle.py"),
        "# What workers, checkpoints, jobs, machines and orders become\n\n",
    ]
    parts.append(prose(lifecycle.__doc__) + "\n\n")
    for title, states, table in (
        ("A worker", lifecycle.Stage, lifecycle.WORKER),
        ("A checkpoint", lifecycle.PointState, lifecycle.POINT),
        ("A job", fleet.JobPhase, lifecycle.JOB),
        ("A machine", lifecycle.MachineState, lifecycle.MACHINE),
        ("An order", lifecycle.OrderState, lifecycle.ORDER),
    ):
        parts.append(f"## {title}\n\n```mermaid\n{lifecycle.mermaid(table)}```\n\n")
        parts.append(members(states.__name__, fleet if states is fleet.JobPhase else lifecycle) + "\n")
    return "".join(parts).rstrip() + "\n"


def members(name: str, module: ModuleType) -> str:
    """An enumeration's values with what they mean, as a table."""
    (cls,) = (node for node in tree_of(module).body if isinstance(node, ast.ClassDef) and node.name == name)
    listed = [(value.value, meaning) for _, value, meaning in documented(cls.body) if isinstance(value, ast.Constant)]
    if not any(meaning for _, meaning in listed):
        return "Values: " + ", ".join(f"`{value}`" for value, _ in listed) + ".\n"
    rows = [f"| {value} | {meaning} |\n" for value, meaning in listed]
    return "| value | meaning |\n|---|---|\n" + "".join(rows)


def page_cli() -> str:
    """Every verb's help, as the terminal shows it in 80 columns."""
    app = build_cli()
    verbs = sorted(name for name in app if not name.startswith("-"))
    parts = [HEAD.format(source="cli"), "# Command line\n\n", helped(())]
    parts += [f"\n## windfall {verb}\n\n{helped((verb,))}" for verb in verbs]
    return "".join(parts)


def helped(tokens: tuple[str, ...]) -> str:
    """The help of a verb, indented as a block of code."""
    out = io.StringIO()
    console = Console(file=out, width=80, color_system=None, force_terminal=False, legacy_windows=False)
    build_cli().help_print(tokens, console=console)
    lines = [line.rstrip() for line in out.getvalue().strip().splitlines()]
    return "```\n" + "\n".join(lines) + "\n```\n"


def page_journal() -> str:
    """Facts, commands and decisions: what a row of the journal may hold."""
    parts = [HEAD.format(source="events.py"), "# The journal\n\n", prose(events.__doc__), "\n\n"]
    parts.append(f"The present version is {events.VERSION}.\n")
    for title, base in (("Facts", events.Fact), ("Commands", events.Command), ("Decisions and rows", object)):
        parts.append(f"\n## {title}\n\n")
        words = [*words_of(events, base), *words_of(results, base)]
        parts += [f"### {cls.__name__}\n\n{prose(cls.__doc__)}\n\n{fields(cls)}\n" for cls in words]
    return "".join(parts).rstrip() + "\n"


def words_of(module: ModuleType, base: type) -> list[type]:
    """The data classes of a module that have exactly this base, in the order of their definition."""
    found = [
        value for value in vars(module).values() if isinstance(value, type) and value.__module__ == module.__name__
    ]
    return [cls for cls in found if cls.__bases__ == (base,) and hasattr(cls, "__dataclass_fields__") and fields(cls)]


def fields(cls: type) -> str:
    """A data class's fields with their types, in one line."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(node, ast.ClassDef)
    named = [part for part in node.body if isinstance(part, ast.AnnAssign)]
    written = ", ".join(f"`{ast.unparse(part.target)}: {ast.unparse(part.annotation)}`" for part in named)
    return f"Fields: {written}.\n" if written else "No fields.\n"


def page_words() -> str:
    """The vocabulary."""
    parts = [HEAD.format(source="terms.py"), "# Words\n\n", prose(terms.__doc__), "\n\n## Units and numbers\n\n"]
    parts.append("| word | meaning |\n|---|---|\n")
    module = tree_of(terms)
    parts += [f"| `{name}` | {meaning} |\n" for name, value, meaning in documented(module.body) if meaning and value]
    parts.append("\n## Things\n\n")
    for node in module.body:
        if isinstance(node, ast.ClassDef):
            parts.append(f"### {node.name}\n\n{prose(ast.get_docstring(node))}\n\n")
            values = [part for part in documented(node.body) if isinstance(part[1], ast.Constant)]
            if any(ast.unparse(base).startswith("enum.") for base in node.bases) and values:
                parts.append(members(node.name, terms) + "\n")
    return "".join(parts).rstrip() + "\n"


def page_layout() -> str:
    """Where everything of a run lies."""
    text, table = inspect.cleandoc(layout.__doc__ or "").split("\n\n", 1)
    drawn = textwrap.indent(table, "    ")
    return f"{HEAD.format(source='wire/layout.py')}# The layout of a run\n\n{text}\n\n{drawn}\n"


def pages() -> dict[Path, str]:
    """Every generated page with its text."""
    return {
        REFERENCE / "cli.md": page_cli(),
        REFERENCE / "environment.md": page_environment(),
        REFERENCE / "errors.md": page_errors(),
        REFERENCE / "journal.md": page_journal(),
        REFERENCE / "layout.md": page_layout(),
        REFERENCE / "lifecycle.md": page_lifecycle(),
        REFERENCE / "words.md": page_words(),
    }


if __name__ == "__main__":
    REFERENCE.mkdir(exist_ok=True)
    for path, text in pages().items():
        path.write_text(text, "utf-8")
