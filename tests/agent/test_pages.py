"""The agent's reading of the pages: what a script did becomes facts, in an order that is true, and once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from windfall.agent.page_watcher import PageWatcher
from windfall.events import (
    Fact,
    MetricsReported,
    PagesRead,
    PhaseMeasured,
    PublishSave,
    RankAdvanced,
    RanksObserved,
    SaveAnswered,
    ShardHandedOver,
    StepsMeasured,
)
from windfall.terms import Instant, NoticeLevel, Phase, SaveKind, Step
from windfall.wire import script_page

SECOND = 1_000_000_000


class Script:
    """A rank's side of the page, driven by hand; time is in seconds."""

    def __init__(self, folder: Path, rank: int = 0, world: int = 1) -> None:
        self.words = script_page.create(
            str(folder / script_page.page_name(rank)), pid=1, rank=rank, step=0, local_world=world
        )
        self.words[script_page.PHASE] = script_page.PHASES.index("between")
        self.messages = folder / script_page.messages_name(rank)

    def steps_until(self, step: int, at_s: float) -> None:
        self.words[script_page.STEP_END_NS] = int(at_s * SECOND)
        self.words[script_page.STEP] = step

    def answer(self, at_s: float) -> None:
        self.words[script_page.ACK_STEP] = self.words[script_page.STEP]
        self.words[script_page.ACK_NS] = int(at_s * SECOND)
        self.words[script_page.ACK] = self.words[script_page.REQUEST]

    def say(self, **message: object) -> None:
        line = {"seq": self.words[script_page.MESSAGES] + 1, "step": self.words[script_page.STEP], **message}
        with self.messages.open("a") as file:
            file.write(json.dumps(line) + "\n")
        self.words[script_page.MESSAGES] += 1

    def hand_over(self, path: Path | None, request: int, stall_s: float = 0.0) -> None:
        self.say(type="backup", request=request, path=str(path) if path else None, stall_ns=int(stall_s * SECOND))


def watcher(folder: Path, positions: tuple[tuple[int, int, int], ...] = ()) -> PageWatcher:
    return PageWatcher(
        str(folder), 1, Instant(0.0), lambda path, _name: path, lambda _path: "as it was", positions=positions
    )


def only(facts: list[Fact], kind: type[Fact]) -> list[Fact]:
    return [fact for fact in facts if isinstance(fact, kind)]


def ask(watched: PageWatcher, number: int, step: int, *, exact: bool = False) -> None:
    watched.publish(PublishSave(number, Step(step), SaveKind.INSURANCE, exact))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "saved"
    path.write_bytes(b"x" * 10)
    return path


def test_nothing_is_seen_before_every_rank_is_there(tmp_path: Path) -> None:
    """A point must not be complete without ranks that are still starting."""
    watched = watcher(tmp_path)
    Script(tmp_path, 0, world=2).steps_until(3, 1.0)
    assert watched.poll(Instant(1.0)) == []
    Script(tmp_path, 1, world=2)
    seen = only(watched.poll(Instant(1.1)), RanksObserved)[0]
    assert isinstance(seen, RanksObserved)
    assert [(rank.rank, rank.step) for rank in seen.ranks] == [(0, 3), (1, 0)]


def test_the_answer_comes_before_the_hand_over(tmp_path: Path, saved: Path) -> None:
    """Both in one look: first that the rank said yes, then its part, whose stall is told."""
    watched, script = watcher(tmp_path), Script(tmp_path)
    watched.poll(Instant(0.1))
    ask(watched, 7, 5)
    script.steps_until(5, 1.0)
    script.answer(1.0)
    script.hand_over(saved, 7, stall_s=0.25)
    facts = [fact for fact in watched.poll(Instant(1.1)) if isinstance(fact, (SaveAnswered, ShardHandedOver))]
    assert facts == [SaveAnswered(0, 7, Step(5)), ShardHandedOver(0, Step(5), 7, str(saved), 10, 0.25, "as it was")]  # type: ignore[arg-type]


def test_who_goes_on_without_handing_over_has_no_part(tmp_path: Path) -> None:
    """Said once, and only when the next step has begun."""
    watched, script = watcher(tmp_path), Script(tmp_path)
    watched.poll(Instant(0.1))
    ask(watched, 1, 2)
    script.steps_until(2, 1.0)
    script.answer(1.0)
    assert only(watched.poll(Instant(1.1)), RankAdvanced) == []
    script.steps_until(3, 2.0)
    assert only(watched.poll(Instant(2.1)), RankAdvanced) == [RankAdvanced(0, Step(2))]
    script.steps_until(4, 3.0)
    assert only(watched.poll(Instant(3.1)), RankAdvanced) == []


def test_ranks_that_pass_anothers_own_save_have_no_part_in_it(tmp_path: Path, saved: Path) -> None:
    """A save by the user's own schedule on rank 0 alone: the others are told to have gone on."""
    watched = watcher(tmp_path)
    ranks = [Script(tmp_path, number, world=2) for number in range(2)]
    watched.poll(Instant(0.1))
    for script in ranks:
        script.steps_until(10, 1.0)
    ranks[0].hand_over(saved, 0)
    assert only(watched.poll(Instant(1.1)), RankAdvanced) == []
    ranks[1].steps_until(11, 2.0)
    assert only(watched.poll(Instant(2.1)), RankAdvanced) == [RankAdvanced(1, Step(10))]


def test_steps_are_measured_without_the_saves_between_them(tmp_path: Path, saved: Path) -> None:
    """Ten steps of 0.1 s with a save of 2 s among them are steps of 0.1 s; so with an evaluation."""
    watched, script = watcher(tmp_path), Script(tmp_path)
    script.steps_until(1, 10.0)
    watched.poll(Instant(10.0))
    script.hand_over(saved, 0, stall_s=2.0)
    script.say(type="phase", name="evaluation", duration_ns=3 * SECOND)
    script.steps_until(11, 16.0)
    facts = watched.finish(Instant(16.0))
    assert only(facts, PhaseMeasured) == [PhaseMeasured(0, Phase.EVALUATION, 3.0)]  # type: ignore[arg-type]
    (measured,) = only(facts, StepsMeasured)
    assert isinstance(measured, StepsMeasured)
    assert (measured.step, measured.count) == (11, 10)
    assert measured.mean_s == pytest.approx(0.1)


def test_a_step_begins_where_the_save_before_it_ends(tmp_path: Path, saved: Path) -> None:
    """Step 5 ends at 10 s, its save holds the script up until 13 s: at 14 s the next step is one second old, not four."""
    watched, script = watcher(tmp_path), Script(tmp_path)
    script.steps_until(5, 10.0)
    script.hand_over(saved, 0, stall_s=3.0)
    watched.poll(Instant(14.0))

    (status,) = watched.observe().ranks

    assert (status.step, status.phase_since) == (5, 13.0)


def test_an_agent_that_restarts_reads_nothing_twice(tmp_path: Path, saved: Path) -> None:
    """From the marks of the journal a new watcher goes on: no answer and no hand-over comes again, the open one is known."""
    first, script = watcher(tmp_path), Script(tmp_path)
    first.poll(Instant(0.1))
    ask(first, 1, 1)
    script.steps_until(1, 1.0)
    script.answer(1.0)
    script.hand_over(saved, 1)
    (read,) = only(first.poll(Instant(1.1)), PagesRead)
    assert isinstance(read, PagesRead)
    ask(first, 2, 2)
    script.steps_until(2, 2.0)
    script.answer(2.0)
    (read,) = only(first.poll(Instant(2.1)), PagesRead)
    assert isinstance(read, PagesRead)

    second = watcher(tmp_path, read.positions)
    again = second.poll(Instant(3.0))
    assert only(again, SaveAnswered) + only(again, ShardHandedOver) == []
    script.hand_over(saved, 2)
    (part,) = only(second.poll(Instant(3.1)), ShardHandedOver)
    assert isinstance(part, ShardHandedOver)
    assert part.request == 2


def test_a_notice_is_on_every_page(tmp_path: Path) -> None:
    """Level and deadline, and nothing of them once it is withdrawn."""
    watched, script = watcher(tmp_path), Script(tmp_path)
    watched.poll(Instant(0.1))
    watched.show_notice(NoticeLevel.ANNOUNCED, Instant(30.0))
    assert script_page.LEVELS[script.words[script_page.NOTICE]] == "announced"
    assert script.words[script_page.DEADLINE_NS] == 30 * SECOND
    watched.show_notice(NoticeLevel.WITHDRAWN, None)
    assert script.words[script_page.DEADLINE_NS] == 0


def test_reports_carry_numbers_alone(tmp_path: Path) -> None:
    """Text among the metrics does not enter the journal."""
    watched, script = watcher(tmp_path), Script(tmp_path)
    watched.poll(Instant(0.1))
    script.say(type="report", metrics={"loss": 0.5, "note": "good", "epoch": 2})
    (told,) = only(watched.poll(Instant(0.2)), MetricsReported)
    assert isinstance(told, MetricsReported)
    assert told.metrics == (("epoch", 2.0), ("loss", 0.5))
