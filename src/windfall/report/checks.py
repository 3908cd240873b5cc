"""What `windfall doctor` finds, and how it is written."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field

from rich.table import Table
from rich.text import Text


class Verdict(enum.StrEnum):
    """How a check ended."""

    OK = "ok"
    WARN = "warn"
    """It works, but not as well as it could."""
    FAIL = "FAIL"
    """A run would fail."""


_STYLES = {Verdict.OK: "green", Verdict.WARN: "yellow", Verdict.FAIL: "bold red"}


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at.

    Attributes:
        name: what was looked at.
        says: what was found.
        advice: what to do about it; empty if nothing.
        numbers: measurements by name, the unit last in the name.
    """

    name: str
    verdict: Verdict
    says: str
    advice: str = ""
    numbers: dict[str, float] = field(default_factory=dict)


def table(checks: Iterable[Check]) -> Table:
    """Return a table with one row a check; advice follows what was found."""
    made = Table(box=None, show_header=False, pad_edge=False)
    made.add_column(no_wrap=True, min_width=4)
    made.add_column(no_wrap=True, min_width=13)
    made.add_column(overflow="fold")
    for check in checks:
        words = f"{check.says}: {check.advice}" if check.advice else check.says
        made.add_row(Text(check.verdict.value, style=_STYLES[check.verdict]), check.name, Text(words))
    return made


def as_json(check: Check) -> dict[str, object]:
    """Turn a check into what `json.dumps` accepts."""
    return {
        "check": check.name,
        "verdict": check.verdict.value,
        "says": check.says,
        "do": check.advice or None,
        "numbers": check.numbers,
    }
