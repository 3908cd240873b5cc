"""Every test that holds a finding, run on the commit at which it was found: there it has to fail, by an assertion.

    python -m tests.red [--commit 5581539] [--tree FOLDER] [--only A1 A2] [--limit 600]

The old tree gets these tests in place of its own, and an environment in which `windfall` is the old one and everything
else that of here.  A test that fails there by a missing name, option or import is listed apart: its finding must be shown
by one that uses the old names alone, and so fails by an assertion; where none of the tests does, a recipe of this folder.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from tests.house.test_trials import ROOT, TESTS, WANTED, marked

HARMFUL = {"test_the_root_of_a_machine_is_no_run"}
"""Not run there: the old one writes into the machine's root."""
RENAMED = "\nTerm = Epoch\nCheckpointRef = PointRef\nCheckpoint = RecoveryPoint\n"
"""Names of `windfall.terms` that only changed: the old tree gets the new ones beside its own."""
MARKERS = "markers=\n  real: as here\n  slow: as here\n  trial(number): as here"


def main() -> int:
    """Run them all; 0 if every finding was seen red."""
    parser = argparse.ArgumentParser(prog="python -m tests.red", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--commit", default="5581539")
    parser.add_argument("--tree", type=Path, help="a worktree of it, if there is one already; its tests are replaced")
    parser.add_argument("--only", nargs="*", default=[], help="these findings alone")
    parser.add_argument("--limit", type=float, default=600.0, help="of each file [s]")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="red-") as name:
        tree = options.tree.resolve() if options.tree else _worktree(Path(name), options.commit)
        try:
            python = _environment(Path(name), tree)
            _replace_tests(tree)
            found = _run_all(python, tree, Path(name), set(options.only), options.limit)
        finally:
            if options.tree is None:
                subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=ROOT, check=False)
    return _tell(found, set(options.only) or WANTED)


def _worktree(folder: Path, commit: str) -> Path:
    tree = folder / "tree"
    subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(tree), commit], cwd=ROOT, check=True)
    return tree


def _environment(folder: Path, tree: Path) -> Path:
    """Make an environment with the old `windfall` before everything that is installed here; return its python."""
    place = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    # A path in a `.pth` file is searched, but its own `.pth` files are not read: this tree's sources stay out.
    (place / "lib" / version / "site-packages" / "old.pth").write_text(
        f"{tree / 'src'}\n{sysconfig.get_path('purelib')}\n"
    )
    here, python = Path(sysconfig.get_path("scripts")), place / "bin" / "python"
    for script in here.iterdir():
        if script.is_file() and not script.is_symlink() and not (place / "bin" / script.name).exists():
            first, _, rest = script.read_bytes().partition(b"\n")
            if first.startswith(b"#!") and b"python" in first:
                made = place / "bin" / script.name
                made.write_bytes(f"#!{python}\n".encode() + rest)
                made.chmod(0o755)
    line = [str(python), "-c", "import windfall; print(windfall.__file__)"]
    seen = subprocess.run(line, cwd=folder, capture_output=True, text=True, check=True, env=_variables(tree, python))
    assert Path(seen.stdout.strip()).is_relative_to(tree / "src"), f"not the old tree: {seen.stdout}"
    return python


def _variables(tree: Path, python: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WINDFALL_", "PYTEST_"))}
    kept.pop("PYTHONPATH", None)
    path = os.pathsep.join([str(python.parent), kept.get("PATH", os.defpath)])
    return kept | {"VIRTUAL_ENV": str(python.parents[1]), "PATH": path}


def _replace_tests(tree: Path) -> None:
    with (tree / "src" / "windfall" / "terms.py").open("a") as file:
        file.write(RENAMED)
    shutil.rmtree(tree / "tests")
    shutil.copytree(TESTS, tree / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    if (ROOT / "node_modules").is_dir() and not (tree / "node_modules").exists():
        (tree / "node_modules").symlink_to(ROOT / "node_modules")


@dataclass
class Found:
    """What was seen of one finding: tests by how they ended, each with its reason."""

    by: dict[str, list[tuple[str, str]]] = field(default_factory=lambda: collections.defaultdict(list))


def _run_all(python: Path, tree: Path, folder: Path, only: set[str], limit_s: float) -> dict[str, Found]:
    found: dict[str, Found] = collections.defaultdict(Found)
    for file in sorted((tree / "tests").rglob("test_*.py")):
        holds = marked(file, slow=True)
        numbers = set().union(*holds.values())
        if not numbers or (only and not numbers & only):
            continue
        name, outcomes = str(file.relative_to(tree)), folder / "outcomes"
        outcomes.write_text("")
        print(f"-- {name}: {' '.join(sorted(numbers))}", flush=True)
        chosen = " or ".join(
            sorted(test for test, its in holds.items() if test not in HARMFUL and (not only or its & only))
        )
        _run_file([str(python), "-m", "pytest", name, "-k", chosen], tree, _variables(tree, python), outcomes, limit_s)
        lines = [json.loads(line) for line in outcomes.read_text().splitlines()]
        seen = {str(line["test"]).partition("[")[0].rpartition("::")[2] for line in lines if "test" in line}
        why = next(
            (str(line["why"]) for line in lines if "file" in line), f"nothing was heard of it within {limit_s:g} s"
        )
        for line in lines:
            for number in line.get("numbers", ()):
                found[number].by[line["how"]].append((line["test"], line["why"]))
        for test, its in holds.items():
            for number in its if test not in seen | HARMFUL and (not only or its & only) else ():
                found[number].by["apart"].append((f"{name}::{test}", why))
    return found


def _run_file(line: list[str], tree: Path, environment: dict[str, str], outcomes: Path, limit_s: float) -> None:
    line += ["-m", "trial", "-p", "tests.red.outcomes", "-p", "no:cacheprovider", "-q", "-o", MARKERS]
    process = subprocess.Popen(
        line, cwd=tree, env=environment | {"RED_OUTCOMES": str(outcomes)}, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _tell(found: dict[str, Found], wanted: set[str]) -> int:
    bad = []
    for number in sorted(wanted, key=lambda name: (name[0], int(name[1:]))):
        by = found[number].by
        red, apart, passed = by["red"], by["apart"], by["passed"]
        shown = bool(red)
        print(f"{number:4} {'red' if shown else 'NOT SHOWN':9} {len(red)} red, {len(apart)} apart, {len(passed)} pass")
        for test, why in apart:
            print(f"       apart: {test}  {why.splitlines()[0] if why else ''}")
        for test, _ in passed:
            print(f"       passes there: {test}")
        for test, why in by["skipped"]:
            print(f"       skipped there: {test}  {why}")
        if not shown:
            bad.append(number)
    print(
        f"{len(wanted) - len(bad)} of {len(wanted)} findings were seen red" + (f"; not: {' '.join(bad)}" if bad else "")
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
