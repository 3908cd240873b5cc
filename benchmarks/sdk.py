"""What a step costs the training script: against the least that shared memory allows, and against JSON over a pipe.

One measurement is the mean time of a call in the best of several loops, so that what the machine does beside counts little.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from itertools import repeat
from time import monotonic_ns, perf_counter_ns

from benchmarks.harness import Benchmark

CALLS = 4_000
LOOPS = 7
ROUNDS = 15
IMPORT = "import time; begin = time.perf_counter_ns(); import {0}; print(time.perf_counter_ns() - begin)"

Call = Callable[[], object]


def benchmarks() -> list[Callable[[], Benchmark]]:
    """The pairs of this module."""
    return [
        step_vs_bare_closure,
        three_calls_vs_bare_closure,
        json_over_pipe_vs_step,
        json_over_pipe_vs_three_calls,
        import_windfall_vs_asyncio,
    ]


def step_vs_bare_closure() -> Benchmark:
    """One call a step against a closure that writes twice and reads once."""
    return _pair("sdk: step() vs bare closure", _step, _bare_closure, 2.0, at_most=True)


def three_calls_vs_bare_closure() -> Benchmark:
    """`enter_step`, `exit_step` and `check_save` against the same closure."""
    return _pair("sdk: three calls vs bare closure", _three_calls, _bare_closure, 4.0, at_most=True)


def json_over_pipe_vs_step() -> Benchmark:
    """How much dearer a line of JSON over a pipe is than one call a step."""
    return _pair("sdk: JSON over a pipe vs step()", _json_over_pipe, _step, 8.0, at_most=False)


def json_over_pipe_vs_three_calls() -> Benchmark:
    """How much dearer a line of JSON over a pipe is than the three calls."""
    return _pair("sdk: JSON over a pipe vs three calls", _json_over_pipe, _three_calls, 3.0, at_most=False)


def import_windfall_vs_asyncio() -> Benchmark:
    """What `import windfall` takes in a fresh process, against `import asyncio`."""

    def import_ms(name: str) -> float:
        runs = [
            subprocess.run([sys.executable, "-c", IMPORT.format(name)], check=True, capture_output=True, text=True)
            for _ in range(3)
        ]
        return min(int(run.stdout) for run in runs) / 1e6

    return Benchmark(
        name="sdk: import windfall vs import asyncio",
        ours=lambda: import_ms("windfall"),
        yardstick=lambda: import_ms("asyncio"),
        target=1.0,
        at_most=True,
        unit="ms",
    )


def _pair(
    name: str,
    ours: Callable[[ExitStack], Call],
    yardstick: Callable[[ExitStack], Call],
    target: float,
    *,
    at_most: bool,
) -> Benchmark:
    stack = ExitStack()
    our_call, their_call = ours(stack), yardstick(stack)
    return Benchmark(
        name=name,
        ours=lambda: _call_ns(our_call),
        yardstick=lambda: _call_ns(their_call),
        target=target,
        at_most=at_most,
        unit="ns",
        rounds=ROUNDS,
        close=stack.close,
    )


def _call_ns(call: Call) -> float:
    best_ns = float("inf")
    for _ in range(LOOPS):
        begin = perf_counter_ns()
        for _ in repeat(None, CALLS):
            call()
        best_ns = min(best_ns, (perf_counter_ns() - begin) / CALLS)
    return best_ns


def _attached(stack: ExitStack) -> None:
    """Make this process a script inside Windfall whose agent asks for nothing; the first time decides."""
    import windfall as wf

    os.environ.setdefault("WINDFALL_SESSION", stack.enter_context(tempfile.TemporaryDirectory()))
    before = signal.getsignal(signal.SIGTERM)
    assert wf.context().messages_lost == 0
    signal.signal(signal.SIGTERM, before)


def _step(stack: ExitStack) -> Call:
    _attached(stack)
    import windfall as wf

    return wf.step


def _three_calls(stack: ExitStack) -> Call:
    _attached(stack)
    import windfall as wf

    def three() -> None:
        wf.enter_step()
        wf.exit_step()
        wf.check_save()

    return three


def _bare_closure(stack: ExitStack) -> Call:
    from windfall.wire import script_page

    path = os.path.join(stack.enter_context(tempfile.TemporaryDirectory()), "bare.page")
    words = script_page.create(path, pid=os.getpid(), rank=0, step=0)
    step, end, target = script_page.STEP, script_page.STEP_END_NS, script_page.TARGET
    done = 0

    def bare() -> bool:
        nonlocal done
        done += 1
        words[step] = done
        words[end] = monotonic_ns()
        return done >= words[target]

    return bare


def _json_over_pipe(stack: ExitStack) -> Call:
    reader = stack.enter_context(subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL))
    assert reader.stdin is not None
    pipe = reader.stdin.fileno()
    done = 0

    def message() -> None:
        nonlocal done
        done += 1
        os.write(pipe, json.dumps({"type": "step", "step": done, "at_ns": monotonic_ns()}).encode() + b"\n")

    return message
