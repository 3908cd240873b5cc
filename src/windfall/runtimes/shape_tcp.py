"""Torch's TCP store, in which machines of an elastic training meet: the one that leads holds it, all connect to it.

Torch asks a name server for the name of each address that it connects to, even of 127.0.0.1, and offers no way not to.  A lost
question costs 5 s, a name server that never answers 10 s once: connecting waits for that, what is asked afterwards does not.
"""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import Any

ANSWER_WITHIN_S = 5.0
"""How long a machine may take to accept a connection, and a key to be there [s]; torch has no limit for an answer."""
_CONNECT_WITHIN_S = 30.0
"""How long torch may take to connect to a store whose machine answers [s]."""


def opened_store(host: str, port: int, within_s: float) -> Any:
    """Return a TCP store that this process holds, and that listens at one address: torch by itself listens at all.

    Args:
        host: where it listens.
        port: there; 0 for one that is free.
        within_s: how long a key that this process reads may take to be there [s].

    Raises:
        ImportError: torch is not installed.
        OSError, RuntimeError: it cannot be opened.
    """
    # It takes seconds to import, and of the machines' own processes only that of the one that leads needs it.
    from torch.distributed import TCPStore  # noqa: PLC0415

    listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    store = TCPStore(
        host, listener.getsockname()[1], is_master=True, wait_for_workers=False,
        timeout=timedelta(seconds=_CONNECT_WITHIN_S), master_listen_fd=listener.detach(),
    )  # fmt: skip
    store.set_timeout(timedelta(seconds=within_s))
    return store


def connected(address: str) -> Any:
    """Return a connection to a TCP store.

    Args:
        address: its host and port.

    Raises:
        OSError, RuntimeError: it does not answer.
    """
    from torch.distributed import TCPStore  # noqa: PLC0415 - as in `opened_store`

    host, _, port = address.rpartition(":")
    # torch would try for long, and say so at length.
    socket.create_connection((host, int(port)), ANSWER_WITHIN_S).close()
    store = TCPStore(
        host, int(port), is_master=False, wait_for_workers=False, timeout=timedelta(seconds=_CONNECT_WITHIN_S)
    )
    store.set_timeout(timedelta(seconds=ANSWER_WITHIN_S))
    return store
