"""Offers, orders, machines and charges: the types exchanged between the driver and the providers.

Imports only `terms`.  Times are by the provider's wall clock, which is the basis of its bill.
"""

from __future__ import annotations

import enum

from windfall.structs import Tagged
from windfall.terms import Reliability, Seconds, Usd, WallTime


class Refusal(enum.StrEnum):
    """Why an order, or part of it, was refused.  Only `NO_CAPACITY` is worth waiting for."""

    NO_CAPACITY = "no-capacity"
    """No machine of this type is available in this zone now."""
    QUOTA = "quota"
    """The account's limit for this type is reached; waiting does not help."""
    CREDENTIALS = "credentials"
    """The provider rejected the account's credentials."""
    PRICE = "price"
    """The market price is above the bid."""
    INVALID = "invalid"
    """The type or zone is unknown, or the request is not supported."""
    CANCELLED = "cancelled"
    """The token was cancelled earlier."""


class MachineLifecycle(enum.StrEnum):
    """Lifecycle state of a machine."""

    PENDING = "pending"
    """Ordered and confirmed, but not started; not billed."""
    RUNNING = "running"
    GONE = "gone"


class MachineEndCause(enum.StrEnum):
    """Why a machine ended, as reported by its provider."""

    PREEMPTED = "preempted"
    RELEASED = "released"
    """Released by its owner."""
    STOPPED = "stopped"
    """Stopped itself, from inside."""
    FAILED = "failed"
    """Broke, or never started."""


OfferKey = tuple[str, str, str, Reliability]
"""Identity of an offer: provider, type, zone, reliability, but not the price."""


class Offer(Tagged, frozen=True):
    """A machine type that a provider offers.

    Attributes:
        price_usd_per_hour: current price of one machine; billing uses the price recorded at the purchase.
        on_demand_usd_per_hour: price of the same machine on demand; the on-demand baseline.
        reliability: whether it can be preempted.
        notice_s: the promised notice before a preemption [s]; 0 for none.
        startup_s: usual time from an order to the start of the machine [s]; None if unknown.
        bid: whether an order may set a price limit.
        refund: whether the hour in which it is preempted is free.
        quoted_at: when this price was queried.
    """

    provider: str
    machine_type: str
    zone: str
    price_usd_per_hour: float
    on_demand_usd_per_hour: float
    reliability: Reliability
    notice_s: Seconds
    quoted_at: WallTime
    cpus: float = 0.0
    memory_gib: float = 0.0
    accelerator: str | None = None
    accelerators: int = 0
    startup_s: Seconds | None = None
    bid: bool = False
    refund: bool = False

    @property
    def key(self) -> OfferKey:
        """Its identity."""
        return self.provider, self.machine_type, self.zone, self.reliability


class Order(Tagged, frozen=True):
    """An order for `count_min` to `count_max` machines.

    Attributes:
        token: derived from job and sequence number; the same token never buys twice.
        owner: this installation's tag, set on every machine.
        bid_usd_per_hour: maximum price; None for the provider's default.
        gang: all `count_max` machines or none; they are one allocation, and are lost together.
    """

    token: str
    owner: str
    job_id: str
    offer: Offer
    count_min: int
    count_max: int
    bid_usd_per_hour: float | None = None
    gang: bool = False


class Boot(Tagged, frozen=True):
    """How a machine starts.  Never written to the journal: the environment may contain a one-time credential.

    Attributes:
        argv: the command the machine runs at its start; when it ends, the machine stops itself.
        env: environment of that process; not readable by other processes or users.
    """

    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()


class Answer(Tagged, frozen=True):
    """A provider's answer to an order.

    Attributes:
        machine_ids: the confirmed machines, up to `count_max`; the same for every call with the same token.
        refusal: why there are not more (None if `count_max` were confirmed).
        message: the provider's message for the user.
    """

    token: str
    machine_ids: tuple[str, ...]
    refusal: Refusal | None = None
    message: str = ""


class Machine(Tagged, frozen=True):
    """A machine in its provider's listing.

    Attributes:
        token: of its order.
        price_usd_per_hour: recorded at the purchase.
        started: when billing started; None while pending.
        ended: when billing ended; None while it runs.
        cause: why it ended; None while it runs, or if unknown.
        preemption_at: when the provider will preempt it, if announced; never a reason to buy on its own.
        address: where other machines reach it; empty if unknown.
        allocation: name of the gang that it belongs to, whose machines live and die together; empty for none.
    """

    machine_id: str
    owner: str
    job_id: str
    token: str
    provider: str
    machine_type: str
    zone: str
    reliability: Reliability
    price_usd_per_hour: float
    lifecycle: MachineLifecycle
    started: WallTime | None = None
    ended: WallTime | None = None
    cause: MachineEndCause | None = None
    preemption_at: WallTime | None = None
    address: str = ""
    allocation: str = ""


class Charge(Tagged, frozen=True):
    """A line of a provider's bill.

    Attributes:
        charge_id: unique at the provider; the same line may be reported twice.
        amount_usd: negative for a refund.
        started, ended: the period it covers.
        settled: the line is final; an unsettled line with the same id may still change.
        job_id: the machine's job tag; empty if the provider's bill has no tags.
    """

    charge_id: str
    machine_id: str
    amount_usd: Usd
    started: WallTime
    ended: WallTime
    settled: bool
    job_id: str = ""


class Bill(Tagged, frozen=True):
    """The lines of a bill after a cursor; `cursor` is the cursor for the next query."""

    charges: tuple[Charge, ...]
    cursor: str


class Quota(Tagged, frozen=True):
    """The account's limit for a machine type in a zone; `zone` None: over all zones."""

    machine_type: str
    zone: str | None
    limit: int
    used: int


class Capabilities(Tagged, frozen=True):
    """What a provider can do.

    Attributes:
        bids, refunds: supports price limits on orders; refunds the hour of a preemption.
        preempts: supports `preempt` (for rehearsals).
        idempotent_orders: it tracks tokens itself; otherwise the implementation looks up its own machines first.
        notice_format: the notice format on its machines (`aws`, `google`, `azure`, `local`).
        bill_lag_s: how long after a machine's end its charges are settled [s].
    """

    bids: bool
    refunds: bool
    preempts: bool
    idempotent_orders: bool
    notice_format: str
    bill_lag_s: Seconds
