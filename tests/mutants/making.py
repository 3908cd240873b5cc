"""The places of a file that can be changed, and the changes; the operators are Cosmic Ray's."""

from __future__ import annotations

import ast
import random
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import cosmic_ray.plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code

Span = tuple[tuple[int, int], tuple[int, int]]
EQUAL_SHARE = {"Is_Eq", "IsNot_NotEq", "Eq_Is", "NotEq_IsNot"}
"""Of None and the members of enumerations `is` and `==` say the same."""
UNFIT = ("VariableReplacer", "VariableInserter", "RemoveDecorator", "ExceptionReplacer")
"""Operators that need to be told names, or that no program gets past its import with."""


@dataclass(frozen=True, order=True)
class Mutant:
    """One change: the so-and-so-manieth place of a file that an operator could change."""

    file: str
    line: int
    operator: str
    occurrence: int

    def text(self, root: Path) -> str:
        """The changed file."""
        operator = cosmic_ray.plugins.get_operator(self.operator)()
        made = mutate_code((root / self.file).read_text("utf-8"), operator, self.occurrence)
        assert made is not None, self
        return str(made)


def operators() -> list[str]:
    """The names of the operators in use."""
    names = cosmic_ray.plugins.operator_names()
    return sorted(name for name in names if not name.endswith(UNFIT) and name.partition("_")[2] not in EQUAL_SHARE)


def places(root: Path, file: str) -> dict[Span, list[Mutant]]:
    """Each place of a file with the changes that can be made there; what runs nowhere is left out."""
    text = (root / file).read_text("utf-8")
    nodes, still = list(ast_nodes(get_ast(text))), _never_run(ast.parse(text))
    found: dict[Span, list[Mutant]] = defaultdict(list)
    for name in operators():
        operator, occurrence = cosmic_ray.plugins.get_operator(name)(), 0
        for node in nodes:
            for span in operator.mutation_positions(node):
                if not any(first <= span[0] and span[1] <= last for first, last in still):
                    found[span].append(Mutant(file, span[0][0], name, occurrence))
                occurrence += 1
    return found


def _never_run(tree: ast.Module) -> list[Span]:
    """Annotations (they stay text), decorators (of dataclasses: promises to the reader), and what only mypy reads."""
    nodes: list[ast.AST] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign | ast.arg) and node.annotation is not None:
            nodes.append(node.annotation)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            nodes += node.decorator_list
            nodes += [node.returns] if not isinstance(node, ast.ClassDef) and node.returns is not None else []
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            nodes.append(node)
    return [((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)) for node in nodes]  # type: ignore[attr-defined]


def draw(root: Path, files: list[str], count: int, seed: int) -> list[Mutant]:
    """Draw places without preference, and at each one of its changes: the same for the same seed and sources."""
    by_place = {(file, span): found for file in files for span, found in places(root, file).items()}
    dice = random.Random(seed)
    return [dice.choice(by_place[place]) for place in dice.sample(sorted(by_place), min(count, len(by_place)))]
