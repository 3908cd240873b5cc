"""What a script on one of several machines finds, and what is refused before it starts."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from windfall.agent.exec_request import ExecRequest
from windfall.agent.script_environment import ScriptStart, is_launcher, script_environment
from windfall.cli.exec_line import _peers
from windfall.errors import Misuse
from windfall.ports import Restored
from windfall.sdk.session import Session
from windfall.terms import Bytes, RunOptions, Step
from windfall.wire import environment, script_page

PEERS = ("10.0.0.4:7070", "10.0.0.5:7070")


def start(session: Path, argv: tuple[str, ...], **request: Any) -> dict[str, str]:
    asked = ExecRequest("file:///run", argv, "/", RunOptions(), "", session=str(session), pages="/pages", **request)
    return script_environment(asked, ScriptStart("r", 7, 2, Restored(None, Step(0), Bytes(0), None, ()), 4711), argv)


def test_a_script_finds_where_the_ranks_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our names, and those that `env://` reads: one rank a machine.  The token is not for it."""
    monkeypatch.setenv(environment.PEERS_TOKEN, "a-secret")
    found = start(tmp_path, ("python", "train.py"), node_rank=1, peers=PEERS, generation=3)
    assert (found[environment.NODE_RANK], found[environment.NODE_COUNT]) == ("1", "2")
    assert (found[environment.MASTER_ADDR], found[environment.MASTER_PORT]) == ("10.0.0.4", "4711")
    assert found[environment.NODE_ADDRESSES] == "10.0.0.4,10.0.0.5"
    assert (found["RANK"], found["WORLD_SIZE"], found["MASTER_ADDR"], found["MASTER_PORT"]) == (
        "1",
        "2",
        "10.0.0.4",
        "4711",
    )
    assert "a-secret" not in found.values()


def test_a_launcher_numbers_its_ranks_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torchrun is told where to meet by its options, and no rank is forced on it."""
    monkeypatch.delenv("RANK", raising=False)
    found = start(tmp_path, ("torchrun", "train.py"), peers=PEERS, generation=3)
    assert "RANK" not in found
    assert environment.MASTER_PORT in found
    assert is_launcher(("/usr/bin/python3", "-m", "torch.distributed.run", "train.py"))
    assert not is_launcher(("python", "-m", "train"))
    assert not is_launcher(())


def test_a_machine_alone_is_given_no_meeting_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing changes for runs of one machine."""
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    found = start(tmp_path, ("python", "train.py"))
    assert (found[environment.NODE_RANK], found[environment.NODE_COUNT]) == ("0", "1")
    assert not {environment.MASTER_ADDR, "MASTER_ADDR", "RANK"} & set(found)


def test_a_rank_of_several_machines_goes_on_after_the_last_save(tmp_path: Path) -> None:
    """It must not stand still: a rank on another machine that missed the request could never get past its step."""
    session = Session({environment.SESSION: str(tmp_path), environment.NODE_COUNT: "2"})
    words = script_page.attach(str(tmp_path / script_page.page_name(0)))
    far_ns = time.monotonic_ns() + 60 * 10**9
    words[script_page.AGENT_NS], words[script_page.DEADLINE_NS], words[script_page.NOTICE] = (
        far_ns,
        far_ns,
        script_page.LEVELS.index("announced"),
    )
    script_page.publish(words, request=1, target=1, exact=True, kind=script_page.KINDS.index("emergency"))
    assert session.step()
    before = time.monotonic()
    session.backup(tmp_path / "checkpoint")
    assert time.monotonic() - before < 5.0


@pytest.mark.parametrize(
    ("text", "node_rank", "generation", "words"),
    [
        ("", 1, 0, "need --peers"),
        ("", 0, 2, "need --peers"),
        ("10.0.0.4", 0, 1, "is not host:port"),
        ("10.0.0.4:70000,b:1", 0, 1, "is not host:port"),
        ("10.0.0.4:7070", 0, 1, "is a single machine"),
        ("a:1,b:1", 2, 1, "must be 0 to 1"),
        ("a:1,b:1", 0, 0, "--peers needs a generation number"),
    ],
)
def test_options_that_do_not_belong_together_are_refused(
    text: str, node_rank: int, generation: int, words: str
) -> None:
    """One sentence each, before anything is started."""
    with pytest.raises(Misuse, match=words):
        _peers(text, node_rank, generation)


def test_peers_are_read() -> None:
    """Spaces after the commas are forgiven; nothing is one machine."""
    assert _peers("a:1, [::1]:2", 1, 1) == ("a:1", "[::1]:2")
    assert _peers("", 0, 0) == ()
