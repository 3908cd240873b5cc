"""How the agents of one generation speak to each other: JSON lines over TCP, and how each proves that it belongs there.

    leader -> member   {"v", "challenge"}
    member -> leader   {"v", "generation", "node", "challenge", "proof"}
    leader -> member   {"proof"} or {"refused": sentence}

Both know the generation's token; it never travels: each side answers the other's challenge with an HMAC (RFC 2104) of it.
What follows is neither signed nor secret, so that the port belongs on a loopback or private network.  Every message has
`it`; those of the loop that answer to an attempt carry its number, and what is said of another attempt is dropped.

    leader -> member   prepare {attempt, term, nonce, checkpoint_id}   start {attempt, port}   kill {attempt}
                       publish {attempt, command}   withdraw   show {notice, left_s}   upload {command}
                       abandon {checkpoint_id}   let_go {step}   acknowledge {notice}   exit {code, sentence, released}
    member -> leader   prepared {attempt, checkpoint_id, step}   unprepared {attempt, code, sentence}   exited {attempt, status}
                       facts {attempt, at, published, facts}   moved {facts}   notice {notice, at}   stop {now, reason}
    both               ping {at}   pong {at}

`at` is the sender's own monotonic clock [s].  Standard library only; imports nothing of ours.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Any

VERSION = 1
LINE_BYTES_MAX = 64 << 20
"""No message is longer: the list of chunks of a part of 100 TB fits."""


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
    """Read a message.

    Raises:
        ValueError: it is cut off, too long, or no object.
    """
    if not line.endswith(b"\n"):
        raise ValueError("a message was cut off")
    message = json.loads(line)
    if not isinstance(message, dict):
        raise ValueError("a message is no object")
    return message


def host_and_port(address: str) -> tuple[str, int]:
    """Split `host:port` (an IPv6 host in brackets).

    Raises:
        ValueError: it is not of that shape.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ValueError(f"{address!r} is not host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)
