"""The worlds in which the provider suite runs: a market, the truth about it, and a way to let time pass.

To add an implementation: a function from `Setup` and a folder to a context manager of a `World`, entered in `WORLDS`.
Everything that takes time in a test goes through the world, so that a market in virtual time fits as well.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import httpx
import yaml

from tests.contracts.simulated_market import simulated
from tests.contracts.slurm_market import slurm
from tests.contracts.toy_market import toy
from tests.simulation.market_shop import due_usd
from windfall.linux import processes
from windfall.linux.clock import SystemClock
from windfall.market import BY_THE_SECOND, Answer, BillingBasis, BillingRule, BootSpec
from windfall.ports import Provider
from windfall.providers.local import machine_folder, market_database
from windfall.providers.local.local_provider import LocalProvider
from windfall.terms import Seconds
from windfall.wire.notice_formats import AWS_ACTION_PATH, AWS_TOKEN_HEADER, AWS_TOKEN_PATH, AWS_TOKEN_TTL_HEADER
from windfall.wire.notice_formats import parse_aws_action as parse_action

TYPE, ZONE, OTHER_ZONE = "small", "zone-a", "zone-b"
PATIENCE_S = 20.0
LOST, DOUBLED, UNSENT = "lost", "doubled", "unsent"
"""What may become of a call: carried out and not answered, carried out twice, not carried out and not answered."""


@dataclass(frozen=True)
class Setup:
    """A market of `TYPE` in two zones.

    Attributes:
        prices: of spot in `ZONE`: (since when [s], USD/h); a dollar a second by default, so that cents tell.
        on_demand: in both zones, and above which no default bid goes.
        lag_s: until a bill is settled [s].
        keeps_s: how long ended machines are listed, where that can be chosen [s].
        billing: of spot machines, where that can be chosen.
    """

    prices: tuple[tuple[float, float], ...] = ((0.0, 3600.0),)
    on_demand: float = 9000.0
    capacity: int = 100
    quota: int = 100
    delay_s: float = 0.0
    notice_s: float = 2.0
    refund: bool = False
    lag_s: float = 0.4
    keeps_s: float = 3600.0
    billing: BillingRule = BY_THE_SECOND


class World(Protocol):
    """A market and the truth about it."""

    provider: Provider

    def meeting(self, fault: str) -> AbstractContextManager[Provider]:
        """The same account over a line on which every call meets this fault."""
        ...

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Let time pass until something is so; fail with its name if it never is."""
        ...

    def pass_time(self, duration_s: float) -> None:
        """Let time pass."""
        ...

    def denied(self) -> AbstractContextManager[None]:
        """The account's credentials are wrong."""
        ...

    def half_listing(self) -> AbstractContextManager[Provider]:
        """A part of a listing cannot be read: its second page, a zone, or the end of the answer."""
        ...

    def reopened(self) -> Provider:
        """The same account for a controller that starts again; what ran for the provider alone has been killed."""
        ...

    def boot(self, lasts_s: float | None = None) -> BootSpec:
        """What a machine runs: something that runs without end, or for a given time."""
        ...

    def together(self, calls: Sequence[Callable[[], Answer]]) -> list[Answer]:
        """Make calls at the same time, where there is such a thing."""
        ...

    def breaks(self, machine_id: str) -> None:
        """Let a machine die without notice."""
        ...

    def fails_promise(self, machine_id: str) -> None:
        """Let a confirmed machine fail in place of its start, where `promises_fail`."""
        ...

    def loses(self, machine_id: str) -> None:
        """Let the listing call a machine gone that lives, where `false_deaths`."""
        ...

    def rises(self, machine_id: str) -> str:
        """Let a machine that is gone start again, where `rises_again`; return its name in the listing."""
        ...

    def withdraws(self, machine_id: str) -> bool:
        """Withdraw an announced end; False where that never happens."""
        ...

    def remains(self, owner: str) -> list[str]:
        """What is left of an owner's machines: processes and disks, the truth."""
        ...

    def lives(self, machine_id: str) -> bool:
        """Whether anything of a machine runs: the truth, whatever the provider says."""
        ...

    def notice_left_s(self, machine_id: str) -> float | None:
        """What the machine itself is told of its end [s]; None if nothing."""
        ...

    def metered_usd(self, owner: str) -> float:
        """What an owner's ended machines have cost, by the meter's own records."""
        ...


class _Faulty(httpx.BaseTransport):
    def __init__(self, fault: str) -> None:
        self._fault, self._inner = fault, httpx.HTTPTransport()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Carry a call, with its fault."""
        if self._fault == UNSENT:
            raise httpx.ConnectError("planted: the call was not sent")
        response = self._inner.handle_request(request)
        response.read()
        if self._fault == DOUBLED:
            response = self._inner.handle_request(request)
        if self._fault == LOST:
            raise httpx.ReadError("planted: the answer was lost")
        return response

    def close(self) -> None:
        """Close what it carries with."""
        self._inner.close()


class LocalWorld:
    """The local market: real processes, real time."""

    def __init__(self, setup: Setup, folder: Path) -> None:
        self.folder, self.clock, self._setup = folder, SystemClock(), setup
        folder.mkdir(parents=True, exist_ok=True)
        self.write(setup)
        self.provider = LocalProvider(str(folder), self.clock)

    def write(self, setup: Setup, **more: object) -> None:
        """Write `market.yaml`."""
        document = {
            "types": {TYPE: {"on_demand": setup.on_demand}},
            "zones": [ZONE, OTHER_ZONE],
            "prices": {"points": {f"{TYPE}/{ZONE}": [list(point) for point in setup.prices]}},
            "billing": {"refund": setup.refund, "lag": setup.lag_s, **_billed(setup.billing)},
            "capacity": setup.capacity,
            "quota": setup.quota,
            "allocation_delay": setup.delay_s,
            "notice": setup.notice_s,
            "forget_after": setup.keeps_s,
            **more,
        }
        fresh = self.folder / "market.yaml.new"
        fresh.write_text(yaml.safe_dump(document), "utf-8")
        fresh.replace(self.folder / "market.yaml")

    @contextmanager
    def meeting(self, fault: str) -> Iterator[Provider]:
        """See `World`."""
        provider = LocalProvider(str(self.folder), self.clock, transport=_Faulty(fault))
        try:
            yield provider
        finally:
            provider.close()

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """See `World`."""
        until = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < until, f"waited in vain: {what}"
            time.sleep(0.01)

    def pass_time(self, duration_s: float) -> None:
        """See `World`."""
        self.clock.sleep(Seconds(duration_s))

    @contextmanager
    def denied(self) -> Iterator[None]:
        """See `World`."""
        token = self.folder / "token"
        right = token.read_text()
        token.write_text("wrong")
        try:
            yield
        finally:
            token.write_text(right)

    def half_listing(self) -> AbstractContextManager[Provider]:
        """See `World`: the answer breaks off."""
        return self.meeting(LOST)

    def reopened(self) -> Provider:
        """See `World`: the market's daemon is killed too."""
        self.kill_market()
        self.provider.close()
        self.provider = LocalProvider(str(self.folder), self.clock)
        return self.provider

    def fails_promise(self, machine_id: str) -> None:
        """See `World`."""
        raise NotImplementedError

    def loses(self, machine_id: str) -> None:
        """See `World`."""
        raise NotImplementedError

    def rises(self, machine_id: str) -> str:
        """See `World`."""
        raise NotImplementedError

    def withdraws(self, machine_id: str) -> bool:
        """See `World`."""
        del machine_id
        return False

    def remains(self, owner: str) -> list[str]:
        """See `World`: processes with a machine's name, and disks."""
        ids = [machine.machine_id for machine in self.provider.list(owner)]
        return [name for name in ids if self.lives(name) or (self.home(name) / "disk").exists()]

    def boot(self, lasts_s: float | None = None) -> BootSpec:
        """See `World`."""
        return BootSpec(("sleep", "1000" if lasts_s is None else str(lasts_s)), (("GREETING", "hello"),))

    def together(self, calls: Sequence[Callable[[], Answer]]) -> list[Answer]:
        """See `World`."""
        with ThreadPoolExecutor(len(calls)) as pool:
            return list(pool.map(lambda call: call(), calls))

    def home(self, machine_id: str) -> Path:
        """The folder of a machine."""
        return self.folder / "machines" / machine_id

    def life(self, machine_id: str) -> Mapping[str, object]:
        """What a machine's init says of itself, once it does."""
        self.wait_until(lambda: machine_folder.read(self.home(machine_id), "life.json") is not None, "the init speaks")
        return machine_folder.read(self.home(machine_id), "life.json") or {}

    def breaks(self, machine_id: str) -> None:
        """See `World`: its init is killed."""
        os.kill(int(str(self.life(machine_id)["pid"])), signal.SIGKILL)

    def lives(self, machine_id: str) -> bool:
        """See `World`: whether a process carries its name."""
        return bool(processes.marked(machine_folder.MACHINE_ID, machine_id))

    def notice_left_s(self, machine_id: str) -> float | None:
        """See `World`: asked as a machine asks."""
        url = self.life(machine_id)["metadata_url"]
        token = httpx.put(f"{url}{AWS_TOKEN_PATH}", headers={AWS_TOKEN_TTL_HEADER: "60"}, trust_env=False).text
        reply = httpx.get(f"{url}{AWS_ACTION_PATH}", headers={AWS_TOKEN_HEADER: token}, trust_env=False)
        deadline = parse_action(reply.content).deadline if reply.status_code == 200 else None
        return None if deadline is None else deadline - self.clock.wall_time()

    def metered_usd(self, owner: str) -> float:
        """See `World`: from what the machines' own folders say, without the market's database."""
        opened_at, total = market_database.read_opened_at(self.folder), 0.0
        for machine in self.provider.list(owner):
            end = machine_folder.machine_end(self.home(machine.machine_id))
            if end is not None and end.started is not None:
                assert opened_at is not None, "who sells is open"
                refunded = self._setup.refund and end.cause == "preempted"
                at_purchase = ((0.0, machine.price_usd_per_hour),)
                floats = self._setup.billing.basis is not BillingBasis.PURCHASE
                points = self._setup.prices if floats else at_purchase
                life = (end.started - opened_at, end.ended - opened_at, 0.0)
                total += due_usd(self._setup.billing, points, *life, free=refunded)
        return total

    def kill_market(self) -> None:
        """Kill the daemon, if there is one, and wait until it is gone."""
        address = machine_folder.read(self.folder, "daemon.json")
        started_at = None if address is None else processes.started_at(int(address["pid"]))
        if address is None or started_at is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(address["pid"]), signal.SIGKILL)
        self.wait_until(lambda: processes.started_at(int(address["pid"])) != started_at, "the market's death")

    def close(self) -> None:
        """End market and machines, whatever state they are in."""
        self.provider.close()
        self.kill_market()
        for home in (self.folder / "machines").glob("*"):
            machine_folder.write(home, "request.json", {"release": True, "by": self.clock.wall_time()})
            machine_folder.decide_start(home, {"withdrawn": "released", "at": self.clock.wall_time()})
        for home in (self.folder / "machines").glob("*"):
            self.wait_until(lambda home=home: machine_folder.machine_end(home) is not None, f"the end of {home.name}")


def _billed(rule: BillingRule) -> dict[str, object]:
    """A billing rule in the words of `market.yaml`."""
    words: dict[str, object] = {"minimum": rule.minimum_s, "hour": rule.hour_s}
    if rule.basis is BillingBasis.STARTED_HOUR:
        return words | {"by": "hour"}
    return words | {"price": "purchase" if rule.basis is BillingBasis.PURCHASE else "in-effect"}


@contextmanager
def local(setup: Setup, folder: Path) -> Iterator[LocalWorld]:
    """The world of the local market."""
    world = LocalWorld(setup, folder)
    try:
        yield world
    finally:
        world.close()


WORLDS: dict[str, Callable[[Setup, Path], AbstractContextManager[World]]] = {"local": local, "simulated": simulated}
"""Every implementation that sells as the local market does, on which all is tried."""
CONTRACT_WORLDS = WORLDS | {"toy": toy, "slurm": slurm}
"""Every implementation that the fifteen promises are tried on: also those that keep them in their own way."""
REAL_TIME = frozenset({"local", "slurm"})
"""Those whose time is everybody's."""
SLOW = frozenset({"slurm"})
"""Those that need a whole cluster."""
