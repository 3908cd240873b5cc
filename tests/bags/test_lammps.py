"""LAMMPS from the distribution: items that are preempted continue from its restart files, and nothing is lost.

A trajectory is chaotic: for 200 steps after a restart its numbers are those of the undisturbed run, beyond only its means are.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.bags.machines import BagRig, example_rig
from tests.bags.sweeps import run_example
from tests.house.source import ROOT
from tests.live.rig import Rig
from windfall.bags import ItemOutcome

EXAMPLE = ROOT / "examples" / "lammps"
NAMES = ("temperature", "pe", "pressure")
EQUAL_STEPS = 200
BLOCKS = 8
INJECT = "mttp=8s,seed=3"
STEPS = 8000
LONGER = ("steps: 4000", f"steps: {STEPS}")
"""An item that takes some seconds is seldom cut off between its first save and its end."""
Thermo = dict[int, tuple[float, ...]]

pytestmark = pytest.mark.skipif(shutil.which("lmp") is None, reason="LAMMPS is not installed: apt install lammps")


def tries(log: str) -> list[Thermo]:
    """Temperature, potential energy and pressure by step, of each try in a log that was continued."""
    found: list[Thermo] = []
    for part in re.split(r"^Step Temp PotEng Press *$", log, flags=re.MULTILINE)[1:]:
        lines = re.findall(r"^ +(\d+) +(\S+) +(\S+) +(\S+) *$", part, re.MULTILINE)
        found.append({int(step): tuple(map(float, values)) for step, *values in lines})
    return found


def check_continues(disturbed: Sequence[Thermo], undisturbed: Thermo, every: int) -> int:
    """Check the lines after each restart; return how many steps the log has twice."""
    redone = 0
    for before, after in itertools.pairwise(disturbed):
        start = min(after)
        assert start % every == 0, "a try starts where LAMMPS has written a restart file"
        redone += max(max(before) - start, 0)
        for step in (step for step in after if step <= start + EQUAL_STEPS and step in before):
            assert after[step] == pytest.approx(before[step], rel=1e-12), f"step {step} after the restart at {start}"
    start = min(disturbed[1])
    for step in (step for step in disturbed[1] if step <= start + EQUAL_STEPS):
        assert disturbed[1][step] == pytest.approx(undisturbed[step], rel=1e-12), f"step {step}, undisturbed"
    return redone


def test_three_items_continue_from_their_restart_files(tmp_path: Path) -> None:
    """Their machine is lost twice; the log that each carries along shows where it continued, and is equal to 1e-12."""
    parameters = {"T": [1.5], "rho": [0.3, 0.4, 0.5], "steps": 800, "every": 200}
    with example_rig(tmp_path / "calm", EXAMPLE / "bag.yaml", parameters) as calm:
        calm.machine()
        calm.until_over()
        plain = {item: tries(log_of(calm, outcome)) for item, outcome in calm.done().items()}
    with example_rig(tmp_path / "disturbed", EXAMPLE / "bag.yaml", parameters, mttp_s=0.1) as rig:
        machine = rig.machine()
        rig.until(lambda: rig.saves(0) or rig.saves(1), "an item has saved")
        rig.lose(machine)
        rig.machine()
        rig.until_over()
        logs = {item: tries(log_of(rig, outcome)) for item, outcome in rig.done().items()}

    assert sorted(logs) == sorted(plain) == [0, 1, 2]
    assert any(len(log) > 1 for log in logs.values()), "an item has continued"
    for item, log in logs.items():
        assert max(log[-1]) == 800
        assert [len(one) for one in plain[item]] == [17]
        if len(log) > 1:
            check_continues(log, plain[item][0], 200)


def log_of(rig: BagRig, outcome: ItemOutcome) -> str:
    """LAMMPS' log of an item that is done."""
    return rig.file(outcome, "log.lammps").decode()


# --------------------------------------------------------------------------------------------- the sweep, as it is written


def block_means(lines: Thermo) -> list[list[float]]:
    """The means of equal blocks of the second half, for each quantity."""
    late = [values for step, values in sorted(lines.items()) if 2 * step >= max(lines)]
    size = len(late) // BLOCKS
    blocks = [late[number * size : (number + 1) * size] for number in range(BLOCKS)]
    return [[statistics.fmean(values[place] for values in block) for block in blocks] for place in range(len(NAMES))]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_sweep_under_injected_preemptions_has_the_undisturbed_results(tmp_path: Path) -> None:
    """All 24 points are done; 1e-12 within 200 steps, block means within 3 standard errors, steps redone as logged."""
    rig = Rig(tmp_path / "rig")
    try:
        rig.start_controller()
        calm = run_example(rig, EXAMPLE, tmp_path / "calm", None, change=LONGER)
        disturbed = run_example(rig, EXAMPLE, tmp_path / "disturbed", INJECT, change=LONGER)
    finally:
        rig.close()

    assert sorted(calm.done) == sorted(disturbed.done) == list(range(24))
    differences: list[list[float]] = [[], [], []]
    restarts = redone = 0
    for item in range(24):
        (plain,) = tries(calm.file(item, "log.lammps"))
        log = tries(disturbed.file(item, "log.lammps"))
        merged = {step: values for one in log for step, values in one.items()}
        assert max(merged) == STEPS
        assert sorted(merged) == sorted(plain), "no line is missing"
        if len(log) > 1:
            restarts += len(log) - 1
            redone += check_continues(log, plain, 500)
            for place, (mine, theirs) in enumerate(zip(block_means(merged), block_means(plain), strict=True)):
                error = math.sqrt((statistics.variance(mine) + statistics.variance(theirs)) / BLOCKS)
                differences[place].append((statistics.fmean(mine) - statistics.fmean(theirs)) / error)
        last = [merged[step] for step in merged if 2 * step >= STEPS]
        for place, name in enumerate(NAMES):
            mean = statistics.fmean(values[place] for values in last)
            assert float(disturbed.done[item].values[name]) == pytest.approx(mean, abs=1e-5), "the result is the log's"
    print(f"calm {calm.took_s:.0f} s, disturbed {disturbed.took_s:.0f} s, {restarts} restarts, {redone} steps twice")
    print(differences)
    assert restarts >= 3, "items were preempted"
    for name, column in zip(NAMES, differences, strict=True):
        # Of n differences in standard errors the mean has a standard error of 1 / sqrt(n).
        assert abs(statistics.fmean(column)) < 3.0 / math.sqrt(len(column)), f"{name}: {column}"

    table, picture = tmp_path / "results.csv", tmp_path / "equation-of-state.png"
    disturbed.write_csv(table)
    subprocess.run([sys.executable, str(EXAMPLE / "plot.py"), str(table), str(picture)], check=True, env=os.environ)
    assert picture.stat().st_size > 10_000
