"""How the agents of one generation speak to each other: JSON lines over TCP, and how each proves that it belongs there.

    leader -> member   {"v", "challenge"}
    member -> leader   {"v", "generation", "node", "challenge", "proof"}
    leader -> member   {"proof"} or {"refused": sentence}

Both know the generation's token; it never travels: each side answers the other's challenge with an HMAC (RFC 2104) of it.
What follows is neither signed nor secret, so that the port belongs on a loopback or private network.  Every message has
`it`; those of the loop that answer to an attempt carry its number, and what is said of another attempt is dropped.

    leader -> member   prepare {attempt, term, nonce, checkpoint_id}   start {attempt, port}   kill {attempt}
                       publish {attempt, command}   withdraw   show {notice, left_s}   upload {command}
                       abandon {checkpoint_id}   let_go {step, paths}   acknowledge {notice}   exit {code, sentence, released}
    member -> leader   prepared {attempt, checkpoint_id, step}   unprepared {attempt, code, sentence}   exited {attempt, status}
                       facts {attempt, at, published, facts}   moved {facts}   notice {notice, at}   stop {now, reason}
    both               ping {at}   pong {at}

`at` is the sender's own monotonic clock [s].  Whoever reaches the port may say anything: what is not one of these lines,
field by field, is refused in reading.  Standard library only; imports nothing of ours.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

VERSION = 1
LINE_BYTES_MAX = 64 << 20
"""No message is longer: the list of chunks of a part of 100 TB fits."""
_WHOLE_MAX = 1 << 53
_NUMBER_MAX = 1e12
"""Of clocks and lengths of time [s]; some 30,000 years."""
_TEXT_CHARACTERS_MAX = 1 << 16


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _WHOLE_MAX


def _status(value: object) -> bool:
    return _whole(value) and value in range(256)


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= _NUMBER_MAX


def _text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _TEXT_CHARACTERS_MAX


def _sentence(value: object) -> bool:
    return isinstance(value, str) and value.isprintable() and len(value) <= _TEXT_CHARACTERS_MAX


def _flag(value: object) -> bool:
    return isinstance(value, bool)


def _word(value: object) -> bool:
    return isinstance(value, dict)


def _words(value: object) -> bool:
    return isinstance(value, list)


def _texts(value: object) -> bool:
    return isinstance(value, list) and all(map(_text, value))


def _perhaps(kind: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: value is None or kind(value)


_Shape = Mapping[str, Callable[[object], bool]]
GREETING: _Shape = {"v": _whole, "challenge": _text}
HELLO: _Shape = {"v": _whole, "generation": _whole, "node": _whole, "challenge": _text, "proof": _text}
PROVEN: _Shape = {"proof": _text}
REFUSED: _Shape = {"refused": _sentence}
_LOOP: Mapping[str, _Shape] = {
    "prepare": {"attempt": _whole, "term": _whole, "nonce": _text, "checkpoint_id": _perhaps(_text)},
    "start": {"attempt": _whole, "port": _whole},
    "kill": {"attempt": _whole},
    "publish": {"attempt": _whole, "command": _word},
    "withdraw": {},
    "show": {"notice": _word, "left_s": _perhaps(_number)},
    "upload": {"command": _word},
    "abandon": {"checkpoint_id": _text},
    "let_go": {"step": _whole, "paths": _texts},
    "acknowledge": {"notice": _word},
    "exit": {"code": _status, "sentence": _text, "released": _perhaps(_text)},
    "prepared": {"attempt": _whole, "checkpoint_id": _perhaps(_text), "step": _whole},
    "unprepared": {"attempt": _whole, "code": _status, "sentence": _text},
    "exited": {"attempt": _whole, "status": _status},
    "facts": {"attempt": _whole, "at": _number, "published": _whole, "facts": _words},
    "moved": {"facts": _words},
    "notice": {"notice": _word, "at": _number},
    "stop": {"now": _flag, "reason": _text},
    "ping": {"at": _number},
    "pong": {"at": _number},
}


def proof(token: str, *, side: str, generation: int, node: int, challenge: str) -> str:
    """Return what shows that one side (`leader` or `member`) knows the token of this generation."""
    words = f"windfall {VERSION} {side} {generation} {node} {challenge}"
    return hmac.new(token.encode(), words.encode(), hashlib.sha256).hexdigest()


def proves(answer: object, expected: str) -> bool:
    """Compare a proof with the expected one, in a time that tells nothing."""
    return isinstance(answer, str) and hmac.compare_digest(answer.encode(), expected.encode())


def to_line(message: dict[str, Any]) -> bytes:
    """Write a message."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def from_line(line: bytes) -> dict[str, Any]:
    """Read a message; nothing is known of its fields yet.

    Raises:
        ValueError: it is cut off, too long, or no object.
    """
    if not line.endswith(b"\n"):
        raise ValueError("a message was cut off")
    try:
        message = json.loads(line, parse_constant=_not_finite, parse_float=_finite)
    except RecursionError:
        raise ValueError("a message is nested deeper than any of ours") from None
    if not isinstance(message, dict):
        raise ValueError("a message is no object")
    return message


def _not_finite(word: str) -> NoReturn:
    raise ValueError(f"a message has the number {word}")


def _finite(digits: str) -> float:
    number = float(digits)
    return number if math.isfinite(number) else _not_finite("beyond all measure")


def fits(message: Mapping[str, object], shape: _Shape) -> bool:
    """Say whether a message has the fields of a shape and no other, each of its type."""
    return message.keys() == shape.keys() and all(kind(message[name]) for name, kind in shape.items())


def check(message: Mapping[str, object]) -> None:
    """Refuse what is no message of the loop.

    Raises:
        ValueError: it is none of those above, or a field of it is missing, unknown, or of another type.
    """
    name = message.get("it")
    shape = _LOOP.get(name) if isinstance(name, str) else None
    if shape is None:
        raise ValueError("it says what no machine of a generation says")
    if not fits({key: value for key, value in message.items() if key != "it"}, shape):
        raise ValueError(f"its message `{name}` cannot be understood")


def host_and_port(address: str) -> tuple[str, int]:
    """Split `host:port` (an IPv6 host in brackets).

    Raises:
        ValueError: it is not of that shape.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ValueError(f"{address!r} is not host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)
