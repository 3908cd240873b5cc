"""Files as lines: gzip or not, never whole in memory, and every fault with its file and line.

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
"""How much of a file is looked at to recognise it."""
LINE_BYTES_MAX = 1 << 23
USD_PER_HOUR_MAX = 10_000.0
"""No machine costs more; a price above is in another unit."""
_GZIP = b"\x1f\x8b"


def fault(path: Path, line: int | None, sentence: str) -> Misuse:
    """Return the error of a bad trace: file, line, what is wrong."""
    return Misuse(f"{path}: {sentence}" if line is None else f"{path}:{line}: {sentence}")


def _open(path: Path) -> IO[bytes]:
    if path.is_dir():
        raise fault(path, None, "this is a folder; name one of its files")
    try:
        plain = path.open("rb")
        zipped = plain.peek(2)[:2] == _GZIP
    except FileNotFoundError as error:
        raise fault(path, None, "there is no such file") from error
    except OSError as error:
        raise fault(path, None, f"it cannot be read: {error.strerror or error}") from error
    if not zipped:
        return plain
    plain.close()
    return cast("IO[bytes]", gzip.open(path, "rb"))


@contextlib.contextmanager
def _reading(path: Path, line: list[int]) -> Iterator[None]:
    """Turn what reading can stumble on into a sentence; `line` holds the number of the line that is being read."""
    try:
        yield
    except EOFError as error:
        raise fault(path, line[0], "the gzip file ends too early here: it is truncated, copy it again") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise fault(path, line[0], "the gzip data are damaged here: copy the file again") from error
    except UnicodeDecodeError as error:
        raise fault(path, line[0], "this is not text (UTF-8): not a trace") from error
    except OSError as error:
        raise fault(path, line[0], f"it cannot be read: {error.strerror or error}") from error


def head(path: Path) -> str:
    """Return the first characters of a file, unpacked.

    Raises:
        Misuse: it is not there, empty, not text, or its gzip data are damaged.
    """
    with _open(path) as file, _reading(path, [1]):
        raw = file.read(HEAD_BYTES)
    if not raw.strip():
        raise fault(path, None, "the file is empty")
    if b"\0" in raw:
        raise fault(path, 1, "this is not text: not a trace")
    with _reading(path, [1]):
        # The block may end amid a character.
        return raw.decode("utf-8-sig", errors="strict" if len(raw) < HEAD_BYTES else "ignore")


def lines(path: Path) -> Iterator[str]:
    """Yield a file's lines, one at a time, with their ends.

    Raises:
        Misuse: as `head`; or a line is longer than any trace's.
    """
    done = [1]
    with _open(path) as file, _reading(path, done):
        # Decoded line by line, so that a bad byte is found on its own line and not on that of its block.
        while raw := file.readline(LINE_BYTES_MAX):
            if len(raw) == LINE_BYTES_MAX:
                raise fault(path, done[0], f"this line is longer than {LINE_BYTES_MAX} bytes: not a trace")
            if b"\0" in raw:
                raise fault(path, done[0], "this is not text: not a trace")
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
        Misuse: it is none.
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
        Misuse: it is none.
    """
    value = number(text, path, line, what)
    if value < 0.0:
        raise fault(path, line, f"{what} is {text.strip()}: it cannot be negative")
    return value


def whole(text: str, path: Path, line: int, what: str) -> int:
    """Read a whole number of at least 0.

    Raises:
        Misuse: it is none.
    """
    value = not_negative(text, path, line, what)
    if value != int(value):
        raise fault(path, line, f"{what} is {text.strip()}: it must be a whole number")
    return int(value)


def price(text: str, path: Path, line: int, what: str) -> float:
    """Read a price [USD/h].

    Raises:
        Misuse: it is no number, negative, or too high for dollars.
    """
    value = not_negative(text, path, line, what)
    if value > USD_PER_HOUR_MAX:
        raise fault(path, line, f"{what} is {text.strip()} dollars per hour: is it in another unit?")
    return value


def moment(text: str, path: Path, line: int, what: str) -> float:
    """Read a date and time with its offset from UTC [s since 1970].

    Raises:
        Misuse: it is none.
    """
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        wanted = "2026-01-31T12:00:00Z"
        raise fault(path, line, f"{what} is {text!r}, which is not a time; write it as {wanted}") from error
    if found.tzinfo is None:
        raise fault(path, line, f"{what} is {text!r}, without its time zone; write Z after times in UTC")
    return found.timestamp()
