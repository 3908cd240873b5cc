"""Where a user's webhook may lead: not to the controller's own machine, its link, or a cloud's metadata."""

from __future__ import annotations

import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tests.control.house import a_job
from windfall.control import notifier
from windfall.control.notifier import Notification
from windfall.fleet import Event
from windfall.jobs import Notify

INSIDE = (
    "127.0.0.1", "127.8.9.1", "0.0.0.0", "169.254.169.254", "168.63.129.16", "100.100.100.200", "224.0.0.1", "255.255.255.255",
    "::1", "::", "fe80::1", "fe80::1%eth0", "fd00:ec2::254", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "ff02::1",
)  # fmt: skip
OUTSIDE = ("93.184.216.34", "10.1.2.3", "192.168.1.5", "2606:2800:220:1::1", "64:ff9b::5db8:d822", "fd12:3456::1")


def test_addresses_of_this_machine_and_its_link_are_told_from_others() -> None:
    """In every way in which they can be written; a lab's own network is none of them."""
    assert [address for address in INSIDE if not notifier.inside(address)] == []
    assert [address for address in OUTSIDE if notifier.inside(address)] == []


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "2130706433", "0x7f.1", "[::1]", "[::ffff:127.0.0.1]"])
def test_a_webhook_does_not_reach_the_controllers_own_machine(host: str) -> None:
    """Whatever the address looks like; for an admin's job it may."""
    posted: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(self.path)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    class Server(HTTPServer):
        address_family = socket.AF_INET6 if host.startswith("[::1") else socket.AF_INET

    server = Server((host.strip("[]") if host == "[::1]" else "127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        job = a_job(notify=Notify(webhook=f"http://{host}:{server.server_port}/hook"))
        wrong = notifier._post(Notification(job, Event.DONE, "done"), inside=False)
        assert posted == []
        assert wrong is not None
        assert "hook" not in wrong.split(":")[0]
        if host in ("127.0.0.1", "localhost"):
            assert notifier._post(Notification(job, Event.DONE, "done"), inside=True) is None
            assert posted == ["/hook"]
    finally:
        server.shutdown()
        server.server_close()


def test_the_address_that_was_checked_is_the_one_that_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is somebody's at the look-up and this machine's a moment later leads nowhere else; one of several counts."""
    looked_up: list[str] = []
    answers = [["93.184.216.34"], ["127.0.0.1"]]

    def resolve(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        looked_up.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in answers[len(looked_up) - 1]]

    monkeypatch.setattr(notifier.socket, "getaddrinfo", resolve)
    assert notifier.outside("moves.example", 80) == "93.184.216.34"
    answers[1] = ["93.184.216.34", "127.0.0.1"]
    assert notifier.outside("both.example", 80) is None
