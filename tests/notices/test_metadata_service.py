"""The service that plays a timeline behaves as the clouds' own: what it demands, what it answers, what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.notices.support import eventually
from windfall.errors import Misuse
from windfall.wire import notice_formats as wire
from windfall.wire.metadata_server import ScriptedEvent, load_script, serve

START = 1_700_000_000.0
AZURE = f"{wire.AZURE_EVENTS_PATH}?{wire.AZURE_EVENTS_QUERY}"
TRUE_HEADER = {"Metadata": "true"}
FLAVOR = {"Metadata-Flavor": "Google"}


class HandTime:
    """A cloud's clock that is moved by hand."""

    def __init__(self) -> None:
        self.at_s = 0.0

    def __call__(self) -> float:
        return START + self.at_s


def ask(
    url: str, method: str = "GET", headers: dict[str, str] | None = None, body: bytes | None = None
) -> tuple[int, bytes]:
    """One request; status and body."""
    request = urllib.request.Request(url, body, headers or {}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def token(url: str, ttl: str = "60") -> dict[str, str]:
    """The header of a fresh session."""
    _, issued = ask(url + wire.AWS_TOKEN_PATH, "PUT", {wire.AWS_TOKEN_TTL_HEADER: ttl})
    return {wire.AWS_TOKEN_HEADER: issued.decode()}


def test_amazon_demands_a_session() -> None:
    """No token, a wrong one, an expired one: 401.  A token needs a PUT with a life of 1 s to 6 h."""
    now = HandTime()
    with serve([], "aws", now=now) as server:
        action = server.url + wire.AWS_ACTION_PATH
        assert ask(action)[0] == 401
        assert ask(action, headers={wire.AWS_TOKEN_HEADER: "made-up"})[0] == 401
        assert ask(server.url + wire.AWS_TOKEN_PATH)[0] == 405
        for ttl in ("", "0", "21601", "x", "-1"):
            assert ask(server.url + wire.AWS_TOKEN_PATH, "PUT", {wire.AWS_TOKEN_TTL_HEADER: ttl})[0] == 400
        session = token(server.url, "60")
        assert ask(action, headers=session)[0] == 404
        now.at_s = 60
        assert ask(action, headers=session)[0] == 401


def test_amazon_plays_its_script() -> None:
    """404 before; the action with its UTC second while it stands; 404 after it was withdrawn."""
    now = HandTime()
    script = [ScriptedEvent(10, "hint"), ScriptedEvent(20, "announce", "stop"), ScriptedEvent(30, "withdraw")]
    with serve(script, "aws", now=now) as server:
        session, seen = token(server.url), []
        for now.at_s in (0, 15, 25, 31):
            action = ask(server.url + wire.AWS_ACTION_PATH, headers=session)
            rebalance = ask(server.url + wire.AWS_REBALANCE_PATH, headers=session)
            seen.append((action[0], rebalance[0]))
            if now.at_s == 25:
                assert json.loads(action[1]) == {"action": "stop", "time": "2023-11-14T22:15:40Z"}
            if now.at_s == 15:
                assert json.loads(rebalance[1]) == {"noticeTime": "2023-11-14T22:13:30Z"}
    assert seen == [(404, 404), (404, 200), (200, 200), (404, 404)]


def test_google_demands_its_header() -> None:
    """Without `Metadata-Flavor: Google` the answer is 403."""
    with serve([], "google", now=HandTime()) as server:
        assert ask(server.url + wire.GOOGLE_PREEMPTED_PATH)[0] == 403
        assert ask(server.url + wire.GOOGLE_PREEMPTED_PATH, headers=FLAVOR) == (200, b"FALSE")
        assert ask(server.url + wire.GOOGLE_MAINTENANCE_PATH, headers=FLAVOR) == (200, b"NONE")
        assert ask(server.url + "/computeMetadata/v1/instance/other", headers=FLAVOR)[0] == 404


def test_google_holds_a_request_until_the_change() -> None:
    """`wait_for_change` with the present etag answers when the value changes, or after `timeout_sec` without."""
    with serve([], "google", now=time.time) as server:
        path = server.url + wire.GOOGLE_PREEMPTED_PATH
        with urllib.request.urlopen(urllib.request.Request(path, headers=FLAVOR)) as answer:
            etag = answer.headers["ETag"]
        waiting = f"{path}?wait_for_change=true&timeout_sec=%d&last_etag={etag}"
        answers: list[tuple[int, bytes]] = []
        thread = threading.Thread(target=lambda: answers.append(ask(waiting % 30, headers=FLAVOR)))
        thread.start()
        started = time.monotonic()
        assert ask(waiting % 1, headers=FLAVOR) == (200, b"FALSE")
        assert time.monotonic() - started >= 0.9
        assert answers == []
        server.announce()
        thread.join(5)
        assert answers == [(200, b"TRUE")]
        assert ask(waiting % 30, headers=FLAVOR) == (200, b"TRUE")


def test_azure_demands_header_and_version() -> None:
    """Without `Metadata: true` or an api-version the answer is 400."""
    with serve([], "azure", now=HandTime()) as server:
        assert ask(server.url + AZURE)[0] == 400
        assert ask(server.url + wire.AZURE_EVENTS_PATH, headers=TRUE_HEADER)[0] == 400
        assert json.loads(ask(server.url + AZURE, headers=TRUE_HEADER)[1]) == {"DocumentIncarnation": 1, "Events": []}
        assert ask(f"{server.url}{wire.AZURE_NAME_PATH}?{wire.AZURE_NAME_QUERY}", headers=TRUE_HEADER)[0] == 200


def test_azure_events_are_scheduled_then_started() -> None:
    """The incarnation grows with each change; NotBefore is RFC 1123 while scheduled and empty once started."""
    now = HandTime()
    with serve([ScriptedEvent(5, "announce", notice_s=30)], "azure", now=now) as server:
        seen = []
        for now.at_s in (0, 6, 34, 36):
            document = json.loads(ask(server.url + AZURE, headers=TRUE_HEADER)[1])
            told = [(event["EventType"], event["EventStatus"], event["NotBefore"]) for event in document["Events"]]
            seen.append((document["DocumentIncarnation"], told))
    scheduled = [("Preempt", "Scheduled", "Tue, 14 Nov 2023 22:13:55 GMT")]
    assert seen == [(1, []), (2, scheduled), (2, scheduled), (3, [("Preempt", "Started", "")])]


def test_an_approval_starts_the_event() -> None:
    """A POST of the event's id is recorded and hastens it; an unknown id and nonsense are refused."""
    with serve([], "azure", now=HandTime()) as server:
        server.announce(600)
        (event,) = json.loads(ask(server.url + AZURE, headers=TRUE_HEADER)[1])["Events"]
        assert ask(server.url + AZURE, "POST", TRUE_HEADER, b"{}")[0] == 400
        assert ask(server.url + AZURE, "POST", TRUE_HEADER, wire.render_azure_start_requests(["x"]))[0] == 404
        assert server.acknowledged == ()
        approval = wire.render_azure_start_requests([event["EventId"]])
        assert ask(server.url + AZURE, "POST", TRUE_HEADER, approval)[0] == 200
        assert server.acknowledged == (event["EventId"],)
        (event,) = json.loads(ask(server.url + AZURE, headers=TRUE_HEADER)[1])["Events"]
        assert event["EventStatus"] == "Started"


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "JSON"),
        ("[]", "JSON"),
        ('{"version": 2, "events": []}', "version"),
        ('{"version": 1, "events": {}}', "list"),
        ('{"version": 1, "events": [{"at_s": 1}]}', "event 1"),
        ('{"version": 1, "events": [{"at_s": 1, "type": "hint", "when": 3}]}', "when"),
        ('{"version": 1, "events": [{"at_s": "1", "type": "hint"}]}', "event 1"),
        ('{"version": 1, "events": [{"at_s": Infinity, "type": "hint"}]}', "finite"),
        ('{"version": 1, "events": [7]}', "event 1"),
    ],
)
def test_a_wrong_script_is_refused(text: str, word: str) -> None:
    """A script that cannot be read is refused in a sentence that says which event is wrong."""
    with pytest.raises(Misuse, match=word):
        load_script(text)


@pytest.mark.parametrize(
    ("provider", "event", "word"),
    [
        ("aws", ScriptedEvent(0, "other_machine"), "other_machine"),
        ("aws", ScriptedEvent(0, "announce", "Preempt"), "terminate, stop, hibernate"),
        ("google", ScriptedEvent(0, "explode"), "announce"),
        ("oracle", ScriptedEvent(0, "hint"), "aws, google, azure"),
    ],
)
def test_what_a_format_cannot_say_is_refused(provider: str, event: ScriptedEvent, word: str) -> None:
    """An event or a kind that the cloud does not know is refused with those it does."""
    with pytest.raises(Misuse, match=word):
        serve([event], provider, now=HandTime())


def test_a_refused_service_leaves_no_port_open() -> None:
    """Closing frees the port at once: the same port can be served again, a machine that is gone hangs up."""
    with serve([], "aws", now=HandTime()) as server:
        port = server.port
        server.gone()
        with pytest.raises(OSError, match=r"."):
            ask(server.url + wire.AWS_ACTION_PATH)
    with serve([], "azure", port, now=HandTime()) as again:
        assert again.port == port


@pytest.mark.real
def test_it_runs_as_a_program(tmp_path: Path) -> None:
    """`python -m windfall.wire.metadata_server` plays a file and says where it answers; a bad file is one sentence, exit 2."""
    script = tmp_path / "timeline.json"
    script.write_text('{"version": 1, "events": [{"at_s": 0, "type": "announce"}]}')
    command = [sys.executable, "-m", "windfall.wire.metadata_server", "--provider", "google", "--script", str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            eventually(lambda: ask(url + wire.GOOGLE_PREEMPTED_PATH, headers=FLAVOR) == (200, b"TRUE"), "TRUE")
        finally:
            process.terminate()
    script.write_text("nonsense")
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
