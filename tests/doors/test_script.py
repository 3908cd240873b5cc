"""What a script says is input: any line of its message file, any word of its page, is understood or refused by name."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

from windfall import codec
from windfall.agent.hard_links import link_handover
from windfall.agent.page_watcher import PageWatcher
from windfall.core import worker
from windfall.events import Fact, Row, ScriptStarted, ShardHandedOver, WorkerStarted
from windfall.results import MessageRefused
from windfall.storage.run_lease import identify
from windfall.terms import Instant, RunOptions, Seconds, Term, WallTime
from windfall.wire import script_page

GOOD: tuple[dict[str, object], ...] = (
    {"type": "backup", "step": 3, "request": 0, "stall_ns": 5, "path": "/nowhere/ck"},
    {"type": "result", "step": 3, "request": 0, "stall_ns": 5, "path": "/nowhere/final", "name": "final"},
    {"type": "phase", "step": 3, "name": "evaluation", "duration_ns": 5},
    {"type": "report", "at_ns": 1, "step": 3, "metrics": {"loss": 0.5}},
)
ODD: tuple[object, ...] = (
    None, True, -1, 2**62, 2**70, 10**400, 0.5, float("nan"), float("inf"), "", "\0", "a\0b", "\ud800", "..", "/", "x" * 5000,
    "/tmp/\n", [], [[]], {}, {"type": "backup"}, "evaluation", "tea", "/dev/null", "/proc/self/mem", "relative",
)  # fmt: skip
SCRIPT_WORDS = (
    script_page.STEP,
    script_page.STEP_END_NS,
    script_page.STEP_START_NS,
    script_page.PHASE,
    script_page.PHASE_SINCE_NS,
    script_page.ACK,
    script_page.ACK_STEP,
)


def nonsense(chance: random.Random) -> bytes:
    """A line that no SDK writes: noise, half of a good line, a field of another kind, one too many, one too few."""
    message = dict(chance.choice(GOOD), seq=chance.randint(1, 9))
    way = chance.randrange(5)
    if way == 0:
        return bytes(chance.randrange(256) for _ in range(chance.randint(0, 40))).replace(b"\n", b"")
    if way == 1:
        line = json.dumps(message).encode()
        return line[: chance.randrange(len(line))]
    if way == 2:
        return b"[" * chance.choice((1, 10, 5000))
    key = chance.choice([*message, "more"])
    if way == 3:
        message[key] = chance.choice(ODD)
    else:
        message.pop(key, None)
    return json.dumps(message).encode()


def check(folder: Path, seed: int, *, lines: int = 4) -> None:
    """After any nonsense a checkpoint is handed over as if nothing had been said."""
    chance = random.Random(seed)
    words = script_page.create(str(folder / script_page.page_name(0)), pid=1, rank=0, step=0)
    words[script_page.PHASE] = script_page.PHASES.index("between")
    watcher = PageWatcher(
        str(folder), 1, Instant(0.0), lambda path, name: link_handover(path, str(folder / "held"), name), identify
    )
    state, now = _begun()
    messages = folder / script_page.messages_name(0)
    with messages.open("ab") as file:
        for _ in range(lines):
            file.write(nonsense(chance) + b"\n")
    words[script_page.MESSAGES] = lines
    if chance.random() < 0.5:
        words[chance.choice(SCRIPT_WORDS)] = chance.choice((-1, 1 << 40, -(1 << 62), 99))
    state = _react(state, now + 1.0, watcher.poll(Instant(now + 1.0)))
    for word in SCRIPT_WORDS:
        words[word] = 0
    words[script_page.STEP], words[script_page.STEP_END_NS] = 1 << 41, 10**9
    (folder / "good").write_bytes(b"state")
    good = {"seq": 1, "type": "backup", "step": 1 << 41, "request": 0, "stall_ns": 0, "path": str(folder / "good")}
    with messages.open("ab") as file:
        file.write(json.dumps(good).encode() + b"\n")
    words[script_page.MESSAGES] += 1
    facts = watcher.poll(Instant(now + 2.0))
    mine = [fact for fact in facts if isinstance(fact, ShardHandedOver) and fact.source == str(folder / "good")]
    assert [(fact.step, fact.size_bytes) for fact in mine] == [(1 << 41, 5)], f"seed {seed}"
    _react(state, now + 2.0, facts)


def _begun() -> tuple[worker.WorkerState, float]:
    started = WorkerStarted(
        "r", Term(1), RunOptions("never"), "local", (), attempt=1, failures=0, lifetimes_s=Seconds(0.0), preemptions=0,
        announced=0,
    )  # fmt: skip
    return _react(_react(worker.initial_state(), 0.0, [started]), 0.0, [ScriptStarted(1)]), 0.0


def _react(state: worker.WorkerState, now: float, facts: list[Fact]) -> worker.WorkerState:
    """Let the reducer take facts in, and the journal write and read them."""
    after, decisions, commands = worker.react(state, Instant(now), tuple(facts))
    row = Row(Term(1), 1, Instant(now), WallTime(now), tuple(facts), decisions, commands)
    codec.row_from_line(codec.row_to_line(row))
    return after


@pytest.mark.trial("G7")
@pytest.mark.parametrize("batch", range(4))
def test_a_hundred_kinds_of_nonsense_cost_no_checkpoint(batch: int, tmp_path: Path) -> None:
    """Each is refused or ignored; what comes behind it is understood, decided upon and journaled."""
    for seed in range(25 * batch, 25 * batch + 25):
        folder = tmp_path / str(seed)
        folder.mkdir()
        check(folder, seed)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.trial("G7")
@pytest.mark.parametrize("batch", range(10))
def test_ten_thousand_kinds_of_nonsense_cost_no_checkpoint(batch: int, tmp_path: Path) -> None:
    """The same with a thousand seeds a batch."""
    for seed in range(1000 + 1000 * batch, 2000 + 1000 * batch):
        folder = tmp_path / str(seed)
        folder.mkdir()
        check(folder, seed)


@pytest.mark.trial("G7")
@pytest.mark.parametrize("line", [b"{", b"[1]", b'{"type": "tea"}', b'{"type": "backup", "path": ""}', b"\xff\xfe"])
def test_what_is_refused_is_told(line: bytes, tmp_path: Path) -> None:
    """In one sentence that a terminal can show."""
    words = script_page.create(str(tmp_path / script_page.page_name(0)), pid=1, rank=0, step=0)
    watcher = PageWatcher(str(tmp_path), 1, Instant(0.0), lambda path, _name: path, identify)
    (tmp_path / script_page.messages_name(0)).write_bytes(line + b"\n")
    words[script_page.MESSAGES] = 1
    refused = [fact for fact in watcher.poll(Instant(1.0)) if isinstance(fact, MessageRefused)]
    assert len(refused) == 1
    assert refused[0].reason.isprintable()
    assert len(refused[0].reason) < 300
    os.unlink(tmp_path / script_page.messages_name(0))
    words[script_page.MESSAGES] = 2
    watcher.poll(Instant(2.0))
