"""Writes the pages of `docs/reference` that come from the code: `make docs`.

A test compares what this program would write with what is in the tree, so that the pages are never out of date.
"""

from __future__ import annotations

import ast
import copy
import importlib
import inspect
import io
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

from rich.console import Console

import windfall
from windfall import errors, events, fleet, results, terms
from windfall.cli import main as command
from windfall.cli.executor import Executor
from windfall.cli.verb_list import help_text
from windfall.cli.verbs import build as build_cli
from windfall.core import lifecycle
from windfall.policies import policy_registry
from windfall.sdk.session import Session
from windfall.structs import Tagged
from windfall.wire import environment, run_layout

REFERENCE = Path(__file__).parent / "reference"
SECTIONS = ("Attributes:", "Args:", "Raises:")
DEFINED = (ast.FunctionDef, ast.ClassDef)
ADAPTERS = (
    (
        "Checkpoints of a plain PyTorch script. [How to](../howto/pytorch.md).",
        "windfall.sdk.torch",
        ("Checkpoint", "Position", "Loader", "shield_workers", "random_state", "set_random_state"),
    ),
    ("Hugging Face Trainer. [How to](../howto/transformers.md).", "windfall.sdk.transformers", ("WindfallCallback",)),
    ("Lightning. [How to](../howto/lightning.md).", "windfall.sdk.lightning", ("WindfallCallback",)),
    (
        "Scripts on a parameter server. [How to](../howto/parameter-server.md).",
        "windfall.paramserver",
        ("connect", "wrap", "Server", "Turn"),
    ),
    (
        "Training on machines that come and go. [How to](../howto/elastic.md).",
        "windfall.elastic",
        ("Model", "wrap", "load"),
    ),
)
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
        if line.strip() in SECTIONS:
            listed = True
            if line.strip() != "Attributes:":
                lines.append(f"**{line.strip().removesuffix(':')}**\n")
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
        errors.EXIT_INFEASIBLE: "nothing for sale can do the job; nothing was started",
        errors.EXIT_BUDGET: "the job was stopped: by its budget or by `max_duration`, after a save",
        errors.EXIT_NOT_RESUMED: "a drill: the script does not resume as it was",
        errors.EXIT_STOPPED: "stopped by `windfall stop` or Ctrl-C: not done; run the same command again to continue",
        errors.EXIT_RETRY: "run the same command again: preempted, held by a live machine, or taken over",
        command.INTERRUPTED: "Ctrl-C before anything started, or during a verb that only reads",
        command.PIPE_CLOSED: "the reader of the output (`| head`) closed the pipe",
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
        ("A worker", lifecycle.WorkerStage, lifecycle.WORKER),
        ("A checkpoint", lifecycle.CheckpointState, lifecycle.CHECKPOINT),
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
    parts = [HEAD.format(source="cli"), "# Command line\n\n", f"```\n{help_text(80)}\n```\n"]
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
        words = [*payload_of(events, base), *payload_of(results, base)]
        parts += [f"### {cls.__name__}\n\n{prose(cls.__doc__)}\n\n{fields(cls)}\n" for cls in words]
    return "".join(parts).rstrip() + "\n"


def payload_of(module: ModuleType, base: type) -> list[type]:
    """The data classes of a module that have exactly this base, in the order of their definition."""
    found = [
        value for value in vars(module).values() if isinstance(value, type) and value.__module__ == module.__name__
    ]
    return [cls for cls in found if issubclass(cls, Tagged) and _marker(cls) is base]


def _marker(cls: type) -> type:
    """What a value is besides a value: a fact, a command, or nothing else."""
    return next((base for base in cls.__bases__ if not issubclass(base, Tagged)), object)


def fields(cls: type) -> str:
    """A data class's fields with their types, in one line."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(node, ast.ClassDef)
    named = [part for part in node.body if isinstance(part, ast.AnnAssign)]
    written = ", ".join(f"`{ast.unparse(part.target)}: {ast.unparse(part.annotation)}`" for part in named)
    return f"Fields: {written}.\n" if written else "No fields.\n"


def page_sdk() -> str:
    """The functions of `import windfall`, and what the adapters add, from their docstrings."""
    parts = [HEAD.format(source="sdk"), "# Python functions\n\n", prose(windfall.__doc__), "\n\n## windfall\n"]
    parts += [described(f"windfall.{name}", getattr(Session, name)) for name in windfall.__all__]
    parts.append(described("windfall.Executor", Executor))
    for title, module, names in ADAPTERS:
        parts.append(f"\n## {module}\n\n{title}\n")
        nodes = {node.name: node for node in tree_of(importlib.import_module(module)).body if isinstance(node, DEFINED)}
        for name in names:
            parts.append(written(f"{module}.{name}", nodes[name]))
    return "".join(parts)


def described(name: str, method: Callable[..., object]) -> str:
    """Return a function or class of the SDK: how it is called, and its docstring."""
    return written(name, ast.parse(textwrap.dedent(inspect.getsource(method))).body[0])


def written(name: str, node: ast.stmt) -> str:
    """Return a function or class as a section: its signature without `self`, its docstring, its public methods."""
    assert isinstance(node, DEFINED)
    methods = (
        [part for part in node.body if isinstance(part, ast.FunctionDef)] if isinstance(node, ast.ClassDef) else []
    )
    made = next((part for part in methods if part.name == "__init__"), None)
    taken = made if isinstance(node, ast.ClassDef) else node
    text = f"\n### {name}\n\n```python\n{name}{_signature(taken)}\n```\n\n{prose(ast.get_docstring(node))}\n"
    if made is not None and ast.get_docstring(made):
        text += f"\n{prose(ast.get_docstring(made))}\n"
    for method in methods:
        if not method.name.startswith("_"):
            title = f"{name.rpartition('.')[2]}.{method.name}{_signature(method)}"
            text += f"\n#### {title}\n\n{prose(ast.get_docstring(method))}\n"
    return text


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | None) -> str:
    if not isinstance(node, ast.FunctionDef):
        return ""
    own = copy.deepcopy(node.args)
    own.args = [arg for arg in own.args if arg.arg != "self"]
    returned = f" -> {ast.unparse(node.returns)}" if node.returns and node.name != "__init__" else ""
    return f"({ast.unparse(own)}){returned}"


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


def page_policies() -> str:
    """Every policy by kind, from the list that the code reads."""
    parts = [HEAD.format(source="policies/policy_registry.py"), "# Policies\n\n", prose(policy_registry.__doc__), "\n"]
    kinds = {value: meaning for _, value, meaning in documented(_class_of(policy_registry, "PolicyKind").body)}
    for kind, (value, meaning) in zip(policy_registry.PolicyKind, kinds.items(), strict=True):
        assert isinstance(value, ast.Constant)
        simulated = kind is policy_registry.PolicyKind.SAVING
        parts.append(f"\n## {kind.value.capitalize()}\n\n{meaning}\n\n")
        parts.append(
            f"| name | in a job file | what it does |{' simulated |' * simulated}\n|---|---|---|{'---|' * simulated}\n"
        )
        for entry in policy_registry.own(kind):
            words = ", ".join(f"`{word}`" for word in entry.arguments or ((entry.word,) if entry.word else ())) or "-"
            last = f" {'no' if entry.kernel is None else 'yes'} |" * simulated
            parts.append(f"| `{entry.name}` | {words} | {entry.help} |{last}\n")
    groups = " and ".join(f"`{group}`" for group in policy_registry.GROUPS.values())
    parts.append(f"\n[How to add one](../../CONTRIBUTING.md). Groups of entry points for other packages: {groups}.\n")
    return "".join(parts)


def _class_of(module: ModuleType, name: str) -> ast.ClassDef:
    (cls,) = (node for node in tree_of(module).body if isinstance(node, ast.ClassDef) and node.name == name)
    return cls


def page_layout() -> str:
    """Where everything of a run lies."""
    text, table = inspect.cleandoc(run_layout.__doc__ or "").split("\n\n", 1)
    drawn = textwrap.indent(table, "    ")
    return f"{HEAD.format(source='wire/run_layout.py')}# The layout of a run\n\n{text}\n\n{drawn}\n"


def pages() -> dict[Path, str]:
    """Every generated page with its text."""
    return {
        REFERENCE / "cli.md": page_cli(),
        REFERENCE / "environment.md": page_environment(),
        REFERENCE / "errors.md": page_errors(),
        REFERENCE / "journal.md": page_journal(),
        REFERENCE / "layout.md": page_layout(),
        REFERENCE / "lifecycle.md": page_lifecycle(),
        REFERENCE / "policies.md": page_policies(),
        REFERENCE / "sdk.md": page_sdk(),
        REFERENCE / "words.md": page_words(),
    }


if __name__ == "__main__":
    REFERENCE.mkdir(exist_ok=True)
    for path, text in pages().items():
        path.write_text(text, "utf-8")
