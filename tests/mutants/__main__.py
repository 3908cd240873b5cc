"""Random mutants of the pure rooms and of storage, each against the tests that run its line: what lives, no test holds.

    python -m tests.mutants --seed 1 [--count 40] [--jobs 2]

The working tree is never changed: each job works on a copy of its own.  Which tests run which line is found once for
the same sources and kept in `out/mutants`.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import difflib
import functools
import hashlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.house.source import ROOT, tree_files
from tests.mutants.making import Mutant, draw

ROOMS = ("models", "policies", "core", "storage")
FOLDERS = ("models", "policies", "core", "storage", "agent", "report")
"""Folders of tests in which a room's behaviour is promised; slow tests are left out."""
TESTS_S_MAX = 60.0
"""The quickest tests of a line that take so long together are run [s]; at least `TESTS_MIN` if there are."""
TESTS_MIN = 5
SLACK_S = 60.0


@dataclass(frozen=True)
class Reach:
    """file -> line -> tests that run it, and how long each test takes [s]."""

    lines: Mapping[str, Mapping[str, list[str]]]
    times: Mapping[str, float]

    def of(self, mutant: Mutant) -> list[str]:
        """The tests for a mutant, quickest first; for a line that runs at import, or is compiled, those of the whole file."""
        lines = self.lines.get(mutant.file, {})
        found = set(lines.get(str(mutant.line), ())) - {""}
        if not found:
            found = {test for tests in lines.values() for test in tests} - {""}
        if not found:  # compiled: its lines are seen by nobody
            found = {test for test in self.times if Path(mutant.file).stem in _text(test.partition("::")[0])}
        chosen: list[str] = []
        spent_s = 0.0
        for test in sorted(found & self.times.keys(), key=lambda name: (self.times[name], name)):
            spent_s += self.times[test]
            if spent_s > TESTS_S_MAX and len(chosen) >= TESTS_MIN:
                break
            chosen.append(test)
        return chosen


@functools.cache
def _text(file: str) -> str:
    return (ROOT / file).read_text("utf-8")


def main() -> int:
    """Run one seed; 1 if a mutant lived."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    started = time.monotonic()
    sources = [str(path.relative_to(ROOT)) for path in tree_files()]
    files = sorted(name for name in sources if name.endswith(".py") and name.startswith(_rooms()))
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        trees: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for number in range(options.jobs):
            trees.put(_copy(sources, Path(name, f"tree-{number}")))
        reach = _reach(sources, trees)
        still = _copy(sources, Path(name, "still"))
        mutants = draw(still, files, options.count, options.seed)

        def judged(mutant: Mutant) -> str:
            tree = trees.get()
            try:
                verdict = _check_holder(tree, mutant, mutant.text(still), reach)
            finally:
                trees.put(tree)
            print(f"{verdict:9} {mutant.file}:{mutant.line}  {mutant.operator.partition('/')[2]}", flush=True)
            return verdict

        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            verdicts = list(pool.map(judged, mutants))
        lived = [mutant for mutant, verdict in zip(mutants, verdicts, strict=True) if verdict in ("lived", "unreached")]
        for mutant in lived:
            print(f"\n{_difference(still, mutant)}")
    print(
        f"seed {options.seed}: {len(mutants) - len(lived)} of {len(mutants)} killed, {time.monotonic() - started:.0f} s"
    )
    return 1 if lived else 0


def _rooms() -> tuple[str, ...]:
    return tuple(f"src/windfall/{room}/" for room in ROOMS)


def _copy(sources: list[str], tree: Path) -> Path:
    for source in sources:
        (tree / source).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / source, tree / source)
    return tree


def _environment(tree: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WINDFALL_", "PYTEST_"))}
    return kept | {"PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1", **more}


def _reach(sources: list[str], trees: queue.SimpleQueue[Path]) -> Reach:
    """Run the tests once with coverage, unless these very sources were measured before."""
    digest = hashlib.sha256()
    for source in sources:
        if source.startswith(("src/", "tests/")) and not source.startswith("tests/mutants/"):
            digest.update(source.encode() + b"\0" + hashlib.sha256((ROOT / source).read_bytes()).digest())
    kept = ROOT / "out" / "mutants" / f"{digest.hexdigest()[:16]}.json"
    if not kept.exists():
        tree = trees.get()
        measured = _measure(tree)
        trees.put(tree)
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(measured))
    read = json.loads(kept.read_text())
    return Reach(read["lines"], read["times"])


def _measure(tree: Path) -> dict[str, object]:
    print("which tests run which line?", flush=True)
    (tree / "coverage.ini").write_text(
        "[run]\nsource = src/windfall\ndata_file = measured\n[json]\nshow_contexts = true\n"
    )
    folders = [f"tests/{folder}" for folder in FOLDERS]
    coverage = [sys.executable, "-m", "coverage"]
    line = [*coverage, "run", "--rcfile=coverage.ini", "-m", "pytest", "-m", "not slow", "-q"]
    line += ["-p", "tests.mutants.contexts", "-p", "no:cacheprovider", *folders]
    environment = _environment(tree, MUTANTS_TIMES=str(tree / "times.json"))
    subprocess.run(line, cwd=tree, env=environment, stdin=subprocess.DEVNULL, check=False)
    line = [*coverage, "json", "--rcfile=coverage.ini", "-q", "-o", "measured.json"]
    subprocess.run(line, cwd=tree, env=environment, check=True)
    files = json.loads((tree / "measured.json").read_text())["files"]
    lines = {name: found["contexts"] for name, found in files.items() if name.startswith(_rooms())}
    return {"lines": lines, "times": json.loads((tree / "times.json").read_text())}


def _check_holder(tree: Path, mutant: Mutant, text: str, reach: Reach) -> str:
    tests = reach.of(mutant)
    if not tests:
        return "unreached"
    place = tree / mutant.file
    original = place.read_bytes()
    place.write_text(text, "utf-8")
    line = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    # Compiled functions of other files may hold the line as it was: each mutant compiles anew.
    environment = _environment(tree, NUMBA_CACHE_DIR=str(tree / "compiled"))
    process = subprocess.Popen(
        line, cwd=tree, env=environment, start_new_session=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        code = process.wait(3 * sum(reach.times[test] for test in tests) + SLACK_S)
    except subprocess.TimeoutExpired:
        code = 124
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        place.write_bytes(original)
        shutil.rmtree(tree / "compiled", ignore_errors=True)
    return {0: "lived", 1: "killed", 124: "timed out"}.get(code, "killed")


def _difference(root: Path, mutant: Mutant) -> str:
    before = (root / mutant.file).read_text("utf-8").splitlines()
    lines = difflib.unified_diff(before, mutant.text(root).splitlines(), mutant.file, mutant.operator, lineterm="", n=2)
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
