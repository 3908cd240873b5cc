"""The local market's door: its daemon's calls, and the folders of its machines."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.doors import words
from tests.doors.support import inputs
from windfall.linux.clock import SystemClock
from windfall.providers.local import market_daemon
from windfall.providers.local.market_engine import MarketEngine

TOKEN = "token-of-the-market"
CALLS: dict[str, list[Any]] = {
    "offers": [[]],
    "quota": [["me"]],
    "order": words.order_messages(),
    "cancel": [["token-1"]],
    "list": [["me"]],
    "release": [["m-1"]],
    "charges": [["me", "3"]],
    "preempt": [["m-1", 30.0]],
    "nothing": [[]],
}


@pytest.fixture
def door(tmp_path: Path) -> Iterator[market_daemon._MarketServer]:
    """A market that sells, without the loop that starts machines."""
    server = market_daemon._MarketServer(("127.0.0.1", 0), market_daemon._MarketHandler)
    server.engine = MarketEngine(tmp_path, SystemClock(), lambda _: None)
    server.token, server.on_call = TOKEN, lambda: None
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def test_calls_are_answered_or_refused(
    door: market_daemon._MarketServer, count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each answer is one of four statuses with JSON in it; nothing is printed, and the next caller is served."""
    names, lines = list(CALLS), contextlib.ExitStack()
    for number, name in enumerate(names):
        line = http.client.HTTPConnection("127.0.0.1", door.server_port, timeout=30)
        lines.callback(line.close)
        for one in inputs(CALLS[name], count // len(names) + 1, seed=number):
            if len(one.data) > market_daemon.BODY_BYTES_MAX:
                continue  # it is hung up on before it is whole
            line.request("POST", f"/{name}", one.data, {"Authorization": f"Bearer {TOKEN}"})
            answer = line.getresponse()
            said = json.loads(answer.read())
            assert answer.status in (200, 400, 413, 500), one
            assert ("error" in said) == (answer.status != 200), one
            assert answer.status != 500 or "broken" in said["error"], one
    lines.close()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("length", ["-1", "99999999999999999999", "x", "1e3", ""])
def test_no_more_is_read_than_a_call_may_have(door: market_daemon._MarketServer, length: str) -> None:
    """A length that is none, or too large, is answered at once: nothing waits for bytes that never come."""
    with contextlib.closing(socket.create_connection(("127.0.0.1", door.server_port), timeout=5)) as line:
        head = f"POST /offers HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: {length}\r\n\r\n"
        line.sendall(head.encode())
        assert b" 413 " in line.recv(1000)


def test_nothing_is_read_of_a_stranger(door: market_daemon._MarketServer) -> None:
    """The token is looked at before a body of any length is."""
    with contextlib.closing(socket.create_connection(("127.0.0.1", door.server_port), timeout=5)) as line:
        line.sendall(b"POST /offers HTTP/1.1\r\nHost: x\r\nContent-Length: 4000000\r\n\r\n")
        assert b" 401 " in line.recv(1000)


def test_a_stranger_hears_the_refusal_and_that_the_line_is_closed(door: market_daemon._MarketServer) -> None:
    """With a body that nobody reads, time after time on one client: never a line that is dead when it is used again."""
    with httpx.Client(timeout=10) as client:
        for _ in range(50):
            answer = client.post(f"http://127.0.0.1:{door.server_port}/offers", content=b" " * 1_000_000)
            assert (answer.status_code, answer.headers["Connection"]) == (401, "close")


def test_a_machine_whose_folder_cannot_be_read_does_not_stop_the_market(tmp_path: Path) -> None:
    """It is logged once; the other machines are still billed."""
    said: list[str] = []
    engine = MarketEngine(tmp_path, SystemClock(), said.append)
    order, boot = words.order("m-order", engine.offers()[0]), words.boot()
    (machine_id,) = engine.order(order, boot).machine_ids
    folder = tmp_path / "machines" / machine_id
    for content in ('{"started": [}', "[" * 100_000, "[1]", '{"started": {"a": 1}}', '{"withdrawn": "x"}', "{}"):
        (folder / "started.json").write_text(content)
        engine.tick()
        assert isinstance(engine.charges(order.owner, "").charges, tuple)
    assert len([line for line in said if machine_id in line and "cannot read its folder" in line]) == 1
    assert isinstance(engine.list(order.owner)[0].price_usd_per_hour, float)
