"""Protocol between the agents of one generation: JSON lines over TCP, with mutual authentication.

    leader -> member   {"version", "challenge"}
    member -> leader   {"version", "generation", "node", "challenge", "proof"}
    leader -> member   {"proof"} or {"refused": message}

Both sides know the generation's token, which is never sent: each side answers the other's challenge with an HMAC (RFC
2104) keyed with it.  Later messages are neither signed nor encrypted, so the port belongs on a loopback or private
network.  Every later message has a `type`; messages about an attempt carry its number and are dropped if it is another one.

    leader -> member   prepare {attempt, term, nonce, checkpoint_id}   start {attempt, port}   kill {attempt}
                       publish {attempt, command}   withdraw   show {notice, remaining_s}   upload {command}
                       abandon {checkpoint_id}   committed {step, paths}   acknowledge {notice}   exit {code, message, released}
    member -> leader   prepared {attempt, checkpoint_id, step}   prepare_failed {attempt, code, message}
                       exited {attempt, status}   facts {attempt, at, published, facts}   uploaded {facts}
                       notice {notice, at}   stop {now, reason}
    both               ping {at}   pong {at}

`at` is the sender's monotonic clock [s].  Input is untrusted: a line that does not match one of these messages, field by
field, is rejected.  Uses only the standard library, and no other module of Windfall.
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
"""Maximum length of a message [B]; the list of chunks of a 100 TB shard fits."""
_WHOLE_MAX = 1 << 53
_NUMBER_MAX = 1e12
"""Maximum clock reading or duration [s]; about 30,000 years."""
_TEXT_CHARACTERS_MAX = 1 << 16


def _integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _WHOLE_MAX


def _exit_status(value: object) -> bool:
    return _integer(value) and value in range(256)


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= _NUMBER_MAX


def _string(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _TEXT_CHARACTERS_MAX


def _printable(value: object) -> bool:
    return isinstance(value, str) and value.isprintable() and len(value) <= _TEXT_CHARACTERS_MAX


def _boolean(value: object) -> bool:
    return isinstance(value, bool)


def _object(value: object) -> bool:
    return isinstance(value, dict)


def _list(value: object) -> bool:
    return isinstance(value, list)


def _strings(value: object) -> bool:
    return isinstance(value, list) and all(map(_string, value))


def _optional(kind: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: value is None or kind(value)


_Shape = Mapping[str, Callable[[object], bool]]
GREETING: _Shape = {"version": _integer, "challenge": _string}
HELLO: _Shape = {"version": _integer, "generation": _integer, "node": _integer, "challenge": _string, "proof": _string}
PROVEN: _Shape = {"proof": _string}
REFUSED: _Shape = {"refused": _printable}
_LOOP: Mapping[str, _Shape] = {
    "prepare": {"attempt": _integer, "term": _integer, "nonce": _string, "checkpoint_id": _optional(_string)},
    "start": {"attempt": _integer, "port": _integer},
    "kill": {"attempt": _integer},
    "publish": {"attempt": _integer, "command": _object},
    "withdraw": {},
    "show": {"notice": _object, "remaining_s": _optional(_number)},
    "upload": {"command": _object},
    "abandon": {"checkpoint_id": _string},
    "committed": {"step": _integer, "paths": _strings},
    "acknowledge": {"notice": _object},
    "exit": {"code": _exit_status, "message": _string, "released": _optional(_string)},
    "prepared": {"attempt": _integer, "checkpoint_id": _optional(_string), "step": _integer},
    "prepare_failed": {"attempt": _integer, "code": _exit_status, "message": _string},
    "exited": {"attempt": _integer, "status": _exit_status},
    "facts": {"attempt": _integer, "at": _number, "published": _integer, "facts": _list},
    "uploaded": {"facts": _list},
    "notice": {"notice": _object, "at": _number},
    "stop": {"now": _boolean, "reason": _string},
    "ping": {"at": _number},
    "pong": {"at": _number},
}


def proof(token: str, *, side: str, generation: int, node: int, challenge: str) -> str:
    """Return the proof that one side (`leader` or `member`) knows the token of this generation."""
    text = f"windfall {VERSION} {side} {generation} {node} {challenge}"
    return hmac.new(token.encode(), text.encode(), hashlib.sha256).hexdigest()


def proves(answer: object, expected: str) -> bool:
    """Return whether a proof is the expected one, compared in constant time."""
    return isinstance(answer, str) and hmac.compare_digest(answer.encode(), expected.encode())


def to_line(message: dict[str, Any]) -> bytes:
    """Encode a message."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def from_line(line: bytes) -> dict[str, Any]:
    """Decode a message; its fields are not checked yet.

    Raises:
        ValueError: it is cut off or not a JSON object.
    """
    if not line.endswith(b"\n"):
        raise ValueError("a message was cut off")
    try:
        message = json.loads(line, parse_constant=_not_finite, parse_float=_finite)
    except RecursionError:
        raise ValueError("a message is nested too deeply") from None
    if not isinstance(message, dict):
        raise ValueError("a message is not an object")
    return message


def _not_finite(word: str) -> NoReturn:
    raise ValueError(f"a message has the number {word}")


def _finite(digits: str) -> float:
    number = float(digits)
    return number if math.isfinite(number) else _not_finite("out of range")


def fits(message: Mapping[str, object], shape: _Shape) -> bool:
    """Return whether a message has exactly the fields of a shape, each with its type."""
    return message.keys() == shape.keys() and all(kind(message[name]) for name, kind in shape.items())


def check(message: Mapping[str, object]) -> None:
    """Check a message of the loop.

    Raises:
        ValueError: its type is unknown, or a field is missing, unknown, or of another type.
    """
    name = message.get("type")
    shape = _LOOP.get(name) if isinstance(name, str) else None
    if shape is None:
        raise ValueError("it sent a message of unknown type")
    if not fits({key: value for key, value in message.items() if key != "type"}, shape):
        raise ValueError(f"its message `{name}` is invalid")


def host_and_port(address: str) -> tuple[str, int]:
    """Split `host:port` (an IPv6 host in brackets).

    Raises:
        ValueError: it does not have this form.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ValueError(f"{address!r} is not host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)
