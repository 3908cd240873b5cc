"""Metadata formats of the clouds' preemption notices: a parser and a renderer for each.

Pure functions on bytes; the client is in `notices`, the server in `wire.metadata_server`.  Sources: the user guides
of EC2 ("Spot Instance interruption notices", "rebalance recommendations"), Compute Engine ("Spot VMs", "Live
migration: maintenance events") and Azure ("Scheduled Events for Linux VMs", api-version 2020-07-01).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime

from windfall.structs import Struct
from windfall.terms import NoticeLevel, WallTime

AWS_TOKEN_PATH = "/latest/api/token"
AWS_ACTION_PATH = "/latest/meta-data/spot/instance-action"
AWS_REBALANCE_PATH = "/latest/meta-data/events/recommendations/rebalance"
AWS_TOKEN_HEADER = "X-aws-ec2-metadata-token"
AWS_TOKEN_TTL_HEADER = "X-aws-ec2-metadata-token-ttl-seconds"
AWS_ACTIONS = ("terminate", "stop", "hibernate")

GOOGLE_PREEMPTED_PATH = "/computeMetadata/v1/instance/preempted"
GOOGLE_MAINTENANCE_PATH = "/computeMetadata/v1/instance/maintenance-event"
GOOGLE_FLAVOR_HEADER = "Metadata-Flavor"
GOOGLE_FLAVOR = "Google"
GOOGLE_NO_MAINTENANCE = "NONE"
GOOGLE_MIGRATE = "MIGRATE_ON_HOST_MAINTENANCE"
GOOGLE_TERMINATE = "TERMINATE_ON_HOST_MAINTENANCE"

AZURE_EVENTS_PATH = "/metadata/scheduledevents"
AZURE_EVENTS_QUERY = "api-version=2020-07-01"
AZURE_NAME_PATH = "/metadata/instance/compute/name"
AZURE_NAME_QUERY = "api-version=2021-02-01&format=text"
AZURE_HEADER = "Metadata"
AZURE_END_EVENTS = ("Preempt", "Terminate", "Redeploy", "Reboot")
"""Event types that end the script's processes; every other one (`Freeze`, an unknown type) is a hint."""
AZURE_SCHEDULED = "Scheduled"
AZURE_STARTED = "Started"


class Malformed(ValueError):
    """A document is not in its format; nothing can be concluded from it."""


class CloudNotice(Struct, frozen=True):
    """What a metadata document says about this machine's end.

    Attributes:
        level: `HINT` or `ANNOUNCED`; a withdrawn notice is missing from a later document.
        notice_id: stable while the same event is active.
        deadline: when the machine is preempted, by the cloud's clock; None if the document gives no time.
    """

    level: NoticeLevel
    notice_id: str
    deadline: WallTime | None = None


# ------------------------------------------------------------------------------------------------------------------ AWS


def parse_aws_action(body: bytes) -> CloudNotice:
    """Read `spot/instance-action`: `{"action": "terminate", "time": "2017-09-18T08:22:00Z"}`.

    Raises:
        Malformed: it is not such a document.
    """
    document = _json_object(body)
    if document.get("action") not in AWS_ACTIONS:
        raise Malformed(f"unknown action {document.get('action')!r}")
    return CloudNotice(NoticeLevel.ANNOUNCED, "instance-action", _parse_iso(document.get("time")))


def render_aws_action(action: str, deadline: WallTime) -> bytes:
    """Write `spot/instance-action`; its time is rounded down to whole seconds."""
    return json.dumps({"action": action, "time": _render_iso(deadline)}).encode()


def parse_aws_rebalance(body: bytes) -> CloudNotice:
    """Read `events/recommendations/rebalance`: `{"noticeTime": "2020-10-27T08:22:00Z"}`; a hint, without a deadline.

    Raises:
        Malformed: it is not such a document.
    """
    _parse_iso(_json_object(body).get("noticeTime"))
    return CloudNotice(NoticeLevel.HINT, "rebalance")


def render_aws_rebalance(noticed_at: WallTime) -> bytes:
    """Write `events/recommendations/rebalance`."""
    return json.dumps({"noticeTime": _render_iso(noticed_at)}).encode()


# --------------------------------------------------------------------------------------------------------------- Google


def parse_google_preempted(body: bytes) -> CloudNotice | None:
    """Read `instance/preempted`: FALSE or TRUE.  The format gives no time: the length of the notice is the machine's setting.

    Raises:
        Malformed: neither of the two.
    """
    value = _text(body)
    if value not in ("TRUE", "FALSE"):
        raise Malformed(f"neither TRUE nor FALSE: {value[:40]!r}")
    return CloudNotice(NoticeLevel.ANNOUNCED, "preempted") if value == "TRUE" else None


def render_google_preempted(preempted: bool) -> bytes:
    """Write `instance/preempted`."""
    return b"TRUE" if preempted else b"FALSE"


def parse_google_maintenance(body: bytes) -> CloudNotice | None:
    """Read `instance/maintenance-event`: none, a live migration (a hint), or a termination.

    Raises:
        Malformed: none of the three documented values.
    """
    value = _text(body)
    if value == GOOGLE_NO_MAINTENANCE:
        return None
    if value == GOOGLE_MIGRATE:
        return CloudNotice(NoticeLevel.HINT, "maintenance-migrate")
    if value == GOOGLE_TERMINATE:
        return CloudNotice(NoticeLevel.ANNOUNCED, "maintenance-terminate")
    raise Malformed(f"unknown maintenance event {value[:40]!r}")


def render_google_maintenance(notice: CloudNotice | None) -> bytes:
    """Write `instance/maintenance-event`."""
    if notice is None:
        return GOOGLE_NO_MAINTENANCE.encode()
    return (GOOGLE_TERMINATE if notice.level is NoticeLevel.ANNOUNCED else GOOGLE_MIGRATE).encode()


# ---------------------------------------------------------------------------------------------------------------- Azure


class AzureEvent(Struct, frozen=True):
    """One entry of a Scheduled Events document.

    Attributes:
        resources: names of all affected machines, including other machines of a set.
        not_before: the earliest start; None if it has started, or if the text is not a time.
        duration_s: duration of the interruption [s], -1 if unknown.
    """

    event_id: str
    event_type: str
    resources: tuple[str, ...]
    status: str
    not_before: WallTime | None
    duration_s: int = -1


class AzureDocument(Struct, frozen=True):
    """A Scheduled Events document; `incarnation` changes with its events."""

    incarnation: int
    events: tuple[AzureEvent, ...]


def parse_azure_events(body: bytes) -> AzureDocument:
    """Read a Scheduled Events document; entries without id, type or resources are skipped.

    Raises:
        Malformed: it is not such a document.
    """
    document = _json_object(body)
    entries, incarnation = document.get("Events"), document.get("DocumentIncarnation")
    if not isinstance(entries, list) or not isinstance(incarnation, int):
        raise Malformed("no DocumentIncarnation or no list of Events")
    events = (_azure_event(entry) for entry in entries if isinstance(entry, dict))
    return AzureDocument(incarnation, tuple(event for event in events if event is not None))


def _azure_event(entry: dict[str, object]) -> AzureEvent | None:
    event_id, event_type, resources = entry.get("EventId"), entry.get("EventType"), entry.get("Resources")
    if not (isinstance(event_id, str) and event_id and isinstance(event_type, str) and isinstance(resources, list)):
        return None
    duration_s, status = entry.get("DurationInSeconds"), entry.get("EventStatus")
    return AzureEvent(
        event_id=event_id,
        event_type=event_type,
        resources=tuple(name for name in resources if isinstance(name, str)),
        status=status if isinstance(status, str) else "",
        not_before=_parse_rfc1123(entry.get("NotBefore")),
        duration_s=duration_s if isinstance(duration_s, int) else -1,
    )


def azure_notices(document: AzureDocument, machine: str | None) -> tuple[CloudNotice, ...]:
    """Return what a document says about one machine.

    Args:
        document: the parsed document.
        machine: this machine's resource name (compared case-insensitively); None while it is unknown: then any event
            may be about it, and counts as a hint.
    """
    if machine is None:
        return tuple(CloudNotice(NoticeLevel.HINT, event.event_id) for event in document.events)
    own = (event for event in document.events if machine.casefold() in {name.casefold() for name in event.resources})
    return tuple(_azure_notice(event) for event in own)


def _azure_notice(event: AzureEvent) -> CloudNotice:
    ends = event.event_type in AZURE_END_EVENTS and (event.not_before is not None or event.status == AZURE_STARTED)
    if not ends:
        return CloudNotice(NoticeLevel.HINT, event.event_id)
    deadline = None if event.status == AZURE_STARTED else event.not_before
    return CloudNotice(NoticeLevel.ANNOUNCED, event.event_id, deadline)


def render_azure_events(document: AzureDocument) -> bytes:
    """Write a Scheduled Events document."""
    events = [
        {
            "EventId": event.event_id,
            "EventStatus": event.status,
            "EventType": event.event_type,
            "ResourceType": "VirtualMachine",
            "Resources": list(event.resources),
            "NotBefore": "" if event.not_before is None else _render_rfc1123(event.not_before),
            "Description": "",
            "EventSource": "Platform",
            "DurationInSeconds": event.duration_s,
        }
        for event in document.events
    ]
    return json.dumps({"DocumentIncarnation": document.incarnation, "Events": events}).encode()


def parse_azure_start_requests(body: bytes) -> tuple[str, ...]:
    """Read the approval of events: `{"StartRequests": [{"EventId": "..."}]}`.

    Raises:
        Malformed: it is not such a document.
    """
    requests = _json_object(body).get("StartRequests")
    if not isinstance(requests, list):
        raise Malformed("no list of StartRequests")
    ids = [request.get("EventId") if isinstance(request, dict) else None for request in requests]
    if not all(isinstance(event_id, str) for event_id in ids):
        raise Malformed("a start request without EventId")
    return tuple(str(event_id) for event_id in ids)


def render_azure_start_requests(event_ids: Sequence[str]) -> bytes:
    """Write the approval of events."""
    return json.dumps({"StartRequests": [{"EventId": event_id} for event_id in event_ids]}).encode()


# --------------------------------------------------------------------------------------------------------------- pieces


def _text(body: bytes) -> str:
    return body.decode("ascii", errors="replace").strip()


def _json_object(body: bytes) -> dict[str, object]:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"not JSON: {body[:40]!r}") from error
    if not isinstance(document, dict):
        raise Malformed("not a JSON object")
    return document


def _parse_iso(value: object) -> WallTime:
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError as error:
        raise Malformed(f"not a time: {value!r}") from error
    # A time without a zone would silently be read as local time, which may be wrong by hours.
    if moment is None or moment.tzinfo is None:
        raise Malformed(f"not a time with a zone: {value!r}")
    return WallTime(moment.timestamp())


def _render_iso(moment: WallTime) -> str:
    return datetime.fromtimestamp(math.floor(moment), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _parse_rfc1123(value: object) -> WallTime | None:
    if not isinstance(value, str):
        return None
    try:
        moment = parsedate_to_datetime(value)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return None if moment.tzinfo is None else WallTime(moment.timestamp())


def _render_rfc1123(moment: WallTime) -> str:
    return format_datetime(datetime.fromtimestamp(math.floor(moment), UTC), usegmt=True)
