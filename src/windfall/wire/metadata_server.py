"""A metadata service on loopback that plays a scripted timeline in the format of AWS, Google or Azure.

Used by tests and by the local market's machines; the notice sources read it like a cloud's service.

    python -m windfall.wire.metadata_server --provider aws --script timeline.json --port 8169

A script is JSON, its times in seconds from the start of the service:

    {"version": 1, "events": [{"at_s": 10, "type": "hint"},
                              {"at_s": 20, "type": "announce", "kind": "terminate", "notice_s": 120},
                              {"at_s": 30, "type": "withdraw"}]}
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import msgspec

from windfall.errors import Misuse
from windfall.structs import Struct
from windfall.terms import NoticeLevel, WallTime
from windfall.wire import notice_formats as wire

SCRIPT_VERSION = 1
MACHINE = "windfall-vm_0"
"""Resource name of this machine in the Azure format."""
OTHER_MACHINE = "windfall-vm_1"
LONG_POLL_S_MAX = 60.0
LONG_POLL_TICK_S = 0.005
TOKEN_TTL_S_MAX = 21_600
BODY_BYTES_MAX = 1 << 16

KINDS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "aws": {"announce": wire.AWS_ACTIONS, "hint": ("rebalance",)},
    "google": {"announce": ("preempted",), "hint": ("migrate",), "maintenance": ("terminate",)},
    "azure": {
        "announce": ("Preempt", "Terminate"),
        "hint": ("Freeze",),
        "maintenance": ("Redeploy", "Reboot", "Freeze"),
        "other_machine": ("Preempt", "Terminate", "Redeploy", "Reboot", "Freeze"),
    },
}
"""Event types of each format with their kinds, the default first.  All formats also have `withdraw` and `gone`."""
NOTICE_S: Mapping[str, float] = {
    **dict.fromkeys(wire.AWS_ACTIONS, 120.0),
    "preempted": 30.0,
    "Preempt": 30.0,
    "Terminate": 300.0,
    "Redeploy": 600.0,
    "Reboot": 900.0,
    "Freeze": 900.0,
}
"""Documented notice of each kind [s]."""


class ScriptedEvent(Struct, frozen=True):
    """One event of a timeline.

    Attributes:
        at_s: from the start of the service [s].
        type: `announce`, `hint`, `maintenance`, `other_machine` (about another machine), `withdraw` (all events of
            this machine) or `gone` (the service stops answering).
        kind: one of the format's kinds; empty for the default.
        notice_s: from the event to the deadline; None for the documented notice [s].
    """

    at_s: float
    type: str
    kind: str = ""
    notice_s: float | None = None


def load_script(text: str) -> tuple[ScriptedEvent, ...]:
    """Read a timeline.

    Raises:
        Misuse: it is not a valid script; the message names the invalid event.
    """
    try:
        document = json.loads(text)
        version, entries = document["version"], document["events"]
    except (ValueError, KeyError, TypeError) as error:
        raise Misuse('invalid notice script: write JSON of the form {"version": 1, "events": [...]}') from error
    if version != SCRIPT_VERSION or not isinstance(entries, list):
        raise Misuse(
            f"invalid notice script: write version {SCRIPT_VERSION} and a list of events, not version {version!r}"
        )
    events = []
    for number, entry in enumerate(entries, 1):
        try:
            event = ScriptedEvent(**entry)
            good = math.isfinite(event.at_s) and (event.notice_s is None or math.isfinite(event.notice_s))
        except TypeError as error:
            raise Misuse(f"event {number} of the notice script is invalid: {error}") from error
        if not good:
            raise Misuse(f"event {number} of the notice script has a time that is not finite")
        events.append(event)
    return tuple(events)


class _ActiveEvent(Struct, frozen=True):
    """An active event; `number` counts from 1 in the order of the timeline."""

    number: int
    type: str
    kind: str
    announced_at: WallTime
    deadline: WallTime


def _active_events(
    timeline: Sequence[ScriptedEvent], provider: str, started_at: WallTime, now: WallTime
) -> list[_ActiveEvent] | None:
    """Return the active events of a timeline; None once the machine is gone."""
    active: list[_ActiveEvent] = []
    past = (event for event in sorted(timeline, key=lambda event: event.at_s) if started_at + event.at_s <= now)
    for number, event in enumerate(past, 1):
        if event.type == "gone":
            return None
        if event.type == "withdraw":
            active = [item for item in active if item.type == "other_machine"]
            continue
        kind = event.kind or KINDS[provider][event.type][0]
        announced_at = WallTime(started_at + event.at_s)
        active.append(
            _ActiveEvent(number, event.type, kind, announced_at, _deadline(announced_at, kind, event.notice_s))
        )
    return active


def _deadline(announced_at: float, kind: str, notice_s: float | None) -> WallTime:
    # The formats have whole seconds: round down to be safe.
    return WallTime(math.floor(announced_at + (NOTICE_S.get(kind, 60.0) if notice_s is None else notice_s)))


def _check(event: ScriptedEvent, provider: str) -> ScriptedEvent:
    known = KINDS[provider]
    if event.type in ("withdraw", "gone"):
        return event
    if event.type not in known:
        allowed = ", ".join([*known, "withdraw", "gone"])
        raise Misuse(f"the {provider} format has no event {event.type!r}: use {allowed}")
    if event.kind and event.kind not in known[event.type]:
        raise Misuse(f"{event.type!r} has no kind {event.kind!r} on {provider}: use {', '.join(known[event.type])}")
    return event


class _MetadataRequest(Struct, frozen=True):
    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes


class _MetadataReply(Struct, frozen=True):
    status: int
    body: bytes = b""
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)


class MetadataServer:
    """A running service; a context manager that closes it.

    The methods `announce`, `withdraw`, `hint`, `maintenance`, `other_machine` and `gone` add an event to the timeline now.

    Attributes:
        url: base URL of the service.
    """

    def __init__(
        self, script: Sequence[ScriptedEvent], provider: str, port: int, *, now: Callable[[], float], machine: str
    ) -> None:
        """See `serve`."""
        if provider not in KINDS:
            raise Misuse(f"unknown notice format {provider!r}: use {', '.join(KINDS)}")
        self._provider, self._now, self._machine = provider, now, machine
        self._timeline = [_check(event, provider) for event in script]
        self._started_at = WallTime(now())
        self._changed = threading.Condition()
        self._closed = False
        self._tokens: dict[str, float] = {}
        self._approved: list[str] = []
        self._server = _MetadataHTTPServer(("127.0.0.1", port), _MetadataHandler)
        self._server.answer = self._answer
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True, name="metadata")
        self._thread.start()

    def __enter__(self) -> MetadataServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def port(self) -> int:
        """The port on 127.0.0.1."""
        return self._server.server_port

    @property
    def acknowledged(self) -> tuple[str, ...]:
        """Ids of the events approved by a POST, oldest first (Azure)."""
        return tuple(self._approved)

    def close(self) -> None:
        """Stop answering and free the port."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def announce(self, notice_s: float | None = None, kind: str = "") -> WallTime:
        """Announce a preemption; return its deadline, rounded as in the format (Google's has none) [s]."""
        return self._extend("announce", kind, notice_s)

    def withdraw(self) -> None:
        """Withdraw all events of this machine."""
        self._extend("withdraw")

    def hint(self) -> None:
        """Report that the machine is at risk."""
        self._extend("hint")

    def maintenance(self, notice_s: float | None = None, kind: str = "") -> WallTime:
        """Announce maintenance of the host; return its start [s]."""
        return self._extend("maintenance", kind, notice_s)

    def other_machine(self, notice_s: float | None = None, kind: str = "") -> WallTime:
        """Announce the preemption of another machine of the set (Azure); return its deadline [s]."""
        return self._extend("other_machine", kind, notice_s)

    def gone(self) -> None:
        """Stop answering, as after a preemption."""
        self._extend("gone")

    def _extend(self, event_type: str, kind: str = "", notice_s: float | None = None) -> WallTime:
        with self._changed:
            at_s = self._now() - self._started_at
            self._timeline.append(_check(ScriptedEvent(at_s, event_type, kind, notice_s), self._provider))
            self._changed.notify_all()
        kinds = KINDS[self._provider].get(event_type, ("",))
        return _deadline(self._started_at + at_s, kind or kinds[0], notice_s)

    # ------------------------------------------------------------------------------------------------------- answering

    def _answer(self, request: _MetadataRequest) -> _MetadataReply | None:
        """Answer one request; None to hang up."""
        active = self._current_events()
        if active is None:
            return None
        if self._provider == "aws":
            return self._answer_aws(request, active)
        if self._provider == "google":
            return self._answer_google(request)
        return self._answer_azure(request, active)

    def _current_events(self) -> list[_ActiveEvent] | None:
        with self._changed:
            return _active_events(self._timeline, self._provider, self._started_at, WallTime(self._now()))

    def _answer_aws(self, request: _MetadataRequest, active: Sequence[_ActiveEvent]) -> _MetadataReply:
        if request.path == wire.AWS_TOKEN_PATH:
            return self._issue_token(request)
        if self._tokens.get(request.headers.get(wire.AWS_TOKEN_HEADER.lower(), ""), -math.inf) <= self._now():
            return _MetadataReply(401)
        ends = [item for item in active if item.type == "announce"]
        hints = [item for item in active if item.type == "hint"]
        if request.path == wire.AWS_ACTION_PATH and ends:
            return _MetadataReply(200, wire.render_aws_action(ends[-1].kind, ends[-1].deadline))
        if request.path == wire.AWS_REBALANCE_PATH and hints:
            return _MetadataReply(200, wire.render_aws_rebalance(hints[-1].announced_at))
        return _MetadataReply(404)

    def _issue_token(self, request: _MetadataRequest) -> _MetadataReply:
        if request.method != "PUT":
            return _MetadataReply(405)
        ttl = request.headers.get(wire.AWS_TOKEN_TTL_HEADER.lower(), "")
        if not ttl.isdecimal() or not 1 <= int(ttl) <= TOKEN_TTL_S_MAX:
            return _MetadataReply(400)
        token = f"token-{len(self._tokens) + 1}"
        self._tokens[token] = self._now() + int(ttl)
        return _MetadataReply(200, token.encode(), {wire.AWS_TOKEN_TTL_HEADER: ttl})

    def _answer_google(self, request: _MetadataRequest) -> _MetadataReply | None:
        if request.headers.get(wire.GOOGLE_FLAVOR_HEADER.lower()) != wire.GOOGLE_FLAVOR:
            return _MetadataReply(403)
        reply = self._google_value(request.path)
        if request.query.get("wait_for_change") != "true" or reply is None or reply.status != 200:
            return reply
        last_etag = request.query.get("last_etag", reply.headers["ETag"])
        timeout_sec = request.query.get("timeout_sec", "60")
        if not timeout_sec.isdecimal():
            return _MetadataReply(400)
        until = self._now() + min(float(timeout_sec), LONG_POLL_S_MAX)
        while reply is not None and reply.headers["ETag"] == last_etag and self._now() < until and not self._closed:
            # Nothing wakes the waiter at a scripted event, so the timeline is polled.
            with self._changed:
                self._changed.wait(LONG_POLL_TICK_S)
            reply = self._google_value(request.path)
        return reply

    def _google_value(self, path: str) -> _MetadataReply | None:
        active = self._current_events()
        if active is None:
            return None
        types = {item.type for item in active}
        if path == wire.GOOGLE_PREEMPTED_PATH:
            body = wire.render_google_preempted("announce" in types)
        elif path == wire.GOOGLE_MAINTENANCE_PATH:
            body = wire.render_google_maintenance(_google_maintenance(types))
        else:
            return _MetadataReply(404)
        etag = sha256(body).hexdigest()[:16]
        return _MetadataReply(200, body, {"ETag": etag, wire.GOOGLE_FLAVOR_HEADER: wire.GOOGLE_FLAVOR})

    def _answer_azure(self, request: _MetadataRequest, active: Sequence[_ActiveEvent]) -> _MetadataReply:
        if request.headers.get(wire.AZURE_HEADER.lower(), "").lower() != "true" or "api-version" not in request.query:
            return _MetadataReply(400)
        if request.path == wire.AZURE_NAME_PATH:
            return _MetadataReply(200, self._machine.encode())
        if request.path != wire.AZURE_EVENTS_PATH:
            return _MetadataReply(404)
        document = self._azure_document(active)
        if request.method == "POST":
            return self._approve(request, document)
        return _MetadataReply(200, wire.render_azure_events(document))

    def _approve(self, request: _MetadataRequest, document: wire.AzureDocument) -> _MetadataReply:
        try:
            approved = wire.parse_azure_start_requests(request.body)
        except wire.Malformed:
            return _MetadataReply(400)
        if not set(approved) <= {event.event_id for event in document.events}:
            return _MetadataReply(404)
        with self._changed:
            self._approved.extend(approved)
        return _MetadataReply(200)

    def _azure_document(self, active: Sequence[_ActiveEvent]) -> wire.AzureDocument:
        events = []
        for item in active:
            event_id = f"{item.number:08X}-AFDC-4513-B24B-AA5F13A16123"
            started = item.deadline <= self._now() or event_id in self._approved
            events.append(
                wire.AzureEvent(
                    event_id=event_id,
                    event_type=item.kind,
                    resources=(OTHER_MACHINE if item.type == "other_machine" else self._machine,),
                    status=wire.AZURE_STARTED if started else wire.AZURE_SCHEDULED,
                    not_before=None if started else item.deadline,
                )
            )
        changes = sum(self._started_at + event.at_s <= self._now() for event in self._timeline)
        started_events = sum(event.status == wire.AZURE_STARTED for event in events)
        return wire.AzureDocument(1 + changes + started_events, tuple(events))


def _google_maintenance(types: set[str]) -> wire.CloudNotice | None:
    if "maintenance" in types:
        return wire.CloudNotice(NoticeLevel.ANNOUNCED, "maintenance-terminate")
    return wire.CloudNotice(NoticeLevel.HINT, "maintenance-migrate") if "hint" in types else None


class _MetadataHTTPServer(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    answer: Callable[[_MetadataRequest], _MetadataReply | None]

    def handle_error(self, request: object, client_address: object) -> None:
        # A client that hangs up in mid-answer is its own affair.
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _MetadataHandler(BaseHTTPRequestHandler):
    server: _MetadataHTTPServer

    def _reply(self) -> None:
        parts = urlsplit(self.path)
        length = self.headers.get("Content-Length", "0")
        size_bytes = min(int(length), BODY_BYTES_MAX) if length.isdecimal() else 0
        request = _MetadataRequest(
            method=self.command,
            path=parts.path,
            query={name: values[-1] for name, values in parse_qs(parts.query).items()},
            headers={name.lower(): value for name, value in self.headers.items()},
            body=self.rfile.read(size_bytes),
        )
        reply = self.server.answer(request)
        if reply is None:
            self.close_connection = True
            return
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        self.wfile.write(reply.body)

    do_GET = do_PUT = do_POST = _reply  # noqa: N815 - http.server finds its handlers by these names

    def log_message(self, *_: object) -> None:
        """Log nothing: sources poll every second."""


def serve(
    script: Sequence[ScriptedEvent],
    provider: str,
    port: int = 0,
    *,
    now: Callable[[], float],
    machine: str = MACHINE,
) -> MetadataServer:
    """Start a metadata service on 127.0.0.1 in a thread of its own.

    Args:
        script: the timeline, starting now; may be empty if events are added by the methods.
        provider: `aws`, `google` or `azure`.
        port: 0 for any free one.
        now: the cloud's wall clock [s since 1970, UTC].
        machine: this machine's resource name in the Azure format.

    Raises:
        Misuse: an unknown format, or an event that it does not have.
        OSError: the port is in use.
    """
    return MetadataServer(script, provider, port, now=now, machine=machine)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve a script until interrupted: `python -m windfall.wire.metadata_server --provider aws --script timeline.json`."""
    parser = argparse.ArgumentParser(
        prog="windfall.wire.metadata_server", description="Play a notice script over HTTP."
    )
    parser.add_argument("--provider", required=True, choices=sorted(KINDS))
    parser.add_argument("--script", required=True, type=Path)
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args(arguments)
    try:
        script = load_script(options.script.read_text(encoding="utf-8"))
        with serve(script, options.provider, options.port, now=time.time) as server:
            sys.stdout.write(f"{server.url}\n")
            sys.stdout.flush()
            threading.Event().wait()
    except KeyboardInterrupt:
        return 0
    except (Misuse, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return Misuse.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
