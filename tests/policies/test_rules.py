"""The scalar rules of saving, against numbers printed in or derived from their sources."""

from __future__ import annotations

import ast
import json
import math
from pathlib import Path

import pytest

from windfall.policies.checkpointing import rules

REFERENCE = Path(__file__).parents[2].parent / "shared" / "reference" / "adaptive-checkpointing" / "derived_inputs.json"


def _inputs() -> dict[str, object]:
    if not REFERENCE.exists():
        pytest.skip("the reference numbers of the thesis are not beside this checkout")
    loaded = json.loads(REFERENCE.read_text())
    assert isinstance(loaded, dict)
    return loaded


@pytest.mark.parametrize(("model", "published"), [("gpt117m", 51), ("gpt1_3b", 33)])
def test_the_thesis_inputs_give_its_published_steps(model: str, published: int) -> None:
    """Insurance every 51 steps (GPT-117M) and every 33 (GPT-1.3B), as in section 6.3.2."""
    inputs = _inputs()
    own = inputs[model]
    assert isinstance(own, dict)
    interval_s = rules.thesis_interval_s(own["delta_s"], inputs["mttp_s"], own["alloc_s"])  # type: ignore[arg-type]
    assert rules.thesis_insurance_step(0, interval_s, own["step_s"]) == published


@pytest.mark.parametrize(("model", "fits"), [("gpt117m", True), ("gpt1_3b", False)])
def test_the_thesis_emergency_save_fits_only_the_small_model(model: str, fits: bool) -> None:
    """20.15 s and 108.5 s against Azure's 30 s."""
    inputs = _inputs()
    own = inputs[model]
    assert isinstance(own, dict)
    needed_s = own["step_s"] + own["delta_s"] + own["backup_s"]
    assert needed_s == pytest.approx(own["emergency_lhs_s"], abs=0.01)
    grace_s = inputs["grace_s"]
    assert rules.thesis_emergency_fits(own["step_s"], own["delta_s"], own["backup_s"], grace_s) is fits  # type: ignore[arg-type]


def test_youngs_and_dalys_examples() -> None:
    """Young 51.0 steps for GPT-117M; Daly's first and higher order agree with it for a small delta."""
    assert rules.young_interval_s(2.5495, 10_800.0) / 4.60001 == pytest.approx(51.01, abs=0.01)
    assert rules.daly_interval_s(2.55, 10_800.0, 136.5) == pytest.approx(233.6, abs=0.1)
    assert rules.daly_higher_order_interval_s(2.55, 10_800.0) == pytest.approx(233.0, abs=0.1)


def test_dalys_higher_order_interval_is_near_the_true_optimum() -> None:
    """Against the exact expected time M e^(R/M) (e^((tau + delta)/M) - 1) / tau, minimised numerically."""
    save_s, mttp_s = 60.0, 600.0

    def cost(tau_s: float) -> float:
        return math.expm1((tau_s + save_s) / mttp_s) / tau_s

    best_s = min((tau / 10 for tau in range(100, 10_000)), key=cost)
    assert rules.daly_higher_order_interval_s(save_s, mttp_s) == pytest.approx(best_s, rel=0.01)


def test_a_save_longer_than_two_lives_leaves_one_life() -> None:
    """Beyond its validity Daly's interval is the mean time to a loss."""
    assert rules.daly_higher_order_interval_s(300.0, 100.0) == 100.0
    assert rules.daly_interval_s(300.0, 100.0, 0.0) == 0.0


def test_the_adaptive_interval_is_never_below_the_time_to_durable() -> None:
    """No save before the last one is safe."""
    assert rules.adaptive_interval_s(0.08, 21_600.0, 136.5, 14.0) == pytest.approx(59.0, abs=0.05)
    assert rules.adaptive_interval_s(0.08, 21_600.0, 136.5, 90.0) == 90.0


def test_the_emergency_save_needs_less_than_what_is_left() -> None:
    """Equality does not fit."""
    assert rules.emergency_fits(10.0, 1.0, 2.0, 6.0, 0.5)
    assert not rules.emergency_fits(9.5, 1.0, 2.0, 6.0, 0.5)


def test_an_insurance_step_is_at_least_the_next_one() -> None:
    """An interval shorter than a step saves at each step."""
    assert rules.thesis_insurance_step(7, 0.1, 5.0) == 8


def test_an_interval_that_is_whole_steps_but_for_rounding_is_whole_steps():
    """Three steps of a mean that is a last bit too long are three, not two; less than a billionth short is not enough."""
    assert rules.thesis_insurance_step(0, 0.3, 0.1) == 3
    assert rules.thesis_insurance_step(0, 0.3, 0.10000000000000002) == 3
    assert rules.thesis_insurance_step(0, 0.3 * (1.0 - 1e-6), 0.1) == 2


def test_the_rules_import_only_math() -> None:
    """They run in training scripts and in compiled kernels."""
    assert rules.__file__ is not None
    tree = ast.parse(Path(rules.__file__).read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {alias.name for node in imports for alias in node.names if getattr(node, "module", "") != "__future__"}
    assert names == {"math"}
