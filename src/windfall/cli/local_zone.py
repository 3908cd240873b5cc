"""The time zone of the machine that a user types on."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo


class LocalZone(tzinfo):
    """The zone of the operating system, with its changes of the clocks, as `date` shows it.

    The system is asked for each time, and so the answer is right for whatever sets its zone: a name or a rule in TZ, a file,
    the registry of Windows.  `zoneinfo` would need the zone's name, which a system need not tell.
    """

    def utcoffset(self, moment: datetime | None) -> timedelta:
        """Return by how much the local clock is ahead of UTC; of a skipped or repeated time as PEP 495 asks for."""
        assert moment is not None, "the offset depends on the time"
        shown = moment.replace(tzinfo=None)
        # `astimezone` gives a skipped time the offset after the change.
        return shown - datetime.fromtimestamp(shown.timestamp(), UTC).replace(tzinfo=None)

    def tzname(self, moment: datetime | None) -> str | None:
        """Return the abbreviation that the system has: `CET`."""
        assert moment is not None, "the name depends on the time"
        return moment.replace(tzinfo=None).astimezone().tzname()

    def dst(self, moment: datetime | None) -> timedelta | None:  # noqa: ARG002 - the system does not tell it
        """Return None: unknown."""
        return None

    def fromutc(self, moment: datetime) -> datetime:
        """Return what the local clock shows at an instant in UTC."""
        return datetime.fromtimestamp(moment.replace(tzinfo=UTC).timestamp()).replace(tzinfo=self)


def local_time(wall_time: float) -> datetime:
    """Return an instant [s since 1970] in this machine's zone."""
    return datetime.fromtimestamp(wall_time, LocalZone())
