"""Where the insurance saves lie: the published intervals, and what moves them while a run goes on."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.emergency.cloud import Cloud, Work, decisions, facts, quoted
from windfall import events as ev
from windfall.models.costs import Costs
from windfall.models.preemption_rates import PreemptionHistory
from windfall.policies.checkpointing import rules
from windfall.policies.checkpointing.decision import Estimates, RankProgress, SavingView, decide
from windfall.storage import object_stores
from windfall.terms import Instant, Phase
from windfall.wire.run_layout import inbox_key

NUMBERS = Path(__file__).parents[2].parent / "shared/reference/adaptive-checkpointing/derived_inputs.json"


@pytest.fixture
def numbers() -> dict[str, Any]:
    """The inputs behind Tables 6.2 and 6.3 of the thesis."""
    if not NUMBERS.exists():
        pytest.skip(f"{NUMBERS} is not here: the published inputs do not travel with the code")
    return json.loads(NUMBERS.read_text())


@pytest.mark.parametrize(("model", "key", "published"), [("gpt117m", "117M", 51), ("gpt1_3b", "1.3B", 33)])
def test_the_published_intervals_come_out(numbers: dict[str, Any], model: str, key: str, published: int) -> None:
    """Algorithm 1 with the insurance that the thesis tabulates: no notice to count on."""
    inputs = numbers[model]
    costs = Costs().add_steps(10, inputs["step_s"], inputs["step_s"]).add_stall(inputs["delta_s"])
    losses = PreemptionHistory("azure", mttp_given_s=numbers["mttp_s"], restart_given_s=inputs["alloc_s"])
    ranks = (RankProgress(1000, Phase.STEP, 0.0),)
    view = SavingView("thesis", running_s=0.0, ranks=ranks, earliest_step=1001, anchor_step=1000)
    choice = decide(Instant(0.0), view, Estimates(losses, costs))
    assert choice.save_at == 1000 + published
    assert published == numbers["interval_check"][key]["published"]


@pytest.mark.real
def test_a_change_of_the_mean_time_to_preemption_moves_the_planned_save(tmp_path: Path) -> None:
    """A message to a live run: the pending request is replaced by one at the new interval, and `replay` agrees."""
    cloud = Cloud(tmp_path, Work(8_000_000, 4_000_000, policy="adaptive", first_save=10, options=("--mttp", "3h")))
    with cloud.machine() as machine:
        machine.wait(lambda: bool(_plans(machine.spool)), "a plan that rests on measured costs")
        before = _plans(machine.spool)[-1]
        message = json.dumps({"type": "estimates", "mttp_s": 60.0}).encode()
        object_stores.open_reader(f"file://{cloud.run}").store.create(inbox_key("faster"), message)
        machine.wait(lambda: _plans(machine.spool)[-1]["mean time to preemption"] == 60.0, "a plan with the new belief")
        rows = machine.spool
        machine.preemption_at(machine.announce(4.0))
    after = next(plan for plan in _plans(rows) if plan["mean time to preemption"] == 60.0)
    row, _ = facts(rows, ev.EstimatesChanged)[0]
    (published,) = [command for command in row.commands if isinstance(command, ev.PublishSave)]
    (decision,) = row.decisions
    assert decision.choice == f"insurance save at step {published.step}"
    assert before["mean time to preemption"] == 3 * 3600.0
    for plan in (before, after):
        assert plan["uncovered share of losses, observed"] == 1.0
        wait_s = plan["mean time to preemption"] + plan["restart, assumed"]
        insured_s = max(math.sqrt(2.0 * plan["stall"] * wait_s), plan["time until committed"])
        longest_s = rules.longest_interval_s(insured_s, plan["stall"], plan["mean time to preemption"])
        assert insured_s * (1.0 - 1e-9) <= plan["interval"] <= longest_s * (1.0 + 1e-9)
    print(f"\ninterval {before['interval']:.2f} s -> {after['interval']:.2f} s")
    assert after["interval"] < 0.5 * before["interval"]
    assert cloud.differences() == []


def _plans(rows: list[ev.Row]) -> list[dict[str, float]]:
    """Return the numbers of the insurance plans that were made once a save had been measured."""
    measured = [row.sequence for row, _ in facts(rows, ev.CheckpointCommitted)]
    later = [row for row in rows if measured and row.sequence >= measured[0]]
    return [quoted(decision) for decision in decisions(later, "insurance save")]
