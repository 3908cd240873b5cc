"""Quantities as users write them: `90m`, `1h30m`, `250ms`, `20MB/s`.  Standard library only."""

from __future__ import annotations

import math
import re

from windfall.errors import Misuse
from windfall.terms import Seconds

_DURATION_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE_BYTES = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def duration_s(text: str, what: str) -> Seconds:
    """Read a duration.

    Args:
        text: numbers with units, largest first (`1h30m`, `30s`, `250ms`).
        what: the option or key, for the error message.

    Raises:
        Misuse: it is not a duration.
    """
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", text.strip())
    if not parts or "".join(number + unit for number, unit in parts) != text.strip():
        raise Misuse(f"{what}: {text!r} is not a duration; write for example 30s, 10m, 1h30m or 250ms")
    return Seconds(sum(float(number) * _DURATION_S[unit] for number, unit in parts))


def size_bytes(text: str, what: str) -> int:
    """Read an amount of data (`64MB`, `1GiB`).

    Raises:
        Misuse: it is not an amount above zero.
    """
    amount = _amount_bytes(text)
    if amount is None or amount < 1:
        raise Misuse(f"{what}: {text!r} is not an amount of data; write for example 64MB or 1GiB")
    return int(amount)


def rate_bytes_per_s(text: str, what: str) -> float:
    """Read a transfer rate (`20MB/s`, `1GiB/s`).

    Raises:
        Misuse: it is not a rate above zero.
    """
    amount, slash, second = text.strip().rpartition("/")
    rate = _amount_bytes(amount) if slash and second == "s" else None
    if not rate:
        raise Misuse(f"{what}: {text!r} is not a transfer rate; write for example 20MB/s or 1GiB/s")
    return rate


def _amount_bytes(text: str) -> float | None:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)", text.strip())
    factor = _SIZE_BYTES.get(match.group(2).upper()) if match else None
    return None if match is None or factor is None else float(match.group(1)) * factor


def duration_text(seconds: float) -> str:
    """Format a duration for display: `0.25 s`, `42 s`, `3 min 10 s`, `2 h 5 min`, `2 h`."""
    if seconds < 10:
        return f"{seconds:.2g} s" if seconds < 1 else f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 120:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def time_text(seconds: float) -> str:
    """Format an expected duration for display, which can be practically infinite; from 100 hours on in whole hours."""
    if not math.isfinite(seconds):
        return "practically forever"
    if seconds >= 360_000.0:
        hours = seconds / 3600.0
        return f"{hours:,.0f} h" if hours < 1e7 else f"{hours:.2g} h"
    return duration_text(seconds)


def share_text(share: float) -> str:
    """Format a share as a percentage: never 0 % or 100 % unless exact."""
    if 0.0 < share < 0.001:
        return "< 0.1 %"
    if 0.999 < share < 1.0:
        return "> 99.9 %"
    return f"{share:.1%}".replace("%", " %").replace(".0 ", " ")


def size_text(size_bytes: float) -> str:
    """Format an amount of data for display, in powers of ten: `1.4 MB`."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.3g} {unit}"
    return f"{size_bytes:.0f} B"


def usd_text(amount: float) -> str:
    """Format an amount of money for display: to the cent, below a dollar with at least two significant digits."""
    if amount >= 1.0:
        return f"{amount:,.2f} USD"
    return f"{amount:.{max(4, 1 - math.floor(math.log10(amount)))}f} USD" if amount > 0.0 else "0 USD"


def count_text(count: int, one: str, several: str) -> str:
    """Format a number of things: `1 loss`, `3 losses`."""
    return f"{count} {one if count == 1 else several}"


def cpus_text(cpus: float) -> str:
    """Format a number of processors: `1 CPU`, `0.5 CPUs`."""
    return f"{cpus:g} CPU{'s' * (cpus != 1.0)}"


def times_text(count: int) -> str:
    """Format how often something happened: `once`, `3 times`."""
    return "once" if count == 1 else f"{count} times"
