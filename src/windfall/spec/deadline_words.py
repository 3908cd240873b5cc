"""Deadlines as people write them: `12h`, `fri 9:00`, `tomorrow 18:00`, `2027-01-31 18:00+01:00`, and the instant each means.

The grammar is small and strict: a text has one meaning or none.  `next fri` is refused, because some read it as the coming
Friday and others as the one after.  Libraries for dates guess.  Those that were tried (in November 2026, on a Wednesday) do:
`next fri` is the coming Friday to dateparser 1.5 and the one after to parsedatetime 2.6, `12` a 25th of December to the one
and now to the other, `01/02/2027` the 2nd of January to both, `wed 9:00` to python-dateutil 4.0 two hours ago.  None takes
`Europe/Berlin` behind a time, none says that a time falls into a change of the clocks, and dateparser with its packages is
8 MB.

A time that a change of the clocks skips or repeats is read as in RFC 5545, section 3.3.5: a skipped one by the offset before
the change (02:30 is then 03:30 of summer time), a repeated one as the first of the two, or as the second if only that is
still to come.  `Deadline.note` says so.
"""

from __future__ import annotations

import re
import zoneinfo
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo

from windfall.policies.planning.job_checks import DURATION_S_MAX
from windfall.spelling import closest
from windfall.structs import Struct
from windfall.terms import Seconds
from windfall.units import duration_s, duration_text


def _any_case(pattern: str) -> str:
    # A JSON Schema has no flag for it.
    return re.sub("[a-z]", lambda letter: f"[{letter[0].upper()}{letter[0]}]", pattern)


_WEEKDAYS = tuple(
    _any_case(name)
    for name in (
        "mon(day)?",
        "tue(s|sday)?",
        "wed(s|nesday)?",
        "thu(r|rs|rsday)?",
        "fri(day)?",
        "sat(urday)?",
        "sun(day)?",
    )
)
_SHOWN_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_AHEAD = {_any_case("today"): 0, _any_case("tomorrow"): 1}
_DAY = "|".join((*_AHEAD, *_WEEKDAYS))
_DATE = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
_TWELVE = r"(?P<twelve>[0-9]{1,2})(:(?P<past>[0-9]{2}))? *(?P<half>[AaPp])[Mm]"
_CLOCK = r"(?P<hour>[0-9]{1,2}):(?P<minute>[0-9]{2})(:(?P<second>[0-9]{2})(\.(?P<fraction>[0-9]{1,6}))?)?"
_ZONE = r" *(?P<offset>[Zz]|[+-][0-9]{2}:[0-9]{2})| +(?P<zone>[A-Za-z][A-Za-z0-9_+/-]*)"
_TIME = rf"((?P<date>{_DATE})( +|[Tt])|(?P<day>{_DAY}) +)?({_TWELVE}|{_CLOCK})({_ZONE})?"
_PARTS = r"([0-9]+(\.[0-9]+)?(ms|s|m|h|d))+"
_LENGTH = rf"(?=.*[1-9]){_PARTS}( +{_PARTS})*"
PATTERN = rf"{_LENGTH}|{re.sub('[?]P<[a-z]+>', '', _TIME)}"
"""What a deadline looks like, as a regular expression without names or flags."""
FORMS = "a duration (12h, 2d 6h) or a time (18:00, fri 9:00, tomorrow 9:00, 2027-01-31 18:00)"
"""How a deadline is written, for messages."""
_UNIVERSAL = frozenset({"utc", "gmt"})
_DAYS_SEARCHED = 15
"""Within two weeks each weekday has a time that a change of the clocks does not move into the past."""
_YEARS_MAX = 31
_BEHIND_MAX, _AHEAD_MAX = timedelta(hours=-12), timedelta(hours=14)
_DAY_S = 86_400


class DeadlineWords(Struct, frozen=True):
    """A deadline as it was written: a length of time, or a time of day on some day.

    Attributes:
        text: as written.
        length_s: from the submission [s]; None for a time.
        clock: the time of day; None for a length.
        date: the day; None if another attribute gives it.
        days_ahead: 0 for today, 1 for tomorrow.
        weekday: 0 for Monday; without any day the time is the next one that a clock shows.
        zone: of the time; None for the reader's own.
    """

    text: str
    length_s: Seconds | None = None
    clock: time | None = None
    date: date | None = None
    days_ahead: int | None = None
    weekday: int | None = None
    zone: tzinfo | None = None


class Deadline(Struct, frozen=True):
    """The instant that a deadline means.

    Attributes:
        text: as written.
        length_s: from the submission [s]; None if it was written as a time.
        at: the instant, with the offset of the reader's zone; of a length, if the job is submitted now.
        says: how it was understood: `Fri 2026-11-27 09:00 CET, in 1 day 22 h`.
        note: what a change of the clocks does to it, as a sentence; empty if none does.
    """

    text: str
    length_s: Seconds | None
    at: datetime
    says: str
    note: str


def parse(text: str) -> DeadlineWords:
    """Read a deadline.

    Args:
        text: as people write it.

    Raises:
        ValueError: it is none, or could mean two; the message starts with a verb.
    """
    written = " ".join(text.split())
    if re.fullmatch(_LENGTH, written):
        length_s = Seconds(sum(duration_s(part, "a deadline") for part in written.split()))
        if length_s > DURATION_S_MAX:
            raise ValueError(f"{written!r} is more than 30 years")
        return DeadlineWords(written, length_s=length_s)
    found = re.fullmatch(_TIME, written)
    if found is None:
        raise ValueError(_flaw(written))
    part = found.groupdict()
    day = part["day"] or ""
    return DeadlineWords(
        written,
        clock=_clock(written, part),
        date=None if part["date"] is None else _date(part["date"]),
        days_ahead=next((days for pattern, days in _AHEAD.items() if re.fullmatch(pattern, day)), None),
        weekday=next((number for number, name in enumerate(_WEEKDAYS) if re.fullmatch(name, day)), None),
        zone=_offset(part["offset"]) if part["offset"] else _zone(part["zone"]) if part["zone"] else None,
    )


def _flaw(written: str) -> str:
    """Return what is wrong with a text that is no deadline."""
    if re.match(r"(next|this|coming|last) ", written, re.IGNORECASE):
        return f"can mean two days: {written!r}; write fri 9:00 for the coming Friday, or the date, 2027-01-31 9:00"
    if re.fullmatch(rf"{_DAY}|{_DATE}", written):
        return f"must have a time of day too: write {written} 18:00"
    if re.match(r"[0-9]{1,4}[./][0-9]{1,2}[./]", written):
        return f"must have its date as year, month and day: 2027-01-31 18:00, not {written!r}"
    unit = f"; add a unit ({written}m? {written}h?)" if re.fullmatch(r"[0-9]+(\.[0-9]+)?", written) else ""
    shown = repr(written) if len(written) <= 60 else f"{written[:57]!r}..."
    return f"must be {FORMS}, not {shown}{unit}"


def _date(written: str) -> date:
    try:
        return date.fromisoformat(written)
    except ValueError:
        raise ValueError(f"has a date that does not exist: {written}") from None


def _clock(written: str, part: dict[str, str | None]) -> time:
    if part["twelve"] is not None:
        hour, half = int(part["twelve"]), (part["half"] or "").lower()
        if hour == 12:
            raise ValueError(f"can mean noon or midnight: {written!r}; write 12:00 or 0:00")
        hour, minute = (hour if half == "a" else hour + 12 if 1 <= hour < 12 else 24), int(part["past"] or 0)
        hour = hour or 24
    else:
        hour, minute = int(part["hour"] or 0), int(part["minute"] or 0)
    try:
        return time(hour, minute, int(part["second"] or 0), int((part["fraction"] or "").ljust(6, "0")))
    except ValueError:
        raise ValueError(f"must have a time from 0:00 to 23:59, not {written!r}") from None


def _offset(written: str) -> tzinfo:
    if written in "Zz":
        return UTC
    minutes = int(written[4:])
    ahead = timedelta(hours=int(written[1:3]), minutes=minutes) * (1 if written[0] == "+" else -1)
    if minutes > 59 or not _BEHIND_MAX <= ahead <= _AHEAD_MAX:
        raise ValueError(f"has the offset {written}, which no zone has: they are from -12:00 to +14:00")
    return timezone(ahead)


def _zone(written: str) -> tzinfo:
    if written.lower() in _UNIVERSAL:
        return UTC
    known = {name.lower(): name for name in zoneinfo.available_timezones()}
    if not known:
        raise ValueError(
            f"has the zone {written}, but this machine has no list of time zones: install the package tzdata, or write "
            "the offset, +01:00"
        )
    if "/" not in written:
        places = sorted(name for name in known.values() if name.lower().endswith(f"/{written.lower()}"))
        guess = f"; did you mean {places[0]}?" if places else ""
        raise ValueError(
            f"must have its zone as a place (Europe/Berlin), UTC or an offset (+01:00), not {written}, which can mean "
            f"several{guess}"
        )
    if written.lower() not in known:
        close = closest(written, known)
        guess = "write a name such as Europe/Berlin" if close is None else f"did you mean {known[close]}?"
        raise ValueError(f"has the unknown zone {written}; {guess}")
    return zoneinfo.ZoneInfo(known[written.lower()])


def resolve(words: DeadlineWords, now: datetime) -> Deadline:
    """Return the instant that a deadline means: a length counts from now, a time is the next one that fits.

    Args:
        words: as `parse` returned them.
        now: the current time, in the reader's zone.

    Raises:
        ValueError: it is in the past, or farther away than 30 years; the message starts with a verb.
    """
    assert now.tzinfo is not None, "the reader's zone is part of the question"
    # Arithmetic within a zone is that of its wall clock, which a change of the clocks makes wrong.
    instant = now.astimezone(UTC)
    if words.length_s is not None:
        return _deadline(words, now, instant + timedelta(seconds=words.length_s), "")
    zone = words.zone or now.tzinfo
    read: datetime | None = None
    for day in _days(words, now, zone):
        for read, note in _readings(words, day, zone):
            if read > instant:
                return _deadline(words, now, read, note)
    assert read is not None, "each deadline has a day"
    raise ValueError(
        f"is in the past: {words.text!r} was read as {moment_text(read.astimezone(zone))}, and it is "
        f"{moment_text(now.astimezone(zone))} now"
    )


def _days(words: DeadlineWords, now: datetime, zone: tzinfo) -> Iterator[date]:
    """Yield the days whose time a deadline may mean, the first one first."""
    there = now.astimezone(zone)
    if words.date is not None:
        if words.date.year < now.year - _YEARS_MAX:
            raise ValueError(f"is in the past: {words.text!r}; it is {moment_text(there)} now")
        if words.date.year > now.year + _YEARS_MAX:
            raise ValueError(f"{words.text!r} is more than 30 years away")
        yield words.date
    elif words.days_ahead is not None:
        if there.date() != now.date():
            raise ValueError(
                f"can mean two days: {words.text!r}; it is {moment_text(now)} here and {moment_text(there)} there: write "
                "the weekday or the date"
            )
        yield there.date() + timedelta(days=words.days_ahead)
    else:
        for ahead in range(_DAYS_SEARCHED):
            day = there.date() + timedelta(days=ahead)
            if words.weekday in (None, day.weekday()):
                yield day


def _readings(words: DeadlineWords, day: date, zone: tzinfo) -> Iterator[tuple[datetime, str]]:
    """Yield the instants [UTC] at which clocks show the time on a day, and what is odd about them."""
    assert words.clock is not None, "what is no length has a time"
    shown = datetime.combine(day, words.clock)
    first, second = (shown.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    clock = f"{shown:%H:%M}"
    if first == second:
        yield first, ""
    elif first < second:
        twice = f"clocks show {clock} twice on {_day_text(shown)}, before and after they are set back:"
        yield first, f"{twice} this is the first time"
        yield second, f"{twice} this is the second time"
    else:
        skipped = f"clocks skip {clock} on {_day_text(shown)}, when they are set forward:"
        yield first, f"{skipped} this is read as {first.astimezone(zone):%H:%M}"


def _deadline(words: DeadlineWords, now: datetime, at: datetime, note: str) -> Deadline:
    left_s = (at - now.astimezone(UTC)).total_seconds()
    if left_s > DURATION_S_MAX:
        raise ValueError(f"{words.text!r} is more than 30 years away")
    here = at.astimezone(now.tzinfo)
    there = here if words.zone is None else at.astimezone(words.zone)
    also = f" ({moment_text(here)} here)" if there.utcoffset() != here.utcoffset() else ""
    fixed = timezone(here.utcoffset() or timedelta(0), here.tzname() or "")
    return Deadline(
        words.text, words.length_s, here.astimezone(fixed), f"{moment_text(there)}{also}, in {left_text(left_s)}", note
    )


def moment_text(moment: datetime) -> str:
    """Format an instant in its zone: `Fri 2026-11-27 09:00 CET`."""
    clock = f"{moment:%H:%M:%S}" if moment.second else f"{moment:%H:%M}"
    return f"{_day_text(moment)} {clock} {moment.tzname()}"


def _day_text(moment: datetime) -> str:
    return f"{_SHOWN_DAYS[moment.weekday()]} {moment:%Y-%m-%d}"


def left_text(left_s: float) -> str:
    """Format the time until a deadline [s]: from a day on in days and whole hours."""
    if left_s < _DAY_S:
        return duration_text(left_s)
    days, rest_s = divmod(left_s, _DAY_S)
    hours = f" {rest_s // 3600:.0f} h" if rest_s >= 3600 else ""
    return f"{days:.0f} day{'s' * (days != 1)}{hours}"
