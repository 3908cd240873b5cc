"""Notices of an EC2 Spot instance, from the instance metadata service (IMDSv2)."""

from __future__ import annotations

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
from windfall.terms import Instant, Notice, Seconds
from windfall.wire.notice_formats import (
    AWS_ACTION_PATH,
    AWS_REBALANCE_PATH,
    AWS_TOKEN_HEADER,
    AWS_TOKEN_PATH,
    AWS_TOKEN_TTL_HEADER,
    CloudNotice,
    Malformed,
    parse_aws_action,
    parse_aws_rebalance,
)

AWS_URL = "http://169.254.169.254"
REQUEST_S = Seconds(2.0)
"""Limit on one request; the service answers in milliseconds [s]."""
TOKEN_TTL_S = 21_600
"""Lifetime of a session token, the longest that the service grants [s]."""

_READERS: tuple[tuple[str, Callable[[bytes], CloudNotice]], ...] = (
    (AWS_ACTION_PATH, parse_aws_action),
    (AWS_REBALANCE_PATH, parse_aws_rebalance),
)


class AwsNotices:
    """Polls `spot/instance-action` (announced, two minutes) and the rebalance recommendation (a hint).

    Attributes:
        name: the `source` of its notices.
    """

    name = "aws"

    def __init__(
        self,
        clock: Clock,
        base_url: str = AWS_URL,
        *,
        poll_s: Seconds = POLL_S,
        margin_s: Seconds = CLOCK_ERROR_S,
        token_ttl_s: int = TOKEN_TTL_S,
    ) -> None:
        """Prepare to watch; nothing is sent yet.

        Args:
            clock: this machine's clocks.
            base_url: where the service answers.
            poll_s: between two polls; AWS advises 5 s, but polling each second costs only two local requests [s].
            margin_s: subtracted from each deadline, for the difference between the clocks [s].
            token_ttl_s: lifetime requested for each session token [s].
        """
        self._clock, self._base_url = clock, base_url.rstrip("/")
        self._poll_s, self._margin_s, self._token_ttl_s = poll_s, margin_s, token_ttl_s
        self._token: str | None = None

    def watch(self, deliver: Callable[[Notice], None], stopped: Callable[[], bool]) -> None:
        """Deliver each change once; see `ports.NoticeSource`."""
        deduplicator = {
            path: NoticeDeduplicator(self.name, self._clock, self._margin_s, deliver) for path, _ in _READERS
        }
        failures = 0
        while not stopped():
            started = self._clock.now()
            polled = [self._poll(path, parse, deduplicator[path], stopped) for path, parse in _READERS]
            failures = 0 if all(polled) else failures + 1
            pause(self._clock, Instant(started + backoff_s(self._poll_s, failures)), stopped)

    def acknowledge(self, notice: Notice) -> None:
        """Do nothing: EC2 has no acknowledgement."""

    def _poll(
        self,
        path: str,
        parse: Callable[[bytes], CloudNotice],
        deduplicator: NoticeDeduplicator,
        stopped: Callable[[], bool],
    ) -> bool:
        try:
            response = self._get(path, stopped)
            if response.status not in (200, 404):
                return False
            current = () if response.status == 404 else (parse(response.body),)
        except (MetadataUnavailable, Malformed):
            return False
        deduplicator.observe(current, default_deadline=self._clock.now())
        return True

    def _get(self, path: str, stopped: Callable[[], bool]) -> MetadataResponse:
        if self._token is not None:
            response = self._fetch(path, "GET", {AWS_TOKEN_HEADER: self._token}, stopped)
            if response.status != 401:
                return response
        self._token = None
        issued = self._fetch(AWS_TOKEN_PATH, "PUT", {AWS_TOKEN_TTL_HEADER: str(self._token_ttl_s)}, stopped)
        if issued.status != 200:
            raise MetadataUnavailable(f"no session token: status {issued.status}")
        self._token = issued.body.decode("ascii", errors="replace").strip()
        return self._fetch(path, "GET", {AWS_TOKEN_HEADER: self._token}, stopped)

    def _fetch(self, path: str, method: str, headers: dict[str, str], stopped: Callable[[], bool]) -> MetadataResponse:
        url = self._base_url + path
        return fetch(url, clock=self._clock, timeout_s=REQUEST_S, stopped=stopped, method=method, headers=headers)
