"""Quantities as users write them: `90m`, `1h30m`, `250ms`, `20MB/s`.  Standard library only."""

from __future__ import annotations

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
    """Format a duration for display: `0.25 s`, `42 s`, `3 min 10 s`, `2 h 5 min`."""
    if seconds < 10:
        return f"{seconds:.2g} s" if seconds < 1 else f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 120:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"


def share_text(share: float) -> str:
    """Format a share as a percentage: never 0 % or 100 % unless exact."""
    if 0.0 < share < 0.001:
        return "< 0.1 %"
    if 0.999 < share < 1.0:
        return "> 99.9 %"
    return f"{share:.1%}".replace("%", " %").replace(".0 ", " ")


def size_text(size_bytes: float) -> str:
    """Format an amount of data for display, in powers of ten: `1.4 MB`."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.3g} {unit}"
    return f"{size_bytes:.0f} B"
