"""Read files as lines: gzipped or not, never whole in memory, and with file and line in every error.

A line is at most `LINE_BYTES_MAX` long, so that a file without line ends cannot fill the memory either.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import math
import zlib
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import IO, cast

from windfall.errors import Misuse

HEAD_BYTES = 1 << 16
"""How much of a file is read to recognise its format."""
LINE_BYTES_MAX = 1 << 23
USD_PER_HOUR_MAX = 10_000.0
"""No machine costs more; a higher price is in another unit."""
_GZIP = b"\x1f\x8b"


def fault(path: Path, line: int | None, message: str) -> Misuse:
    """Return the error of a bad trace, with file and line."""
    return Misuse(f"{path}: {message}" if line is None else f"{path}:{line}: {message}")


def _open(path: Path) -> IO[bytes]:
    if path.is_dir():
        raise fault(path, None, "this is a folder: give one of its files")
    try:
        plain = path.open("rb")
        zipped = plain.peek(2)[:2] == _GZIP
    except FileNotFoundError as error:
        raise Misuse(f"{path} does not exist") from error
    except OSError as error:
        raise fault(path, None, f"cannot read it: {error.strerror or error}") from error
    if not zipped:
        return plain
    plain.close()
    return cast("IO[bytes]", gzip.open(path, "rb"))


@contextlib.contextmanager
def _reading(path: Path, line: list[int]) -> Iterator[None]:
    """Turn the errors of reading into messages; `line` holds the number of the present line."""
    try:
        yield
    except EOFError as error:
        raise fault(path, line[0], "the gzip file is truncated here: copy it again") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise fault(path, line[0], "the gzip data is damaged here: copy the file again") from error
    except UnicodeDecodeError as error:
        raise fault(path, line[0], "not a trace: this is not UTF-8 text") from error
    except OSError as error:
        raise fault(path, line[0], f"cannot read it: {error.strerror or error}") from error


def head(path: Path) -> str:
    """Return the first characters of a file, unpacked.

    Raises:
        Misuse: it is missing, empty, not text, or its gzip data is damaged.
    """
    with _open(path) as file, _reading(path, [1]):
        raw = file.read(HEAD_BYTES)
    if not raw.strip():
        raise fault(path, None, "the file is empty")
    if b"\0" in raw:
        raise fault(path, 1, "not a trace: this is not text")
    with _reading(path, [1]):
        # The block may end amid a character.
        return raw.decode("utf-8-sig", errors="strict" if len(raw) < HEAD_BYTES else "ignore")


def lines(path: Path) -> Iterator[str]:
    """Yield a file's lines, one at a time, with their ends.

    Raises:
        Misuse: as `head`; or a line is too long for a trace.
    """
    done = [1]
    with _open(path) as file, _reading(path, done):
        # Decoded line by line, so that an error names the line of a bad byte and not that of its block.
        while raw := file.readline(LINE_BYTES_MAX):
            if len(raw) == LINE_BYTES_MAX:
                raise fault(path, done[0], f"not a trace: this line is longer than {LINE_BYTES_MAX} bytes")
            if b"\0" in raw:
                raise fault(path, done[0], "not a trace: this is not text")
            yield raw.decode("utf-8-sig" if done[0] == 1 else "utf-8")
            done[0] += 1


def blocks(path: Path) -> Iterator[str]:
    """Yield a file in blocks of characters, for formats without lines.

    Raises:
        Misuse: as `head`.
    """
    with _open(path) as raw, _reading(path, [1]), io.TextIOWrapper(raw, "utf-8-sig") as file:
        while block := file.read(HEAD_BYTES):
            yield block


# ------------------------------------------------------------------------------------------------------------- values


def number(text: str, path: Path, line: int, what: str) -> float:
    """Read a finite number.

    Raises:
        Misuse: it is not one.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise fault(path, line, f"{what} is {text.strip()!r}, which is not a number")
    return value


def not_negative(text: str, path: Path, line: int, what: str) -> float:
    """Read a finite number of at least 0.

    Raises:
        Misuse: it is not one.
    """
    value = number(text, path, line, what)
    if value < 0.0:
        raise fault(path, line, f"{what} is {text.strip()}: it cannot be negative")
    return value


def whole(text: str, path: Path, line: int, what: str) -> int:
    """Read a whole number of at least 0.

    Raises:
        Misuse: it is not one.
    """
    value = not_negative(text, path, line, what)
    if value != int(value):
        raise fault(path, line, f"{what} is {text.strip()}: it must be a whole number")
    return int(value)


def price(text: str, path: Path, line: int, what: str) -> float:
    """Read a price [USD/h].

    Raises:
        Misuse: it is not a number, negative, or too high for dollars.
    """
    value = not_negative(text, path, line, what)
    if value > USD_PER_HOUR_MAX:
        raise fault(path, line, f"{what} is {text.strip()} USD/h: is it in another unit?")
    return value


def moment(text: str, path: Path, line: int, what: str) -> float:
    """Read a date and time with its offset from UTC [s since 1970].

    Raises:
        Misuse: it is not one.
    """
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        wanted = "2026-01-31T12:00:00Z"
        raise fault(path, line, f"{what} is {text!r}, which is not a time: write it as {wanted}") from error
    if found.tzinfo is None:
        raise fault(path, line, f"{what} is {text!r}, without a time zone: write Z after times in UTC")
    return found.timestamp()
