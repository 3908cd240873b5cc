"""The block `bag.stop_item` of a job file: when one running item is stopped."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

from pydantic import Field

from windfall.bags import STOP_DONE_MIN, STOP_MEDIAN_FROM, ResultRule, StopItem
from windfall.spec import fields
from windfall.spec.bag_fields import ITEMS_MAX
from windfall.spec.job_block import JobFileBlock
from windfall.spec.stop_rules import metric_problems, one_rule
from windfall.spelling import nearest

_CALL = re.compile(r"[^:]+\.py:[A-Za-z_][A-Za-z0-9_]*")
_PLACE = ("bag", "stop_item")
_RULES = ("above", "below", "median", "call")


class ItemStepsBlock(JobFileBlock):
    """How far an item is, by what it prints beside the metric."""

    regex: fields.Words
    """Finds the step in the file of the metric; its first group if it has one."""
    of: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    """The step at the end of a run."""


class StopItemBlock(JobFileBlock):
    """When one running item is stopped, by a result whose values are read while it runs; it has one of four rules."""

    metric: fields.Words
    """The result that decides: each match of its regex is a value, or each change of its JSON file."""
    above: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """Stopped once a value is larger."""
    below: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """Stopped once a value is smaller."""
    median: Literal["min", "max"] | None = None
    """Stopped if its best so far is worse than the median of other items' means up to there; min: small values are good."""
    call: fields.Words | None = None
    """FILE.py:FUNCTION in workdir, called with the item's parameters and values; True or a sentence stops the item."""
    from_: Annotated[float, Field(ge=0, le=1)] | None = Field(default=None, alias="from")
    """Not before this share of the item's run (default: 0.3 with median, else 0)."""
    min_done: Annotated[int, Field(ge=1, le=ITEMS_MAX)] | None = None
    """Of median: how many items must be done before (default: 5)."""
    steps: ItemStepsBlock | None = None
    """How far an item is (default: by its time, as items that are done took)."""

    @property
    def rules(self) -> tuple[str, ...]:
        """The rules that are set."""
        return tuple(name for name in _RULES if getattr(self, name) is not None)


def stop_item_of(block: StopItemBlock | None) -> StopItem | None:
    """Return the rule that a block describes."""
    if block is None:
        return None
    from_progress = block.from_
    if from_progress is None:
        from_progress = STOP_MEDIAN_FROM if block.median is not None else 0.0
    return StopItem(
        block.metric,
        block.above,
        block.below,
        block.median,
        from_progress,
        STOP_DONE_MIN if block.min_done is None else block.min_done,
        block.call,
        None if block.steps is None else block.steps.regex,
        1.0 if block.steps is None else block.steps.of,
    )


def stop_item_problems(
    rule: StopItemBlock | None, results: Sequence[ResultRule]
) -> Iterable[tuple[tuple[str, ...], str]]:
    """Yield what is wrong with a block, each with its path below the job file, and a sentence."""
    if rule is None:
        return
    yield from metric_problems(_PLACE, rule.metric, results)
    if len(rule.rules) != 1:
        yield from one_rule(_PLACE, rule.rules, _RULES, f"{{metric: {rule.metric}, median: min}}")
        return
    if rule.min_done is not None and rule.median is None:
        yield (*_PLACE, "min_done"), "bag.stop_item.min_done needs median: with how many items it compares"
    for key, value in (("from", rule.from_), ("steps", rule.steps)):
        if value is not None and rule.call is not None:
            yield (*_PLACE, key), f"bag.stop_item.{key} is for above, below and median; a function decides by itself"
    if rule.steps is not None:
        try:
            groups = re.compile(rule.steps.regex).groups
        except re.error as error:
            yield (*_PLACE, "steps", "regex"), f"bag.stop_item.steps.regex is none ({error}): {rule.steps.regex}"
            return
        if groups > 1:
            yield (
                (*_PLACE, "steps", "regex"),
                f"bag.stop_item.steps.regex has {groups} groups; write (?:...) for all but the one with the step",
            )


def call_problems(rule: StopItemBlock | None, workdir: str | None) -> Iterable[tuple[tuple[str, ...], str]]:
    """Yield why the function of a block is not there; its file is read, and not run."""
    if rule is None or rule.call is None:
        return
    place = (*_PLACE, "call")
    if not _CALL.fullmatch(rule.call):
        yield place, f"bag.stop_item.call must be FILE.py:FUNCTION, such as rules.py:should_stop, not {rule.call}"
        return
    file, _, name = rule.call.rpartition(":")
    if os.path.isabs(file) or ".." in file.split("/"):
        yield place, f"bag.stop_item.call must name a file in workdir, not {file}"
        return
    if workdir is None:
        yield place, f"bag.stop_item.call needs workdir, the folder with {file}, for example workdir: ."
        return
    path = os.path.join(os.path.expanduser(workdir), file)
    try:
        with open(path, "rb") as source:
            names = _names(ast.parse(source.read()))
    except OSError as error:
        yield place, f"bag.stop_item.call: cannot read {path}: {error.strerror}"
    except (SyntaxError, ValueError) as error:
        yield place, f"bag.stop_item.call: {path} is not Python: {error}"
    else:
        if name not in names:
            yield place, f"bag.stop_item.call: {path} has no function {name}; {nearest(name, sorted(names))}"


def _names(tree: ast.Module) -> set[str]:
    """Return the names that a module may have: functions, imports, and what is assigned."""
    found = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    found |= {one.asname or one.name for one in ast.walk(tree) if isinstance(one, ast.alias)}
    return found | {one.id for one in ast.walk(tree) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
