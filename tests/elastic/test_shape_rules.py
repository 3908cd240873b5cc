"""Settings of the runtime `elastic`, and what a job needs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.control.house import a_job
from windfall.jobs import Job, RuntimeSpec
from windfall.models.shapes import Shape
from windfall.policies.layout import runtime_list, shape_rules
from windfall.policies.layout.runtime_list import Placement, SettingProblem
from windfall.structs import replace
from windfall.terms import Reliability


def elastic(**settings: Any) -> Job:
    """A job with these settings."""
    return a_job(runtime=RuntimeSpec("elastic", settings))


@pytest.mark.parametrize(
    ("settings", "key", "text"),
    [
        ({"node": 3}, "node", "has no setting node; there are nodes, shapes, lookahead"),
        ({"nodes": "30..2"}, "nodes", "has nodes '30..2': write a number, or a range such as 2..30, from 1 to 256"),
        ({"nodes": 0}, "nodes", "has nodes 0: write a number"),
        ({"shapes": "fast"}, "shapes", "has shapes 'fast': write auto, or a list of pipelines x stages"),
        ({"shapes": ["2x2", "0x3"]}, "shapes", "has shapes ['2x2', '0x3']: write auto"),
        ({"nodes": 3, "shapes": ["2x2"]}, "shapes", "need at least 4 machines (2x2), and at most 3 nodes"),
        ({"lookahead": 0}, "lookahead", "has lookahead 0: write a whole number, at least 1"),
        ({"reliable": 0}, "reliable", "has reliable 0: write a whole number, at least 1: it has the coordinator"),
        ({"save_every": -1}, "save_every", "has save_every -1"),
        ({"deterministic": "yes"}, "deterministic", "has deterministic 'yes': write true or false"),
        ({"profile": {"batch": 8, "micro_batch": 1}}, "profile", "has a profile: layers is missing"),
        ({"seed": 1.5}, "seed", "has seed 1.5"),
    ],
)
def test_a_wrong_setting_is_named_with_what_to_write(settings: dict[str, Any], key: str, text: str) -> None:
    """One sentence: what is wrong, and what to write instead."""
    problem = shape_rules.settings_problem(settings)

    assert isinstance(problem, SettingProblem)
    assert problem.key == key
    assert text in problem


def test_settings_have_defaults() -> None:
    """One machine that trains, one that is reliable, all shapes, a look-ahead by how long counts last."""
    found = shape_rules.job_of({})

    assert (found.nodes_min, found.nodes_max, found.reliable) == (1, 1, 1)
    assert (found.shapes, found.lookahead, found.save_every) == ((), None, 0)
    assert dict(found.script) == {"deterministic": False, "save_every": 0}


def test_shapes_are_read() -> None:
    """As pipelines x stages, each once."""
    found = shape_rules.job_of({"nodes": "2..8", "shapes": ["4x1", "2x2", "2x2"]})

    assert found.shapes == (Shape(2, 2), Shape(4, 1))


def test_a_job_needs_a_reliable_machine_and_the_least_of_the_others() -> None:
    """More are a matter of the fleet policy, within bounds."""
    job = elastic(nodes="2..5")

    slots = shape_rules.slots(job)
    scaling = runtime_list.scaling_of(replace(job, fleet="mix"))
    fixed = runtime_list.scaling_of(job)

    assert [(slot.id, slot.role) for slot in slots] == [
        ("reliable-0", "reliable"), ("node-0", "node"), ("node-1", "node")
    ]  # fmt: skip
    assert [slot.reliability for slot in slots] == [Reliability.RELIABLE, *[slots[1].reliability] * 2]
    assert scaling is not None
    assert (scaling.machines_min, scaling.machines_max, scaling.role, scaling.reliable) == (2, 5, "node", 1)
    assert fixed is not None
    assert (fixed.machines_min, fixed.machines_max) == (2, 2)


def test_machines_are_told_where_the_leader_is() -> None:
    """As soon as it is known; and whether they are it."""
    job = elastic(nodes=1)
    placed = {
        "reliable-0": Placement("reliable", "m1", "10.0.0.1:7000"),
        "node-0": Placement("node", "m2", "10.0.0.2:7001"),
    }
    leader, node = shape_rules.slots(job)

    assert shape_rules.assign(job, leader, placed) == {
        "head": "10.0.0.1:7000",
        "leads": True,
        "address": "10.0.0.1:7000",
    }
    assert shape_rules.assign(job, node, placed) == {
        "head": "10.0.0.1:7000",
        "leads": False,
        "address": "10.0.0.2:7001",
    }
    assert shape_rules.assign(job, node, {})["head"] == ""
