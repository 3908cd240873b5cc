"""The `local` provider: `ports.Provider` on a market of this host, which is started when it is needed."""

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
from windfall.market import Answer, Bill, Boot, Capabilities, Machine, Offer, Order, Quota
from windfall.ports import Clock
from windfall.providers.local import config, market, records
from windfall.providers.local.books import NAME
from windfall.terms import Seconds
from windfall.wire.programs import program

TIMEOUT_S = 20.0
"""How long a call may take [s]."""
START_S_MAX = 30.0
START_LOCK = "start.lock"


class LocalProvider:
    """Buys machines of the market in a folder."""

    name = NAME

    def __init__(
        self, folder: str, clock: Clock, *, start: bool = True, transport: httpx.BaseTransport | None = None
    ) -> None:
        """Nothing is started or read yet.

        Args:
            folder: the market's; made on first use.
            clock: for pauses between attempts.
            start: whether to open the market when nobody is there; otherwise such a call raises.
            transport: carries the calls; for tests that lose them.
        """
        self._folder, self._clock, self._starts = Path(folder).absolute(), clock, start
        self._http = httpx.Client(transport=transport, timeout=TIMEOUT_S, trust_env=False)

    def close(self) -> None:
        """Close the connections; market and machines stay."""
        self._http.close()

    def capabilities(self) -> Capabilities:
        """Say what the market's file says; see the port."""
        sold = config.load(self._folder)
        return Capabilities(
            bids=sold.bids,
            refunds=sold.billing.refund,
            preempts=True,
            same_token_same_machines=True,
            notices_as="aws",
            bill_lag_s=Seconds(sold.billing.lag),
        )

    def offers(self) -> tuple[Offer, ...]:
        """See the port."""
        found: tuple[Offer, ...] = decode(self._call("offers"), tuple[Offer, ...])
        return found

    def quota(self, owner: str) -> tuple[Quota, ...]:
        """See the port."""
        found: tuple[Quota, ...] = decode(self._call("quota", owner), tuple[Quota, ...])
        return found

    def order(self, order: Order, boot: Boot) -> Answer:
        """See the port."""
        answer: Answer = decode(self._call("order", encode(order), encode(boot)), Answer)
        return answer

    def cancel(self, token: str) -> None:
        """See the port."""
        self._call("cancel", token)

    def list(self, owner: str) -> tuple[Machine, ...]:
        """See the port."""
        found: tuple[Machine, ...] = decode(self._call("list", owner), tuple[Machine, ...])
        return found

    def release(self, machine_id: str) -> None:
        """See the port."""
        self._call("release", machine_id)

    def charges(self, owner: str, cursor: str) -> Bill:
        """See the port."""
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
        sentence = f"{content['error']} ({self._folder})."
        if reply.status_code == 401:
            raise ProviderDenied(sentence)
        raise ProviderUnreachable(sentence) if reply.status_code >= 500 else ProviderError(sentence)

    def _post(self, method: str, body: str) -> tuple[httpx.Response, Any]:
        again = True
        while True:
            url = self._address()
            try:
                headers = {"Authorization": f"Bearer {market.token_of(self._folder)}"}
                reply = self._http.post(f"{url}/{method}", content=body, headers=headers)
                return reply, reply.json()
            except (httpx.HTTPError, ValueError) as error:
                # A market that closed on this very call opens again, and does nothing twice.
                if not again or self._stands_at(url):
                    raise ProviderUnreachable(f"The local market in {self._folder} did not answer: {error}.") from error
                again = False

    def _stands_at(self, url: str) -> bool:
        """Whether the daemon that was called is there to stay: one that closes takes its address away first."""
        address = records.read(self._folder, market.ADDRESS)
        return self._is_open() and address is not None and address["url"] == url

    def _address(self) -> str:
        """Return where the market answers; opens it first if need be."""
        until = self._clock.now() + START_S_MAX
        while True:
            self._ensure_open()
            if (address := records.read(self._folder, market.ADDRESS)) is not None:
                return str(address["url"])
            if self._clock.now() >= until:
                raise ProviderUnreachable(f"The local market in {self._folder} does not open.")
            self._clock.sleep(Seconds(0.02))

    def _ensure_open(self) -> None:
        if self._is_open():
            return
        if not self._starts:
            raise ProviderUnreachable(f"Nobody sells in {self._folder}: the local market is closed.")
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = os.open(self._folder / START_LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise Misuse(f"The local market cannot use {self._folder}: {error.strerror}.") from error
        try:
            # One of several callers opens it; the others wait here and find it open.
            fcntl.flock(fd, fcntl.LOCK_EX)
            if not self._is_open():
                self._open()
        finally:
            os.close(fd)

    def _is_open(self) -> bool:
        """Whether a daemon lives: it holds the lock as long as it does, so no stale address is ever asked."""
        try:
            fd = os.open(self._folder / market.LOCK, os.O_RDONLY)
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
        command = program("windfall.providers.local.market", str(self._folder), "--detach")
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=START_S_MAX, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise ProviderUnreachable(f"The local market in {self._folder} did not open in time.") from error
        if done.returncode != 0:
            raise Misuse(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "The local market died.")
