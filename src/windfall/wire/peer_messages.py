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
field, is rejected.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from typing import Annotated, Any

from msgspec import Meta

from windfall import codec
from windfall.events import Fact, PublishSave, UploadShard
from windfall.structs import Struct
from windfall.terms import Notice

VERSION = 2
LINE_BYTES_MAX = 64 << 20
"""Maximum length of a message [B]; the list of chunks of a 100 TB shard fits."""
_Count = Annotated[int, Meta(ge=0, le=1 << 53)]
_Status = Annotated[int, Meta(ge=0, le=255)]
_Clock = Annotated[float, Meta(ge=-1e12, le=1e12)]
"""A clock reading or a duration [s]; 1e12 s are about 30,000 years."""
_Text = Annotated[str, Meta(max_length=1 << 16)]


# ------------------------------------------------------------------------------------------------------- the handshake


class PeerGreeting(Struct, frozen=True, forbid_unknown_fields=True):
    """The leader's first message."""

    version: _Count
    challenge: _Text


class PeerHello(Struct, frozen=True, forbid_unknown_fields=True):
    """The member's first message."""

    version: _Count
    generation: _Count
    node: _Count
    challenge: _Text
    proof: _Text


class PeerWelcome(Struct, frozen=True, forbid_unknown_fields=True):
    """The leader's answer: its own proof, or why the member is refused."""

    proof: _Text | None = None
    refused: _Text | None = None


# ------------------------------------------------------------------------------------------------------------ the loop


def _tag(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name.removeprefix("Peer")).lower()


class PeerMessage(Struct, frozen=True, forbid_unknown_fields=True, tag=_tag):
    """A message behind the handshake; the table above says what each means."""


class PeerPrepare(PeerMessage, frozen=True):
    """Restore the newest intact checkpoint, or this one."""

    attempt: _Count
    term: _Count
    nonce: _Text
    checkpoint_id: _Text | None


class PeerStart(PeerMessage, frozen=True):
    """Start the script; its ranks meet at this port of the leader."""

    attempt: _Count
    port: _Count


class PeerKill(PeerMessage, frozen=True):
    """Kill the script of this attempt."""

    attempt: _Count


class PeerPublish(PeerMessage, frozen=True):
    """Publish a save request to the local ranks."""

    attempt: _Count
    command: PublishSave


class PeerWithdraw(PeerMessage, frozen=True):
    """Withdraw the save request."""


class PeerShow(PeerMessage, frozen=True):
    """Show a notice to the script; its deadline is this long from now [s]."""

    notice: Notice
    remaining_s: _Clock | None


class PeerUpload(PeerMessage, frozen=True):
    """Upload a shard."""

    command: UploadShard


class PeerAbandon(PeerMessage, frozen=True):
    """Stop uploading a checkpoint."""

    checkpoint_id: _Text


class PeerCommitted(PeerMessage, frozen=True):
    """A checkpoint was committed; these files are no longer needed."""

    step: _Count
    paths: tuple[_Text, ...]


class PeerAcknowledge(PeerMessage, frozen=True):
    """Acknowledge a notice at its source."""

    notice: Notice


class PeerExit(PeerMessage, frozen=True):
    """End `exec` with this code; `released`: the outcome with which the run was released, if it was."""

    code: _Status
    message: _Text
    released: _Text | None


class PeerPrepared(PeerMessage, frozen=True):
    """This checkpoint is restored."""

    attempt: _Count
    checkpoint_id: _Text | None
    step: _Count


class PeerPrepareFailed(PeerMessage, frozen=True):
    """The checkpoint cannot be restored."""

    attempt: _Count
    code: _Status
    message: _Text


class PeerExited(PeerMessage, frozen=True):
    """The script ended."""

    attempt: _Count
    status: _Status


class PeerFacts(PeerMessage, frozen=True):
    """What the local ranks' pages show, with the newest request that they have seen."""

    attempt: _Count
    at: _Clock
    published: _Count
    facts: tuple[Fact, ...]


class PeerUploaded(PeerMessage, frozen=True):
    """Uploads have ended."""

    facts: tuple[Fact, ...]


class PeerNotice(PeerMessage, frozen=True):
    """A notice of this machine."""

    notice: Notice
    at: _Clock


class PeerStop(PeerMessage, frozen=True):
    """A user asked this machine to stop the run."""

    now: bool
    reason: _Text


class PeerPing(PeerMessage, frozen=True):
    """Asks for a sign of life."""

    at: _Clock


class PeerPong(PeerMessage, frozen=True):
    """Answers with the same reading."""

    at: _Clock


def proof(token: str, *, side: str, generation: int, node: int, challenge: str) -> str:
    """Return the proof that one side (`leader` or `member`) knows the token of this generation."""
    text = f"windfall {VERSION} {side} {generation} {node} {challenge}"
    return hmac.new(token.encode(), text.encode(), hashlib.sha256).hexdigest()


def proves(answer: object, expected: str) -> bool:
    """Return whether a proof is the expected one, compared in constant time."""
    return isinstance(answer, str) and hmac.compare_digest(answer.encode(), expected.encode())


def to_line(message: Struct) -> bytes:
    """Encode a message; bytes of a file's name that are not UTF-8 become question marks."""
    text = json.dumps(codec.encode(message), separators=(",", ":"), ensure_ascii=False)
    return text.encode(errors="replace") + b"\n"


def from_line(line: bytes, kind: Any) -> Any:
    """Decode a message.

    Args:
        line: with its line break.
        kind: a message of the handshake, or `PeerMessage` for any of the loop.

    Raises:
        ValueError: it is cut off, or not such a message.
    """
    if not line.endswith(b"\n"):
        raise ValueError("a message was cut off")
    try:
        return codec.decode_text(line, _LOOP if kind is PeerMessage else kind)
    except ValueError as error:
        raise ValueError(f"its message is invalid ({error})") from None


_LOOP: Any = codec.any_of(PeerMessage.__subclasses__())


def host_and_port(address: str) -> tuple[str, int]:
    """Split `host:port` (an IPv6 host in brackets).

    Raises:
        ValueError: it does not have this form.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ValueError(f"{address!r} is not host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)
