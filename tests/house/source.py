"""What the style tests share: the tree's files, their syntax trees, and names resolved to what they import."""

from __future__ import annotations

import ast
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"
PACKAGE = SRC / "windfall"


@dataclass(frozen=True)
class Use:
    """A dotted name that a file uses, resolved through its imports (`time.sleep`, `print`)."""

    name: str
    line: int


def tree_files() -> list[Path]:
    """Every file that belongs to the repository: tracked, or new and not ignored."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, check=False
    )
    if listed.returncode == 0:
        names = [name for name in listed.stdout.decode().split("\0") if name]
        return sorted(path for name in names if (path := ROOT / name).is_file())
    hidden = {".git", ".venv", "__pycache__", "node_modules", "out", "dist", "build"}
    return sorted(path for path in ROOT.rglob("*") if path.is_file() and not hidden & set(path.parts))


def python_files(folder: Path) -> list[Path]:
    """Every Python file of the repository below `folder`."""
    return [path for path in tree_files() if path.suffix == ".py" and path.is_relative_to(folder)]


def parse(path: Path) -> ast.Module:
    """The file's syntax tree, which nothing may change: many tests read the same one."""
    return _parsed(path, path.stat().st_mtime_ns)


@cache
def _parsed(path: Path, mtime_ns: int) -> ast.Module:
    del mtime_ns
    return ast.parse(path.read_text("utf-8"), filename=str(path))


@cache
def nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    """All nodes of a syntax tree: to walk it takes long, and many tests do."""
    return tuple(ast.walk(tree))


def module_name(path: Path) -> str:
    """`src/windfall/wire/script_page.py` is `windfall.wire.script_page`."""
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(tree: ast.Module) -> list[Use]:
    """Every module or name that is imported, anywhere in the file, as a dotted name."""
    found = []
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            found += [Use(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports are not used here"
            found += [Use(f"{node.module}.{alias.name}", node.lineno) for alias in node.names]
    return found


def _bindings(tree: ast.Module) -> dict[str, str]:
    bound = {}
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                bound[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                bound[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return bound


def _dotted(node: ast.expr) -> list[str] | None:
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute):
        head = _dotted(node.value)
        return [*head, node.attr] if head else None
    return None


@cache
def uses(tree: ast.Module) -> list[Use]:
    """Every imported or built-in name that is read, as the dotted name of what it really is."""
    bound = _bindings(tree)
    local = {node.id for node in nodes(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    local |= {node.arg for node in nodes(tree) if isinstance(node, ast.arg)}
    found = []
    for node in nodes(tree):
        if not isinstance(node, (ast.Name, ast.Attribute)) or (dotted := _dotted(node)) is None:
            continue
        head, *rest = dotted
        if head in bound:
            found.append(Use(".".join([bound[head], *rest]), node.lineno))
        elif head not in local:
            found.append(Use(".".join(dotted), node.lineno))
    return found


@cache
def functions(tree: ast.Module) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function and method of the file."""
    return [node for node in nodes(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]


def where(path: Path, line: int) -> str:
    """A place as editors open it."""
    return f"{path.relative_to(ROOT)}:{line}"
