"""Checks before any route: the request's size, its token, and whether the controller is shutting down.

Plain ASGI, so that the body of an unauthenticated request is neither read nor parsed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import traceback
from collections.abc import Callable

from fastapi import HTTPException
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from windfall.control.auth import Caller
from windfall.control.connections import Connections
from windfall.errors import EXIT_FAILED, EXIT_MISUSE, WindfallError
from windfall.ports import Clock
from windfall.terms import Seconds

BODY_BYTES_MAX = 4 * 1024 * 1024
"""Largest request body: a job file with its secrets is far smaller, and code goes to the store."""
BODY_S = 20.0
"""How long to wait for each part of a request's body [s]."""
_TOO_LARGE = f"the request is larger than {BODY_BYTES_MAX} bytes"
OPEN_PATHS = frozenset({"/v1/ping", "/v1/machines/claim"})
"""Answered without a bearer token: the ping, and the exchange of a credential for a token."""


class Presence:
    """Tracks requests in progress, so that a controller started on demand can shut down when it is idle."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._inside = 0
        self._last = clock.now()
        self._closed = False

    def enter(self) -> bool:
        """Admit a request; False if the controller is shutting down."""
        with self._lock:
            self._inside += not self._closed
            return not self._closed

    def leave(self) -> None:
        """Note that an admitted request has been answered."""
        with self._lock:
            self._inside -= 1
            self._last = self._clock.now()

    def close_if_idle(self, idle_s: Seconds, unfinished: Callable[[], int]) -> bool:
        """Close if no request came for `idle_s` and no job is unfinished; then no request is admitted any more."""
        with self._lock:
            quiet = self._inside == 0 and self._clock.now() - self._last >= idle_s
        if not quiet or unfinished() > 0:
            return False
        with self._lock:
            # A request that came meanwhile may have submitted a job.
            if self._inside == 0 and self._clock.now() - self._last >= idle_s:
                self._closed = True
        return self._closed


class Gate:
    """The ASGI middleware; `scope["windfall"]` is the `Caller`, None on an open path."""

    def __init__(
        self,
        app: ASGIApp,
        caller: Callable[[str], Caller | None],
        presence: Presence,
        connections: Connections | None = None,
    ) -> None:
        self._app = app
        self._caller = caller
        self._presence = presence
        self._connections = connections

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on to the routes, or answer it with an error."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if not self._presence.enter():
            await refuse(send, 503, "the controller is shutting down: try again", EXIT_FAILED)
            return
        if self._connections is not None:
            self._connections.enter(scope.get("client"))
        try:
            await self._pass(scope, receive, send)
        finally:
            self._presence.leave()
            if self._connections is not None:
                self._connections.leave(scope.get("client"), known=scope.get("windfall") is not None)

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > BODY_BYTES_MAX:
            await refuse(send, 413, _TOO_LARGE, EXIT_MISUSE)
            return
        scope["windfall"] = None
        if scope["path"] not in OPEN_PATHS:
            kind, _, token = headers.get("authorization", "").partition(" ")
            try:
                known = await run_in_threadpool(self._caller, token.strip()) if kind.lower() == "bearer" else None
            except WindfallError as error:
                await refuse(send, 503, str(error), error.exit_code)
                return
            if known is None:
                message = "the controller does not know this token: set WINDFALL_TOKEN to the one you were given"
                await refuse(send, 401, message, EXIT_MISUSE)
                return
            scope["windfall"] = known
        await self._answer(scope, _LimitedBody(receive).receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def sending(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except Exception as error:
            if started:
                raise
            # The place only: the text of an unexpected error may hold parts of the request.
            where = "".join(traceback.format_tb(error.__traceback__))
            logging.getLogger(__name__).error(
                "%s %s failed with %s:\n%s", scope["method"], scope["path"], type(error).__name__, where
            )
            message = f"internal error in the controller ({type(error).__name__}): its log has the details"
            await refuse(send, 500, message, EXIT_FAILED)


class _LimitedBody:
    """A request's body as it arrives, with a limit on its size and on the wait for each part."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._left = BODY_BYTES_MAX
        self._whole = False

    async def receive(self) -> Message:
        if self._whole:
            return await self._receive()
        try:
            message = await asyncio.wait_for(self._receive(), BODY_S)
        except TimeoutError:
            raise HTTPException(408, f"the request body did not arrive within {BODY_S:g} s") from None
        if message["type"] == "http.request":
            self._left -= len(message.get("body", b""))
            self._whole = not message.get("more_body", False)
            if self._left < 0:
                raise HTTPException(413, _TOO_LARGE)
        return message


async def refuse(send: Send, status: int, message: str, exit_code: int) -> None:
    """Answer with an error."""
    body = json.dumps({"error": message, "exit_code": exit_code}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 503:
        headers.append((b"retry-after", b"1"))
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
