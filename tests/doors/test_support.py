"""The generator of hostile input itself: what a failure names can be made again, and it reaches every place."""

from __future__ import annotations

import json
import random

import pytest

from tests.doors.support import inputs, mutated, swallows

VALID = [{"type": "Job", "name": "gpt", "resources": [{"type": "Resources", "cpus_min": 1.5}], "nodes": 1}]


def test_the_same_seed_gives_the_same_inputs_and_another_one_others() -> None:
    """A failure names seed and number: that is all that is needed to see it again."""
    first, again, other = (list(inputs(VALID, 50, seed=seed)) for seed in (7, 7, 8))
    assert first == again
    assert [one.data for one in first] != [one.data for one in other]


def test_each_field_of_a_message_is_changed_sometime() -> None:
    """No place is left out, however deep."""
    chance = random.Random(3)
    changed = set()
    for _ in range(500):
        message = mutated(VALID[0], chance, VALID)
        if isinstance(message, dict):
            changed |= {key for key in VALID[0] if message.get(key) != VALID[0][key]}
    assert changed == set(VALID[0])


def test_a_door_that_lets_an_error_out_is_named_with_the_input() -> None:
    """The way back from a failure to its input is in the message."""
    with pytest.raises(AssertionError, match="of seed"):
        swallows(lambda data: json.loads(data)["name"], VALID, 200, refusals=())
