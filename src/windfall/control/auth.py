"""Authentication at the controller.

Kinds of bearer tokens:

- a *user's* token is random, and only its SHA-256 is stored: 256 random bits need no slow hash;
- a *machine's* token names its job and machine and carries an HMAC-SHA256 by the installation's key, so that none is
  stored and each outlives the controller's process;
- a *credential* is given to an order's machines at boot: it names job and order under another purpose of the same key,
  and each machine of the order exchanges it for its machine token once (`Database.claim` records which did).
"""

from __future__ import annotations

import base64
import enum
import hashlib
import hmac
import json
from collections.abc import Callable, Iterable
from typing import Protocol

from windfall.structs import Struct

USER_PREFIX, MACHINE_PREFIX, CREDENTIAL_PREFIX, PEERS_PREFIX = "wu", "wm", "wc", "wp"
_TOKEN_CHARACTERS_MAX = 4096
"""Longest token that is checked."""


class Purpose(enum.StrEnum):
    """What a derived token is for."""

    MACHINE = MACHINE_PREFIX
    CREDENTIAL = CREDENTIAL_PREFIX
    PEERS = PEERS_PREFIX


class User(Struct, frozen=True):
    """A user who called with a valid token; an admin may see and stop all jobs, and release unneeded machines."""

    name: str
    admin: bool


class MachineCaller(Struct, frozen=True):
    """A machine that called with its token; it may only report for itself."""

    job_id: str
    machine_id: str


Caller = User | MachineCaller


class KnownUser(Protocol):
    """A user with the hash of their token."""

    @property
    def name(self) -> str:
        """Return the user's name."""
        ...

    @property
    def token_hash(self) -> str:
        """Return `hash_of` the user's token."""
        ...

    @property
    def admin(self) -> bool:
        """Return whether the user may see and stop all jobs."""
        ...


def user_token(randomness: str) -> str:
    """Make a user's token of at least 256 random bits, as text."""
    return f"{USER_PREFIX}.{randomness}"


def hash_of(token: str) -> str:
    """Return the hash of a user's token, which is all that is stored of it."""
    return hashlib.sha256(token.encode()).hexdigest()


def machine_token(key: bytes, job_id: str, machine_id: str) -> str:
    """Return one machine's token; the same at each call."""
    return _derive(key, Purpose.MACHINE, (job_id, machine_id))


def credential(key: bytes, job_id: str, order_token: str) -> str:
    """Return the credential of an order's machines; the same at each call, so that an order can be repeated."""
    return _derive(key, Purpose.CREDENTIAL, (job_id, order_token))


def peers_token(key: bytes, job_id: str) -> str:
    """Return the secret by which one job's machines authenticate one another; the same at each call."""
    return _derive(key, Purpose.PEERS, (job_id, "peers"))


def open_credential(key: bytes, text: str) -> tuple[str, str] | None:
    """Return (job, order token) of a credential, None if this installation did not issue it."""
    return _open(key, Purpose.CREDENTIAL, text)


class Authenticator:
    """Maps bearer tokens to callers.

    Args:
        key: the installation's.
        users: returns all users; called each time, so that a removed user is refused at once.
    """

    def __init__(self, key: bytes, users: Callable[[], Iterable[KnownUser]]) -> None:
        self._key = key
        self._users = users

    def caller(self, token: str) -> Caller | None:
        """Return the caller, None if the token is unknown; a nearly right token takes as long as a wrong one."""
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
