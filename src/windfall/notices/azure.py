"""Notices of an Azure VM, from Scheduled Events of its metadata service."""

from __future__ import annotations

import re
from collections.abc import Callable

from windfall.notices.http import Answer, NoAnswer, ask
from windfall.notices.polling import CLOCK_ERROR_S, POLL_S, Told, backoff_s, pause
from windfall.ports import Clock
from windfall.terms import Instant, Notice, NoticeLevel, Seconds
from windfall.wire.notices import (
    AZURE_EVENTS_PATH,
    AZURE_EVENTS_QUERY,
    AZURE_HEADER,
    AZURE_NAME_PATH,
    AZURE_NAME_QUERY,
    AzureDocument,
    Malformed,
    azure_notices,
    parse_azure_events,
    render_azure_start_requests,
)

AZURE_URL = "http://169.254.169.254"
REQUEST_S = Seconds(2.0)
"""Limit on one request [s]."""
FIRST_REQUEST_S = Seconds(130.0)
"""Limit on the request that switches the service on: it may take two minutes [s]."""
ACKNOWLEDGE_TRIES = 3
MACHINE_NAME = r"[\w.-]{1,128}"
"""What a resource name looks like."""


class AzureNotices:
    """Polls Scheduled Events each second from boot on, and keeps the events that name this machine.

    The first call switches the service on for the machine, which may take minutes: start at boot.  `Preempt`,
    `Terminate`, `Redeploy` and `Reboot` announce the machine's end; `Freeze` and unknown types are hints.

    Attributes:
        name: the `source` of its notices.
    """

    name = "azure"

    def __init__(
        self,
        clock: Clock,
        base_url: str = AZURE_URL,
        *,
        machine: str | None = None,
        poll_s: Seconds = POLL_S,
        margin_s: Seconds = CLOCK_ERROR_S,
    ) -> None:
        """Prepare to watch; nothing is sent yet.

        Args:
            clock: this machine's clocks.
            base_url: where the service answers.
            machine: this machine's resource name; None to ask the service.  While it is unknown every event is a hint.
            poll_s: between two looks [s].
            margin_s: taken off each deadline, for the error between the clocks [s].
        """
        self._clock, self._base_url, self._machine = clock, base_url.rstrip("/"), machine
        self._poll_s, self._margin_s = poll_s, margin_s

    def watch(self, deliver: Callable[[Notice], None], stopped: Callable[[], bool]) -> None:
        """Deliver each change once; see `ports.NoticeSource`."""
        told = Told(self.name, self._clock, self._margin_s, deliver)
        failures, limit_s = 0, FIRST_REQUEST_S
        while not stopped():
            began = self._clock.now()
            try:
                document = self._document(limit_s, stopped)
                self._learn_name(stopped)
                told.observe(azure_notices(document, self._machine), unspoken=self._clock.now())
                failures, limit_s = 0, REQUEST_S
            except (NoAnswer, Malformed):
                failures += 1
            pause(self._clock, Instant(began + backoff_s(self._poll_s, failures)), stopped)

    def acknowledge(self, notice: Notice) -> None:
        """Approve an announced event, which hastens it; call only after the last save is committed.

        An approval counts for every machine that the event lists: an event that lists others too is left alone.
        """
        if notice.source != self.name or notice.level is not NoticeLevel.ANNOUNCED:
            return
        for _ in range(ACKNOWLEDGE_TRIES):
            try:
                document = self._document(REQUEST_S, _never)
                events = [event for event in document.events if event.event_id == notice.notice_id]
                if not events or any(len(event.resources) != 1 for event in events):
                    return
                approval = render_azure_start_requests([notice.notice_id])
                url = f"{self._base_url}{AZURE_EVENTS_PATH}?{AZURE_EVENTS_QUERY}"
                if self._ask(url, REQUEST_S, _never, method="POST", body=approval).status == 200:
                    return
            except (NoAnswer, Malformed):
                continue

    def _document(self, limit_s: Seconds, stopped: Callable[[], bool]) -> AzureDocument:
        answer = self._ask(f"{self._base_url}{AZURE_EVENTS_PATH}?{AZURE_EVENTS_QUERY}", limit_s, stopped)
        if answer.status != 200:
            raise NoAnswer(f"status {answer.status}")
        return parse_azure_events(answer.body)

    def _learn_name(self, stopped: Callable[[], bool]) -> None:
        if self._machine is not None:
            return
        try:
            answer = self._ask(f"{self._base_url}{AZURE_NAME_PATH}?{AZURE_NAME_QUERY}", REQUEST_S, stopped)
        except NoAnswer:
            return
        name = answer.body.decode("utf-8", errors="replace").strip()
        # An error page taken for a name would make every later event somebody else's.
        if answer.status == 200 and re.fullmatch(MACHINE_NAME, name):
            self._machine = name

    def _ask(
        self,
        url: str,
        limit_s: Seconds,
        stopped: Callable[[], bool],
        *,
        method: str = "GET",
        body: bytes | None = None,
    ) -> Answer:
        headers = {AZURE_HEADER: "true"}
        return ask(
            url, clock=self._clock, timeout_s=limit_s, stopped=stopped, method=method, headers=headers, body=body
        )


def _never() -> bool:
    return False
