"""Notices of a Compute Engine Spot VM, from its metadata server."""

from __future__ import annotations

import threading
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
from windfall.notices.signals import SLICE_S
from windfall.ports import Clock
from windfall.terms import Instant, Notice, Seconds
from windfall.wire.notice_formats import (
    GOOGLE_FLAVOR,
    GOOGLE_FLAVOR_HEADER,
    GOOGLE_MAINTENANCE_PATH,
    GOOGLE_PREEMPTED_PATH,
    CloudNotice,
    Malformed,
    parse_google_maintenance,
    parse_google_preempted,
)

GOOGLE_URL = "http://169.254.169.254"
"""The documented address of `metadata.google.internal`, which needs no name resolution."""
REQUEST_S = Seconds(2.0)
"""Limit on a request, in addition to the time that the server may hold it [s]."""
PREEMPTION_NOTICE_S = Seconds(30.0)
"""From TRUE to the end, unless the machine was created with a longer notice [s]."""
MAINTENANCE_NOTICE_S = Seconds(60.0)
"""From TERMINATE_ON_HOST_MAINTENANCE to the end; about an hour with GPUs [s]."""


class GoogleNotices:
    """Watches `instance/preempted` and `instance/maintenance-event` by long polling, each in its own thread.

    The documents have no time: the deadline is the time of the change plus the machine's notice.  A change that happened
    while the server did not answer counts from the last response before it.

    Attributes:
        name: the `source` of its notices.
    """

    name = "google"

    def __init__(
        self,
        clock: Clock,
        base_url: str = GOOGLE_URL,
        *,
        notice_s: Seconds = PREEMPTION_NOTICE_S,
        maintenance_notice_s: Seconds = MAINTENANCE_NOTICE_S,
        poll_s: Seconds = POLL_S,
        wait_s: int = 5,
        margin_s: Seconds = CLOCK_ERROR_S,
    ) -> None:
        """Prepare to watch; nothing is sent yet.

        Args:
            clock: this machine's clocks.
            base_url: where the server answers.
            notice_s: the machine's `preemptionNoticeDuration`, or the 30 s of every Spot VM [s].
            maintenance_notice_s: the warning before host maintenance [s].
            poll_s: between two polls if the server does not hold requests [s].
            wait_s: how long the server may hold a request; short, because a silently dead connection must cost only a
                fraction of the notice [s].
            margin_s: subtracted from each deadline [s].
        """
        self._clock, self._base_url = clock, base_url.rstrip("/")
        self._notice_s, self._maintenance_notice_s = notice_s, maintenance_notice_s
        self._poll_s, self._wait_s, self._margin_s = poll_s, wait_s, margin_s

    def watch(self, deliver: Callable[[Notice], None], stopped: Callable[[], bool]) -> None:
        """Deliver each change once, from one thread at a time; see `ports.NoticeSource`."""
        one_at_a_time = threading.Lock()

        def deliver_alone(notice: Notice) -> None:
            with one_at_a_time:
                deliver(notice)

        maintenance = threading.Thread(
            target=self._watch_path,
            args=(GOOGLE_MAINTENANCE_PATH, parse_google_maintenance, self._maintenance_notice_s),
            kwargs={"deliver": deliver_alone, "stopped": stopped},
            name="google-maintenance",
            daemon=True,
        )
        maintenance.start()
        self._watch_path(
            GOOGLE_PREEMPTED_PATH, parse_google_preempted, self._notice_s, deliver=deliver_alone, stopped=stopped
        )
        maintenance.join()

    def acknowledge(self, notice: Notice) -> None:
        """Do nothing: Compute Engine has no acknowledgement."""

    def _watch_path(
        self,
        path: str,
        parse: Callable[[bytes], CloudNotice | None],
        notice_s: Seconds,
        *,
        deliver: Callable[[Notice], None],
        stopped: Callable[[], bool],
    ) -> None:
        deduplicator = NoticeDeduplicator(self.name, self._clock, self._margin_s, deliver)
        failures, etag = 0, ""
        answered_at: Instant | None = None
        before: CloudNotice | None = None
        while not stopped():
            started = self._clock.now()
            try:
                response = self._get(path, etag, stopped)
                current = parse(response.body)
            except (MetadataUnavailable, Malformed):
                failures, etag = failures + 1, ""
                pause(self._clock, Instant(started + backoff_s(self._poll_s, failures)), stopped)
                continue
            now = self._clock.now()
            watched = answered_at is None or (bool(etag) and started - answered_at < SLICE_S)
            changed_at = now if watched or answered_at is None else answered_at
            deduplicator.observe(() if current is None else (current,), default_deadline=Instant(changed_at + notice_s))
            waited_in_vain = bool(etag) and current == before
            failures, answered_at, before, etag = 0, now, current, response.headers.get("etag", "")
            if waited_in_vain or not etag:
                # A server that does not hold requests is polled; after a full wait this does not pause.
                pause(self._clock, Instant(started + self._poll_s), stopped)

    def _get(self, path: str, etag: str, stopped: Callable[[], bool]) -> MetadataResponse:
        wait = f"?wait_for_change=true&timeout_sec={self._wait_s}&last_etag={etag}" if etag else ""
        response = fetch(
            self._base_url + path + wait,
            clock=self._clock,
            timeout_s=Seconds(REQUEST_S + (self._wait_s if etag else 0)),
            stopped=stopped,
            headers={GOOGLE_FLAVOR_HEADER: GOOGLE_FLAVOR},
        )
        if response.status != 200:
            raise MetadataUnavailable(f"status {response.status}")
        return response
