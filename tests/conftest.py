"""What holds for all tests: an ordinary user's descriptors, an environment that stays, no orphans, kernels compiled first."""

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import settings

_COMPILED = {"simulation", "papers", "simulated"}
"""Folders of tests that play trials."""
_LIBC = ctypes.CDLL(None)
_PR_GET_CHILD_SUBREAPER = 37


def pytest_configure() -> None:
    """Have the descriptors of an ordinary user, and the signals of a terminal: a shell's background job ignores Ctrl-C.

    Examples have no time limit of their own: what is slow on a busy host is no counterexample.
    """
    settings.register_profile("here", deadline=None)
    settings.load_profile("here")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, most) if most != resource.RLIM_INFINITY else 1024, most))
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Compile the kernels if tests that need them were collected; of several workers one does it, the others wait."""
    here = Path(__file__).parent
    folders = {Path(item.path).relative_to(here).parts[0] for item in session.items if here in Path(item.path).parents}
    if session.config.option.collectonly or not folders & _COMPILED:
        return
    try:
        from windfall.simulation import kernels
    except ModuleNotFoundError:
        return
    with Path(tempfile.gettempdir(), f"windfall-tests-compile-{os.getuid()}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if kernels.compiles():
            _compile()


@pytest.fixture(autouse=True)
def _environment_stays() -> Iterator[None]:
    """Undo a test's changes of the environment: a program's `main` that is called here may change it for its children."""
    with mock.patch.dict(os.environ):
        yield


@pytest.fixture(autouse=True)
def _orphans_stay() -> Iterator[None]:
    """Fail a test after which this process adopts orphans: it would not reap what later tests leave to process 1."""
    yield
    assert not _adopts_orphans(), "run what adopts orphans in a process of its own"


def _adopts_orphans() -> bool:
    found = ctypes.c_int()
    _LIBC.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(found), 0, 0, 0)
    return bool(found.value)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many tests had a real Slurm, and why others had none: a skipped test is easily overlooked."""
    reports = [
        report
        for reports in terminalreporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport) and report.nodeid.startswith("tests/slurm/")
    ]
    ran = sum(report.when == "call" and "slurm" in dict(report.user_properties) for report in reports)
    if reports:
        terminalreporter.write_line(f"tests on a real Slurm: {ran} ran, {sum(r.skipped for r in reports)} skipped")
    for reason in sorted({str(report.longrepr[2]).removeprefix("Skipped: ") for report in reports if report.skipped}):
        terminalreporter.write_line(f"  {reason}")


def _compile() -> None:
    from windfall.simulation import kernels
    from windfall.simulation.scenario import DurationRange, MemorylessLifetimes, Scenario, WorkerEstimates

    moment = DurationRange(1.0, 1.0)
    times = (moment, moment, moment, moment, moment)
    scenario = Scenario(100, *times, MemorylessLifetimes((60.0,)), 0.0, 0.0, "optimal", WorkerEstimates(60.0, 1.0, 1.0))
    kernels.simulate(scenario, trials=1)
