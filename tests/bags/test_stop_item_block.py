"""The block `bag.stop_item` of a job file: what it means, and one sentence with the place for each mistake."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from windfall.bags import Bag, StopItem
from windfall.errors import Misuse
from windfall.spec import bag_rows
from windfall.spec.job_loader import load

RESULTS = "results: {energy: {regex: 'e = (.*)'}}"


def written(folder: Path, rule: str, results: str = RESULTS, workdir: str = "workdir: .") -> Bag:
    """The bag of a job file with a rule."""
    block = f"parameters: {{T: [1]}}\n  {results}\n  stop_item: {rule}"
    (folder / "bag.yaml").write_text(f"run: x {{{{T}}}}\n{workdir}\nbag:\n  {block}\n")
    file = load(str(folder / "bag.yaml"), warn=print)
    assert file.bag is not None
    return bag_rows.to_bag(file.bag, bag_rows.rows_of(file.bag, print))


def test_each_rule_is_part_of_the_bag(tmp_path: Path) -> None:
    """With its defaults: a median looks from 30 % of the run on, with five items done."""
    (tmp_path / "rules.py").write_text("from other import worse\n\nif True:\n    def better(p, v): pass\n")
    steps = "steps: {regex: 'step (.*)', of: 8000}"

    assert written(tmp_path, "{metric: energy, median: min}").stop_item == StopItem(
        "energy", median="min", from_progress=0.3, done_min=5
    )
    assert written(tmp_path, f"{{metric: energy, below: -5, {steps}}}").stop_item == StopItem(
        "energy", below=-5.0, steps="step (.*)", steps_of=8000.0
    )
    assert written(tmp_path, "{metric: energy, median: max, from: 0.5, min_done: 9}").stop_item == StopItem(
        "energy", median="max", from_progress=0.5, done_min=9
    )
    for name in ("worse", "better"):
        call = f"rules.py:{name}"
        assert written(tmp_path, f"{{metric: energy, call: '{call}'}}").stop_item == StopItem("energy", call=call)


BAD = {
    "unknown metric": (
        "{metric: enrgy, above: 1}",
        "bag.stop_item.metric names enrgy, which is none of bag.results; did you mean energy",
    ),
    "no metric": ("{above: 1}", "bag.stop_item.metric is missing: which of bag.results decides"),
    "no rule": ("{metric: energy}", "bag.stop_item needs one of above, below, median, call, for example"),
    "two rules": ("{metric: energy, above: 1, median: min}", "bag.stop_item has above and median; keep one"),
    "unknown goal": ("{metric: energy, median: mean}", "bag.stop_item.median must be "),
    "unknown key": ("{metric: energy, abov: 1}", "bag.stop_item.abov is an unknown key; did you mean above"),
    "unknown key of steps": (
        "{metric: energy, above: 1, steps: {regexp: a, of: 1}}",
        "bag.stop_item.steps.regexp is an unknown key; did you mean regex",
    ),
    "no end of steps": ("{metric: energy, above: 1, steps: {regex: a}}", "bag.stop_item.steps.of is missing"),
    "late": ("{metric: energy, above: 1, from: 30}", "bag.stop_item.from must be at most 1.0, not 30"),
    "min_done alone": ("{metric: energy, above: 1, min_done: 3}", "bag.stop_item.min_done needs median"),
    "steps of a function": (
        "{metric: energy, call: 'rules.py:worse', steps: {regex: a, of: 1}}",
        "bag.stop_item.steps is for above, below and median",
    ),
    "regex of steps": (
        "{metric: energy, above: 1, steps: {regex: '(', of: 9}}", "bag.stop_item.steps.regex is none (",
    ),
    "groups of steps": (
        "{metric: energy, above: 1, steps: {regex: '(a)(b)', of: 9}}", "bag.stop_item.steps.regex has 2 groups",
    ),
    "no function": ("{metric: energy, call: rules.py}", "must be FILE.py:FUNCTION, such as rules.py:should_stop"),
    "no such function": (
        "{metric: energy, call: 'rules.py:worst'}", "rules.py has no function worst; did you mean worse",
    ),
    "no such file": ("{metric: energy, call: 'rule.py:worse'}", "cannot read "),
    "no Python": ("{metric: energy, call: 'broken.py:worse'}", "broken.py is not Python: "),
    "elsewhere": ("{metric: energy, call: '../rules.py:worse'}", "must name a file in workdir, not ../rules.py"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_mistake_is_one_sentence_with_its_place(name: str, tmp_path: Path) -> None:
    """The function's file is read and not run."""
    (tmp_path / "rules.py").write_text("open('ran', 'w')\ndef worse(parameters, values):\n    return False\n")
    (tmp_path / "broken.py").write_text("def worse(:\n")
    rule, expected = BAD[name]
    with pytest.raises(Misuse) as refused:
        written(tmp_path, rule)

    assert expected in str(refused.value)
    assert str(refused.value).partition("bag.yaml:6:")[2], str(refused.value)
    assert "\n" not in str(refused.value)
    assert not os.path.exists("ran")


def test_a_rule_needs_results_and_a_function_needs_code(tmp_path: Path) -> None:
    """Both say what to write."""
    with pytest.raises(Misuse, match=r"bag\.stop_item needs bag\.results, for example results:"):
        written(tmp_path, "{metric: energy, above: 1}", results="finish: 0.5")
    with pytest.raises(Misuse, match=r"bag\.stop_item\.call needs workdir, the folder with rules\.py"):
        written(tmp_path, "{metric: energy, call: 'rules.py:worse'}", workdir="envs: {A: b}")
