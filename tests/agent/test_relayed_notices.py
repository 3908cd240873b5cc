"""A `windfall exec` that a node agent started: the node agent watches the provider, `exec` saves and acknowledges."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.support.live import new_run
from windfall.errors import EXIT_RETRY
from windfall.events import NoticeReceived
from windfall.linux.clock import SystemClock
from windfall.notices import notice_sources
from windfall.notices.relay import NoticeWriter
from windfall.wire.metadata_server import serve


@pytest.mark.parametrize("provider", ["azure", "aws"])
def test_a_notice_reaches_exec_once_and_its_acknowledgement_the_provider(tmp_path: Path, provider: str) -> None:
    """One process asks the metadata service; the run is saved, and Azure is told that it may go on."""
    run, clock, over = new_run(tmp_path), SystemClock(), threading.Event()
    with serve((), provider, now=clock.wall_time) as server:
        relay = str(tmp_path / "notices.json")
        writer = NoticeWriter(relay)
        asked: list[object] = []
        answer = server._server.answer
        server._server.answer = lambda *request: asked.append(request) or answer(*request)
        machine = run.train_managed(
            STEPS="4000", request={"provider": provider, "metadata_url": server.url, "notices": relay}
        )
        machine.until("step 3")
        (source,) = notice_sources.open_sources(provider, server.url, clock)
        watcher = threading.Thread(target=source.watch, args=(writer.write, over.is_set))
        try:
            assert asked == [], "exec does not watch where a node agent does"
            watcher.start()
            server.announce(10.0)
            assert machine.code() == EXIT_RETRY, machine.text
        finally:
            over.set()
            watcher.join()
        (received,) = run.facts(NoticeReceived)
        assert isinstance(received, NoticeReceived)
        assert received.notice.source == provider
        assert run.state().checkpoints[-1].step > 3
        assert server.acknowledged == ((received.notice.notice_id,) if provider == "azure" else ())
