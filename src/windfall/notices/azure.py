"""Notices of an Azure VM, from Scheduled Events of its metadata service."""

from __future__ import annotations

import re
from collections.abc import Callable

from windfall.notices.metadata_http import (
    CLOCK_ERROR_S,
    POLL_S,
    MetadataResponse,
    MetadataUnavailable,
    NoticeDeduplicator,
    backoff_s,
    fetch,
    pause,
)
from windfall.ports import Clock
from windfall.terms import Instant, Notice, NoticeLevel, Seconds
from windfall.wire.notice_formats import (
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
"""Limit on the first request, which enables the service and may take two minutes [s]."""
ACKNOWLEDGE_TRIES = 3
MACHINE_NAME = r"[\w.-]{1,128}"
"""Pattern of a resource name."""


class AzureNotices:
    """Polls Scheduled Events each second from boot on, for events that name this machine.

    The first call enables the service for the machine, which may take minutes, so start at boot.  `Preempt`,
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
            machine: this machine's resource name; None to ask the service.  While it is unknown, every event is a hint.
            poll_s: between two polls [s].
            margin_s: subtracted from each deadline, for the difference between the clocks [s].
        """
        self._clock, self._base_url, self._machine = clock, base_url.rstrip("/"), machine
        self._poll_s, self._margin_s = poll_s, margin_s

    def watch(self, deliver: Callable[[Notice], None], stopped: Callable[[], bool]) -> None:
        """Deliver each change once; see `ports.NoticeSource`."""
        deduplicator = NoticeDeduplicator(self.name, self._clock, self._margin_s, deliver)
        failures, limit_s = 0, FIRST_REQUEST_S
        while not stopped():
            started = self._clock.now()
            try:
                document = self._document(limit_s, stopped)
                self._fetch_name(stopped)
                deduplicator.observe(azure_notices(document, self._machine), default_deadline=self._clock.now())
                failures, limit_s = 0, REQUEST_S
            except (MetadataUnavailable, Malformed):
                failures += 1
            pause(self._clock, Instant(started + backoff_s(self._poll_s, failures)), stopped)

    def acknowledge(self, notice: Notice) -> None:
        """Approve an announced event, which speeds it up; call only after the last save is committed.

        An approval counts for every machine of the event, so an event with other machines is not approved.
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
                if self._fetch(url, REQUEST_S, _never, method="POST", body=approval).status == 200:
                    return
            except (MetadataUnavailable, Malformed):
                continue

    def _document(self, limit_s: Seconds, stopped: Callable[[], bool]) -> AzureDocument:
        response = self._fetch(f"{self._base_url}{AZURE_EVENTS_PATH}?{AZURE_EVENTS_QUERY}", limit_s, stopped)
        if response.status != 200:
            raise MetadataUnavailable(f"status {response.status}")
        return parse_azure_events(response.body)

    def _fetch_name(self, stopped: Callable[[], bool]) -> None:
        if self._machine is not None:
            return
        try:
            response = self._fetch(f"{self._base_url}{AZURE_NAME_PATH}?{AZURE_NAME_QUERY}", REQUEST_S, stopped)
        except MetadataUnavailable:
            return
        name = response.body.decode("utf-8", errors="replace").strip()
        # If an error page were taken for the name, every later event would belong to another machine.
        if response.status == 200 and re.fullmatch(MACHINE_NAME, name):
            self._machine = name

    def _fetch(
        self,
        url: str,
        limit_s: Seconds,
        stopped: Callable[[], bool],
        *,
        method: str = "GET",
        body: bytes | None = None,
    ) -> MetadataResponse:
        headers = {AZURE_HEADER: "true"}
        return fetch(
            url, clock=self._clock, timeout_s=limit_s, stopped=stopped, method=method, headers=headers, body=body
        )


def _never() -> bool:
    return False
