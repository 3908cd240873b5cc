"""Notices that the node agent receives reach the `windfall exec` of its machine once each, through a file."""

from __future__ import annotations

import resource
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.live import eventually
from windfall.linux.clock import SystemClock
from windfall.notices.relay import NoticeWriter, RelayedNotices
from windfall.terms import Instant, Notice, NoticeLevel

ANNOUNCED = Notice(NoticeLevel.ANNOUNCED, "aws", "n-1", Instant(123.5))
WITHDRAWN = Notice(NoticeLevel.WITHDRAWN, "aws", "n-1")


class Source:
    """A provider's source; nothing must watch it here."""

    name = "aws"

    def __init__(self) -> None:
        self.acknowledged: list[Notice] = []

    def watch(self, deliver: Callable[[Notice], None], stopped: Callable[[], bool]) -> None:
        raise AssertionError("the node agent alone watches the provider")

    def acknowledge(self, notice: Notice) -> None:
        self.acknowledged.append(notice)


@pytest.fixture
def received(tmp_path: Path) -> object:
    """Start a watcher of the file; return its notices so far."""
    watchers: list[threading.Thread] = []
    over = threading.Event()

    def start() -> list[Notice]:
        found: list[Notice] = []
        source = RelayedNotices(str(tmp_path / "notices.json"), SystemClock(), ())
        watchers.append(threading.Thread(target=source.watch, args=(found.append, over.is_set)))
        watchers[-1].start()
        return found

    yield start
    over.set()
    for watcher in watchers:
        watcher.join()


def test_each_notice_is_delivered_once_and_in_order(tmp_path: Path, received: Callable[[], list[Notice]]) -> None:
    """An announcement and its withdrawal, with the provider's own source and id."""
    found, writer = received(), NoticeWriter(str(tmp_path / "notices.json"))
    writer.write(ANNOUNCED)
    eventually(lambda: found == [ANNOUNCED], "the announcement")
    writer.write(WITHDRAWN)
    eventually(lambda: len(found) > 1, "the withdrawal")
    assert found == [ANNOUNCED, WITHDRAWN]


def test_an_exec_that_starts_later_knows_what_was_announced(
    tmp_path: Path, received: Callable[[], list[Notice]]
) -> None:
    """`exec` may start again between a notice and its deadline."""
    writer = NoticeWriter(str(tmp_path / "notices.json"))
    writer.write(ANNOUNCED)
    first = received()
    eventually(lambda: first == [ANNOUNCED], "the announcement")
    second = received()
    eventually(lambda: second == [ANNOUNCED], "the announcement, again")


def test_a_file_of_an_earlier_node_agent_is_gone(tmp_path: Path) -> None:
    """Its deadlines may belong to an earlier boot of the machine."""
    path = tmp_path / "notices.json"
    NoticeWriter(str(path)).write(ANNOUNCED)
    NoticeWriter(str(path))
    assert path.read_bytes().strip() == b""


def test_a_half_written_file_ends_nothing(tmp_path: Path, received: Callable[[], list[Notice]]) -> None:
    """A reader between two bytes of a write reads again."""
    path = tmp_path / "notices.json"
    writer = NoticeWriter(str(path))
    with path.open("r+b") as file:
        file.write(b'{"version": 1, "notices": [{"type": "Not')
    found = received()
    writer.write(ANNOUNCED)
    eventually(lambda: found == [ANNOUNCED], "the announcement")


def test_an_exec_that_starts_after_a_withdrawal_hears_of_that_alone(
    tmp_path: Path, received: Callable[[], list[Notice]]
) -> None:
    """An announcement that no longer holds must not make it save and leave."""
    writer = NoticeWriter(str(tmp_path / "notices.json"))
    writer.write(ANNOUNCED)
    writer.write(WITHDRAWN)
    found = received()
    eventually(lambda: found == [WITHDRAWN], "the withdrawal alone")


def test_a_notice_on_a_disk_that_is_full_arrives(tmp_path: Path, received: Callable[[], list[Notice]]) -> None:
    """The file had its size before: a write needs no more room, and a limit on file sizes stands for the full disk."""
    path = tmp_path / "notices.json"
    writer = NoticeWriter(str(path))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            (tmp_path / "other").write_bytes(bytes(path.stat().st_size + 1))
        writer.write(ANNOUNCED)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, previous)
    found = received()
    eventually(lambda: found == [ANNOUNCED], "the announcement")


def test_a_folder_that_cannot_be_written_does_not_end_the_node_agent(tmp_path: Path) -> None:
    """The controller still hears of the notice, and SIGTERM still reaches the script."""
    NoticeWriter(str(tmp_path / "gone" / "notices.json")).write(ANNOUNCED)


def test_an_acknowledgement_goes_to_the_provider(tmp_path: Path) -> None:
    """Azure waits for it; the agent of the run knows when the save is stored."""
    source = Source()
    RelayedNotices(str(tmp_path / "notices.json"), SystemClock(), (source,)).acknowledge(ANNOUNCED)
    assert source.acknowledged == [ANNOUNCED]
