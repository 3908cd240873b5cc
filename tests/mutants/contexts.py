"""A plugin of pytest: coverage is kept for each test apart, and how long each took is written to `$MUTANTS_TIMES`."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator

import coverage
import pytest

_times: dict[str, float] = defaultdict(float)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """What a test and its fixtures run belongs to the test."""
    measured = coverage.Coverage.current()
    if measured is not None:
        measured.switch_context(item.nodeid)
    yield
    if measured is not None:
        measured.switch_context("")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up set-up, call and what comes after; a test that failed undisturbed kills nothing."""
    _times[report.nodeid] += report.duration if report.passed or report.skipped else float("inf")


def pytest_sessionfinish() -> None:
    """Write the durations."""
    with open(os.environ["MUTANTS_TIMES"], "w", encoding="utf-8") as file:
        json.dump({name: time for name, time in _times.items() if time != float("inf")}, file)
