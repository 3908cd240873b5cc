"""Who may do what at the controller.

Kinds of bearer tokens:

- a *user's* is random and kept as its SHA-256 alone: 256 random bits need no slow hash;
- a *machine's* names its job and its machine and carries an HMAC-SHA256 by the installation's key, so that none of them is
  stored and each survives the controller;
- a *credential* is what an order's machines are born with: it names job and order under another purpose of the same key,
  and buys each machine of that order its machine token once (`Database.claim` keeps who did).
"""

from __future__ import annotations

import base64
import enum
import hashlib
import hmac
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

USER_PREFIX, MACHINE_PREFIX, CREDENTIAL_PREFIX, PEERS_PREFIX = "wu", "wm", "wc", "wp"
_TOKEN_CHARACTERS_MAX = 4096
"""Longest token that is looked at."""


class Purpose(enum.StrEnum):
    """What a derived token is for."""

    MACHINE = MACHINE_PREFIX
    CREDENTIAL = CREDENTIAL_PREFIX
    PEERS = PEERS_PREFIX


@dataclass(frozen=True, slots=True)
class User:
    """Somebody who called with a valid token; an admin sees and stops everybody's jobs, and machines nobody needs."""

    name: str
    admin: bool


@dataclass(frozen=True, slots=True)
class MachineCaller:
    """A machine that called with its token; it may report for itself and nothing else."""

    job_id: str
    machine_id: str


Caller = User | MachineCaller


class KnownUser(Protocol):
    """A user with the hash of their token."""

    @property
    def name(self) -> str:
        """Return what they are called."""
        ...

    @property
    def token_hash(self) -> str:
        """Return `hash_of` their token."""
        ...

    @property
    def admin(self) -> bool:
        """Say whether they may see and stop everybody's jobs."""
        ...


def user_token(randomness: str) -> str:
    """Make a user's token of at least 256 random bits, as text."""
    return f"{USER_PREFIX}.{randomness}"


def hash_of(token: str) -> str:
    """Return what is kept of a user's token."""
    return hashlib.sha256(token.encode()).hexdigest()


def machine_token(key: bytes, job_id: str, machine_id: str) -> str:
    """Return the token of one machine; the same at each call."""
    return _derive(key, Purpose.MACHINE, (job_id, machine_id))


def credential(key: bytes, job_id: str, order_token: str) -> str:
    """Return what an order's machines are born with; the same at each call, so that an order can be repeated."""
    return _derive(key, Purpose.CREDENTIAL, (job_id, order_token))


def peers_token(key: bytes, job_id: str) -> str:
    """Return by what the machines of one job know each other; the same at each call."""
    return _derive(key, Purpose.PEERS, (job_id, "peers"))


def open_credential(key: bytes, text: str) -> tuple[str, str] | None:
    """Return (job, order token) of a credential, None if this installation never gave it out."""
    return _open(key, Purpose.CREDENTIAL, text)


class Doorkeeper:
    """Tells who a bearer token belongs to.

    Args:
        key: the installation's.
        users: everybody who has a token, asked at each call, so that one who was removed is out at once.
    """

    def __init__(self, key: bytes, users: Callable[[], Iterable[KnownUser]]) -> None:
        self._key = key
        self._users = users

    def caller(self, token: str) -> Caller | None:
        """Return who calls, None if nobody has this token; takes as long for a nearly right one as for a wrong one."""
        if len(token) > _TOKEN_CHARACTERS_MAX:
            return None
        if token.startswith(f"{MACHINE_PREFIX}."):
            names = _open(self._key, Purpose.MACHINE, token)
            return None if names is None else MachineCaller(*names)
        presented, found = hash_of(token), None
        for user in self._users():
            if hmac.compare_digest(user.token_hash, presented):
                found = User(user.name, user.admin)
        return found


def _derive(key: bytes, purpose: Purpose, names: tuple[str, str]) -> str:
    body = base64.urlsafe_b64encode(json.dumps(names, separators=(",", ":")).encode()).decode().rstrip("=")
    return f"{purpose.value}.{body}.{_seal(key, purpose, body)}"


def _open(key: bytes, purpose: Purpose, text: str) -> tuple[str, str] | None:
    kind, _, rest = text.partition(".")
    body, _, seal = rest.rpartition(".")
    if len(text) > _TOKEN_CHARACTERS_MAX or kind != purpose.value or not text.isascii():
        return None
    if not hmac.compare_digest(seal, _seal(key, purpose, body)):
        return None
    first, second = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    return str(first), str(second)


def _seal(key: bytes, purpose: Purpose, body: str) -> str:
    return hmac.new(key, f"{purpose.value}\0{body}".encode(), hashlib.sha256).hexdigest()
