"""Findings of the controller's doors in the words of before: each fails by its assertion there, and passes now."""

from __future__ import annotations

import inspect
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from windfall.control import notifying
from windfall.fleet import Event
from windfall.jobs import Job, Notify, Want


@pytest.mark.trial("G12")
def test_a_webhook_does_not_reach_the_controllers_own_machine() -> None:
    """A user's job posts nothing to what listens on loopback."""
    posted: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(self.path)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    hook = Notify(webhook=f"http://127.0.0.1:{server.server_port}/hook")
    job = Job("gpt-1", "gpt", "ada", "s3://lab/x", ("train",), (Want(),), notify=hook)
    more = {"inside": False} if "inside" in inspect.signature(notifying._post).parameters else {}
    try:
        notifying._post(notifying.Message(job, Event.DONE, "done"), **more)
        assert posted == []
    finally:
        server.shutdown()
        server.server_close()
