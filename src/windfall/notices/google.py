"""Notices of a Compute Engine Spot VM, from its metadata server."""

from __future__ import annotations

import threading
from collections.abc import Callable

from windfall.notices.http import SLICE_S, Answer, NoAnswer, ask
from windfall.notices.polling import CLOCK_ERROR_S, POLL_S, Told, backoff_s, pause
from windfall.ports import Clock
from windfall.terms import Instant, Notice, Seconds
from windfall.wire.notices import (
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
"""The documented address of `metadata.google.internal`: a name would have to be resolved first."""
REQUEST_S = Seconds(2.0)
"""Limit on a request beyond the time that the server was asked to wait [s]."""
PREEMPTION_NOTICE_S = Seconds(30.0)
"""From TRUE to the end, unless the machine was created with a longer notice [s]."""
MAINTENANCE_NOTICE_S = Seconds(60.0)
"""From TERMINATE_ON_HOST_MAINTENANCE to the end; about an hour with GPUs [s]."""


class GoogleNotices:
    """Waits on `instance/preempted` and `instance/maintenance-event` by long poll, each in its own thread.

    The documents name no time: the deadline is the moment of the change plus the notice that the machine was created
    with.  A change that happened while the server could not be asked counts from the last answer before it.

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
            poll_s: between two looks if the server does not hold requests back [s].
            wait_s: how long the server is asked to hold one; short, because a connection that died in silence must
                cost a fraction of the notice [s].
            margin_s: taken off each deadline [s].
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
        told = Told(self.name, self._clock, self._margin_s, deliver)
        failures, etag = 0, ""
        answered_at: Instant | None = None
        before: CloudNotice | None = None
        while not stopped():
            began = self._clock.now()
            try:
                answer = self._get(path, etag, stopped)
                said = parse(answer.body)
            except (NoAnswer, Malformed):
                failures, etag = failures + 1, ""
                pause(self._clock, Instant(began + backoff_s(self._poll_s, failures)), stopped)
                continue
            now = self._clock.now()
            watched = answered_at is None or (bool(etag) and began - answered_at < SLICE_S)
            changed_at = now if watched or answered_at is None else answered_at
            told.observe(() if said is None else (said,), unspoken=Instant(changed_at + notice_s))
            waited_in_vain = bool(etag) and said == before
            failures, answered_at, before, etag = 0, now, said, answer.headers.get("etag", "")
            if waited_in_vain or not etag:
                # A server that does not hold requests back is polled instead; after a full wait this is no pause.
                pause(self._clock, Instant(began + self._poll_s), stopped)

    def _get(self, path: str, etag: str, stopped: Callable[[], bool]) -> Answer:
        wait = f"?wait_for_change=true&timeout_sec={self._wait_s}&last_etag={etag}" if etag else ""
        answer = ask(
            self._base_url + path + wait,
            clock=self._clock,
            timeout_s=Seconds(REQUEST_S + (self._wait_s if etag else 0)),
            stopped=stopped,
            headers={GOOGLE_FLAVOR_HEADER: GOOGLE_FLAVOR},
        )
        if answer.status != 200:
            raise NoAnswer(f"status {answer.status}")
        return answer
