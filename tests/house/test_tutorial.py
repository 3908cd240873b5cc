"""The pages' own examples do what the pages say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.source import ROOT
from windfall.models.injection import lifetime_s
from windfall.spec.job_file import parse_injection


@pytest.mark.real
def test_the_tutorials_script_ends_alike_with_and_without_a_break(tmp_path: Path) -> None:
    """The script of the tutorial, started twice on one run, ends with the numbers of the plain script, digit for digit."""
    script = re.search(r"```python\n(.*?)```", (ROOT / "docs/tutorial.md").read_text("utf-8"), re.DOTALL)
    assert script is not None
    quick = script[1].replace("time.sleep(0.05)", "time.sleep(0.002)")
    (tmp_path / "train.py").write_text(quick)
    halfway = quick.replace("    if wf.step():", "    if wf.step() or step == 150:")
    halfway = halfway.replace(
        "        wf.backup(path)", "        wf.backup(path)\n    if step == 250:\n        raise SystemExit(3)"
    )
    (tmp_path / "breaks.py").write_text(halfway)
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    windfall = [sys.executable, "-m", "windfall.cli.main", "exec", "runs/line", "--max-failures", "1", "--"]

    def ran(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
        )

    plain = ran(sys.executable, "train.py")
    broken = ran(*windfall, sys.executable, "breaks.py")
    resumed = ran(*windfall, sys.executable, "train.py")

    assert (plain.returncode, broken.returncode, resumed.returncode) == (0, 1, 0), broken.stderr + resumed.stderr
    assert resumed.stdout.splitlines() == ["resumed at step 151", *plain.stdout.splitlines()]


@pytest.mark.trial("F5")
def test_the_tutorials_injection_takes_a_machine_while_there_is_work() -> None:
    """The first machine trains some seconds before it is taken, and is taken before its work is done."""
    text = (ROOT / "docs/tutorial.md").read_text("utf-8")
    steps, step_s = re.search(r"STEPS = (\d+)", text), re.search(r"time.sleep\(([\d.]+)\)", text)
    asked = re.search(r"--inject (\S+?)`", text)
    assert steps is not None
    assert step_s is not None
    assert asked is not None

    life = lifetime_s(parse_injection(asked[1]), 0, 1)

    assert 5 < life < int(steps[1]) * float(step_s[1])
    assert f"the first {life:.0f} s after its start" in text.replace("\n", " ")


@pytest.mark.trial("C1")
def test_the_tutorial_leaves_the_scripts_own_checkpoints_out_of_the_code() -> None:
    """What the script of step 2 writes beside itself is what step 6 tells the packing to leave."""
    text = (ROOT / "docs/tutorial.md").read_text("utf-8")

    assert 'path = f"line-{step + 1}.json"' in text
    assert "echo 'line-*.json' > .windfallignore" in text


@pytest.mark.parametrize("number", [0, 1])
def test_the_numbers_of_the_design_page_are_what_its_commands_print(number: int) -> None:
    """51 and 33 steps, and 5447 and 3561 for the misprint, come out of the commands as they stand there."""
    text = (ROOT / "docs/design.md").read_text("utf-8")
    found = re.findall(r' {4}\$ python -c "\n((?: {4}.*\n)+?(?: {4}.*"\n))((?: {4}\d+\n)+)', text)
    code, expected = found[number]
    code = re.sub(r"^ {4}", "", code, flags=re.MULTILINE).rstrip().removesuffix('"')

    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert printed.split() == expected.split()
