"""`python -m benchmarks [NAME ...] [--json]`: each module beside this one that has `benchmarks()`, or the named ones.

A name is a module (`storage`) or one benchmark of any (`upload_vs_boto3`).  Exit status 1 if a target was missed.
"""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import sys
from collections.abc import Callable, Iterator

import benchmarks
from benchmarks.harness import Benchmark, Skipped, measure


def chosen(names: list[str]) -> Iterator[Callable[[], Benchmark]]:
    """What makes the benchmarks asked for, in the order of their modules."""
    for module in sorted(module.name for module in pkgutil.iter_modules(benchmarks.__path__)):
        if module == "harness" or module.startswith("_"):
            continue
        found = importlib.import_module(f"benchmarks.{module}")
        makers = found.benchmarks() if hasattr(found, "benchmarks") else []
        for maker in makers:
            if "all" in names or module in names or maker.__name__ in names:
                yield maker


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", default=["all"], metavar="NAME")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    arguments = parser.parse_args()
    outcomes, makers = [], list(chosen(arguments.names))
    for maker in makers:
        try:
            outcome = measure(maker())
        except Skipped as skipped:
            print(f"{maker.__name__:<42} skipped: {skipped}", file=sys.stderr)
            continue
        outcomes.append(outcome)
        print(json.dumps(outcome.as_dict()) if arguments.json else outcome.line(), flush=True)
    if not makers:
        print(f"No benchmark is called {' or '.join(arguments.names)}.", file=sys.stderr)
        return 2
    return 1 if any(outcome.verdict == "MISS" for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
