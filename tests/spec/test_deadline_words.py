"""Deadlines as people write them: what each text means, in which zone, and what is refused because it could mean two things."""

from __future__ import annotations

import re
from datetime import UTC, datetime, time, timedelta
from functools import cache
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windfall.spec.deadline_words import PATTERN, Deadline, parse, resolve

BERLIN = ZoneInfo("Europe/Berlin")
WEDNESDAY = datetime(2026, 11, 25, 11, 0, tzinfo=BERLIN)
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "America/St_Johns", "America/Santiago", "Asia/Kathmandu",
         "Australia/Lord_Howe", "Pacific/Auckland", "Africa/Casablanca", "Antarctica/Troll")  # fmt: skip
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


def read(text: str, now: datetime = WEDNESDAY) -> Deadline:
    """What a text means."""
    return resolve(parse(text), now)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("12h", "Wed 2026-11-25 23:00 CET, in 12 h"),
        ("2d 6h", "Fri 2026-11-27 17:00 CET, in 2 days 6 h"),
        ("1h30m", "Wed 2026-11-25 12:30 CET, in 90 min"),
        ("fri 9:00", "Fri 2026-11-27 09:00 CET, in 1 day 22 h"),
        ("Friday  09:00", "Fri 2026-11-27 09:00 CET, in 1 day 22 h"),
        ("FRI 9am", "Fri 2026-11-27 09:00 CET, in 1 day 22 h"),
        ("thurs 9:30 pm", "Thu 2026-11-26 21:30 CET, in 1 day 10 h"),
        ("wed 12:00", "Wed 2026-11-25 12:00 CET, in 60 min"),
        ("wed 11:00", "Wed 2026-12-02 11:00 CET, in 7 days"),
        ("18:00", "Wed 2026-11-25 18:00 CET, in 7 h"),
        ("9:00", "Thu 2026-11-26 09:00 CET, in 22 h"),
        ("today 18:00", "Wed 2026-11-25 18:00 CET, in 7 h"),
        ("tomorrow 9:00", "Thu 2026-11-26 09:00 CET, in 22 h"),
        ("2027-01-31T18:00", "Sun 2027-01-31 18:00 CET, in 67 days 7 h"),
        ("2027-01-31 18:00:30", "Sun 2027-01-31 18:00:30 CET, in 67 days 7 h"),
        ("2027-01-31 18:00+01:00", "Sun 2027-01-31 18:00 UTC+01:00, in 67 days 7 h"),
        ("2027-01-31T18:00:00.5Z", "Sun 2027-01-31 18:00 UTC (Sun 2027-01-31 19:00 CET here), in 67 days 8 h"),
        ("fri 9:00 America/New_York", "Fri 2026-11-27 09:00 EST (Fri 2026-11-27 15:00 CET here), in 2 days 4 h"),
        ("fri 9:00 utc", "Fri 2026-11-27 09:00 UTC (Fri 2026-11-27 10:00 CET here), in 1 day 23 h"),
        ("fri 9:00 europe/berlin", "Fri 2026-11-27 09:00 CET, in 1 day 22 h"),
        ("wed 23:30 Pacific/Auckland", "Wed 2026-11-25 23:30 NZDT (Wed 2026-11-25 11:30 CET here), in 30 min"),
    ],
)
def test_each_form_means_one_instant_and_says_which(text: str, says: str) -> None:
    """Read on Wednesday 25 November 2026, 11:00 in Berlin."""
    assert read(text).says == says


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("next fri 9:00", "can mean two days"),
        ("this friday 9:00", "can mean two days"),
        ("fri", "must have a time of day too: write fri 18:00"),
        ("2027-01-31", "must have a time of day too: write 2027-01-31 18:00"),
        ("31.1.2027 9:00", "must have its date as year, month and day"),
        ("12", "add a unit (12m? 12h?)"),
        ("fri 9", "must be a duration (12h, 2d 6h) or a time"),
        ("9:00 fri", "not fri, which can mean several"),
        ("0am", "from 0:00 to 23:59"),
        ("13pm", "from 0:00 to 23:59"),
        ("12am", "noon or midnight"),
        ("24:00", "from 0:00 to 23:59"),
        ("9:00 EST", "not EST, which can mean several"),
        ("9:00 berlin", "did you mean Europe/Berlin?"),
        ("9:00 right/Europe/Berlin", "unknown zone"),
        ("9:00 ../etc", "must be a duration"),
        ("-3h", "must be a duration"),
        ("today 9:00", "is in the past: 'today 9:00' was read as Wed 2026-11-25 09:00 CET, and it is Wed 2026-11-25 11:00"),
        ("2026-11-25 11:00", "is in the past"),
        ("2026-11-25T09:30Z", "was read as Wed 2026-11-25 09:30 UTC, and it is Wed 2026-11-25 10:00 UTC now"),
        ("0001-01-01 0:00+14:00", "is in the past"),
        ("9999-12-31 23:59-12:00", "30 years"),
        ("31y", "must be a duration"),
    ],
)  # fmt: skip
def test_what_could_mean_two_things_or_is_over_is_refused(text: str, why: str) -> None:
    """The message tells what is wrong, what was read, and what to write instead."""
    with pytest.raises(ValueError, match=re.escape(why)):
        read(text)


def test_today_and_tomorrow_of_a_zone_with_another_date_are_refused() -> None:
    """At 20:00 in New York it is already tomorrow in Berlin: whose tomorrow would be anybody's guess."""
    evening = datetime(2026, 11, 25, 20, 0, tzinfo=ZoneInfo("America/New_York"))
    with pytest.raises(ValueError, match=r"can mean two days: .* it is Wed .* EST here and Thu .* CET there: write"):
        read("tomorrow 9:00 Europe/Berlin", evening)
    assert read("fri 9:00 Europe/Berlin", evening).at == datetime(2026, 11, 27, 9, 0, tzinfo=BERLIN)


def test_the_same_words_mean_the_coming_friday_each_week() -> None:
    """A job file with `fri 9:00` can be run every week; an absolute time only once."""
    words, later = parse("fri 9:00"), WEDNESDAY + timedelta(days=7)
    assert resolve(words, later).at - resolve(words, WEDNESDAY).at == timedelta(days=7)
    with pytest.raises(ValueError, match="is in the past"):
        read("2026-11-27 9:00", later)


@pytest.mark.parametrize(
    ("now", "text", "at", "note"),
    [
        ("2027-03-27T12:00+01:00", "2:30", "2027-03-28T03:30+02:00",
         "clocks skip 02:30 on Sun 2027-03-28, when they are set forward: this is read as 03:30"),
        ("2027-03-27T12:00+01:00", "sun 3:00", "2027-03-28T03:00+02:00", ""),
        ("2026-10-24T12:00+02:00", "2:30", "2026-10-25T02:30+02:00",
         "clocks show 02:30 twice on Sun 2026-10-25, before and after they are set back: this is the first time"),
        ("2026-10-25T02:45+02:00", "2:30", "2026-10-25T02:30+01:00",
         "clocks show 02:30 twice on Sun 2026-10-25, before and after they are set back: this is the second time"),
        ("2026-10-24T12:00+02:00", "24h", "2026-10-25T11:00+01:00", ""),
        ("2026-10-24T12:00+02:00", "tomorrow 12:00", "2026-10-25T12:00+01:00", ""),
    ],
)  # fmt: skip
def test_a_change_of_the_clocks_is_said(now: str, text: str, at: str, note: str) -> None:
    """Berlin's clocks skip 02:00 to 03:00 in March, and show it twice in October; a length counts real hours."""
    found = read(text, datetime.fromisoformat(now).astimezone(BERLIN))
    assert (found.at, found.note) == (datetime.fromisoformat(at), note)
    assert found.at.isoformat(timespec="minutes") == at


# ---------------------------------------------------------------------------------------------------------- properties


@cache
def _changes(zone: str) -> tuple[datetime, ...]:
    """The hours of two years after which the clocks of a zone differ."""
    place, first = ZoneInfo(zone), datetime(2026, 1, 1, tzinfo=UTC)
    hours = [first + timedelta(hours=number) for number in range(2 * 8766)]
    return tuple(
        hour
        for hour, after in pairwise(hours)
        if hour.astimezone(place).utcoffset() != after.astimezone(place).utcoffset()
    ) or (first,)


@st.composite
def nows(draw: st.DrawFn) -> datetime:
    """Some instant of 2000 to 2060 in some zone, half of them within two days of a change of the clocks."""
    zone = draw(st.sampled_from(ZONES))
    if draw(st.booleans()):
        minutes = draw(st.integers(-2880, 2880))
        return (draw(st.sampled_from(_changes(zone))) + timedelta(minutes=minutes)).astimezone(ZoneInfo(zone))
    return draw(st.datetimes(datetime(2000, 1, 1), datetime(2060, 1, 1), timezones=st.just(UTC))).astimezone(
        ZoneInfo(zone)
    )


def _next(now: datetime, clock: str, day: str | None) -> datetime:
    """The first minute after now that a clock on the wall shows as this time on such a day, found by waiting."""
    minute = now.astimezone(UTC).replace(second=0, microsecond=0)
    while True:
        minute += timedelta(minutes=1)
        shown = minute.astimezone(now.tzinfo)
        if f"{shown:%H:%M}" == clock and day in (None, DAYS[shown.weekday()]):
            return minute


@given(nows(), st.times(), st.none() | st.sampled_from(DAYS))
def test_a_time_is_the_next_one_that_a_clock_shows(now: datetime, shown: time, day: str | None) -> None:
    """Whoever waits until the clock shows it waits exactly as long; only a skipped time comes earlier, and says so."""
    clock = f"{shown:%H:%M}"
    found = read(clock if day is None else f"{day} {clock}", now)
    ahead = found.at - now.astimezone(UTC)
    assert timedelta(0) < ahead <= timedelta(days=1 if day is None else 7, hours=3)
    if "skip" in found.note:
        assert found.at < _next(now, clock, day)
    else:
        assert found.at == _next(now, clock, day)


@given(nows(), st.timedeltas(timedelta(seconds=1), timedelta(days=9000)), st.sampled_from(ZONES))
def test_an_instant_written_with_its_offset_is_that_instant(now: datetime, ahead: timedelta, zone: str) -> None:
    """Whatever the reader's zone; written with a zone's name it is the same, or one of the two that look the same."""
    there = (now.astimezone(UTC) + ahead).astimezone(ZoneInfo(zone))
    offset = there.utcoffset()
    assert offset is not None
    if not offset.total_seconds() % 60:
        assert read(there.isoformat(), now).at == there.astimezone(UTC)
    named = read(f"{there.replace(tzinfo=None).isoformat(' ')} {zone}", now)
    away = abs(named.at - there.astimezone(UTC))
    assert not away or ("twice" in named.note and away <= timedelta(hours=3))


@given(nows(), st.integers(0, 400), st.integers(0, 23), st.integers(1, 59))
def test_a_length_counts_real_time(now: datetime, days: int, hours: int, minutes: int) -> None:
    """Days of 24 hours, whatever the clocks do meanwhile."""
    found = read(f"{days}d {hours}h{minutes}m", now)
    assert found.at - now.astimezone(UTC) == timedelta(days=days, hours=hours, minutes=minutes)


_PIECES = st.sampled_from(
    ["fri", "Sunday", "today", "tomorrow", "next", "9:00", "25:99", "12h", "2d", "0m", "2027-03-28", "0000-00-00", "T", " ",
     "+", "pm", "Z", "UTC", "Europe/Berlin", "+01:00", "-99:99", "9999-12-31", "\N{ARABIC-INDIC DIGIT NINE}", "/", "\n"]
)  # fmt: skip


@given(
    nows(),
    st.lists(_PIECES | st.text(max_size=3), max_size=6).map("".join) | st.lists(_PIECES, max_size=5).map(" ".join),
)
def test_any_text_is_a_future_instant_or_a_sentence(now: datetime, text: str) -> None:
    """Nothing else comes out, and what is read fits the pattern that editors check."""
    try:
        found = read(text, now)
    except ValueError as error:
        said = str(error)
    else:
        said = found.says
        assert timedelta(0) < found.at - now.astimezone(UTC) <= timedelta(seconds=1e9)
        assert re.fullmatch(PATTERN, " ".join(text.split()))
    assert said
    assert "\n" not in said
