"""Words by their type: what the codec refuses at every door, whoever sent it."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from tests.doors import words
from tests.doors.support import inputs, swallows
from windfall import codec, events, fleet, jobs, market, terms
from windfall.channels.mailbox import parse_report
from windfall.errors import CheckpointDamaged, LogDamaged, NewerFormat, OlderFormat
from windfall.storage import manifest, run_state
from windfall.structs import replace

WORK = {"type": "Work", "amount": 1.0, "unit": "step"}


@pytest.mark.parametrize(
    "change",
    [
        {"dead_man_s": WORK},
        {"objective": WORK},
        {"resources": [WORK]},
        {"resources": {"type": "Resources"}},
        {"command": "train"},
        {"command": [WORK]},
        {"nodes": 1.0},
        {"nodes": True},
        {"nodes": 2**63},
        {"work": {"type": "Work", "amount": float("nan"), "unit": "step"}},
        {"work": {"type": "Work", "amount": float("inf"), "unit": "step"}},
        {"work": {"type": "Work", "amount": 10**400, "unit": "step"}},
        {"use": "sometimes"},
        {"type": "Resources"},
        {"type": ["Job"]},
        {"extra": 1},
    ],
    ids=repr,
)
def test_a_field_of_another_type_is_refused_and_its_place_named(change: dict[str, Any]) -> None:
    """Also another of our own words, which the data name themselves."""
    with pytest.raises(ValueError, match=r"at \$\.|unknown field"):
        codec.decode(words.job_message() | change, jobs.Job)


def test_what_stands_in_a_wrong_field_is_not_repeated() -> None:
    """A wrong value may be a secret in the wrong place."""
    for change in ({"use": "hunter2"}, {"hunter2": 1}, {"type": "hunter2"}, {"nodes": "hunter2"}):
        with pytest.raises(ValueError, match=r"expected|invalid|unknown") as caught:
            codec.decode(words.job_message() | change, jobs.Job)
        assert "hunter2" not in str(caught.value)


def test_every_word_comes_back_as_it_was() -> None:
    """By its own class, by its base, and where any word will do."""
    for row in words.rows():
        assert codec.row_from_line(codec.row_to_line(row)) == row
        for base, found in ((events.Fact, row.facts), (events.Command, row.commands)):
            assert codec.decode(json.loads(json.dumps([codec.encode(one) for one in found])), tuple[base, ...]) == found


def test_each_class_of_the_words_has_a_shape() -> None:
    """A field of a type that the codec cannot check is noticed here, not at somebody's restart."""
    modules = (terms, events, jobs, market, fleet)
    kinds = [kind for module in modules for kind in vars(module).values() if dataclasses.is_dataclass(kind)]
    for kind in kinds:
        with pytest.raises(ValueError, match="expected"):
            codec.decode([], kind)


def test_a_metric_need_not_be_finite_and_nothing_else_may_be_otherwise() -> None:
    """A loss that is not a number is what a script most wants to be known."""
    said = events.MetricsReported(
        0, terms.Step(3), (("loss", terms.Metric(float("nan"))), ("max", terms.Metric(float("-inf"))))
    )
    row = replace(words.rows()[0], facts=(said,))
    line = codec.row_to_line(row)
    back = codec.row_from_line(line)
    assert repr(back) == repr(row)
    assert "NaN" not in line
    with pytest.raises(ValueError, match=r"at \$\.mean_s"):
        codec.decode(
            codec.encode(events.StepsMeasured(terms.Step(1), 1, terms.Seconds(float("inf")), terms.Seconds(1.0))),
            events.Fact,
        )


def test_journal_rows_are_read_or_refused(count: int) -> None:
    """Nothing that a database or a store may hold ends whoever reads a journal with anything but a sentence."""
    swallows(
        lambda data: codec.row_from_line(data.decode(errors="surrogateescape")),
        words.row_messages(),
        count,
        refusals=(ValueError, NewerFormat, OlderFormat),
    )


@pytest.mark.parametrize("name", ["record", "manifest", "report", "directive"])
def test_objects_of_a_store_are_read_or_refused(name: str, count: int) -> None:
    """Records of the log, manifests, reports and directives."""
    readers = {
        "record": lambda data: run_state.from_bytes(data, "log/1"),
        "manifest": lambda data: manifest.from_bytes(data, "checkpoints/1/manifest.json"),
        "report": parse_report,
        "directive": lambda data: codec.decode_document(data, "directive", fleet.Directive, version=1, what="it"),
    }
    valid = list(words.store_messages().values())
    refusals = (
        LogDamaged,
        CheckpointDamaged,
        NewerFormat,
        OlderFormat,
        *((ValueError,) if name == "directive" else ()),
    )
    swallows(readers[name], valid, count, refusals=refusals)


def test_what_is_read_can_be_written_again(count: int) -> None:
    """A word that came through a door is whole: it goes into the journal and comes back the same."""
    for one in inputs([words.job_message()], count):
        try:
            job = codec.decode(codec.parse(one.data), jobs.Job)
        except ValueError:
            continue
        assert codec.decode(json.loads(json.dumps(codec.encode(job), allow_nan=False)), jobs.Job) == job, one
