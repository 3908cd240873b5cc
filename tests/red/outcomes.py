"""A plugin of pytest that writes down how each test ended, a JSON object a line, into `$RED_OUTCOMES`."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator

import pytest

NAMES = re.compile(
    r"cannot import name \S+ from '(windfall|tests)|No module named '(windfall|tests)|'windfall\S*' has no attribute"
    r"|Unknown option|Unknown command|no such (option|command)|is not known; (did you mean|known are)|Unused Tokens",
    re.IGNORECASE,
)
"""What the old tree says to a name that only the new one has: such a test did not get as far as its assertion."""


def _write(**line: object) -> None:
    with open(os.environ["RED_OUTCOMES"], "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Say of each test whether it passed, failed by an assertion, or ended before one."""
    made = yield
    report: pytest.TestReport = made.get_result()  # type: ignore[attr-defined]
    if report.when != "call" and report.passed:
        return
    raised = call.excinfo
    text = "\n".join([report.longreprtext, *(content for _, content in report.sections)])
    name = NAMES.search(text) if raised is not None else None
    asserted = raised is not None and raised.errisinstance((AssertionError, pytest.fail.Exception))
    how = "passed" if report.passed else "skipped" if report.skipped else "apart"
    if report.failed and report.when == "call" and asserted and name is None:
        how = "red"
    numbers = sorted({str(number) for mark in item.iter_markers("trial") for number in mark.args})
    why = "" if raised is None else f"{raised.typename}: {str(raised.value).strip()[:300]}"
    _write(test=item.nodeid, numbers=numbers, how=how, why=f"({name[0]}) {why}" if name else why)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Say of a file that it could not be imported."""
    if report.failed:
        _write(file=report.nodeid, how="apart", why=report.longreprtext.strip().splitlines()[-1][:300])
