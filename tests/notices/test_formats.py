"""The metadata formats: the documented examples are read rightly, what is written reads back, garbage is refused."""

from __future__ import annotations

import calendar
import json
import os
import time
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windfall.terms import NoticeLevel, WallTime
from windfall.wire import notice_formats as wire

HINT, ANNOUNCED = NoticeLevel.HINT, NoticeLevel.ANNOUNCED
SECONDS = st.integers(0, 4_000_000_000).map(WallTime)
TEXT = st.text(max_size=20)
AZURE_EVENTS = st.builds(
    wire.AzureEvent,
    event_id=st.text(min_size=1, max_size=40),
    event_type=st.sampled_from([*wire.AZURE_END_EVENTS, "Freeze", "Nova"]),
    resources=st.lists(TEXT, max_size=3).map(tuple),
    status=st.sampled_from([wire.AZURE_SCHEDULED, wire.AZURE_STARTED]),
    not_before=st.none() | SECONDS,
    duration_s=st.integers(-1, 10_000),
)
PARSERS: tuple[Callable[[bytes], object], ...] = (
    wire.parse_aws_action,
    wire.parse_aws_rebalance,
    wire.parse_google_preempted,
    wire.parse_google_maintenance,
    wire.parse_azure_events,
    wire.parse_azure_start_requests,
)


@pytest.fixture(params=["UTC", "America/Los_Angeles", "Asia/Kolkata"])
def _zone(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run the test on a machine set to this time zone."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = request.param
    time.tzset()
    yield
    os.environ.pop("TZ")
    if before is not None:
        os.environ["TZ"] = before
    time.tzset()


@pytest.mark.usefixtures("_zone")
def test_amazons_documented_examples() -> None:
    """EC2 user guide: terminate at 2017-09-18T08:22:00Z; rebalance noticed at 2020-10-27T08:22:00Z.  UTC everywhere."""
    action = wire.parse_aws_action(b'{"action": "terminate", "time": "2017-09-18T08:22:00Z"}')
    rebalance = wire.parse_aws_rebalance(b'{"noticeTime": "2020-10-27T08:22:00Z"}')

    assert action == wire.CloudNotice(ANNOUNCED, "instance-action", WallTime(calendar.timegm((2017, 9, 18, 8, 22, 0))))
    assert rebalance == wire.CloudNotice(HINT, "rebalance")


@pytest.mark.usefixtures("_zone")
def test_azures_documented_example() -> None:
    """Scheduled Events guide: a scheduled Freeze of FrontEnd_IN_0 not before Mon, 11 Apr 2022 22:26:58 GMT."""
    body = b"""{"DocumentIncarnation": 1, "Events": [{"EventId": "C7061BAC-AFDC-4513-B24B-AA5F13A16123",
        "EventStatus": "Scheduled", "EventType": "Freeze", "ResourceType": "VirtualMachine",
        "Resources": ["WestNO_0", "WestNO_1"], "NotBefore": "Mon, 11 Apr 2022 22:26:58 GMT",
        "Description": "Virtual machine is being paused because of a memory-preserving Live Migration operation.",
        "EventSource": "Platform", "DurationInSeconds": 5}]}"""
    (event,) = wire.parse_azure_events(body).events

    assert event.not_before == calendar.timegm((2022, 4, 11, 22, 26, 58))
    assert (event.resources, event.duration_s) == (("WestNO_0", "WestNO_1"), 5)
    assert wire.azure_notices(wire.AzureDocument(1, (event,)), "WESTno_1")[0].level is HINT


@pytest.mark.parametrize(
    ("value", "expected"),
    [("NONE", None), ("MIGRATE_ON_HOST_MAINTENANCE", HINT), ("TERMINATE_ON_HOST_MAINTENANCE", ANNOUNCED)],
)
def test_googles_maintenance_events(value: str, expected: NoticeLevel | None) -> None:
    """A live migration is a hint, a termination announces the end, NONE is nothing."""
    notice = wire.parse_google_maintenance(value.encode())

    assert (notice and notice.level) == expected
    assert wire.render_google_maintenance(notice) == value.encode()


@given(st.sampled_from(wire.AWS_ACTIONS), SECONDS)
def test_what_amazon_would_write_reads_back(action: str, at: WallTime) -> None:
    """Whole seconds survive the format."""
    assert wire.parse_aws_action(wire.render_aws_action(action, at)).deadline == at
    assert wire.parse_aws_rebalance(wire.render_aws_rebalance(at)).level is HINT


@given(st.floats(0, 4e9))
def test_a_fraction_of_a_second_is_never_added_to_a_deadline(at: float) -> None:
    """The formats have whole seconds: what is read back is the second before, never the one after."""
    for read in (
        wire.parse_aws_action(wire.render_aws_action("stop", WallTime(at))).deadline,
        _through_azure(WallTime(at)),
    ):
        assert read is not None
        assert at - 1 < read <= at


def _through_azure(at: WallTime) -> WallTime | None:
    event = wire.AzureEvent("id", "Preempt", ("vm",), wire.AZURE_SCHEDULED, at)
    return wire.parse_azure_events(wire.render_azure_events(wire.AzureDocument(1, (event,)))).events[0].not_before


@given(st.booleans())
def test_what_google_would_write_reads_back(preempted: bool) -> None:
    """TRUE announces without a time, FALSE says nothing."""
    notice = wire.parse_google_preempted(wire.render_google_preempted(preempted))

    assert (notice is not None) == preempted
    assert notice is None or (notice.level, notice.deadline) == (ANNOUNCED, None)


@given(st.builds(wire.AzureDocument, st.integers(1, 10**6), st.lists(AZURE_EVENTS, max_size=4).map(tuple)))
def test_what_azure_would_write_reads_back(document: wire.AzureDocument) -> None:
    """Every document survives writing and reading."""
    assert wire.parse_azure_events(wire.render_azure_events(document)) == document


@given(st.lists(TEXT, max_size=4))
def test_an_approval_reads_back(event_ids: list[str]) -> None:
    """The ids in an approval are the ids that the server reads."""
    assert wire.parse_azure_start_requests(wire.render_azure_start_requests(event_ids)) == tuple(event_ids)


@given(
    st.binary(max_size=60)
    | st.recursive(
        st.none() | st.booleans() | st.integers() | TEXT,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["action", "time", "noticeTime", "Events", "DocumentIncarnation", "StartRequests", "EventId"]
                ),
                inner,
            )
        ),
    ).map(lambda value: json.dumps(value).encode())
)
def test_garbage_is_refused_in_one_way(body: bytes) -> None:
    """Whatever the bytes, a parser returns a value or raises `Malformed`, nothing else."""
    for parse in PARSERS:
        try:
            parse(body)
        except wire.Malformed:
            continue


@pytest.mark.parametrize(
    "time_text",
    [
        '"2017-09-18T08:22:00"',
        '"2017-09-18"',
        '"soon"',
        '""',
        "null",
        "1505722920",
        '"2017-13-45T99:00:00Z"',
        "[" * 100_000,
    ],
)
def test_a_time_that_is_none_is_refused(time_text: str) -> None:
    """A time without a zone, a date, a number, nonsense: none of them becomes a deadline."""
    with pytest.raises(wire.Malformed):
        wire.parse_aws_action(b'{"action": "terminate", "time": %s}' % time_text.encode())


@pytest.mark.parametrize("event_type", ["Preempt", "Terminate", "Redeploy", "Reboot"])
@pytest.mark.parametrize(
    ("text", "level"), [("Mon, 19 Sep 2016 18:29:47 GMT", ANNOUNCED), ("tomorrow", HINT), ("", HINT)]
)
def test_an_ending_whose_time_cannot_be_read_is_a_hint(event_type: str, text: str, level: NoticeLevel) -> None:
    """An event about this machine is never dropped; without a readable time it is worth a hint."""
    event = {
        "EventId": "e",
        "EventType": event_type,
        "EventStatus": "Scheduled",
        "Resources": ["vm"],
        "NotBefore": text,
    }
    body = json.dumps({"DocumentIncarnation": 3, "Events": [7, {"EventId": 9}, event]})
    (notice,) = wire.azure_notices(wire.parse_azure_events(body.encode()), "vm")

    assert notice.level is level
