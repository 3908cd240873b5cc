"""The `local` provider: `ports.Provider` on this host's market, whose daemon is started on demand."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import httpx

from windfall.codec import decode, encode
from windfall.errors import Misuse, ProviderDenied, ProviderError, ProviderUnreachable
from windfall.market import (
    Answer,
    Bill,
    BlockSettings,
    BootSpec,
    Capabilities,
    Machine,
    Offer,
    Order,
    OrderPreview,
    Quota,
)
from windfall.ports import Clock
from windfall.providers.local import machine_folder, market_config, market_daemon, market_database
from windfall.providers.local.market_database import NAME
from windfall.providers.local.market_engine import offers_of, quotas_of
from windfall.providers.provider_settings import ProviderSettings
from windfall.terms import Seconds
from windfall.wire.python_programs import program

TIMEOUT_S = 20.0
"""Time limit of one call [s]."""
START_S_MAX = 30.0
START_LOCK = "start.lock"

MARKET = "market"
"""Folder of the market, inside the installation's folder."""


class LocalProvider:
    """Buys machines from the market in a folder."""

    name = NAME

    def __init__(
        self, folder: str, clock: Clock, *, start: bool = True, transport: httpx.BaseTransport | None = None
    ) -> None:
        """Create the provider; nothing is started or read yet.

        Args:
            folder: the market's; made on first use.
            clock: for pauses between attempts.
            start: whether to start the market's daemon if it does not run; otherwise only `offers` and `quota` answer.  A
                market that never was open has no machines and no bill: who asks for those starts no daemon.
            transport: carries the calls; for tests that lose them.
        """
        self._folder, self._clock, self._may_start = Path(folder).absolute(), clock, start
        self._http = httpx.Client(transport=transport, timeout=TIMEOUT_S, trust_env=False)

    def close(self) -> None:
        """Close the connections; market and machines keep running."""
        self._http.close()

    def capabilities(self) -> Capabilities:
        """Return what `market.yaml` says; see the port."""
        sold = market_config.load(self._folder)
        return Capabilities(
            bids=sold.bids,
            refunds=sold.billing.refund,
            preempts=True,
            idempotent_orders=True,
            notice_format="aws",
            bill_lag_s=Seconds(sold.billing.lag),
            keeps_ended_s=Seconds(sold.forget_after),
            price_floats=sold.billing.floats,
            gangs=True,
            nearby=True,
        )

    def offers(self, block: BlockSettings = ()) -> tuple[Offer, ...]:
        """See the port: what a job's block says changes no price."""
        del block
        if not self._may_start and not self._is_open():
            return self._offers_while_closed()
        found: tuple[Offer, ...] = decode(self._call("offers"), tuple[Offer, ...])
        return found

    def _offers_while_closed(self) -> tuple[Offer, ...]:
        """Return what the market would offer now: its prices follow from its configuration and its age."""
        config, now = market_config.load(self._folder), self._clock.wall_time()
        opened_at = market_database.read_opened_at(self._folder)
        return offers_of(config, now if opened_at is None else opened_at, now)

    def _never_opened(self) -> bool:
        return not self._is_open() and market_database.read_opened_at(self._folder) is None

    def quota(self, owner: str, block: BlockSettings = ()) -> tuple[Quota, ...]:
        """See the port."""
        del block
        if not self._may_start and not self._is_open():
            return quotas_of(market_config.load(self._folder), lambda *_: 0)
        found: tuple[Quota, ...] = decode(self._call("quota", owner), tuple[Quota, ...])
        return found

    def preview(self, order: Order, block: BlockSettings) -> OrderPreview:
        """See the port: this market says nothing beforehand."""
        del order, block
        return OrderPreview()

    def order(self, order: Order, boot: BootSpec) -> Answer:
        """See the port."""
        answer: Answer = decode(self._call("order", encode(order), encode(boot)), Answer)
        return answer

    def cancel(self, token: str) -> None:
        """See the port."""
        self._call("cancel", token)

    def list(self, owner: str) -> tuple[Machine, ...]:
        """See the port."""
        if self._may_start and self._never_opened():
            return ()
        found: tuple[Machine, ...] = decode(self._call("list", owner), tuple[Machine, ...])
        return found

    def release(self, machine_id: str) -> None:
        """See the port."""
        self._call("release", machine_id)

    def charges(self, owner: str, cursor: str) -> Bill:
        """See the port."""
        if self._may_start and self._never_opened():
            return Bill((), cursor)
        bill: Bill = decode(self._call("charges", owner, cursor), Bill)
        return bill

    def preempt(self, machine_id: str, notice_s: Seconds | None) -> None:
        """See the port."""
        self._call("preempt", machine_id, notice_s)

    # ------------------------------------------------------------------------------------------------------- the wire

    def _call(self, method: str, *arguments: object) -> Any:
        reply, content = self._post(method, json.dumps(arguments))
        if reply.status_code == 200:
            return content["result"]
        message = f"{content['error']} ({self._folder})"
        if reply.status_code == 401:
            raise ProviderDenied(message)
        raise ProviderUnreachable(message) if reply.status_code >= 500 else ProviderError(message)

    def _post(self, method: str, body: str) -> tuple[httpx.Response, Any]:
        again = True
        while True:
            url = self._address()
            try:
                headers = {"Authorization": f"Bearer {market_daemon.token_of(self._folder)}"}
                reply = self._http.post(f"{url}/{method}", content=body, headers=headers)
                return reply, reply.json()
            except (httpx.HTTPError, ValueError) as error:
                # A market that closed during this call is started again, and executes nothing twice.
                if not again or self._still_serves(url):
                    raise ProviderUnreachable(f"the local market in {self._folder} did not answer: {error}") from error
                again = False

    def _still_serves(self, url: str) -> bool:
        """Return whether the called daemon still serves: one that closes removes its address first."""
        address = machine_folder.read(self._folder, market_daemon.ADDRESS)
        return self._is_open() and address is not None and address["url"] == url

    def _address(self) -> str:
        """Return the market's address; start its daemon first if needed."""
        until = self._clock.now() + START_S_MAX
        while True:
            self._ensure_open()
            if (address := machine_folder.read(self._folder, market_daemon.ADDRESS)) is not None:
                return str(address["url"])
            if self._clock.now() >= until:
                raise ProviderUnreachable(f"the local market in {self._folder} did not start within {START_S_MAX:g} s")
            self._clock.sleep(Seconds(0.02))

    def _ensure_open(self) -> None:
        if self._is_open():
            return
        if not self._may_start:
            raise ProviderUnreachable(f"the local market in {self._folder} is closed")
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = os.open(self._folder / START_LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise Misuse(f"the local market cannot use {self._folder}: {error.strerror}") from error
        try:
            # One of several callers starts it; the others wait here and find it open.
            fcntl.flock(fd, fcntl.LOCK_EX)
            if not self._is_open():
                self._open()
        finally:
            os.close(fd)

    def _is_open(self) -> bool:
        """Return whether a daemon runs: it holds the lock while it does, so a stale address is never called."""
        try:
            fd = os.open(self._folder / market_daemon.LOCK, os.O_RDONLY)
        except (FileNotFoundError, NotADirectoryError):
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        return False

    def _open(self) -> None:
        command = program("windfall.providers.local.market_daemon", str(self._folder), "--detach")
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=START_S_MAX, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise ProviderUnreachable(
                f"the local market in {self._folder} did not start within {START_S_MAX:g} s"
            ) from error
        if done.returncode != 0:
            output = done.stderr.strip()
            raise Misuse(output.splitlines()[-1] if output else "the local market's daemon ended when it started")


def open_provider(installation: Path, clock: Clock, *, start: bool, settings: ProviderSettings) -> LocalProvider:
    """Open an installation's local market; see `LocalProvider`.  Its settings are limits, which its buyer keeps."""
    del settings
    return LocalProvider(str(installation / MARKET), clock, start=start)
