"""The findings of `windfall doctor`, and how they are printed."""

from __future__ import annotations

import enum
from collections.abc import Iterable

import msgspec
from rich.table import Table
from rich.text import Text

from windfall.structs import Struct


class Verdict(enum.StrEnum):
    """The result of a check."""

    OK = "ok"
    WARN = "warn"
    """It works, but not as well as it could."""
    FAIL = "FAIL"
    """A run would fail."""


_STYLES = {Verdict.OK: "green", Verdict.WARN: "yellow", Verdict.FAIL: "bold red"}


class Check(Struct, frozen=True):
    """One check and its result.

    Attributes:
        name: what was checked.
        says: what was found.
        advice: what to do about it; empty if nothing.
        numbers: measurements by name, with the unit at the end of the name.
    """

    name: str
    verdict: Verdict
    says: str
    advice: str = ""
    numbers: dict[str, float] = msgspec.field(default_factory=dict)


def table(checks: Iterable[Check]) -> Table:
    """Return a table with one row per check: its verdict, its name, what was found, and the advice."""
    made = Table(box=None, show_header=False, pad_edge=False)
    made.add_column(no_wrap=True, min_width=4)
    made.add_column(no_wrap=True, min_width=13)
    made.add_column(overflow="fold")
    for check in checks:
        words = f"{check.says}: {check.advice}" if check.advice else check.says
        made.add_row(Text(check.verdict.value, style=_STYLES[check.verdict]), check.name, Text(words))
    return made


def as_json(check: Check) -> dict[str, object]:
    """Return a check as data for `json.dumps`."""
    return {
        "check": check.name,
        "verdict": check.verdict.value,
        "says": check.says,
        "do": check.advice or None,
        "numbers": check.numbers,
    }
