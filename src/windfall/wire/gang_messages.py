"""What the machines of an allocation say to each other while items run on all of them: JSON lines over TCP.

Machine 0 leaves in the run's store where it listens, with the secret of the handshake (`wire.peer_messages`).

    0 -> others   begin {folder}   end {folder, killed}   over {done}
    others -> 0   ready {folder}
    both          beat
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta

from windfall import codec
from windfall.structs import Struct, Tagged
from windfall.wire.environment import (
    ALLOCATION,
    ALLOCATION_ADDRESS,
    ALLOCATION_HOSTS,
    ALLOCATION_LAUNCH,
    ALLOCATION_RANK,
)

VERSION = 1
_Text = Annotated[str, Meta(max_length=1 << 14)]


class Allocation(Struct, frozen=True):
    """The nodes that a machine is one of.

    Attributes:
        name: no other order's.
        rank: of this machine, from 0.
        hosts: names of the nodes, in the order of their numbers.
        address: of machine 0.
        launch: variables of a program that starts others on all nodes, with places for the numbers of ranks; None: not set.
    """

    name: str
    rank: int
    hosts: tuple[str, ...]
    address: str
    launch: Mapping[str, str | None]


def allocation_in(environ: Mapping[str, str]) -> Allocation | None:
    """Return the allocation that a machine's variables name; None for a machine by itself.

    Raises:
        ValueError: they are not what a provider writes.
    """
    if ALLOCATION not in environ:
        return None
    launch: Mapping[str, str | None] = codec.decode_text(
        environ.get(ALLOCATION_LAUNCH, "{}").encode(), Mapping[str, str | None]
    )
    hosts = tuple(filter(None, environ.get(ALLOCATION_HOSTS, "").split(",")))
    return Allocation(
        environ[ALLOCATION], int(environ.get(ALLOCATION_RANK, "0")), hosts, environ.get(ALLOCATION_ADDRESS, ""), launch
    )


class GangMeeting(Tagged, frozen=True):
    """Where machine 0 listens, and the secret of the handshake."""

    address: str
    token: str


class GangWord(enum.StrEnum):
    """What a message is about."""

    BEGIN = "begin"
    """An item is about to start: have its folder."""
    READY = "ready"
    END = "end"
    """Its processes end, on all machines."""
    OVER = "over"
    """No item follows."""
    BEAT = "beat"


class GangMessage(Struct, frozen=True, forbid_unknown_fields=True):
    """A message.

    Attributes:
        folder: of an item, on machine 0.
        killed: the item was cut off, so that processes of it may still be about to start.
        done: the bag is over.
    """

    word: GangWord
    folder: _Text = ""
    killed: bool = False
    done: bool = False
