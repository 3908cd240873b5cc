"""The example of ions between walls, and the surrogate that is fitted on its results, both as they are written."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bags.machines import example_rig
from tests.bags.sweeps import run_example
from tests.house.source import ROOT
from tests.live.rig import Rig

EXAMPLE = ROOT / "examples" / "nanoconfinement"
FIT = ROOT / "examples" / "surrogate" / "fit.py"
EXPLAINED = 0.8

pytestmark = pytest.mark.slow


def test_an_item_that_was_preempted_has_the_same_result_to_the_last_digit(tmp_path: Path) -> None:
    """Its machine is lost after a save; positions and random numbers continue from there.

    Its sweeps take some seconds, so that it is not done before it has saved.
    """
    parameters = {"h": 3.0, "molar": 0.4, "diameter": 0.5, "valency": 1, "sweeps": 6000}
    results = []
    for name, mttp_s in (("calm", None), ("disturbed", 0.3)):
        with example_rig(tmp_path / name, EXAMPLE / "bag.yaml", parameters, mttp_s=mttp_s) as rig:
            machine = rig.machine()
            if mttp_s is not None:
                rig.until(lambda: rig.saves(0), "it has saved")
                rig.lose(machine)
                rig.machine()
            rig.until_over()
            outcome = rig.done()[0]
            results.append(outcome.values)
            if mttp_s is not None:
                assert rig.printed(outcome).startswith("continues after ")

    assert results[0] == results[1]


@pytest.mark.timeout(1800)
def test_the_space_runs_under_preemptions_and_a_surrogate_predicts_it(tmp_path: Path) -> None:
    """At least 95 % of the 64 items are done; the fit explains most of the variance of rows that it was not fitted to."""
    rig = Rig(tmp_path / "rig")
    try:
        rig.start_controller()
        ended = run_example(rig, EXAMPLE, tmp_path / "ions", "mttp=40s,seed=2")
    finally:
        rig.close()
    again = [item for item, outcome in ended.done.items() if outcome.lease.number > 1]
    continued = [item for item in again if "continues after" in ended.printed(item)]
    ended.write_csv(tmp_path / "results.csv")
    fitted = subprocess.run(
        [sys.executable, str(FIT), str(tmp_path / "results.csv"), str(tmp_path / "surrogate.json")],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    found = json.loads((tmp_path / "surrogate.json").read_text())
    print(f"{len(ended.done)} items in {ended.took_s:.0f} s, {len(again)} tried again, {len(continued)} continued")
    print(fitted.stdout)

    assert len(ended.done) >= 61
    assert found["rows"] == len(ended.done)
    for name in ("contact", "middle"):
        assert found[name]["explained"] > EXPLAINED
