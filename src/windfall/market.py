"""What is for sale, what was ordered, what exists, what it cost: the words between driver and providers.

Imports `terms` alone.  Times are the provider's wall clock, since its clock is what it bills by.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from windfall.terms import Reliability, Seconds, Usd, WallTime


class Refusal(enum.StrEnum):
    """Why an order, or the rest of one, was refused.  Only the first is a matter of waiting."""

    NO_CAPACITY = "no-capacity"
    """Nothing left of this type in this zone now."""
    QUOTA = "quota"
    """The account may not have (so many of) these; more waiting changes nothing."""
    CREDENTIALS = "credentials"
    """The provider does not know, or does not trust, this account."""
    PRICE = "price"
    """The market is above the bid."""
    INVALID = "invalid"
    """The provider does not know this type or zone, or cannot do what was asked."""
    CANCELLED = "cancelled"
    """The token was cancelled before; nothing comes of it any more."""


class Life(enum.StrEnum):
    """Where a machine is in its life."""

    PENDING = "pending"
    """Ordered and promised, not started; not billed."""
    RUNNING = "running"
    GONE = "gone"


class Ended(enum.StrEnum):
    """Why a machine is gone, as its provider says."""

    PREEMPTED = "preempted"
    RELEASED = "released"
    """On our order."""
    STOPPED = "stopped"
    """By itself, from inside."""
    FAILED = "failed"
    """It broke, or never started."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What a provider would sell.

    Attributes:
        price_usd_per_hour: of one machine, now; what is billed is the price recorded at the purchase.
        on_demand_usd_per_hour: what the same machine costs when it cannot be taken back: the twin of the account.
        reliability: whether it can be taken back.
        notice_s: the warning it promises; 0 for none.
        startup_s: usual time from order to the start of the machine; None if unknown.
        bid: whether a price limit can be given with the order.
        refund: whether the hour in which it is taken back is free.
        quoted_at: when this price was asked for.
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
    def key(self) -> tuple[str, str, str, Reliability]:
        """What makes it another offer: provider, type, zone, reliability; the price does not."""
        return self.provider, self.machine_type, self.zone, self.reliability


@dataclass(frozen=True, slots=True)
class Order:
    """A wish to buy between `count_min` and `count_max` machines.

    Attributes:
        token: derived from job and sequence number; the same token never buys twice.
        owner: this installation's tag, which every machine carries.
        bid_usd_per_hour: the most that may be charged; None: the provider's default.
    """

    token: str
    owner: str
    job_id: str
    offer: Offer
    count_min: int
    count_max: int
    bid_usd_per_hour: float | None = None


@dataclass(frozen=True, slots=True)
class Boot:
    """How a machine becomes a worker.  It never enters the journal: the environment may hold a one-time credential.

    Attributes:
        argv: what the machine runs from its start on; when it ends the machine stops itself.
        env: for that process alone; readable by nobody else.
    """

    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of an order.

    Attributes:
        machine_ids: what was promised, up to `count_max`; the same again for the same token.
        refusal: why not more (None if `count_max` were promised).
        sentence: the provider's own words, for the user.
    """

    token: str
    machine_ids: tuple[str, ...]
    refusal: Refusal | None = None
    sentence: str = ""


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine as its provider lists it.

    Attributes:
        token: of the order it came from.
        price_usd_per_hour: recorded at the purchase.
        began: when billing began; None while pending.
        ended: when billing ended; None while it lives.
        taken_at: when the provider will take it, if it says so; never a reason to buy by itself.
        address: where other machines reach it; empty if unknown.
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
    life: Life
    began: WallTime | None = None
    ended: WallTime | None = None
    cause: Ended | None = None
    taken_at: WallTime | None = None
    address: str = ""


@dataclass(frozen=True, slots=True)
class Charge:
    """A line of a provider's bill.

    Attributes:
        charge_id: unique at the provider; the same line may be told twice.
        amount_usd: negative for a refund.
        began, ended: the stretch it is for.
        settled: the bill is closed; an unsettled line of the same id may still change.
        job_id: what the machine was tagged with; empty where a provider's bill carries no tags.
    """

    charge_id: str
    machine_id: str
    amount_usd: Usd
    began: WallTime
    ended: WallTime
    settled: bool
    job_id: str = ""


@dataclass(frozen=True, slots=True)
class Bill:
    """The lines of a bill from a cursor on; `cursor` is what to ask with next time."""

    charges: tuple[Charge, ...]
    cursor: str


@dataclass(frozen=True, slots=True)
class Quota:
    """How many machines of a type an account may have in a zone; `zone` None: in all zones together."""

    machine_type: str
    zone: str | None
    limit: int
    used: int


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a provider can do.

    Attributes:
        bids, refunds: price limits with orders; free hours when taken back.
        preempts: `preempt` works (for rehearsals).
        same_token_same_machines: it keeps tokens itself; otherwise the implementation looks its own machines up first.
        notices_as: whose notice format its machines see (`aws`, `google`, `azure`, `local`).
        bill_lag_s: how long after a machine's end its charges are settled.
        work_for_free: nothing here costs dollars; the account counts machine-hours.
    """

    bids: bool
    refunds: bool
    preempts: bool
    same_token_same_machines: bool
    notices_as: str
    bill_lag_s: Seconds
    work_for_free: bool = False
