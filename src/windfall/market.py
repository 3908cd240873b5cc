"""Offers, orders, machines and charges: the types exchanged between the driver and the providers.

Times are by the provider's wall clock, which is the basis of its bill.
"""

from __future__ import annotations

import enum

from windfall.structs import Struct, Tagged
from windfall.terms import BlockValue, Reliability, Seconds, Usd, WallTime


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
    EXPIRED = "expired"
    """Reached a time limit that it had from its start: this says nothing about preemptions."""
    CANCELLED = "cancelled"
    """Ended by a person, past Windfall."""
    FAILED = "failed"
    """Broke, or never started."""


class BillingBasis(enum.StrEnum):
    """What a machine's time is multiplied with."""

    PURCHASE = "purchase"
    """By the second, at the price of the purchase."""
    IN_EFFECT = "in-effect"
    """By the second, at the price in effect in that second."""
    STARTED_HOUR = "started-hour"
    """By the started hour, counted from the machine's start, at the price at the start of that hour."""


class BillingRule(Struct, frozen=True):
    """How a machine's time is billed.

    Attributes:
        minimum_s: a machine that ends earlier is billed for this long [s]; not where the hour of its preemption is free.
        hour_s: length of a billed hour, also of a free one [s]; shorter ones are for rehearsals.
    """

    basis: BillingBasis = BillingBasis.PURCHASE
    minimum_s: float = 0.0
    hour_s: float = 3600.0


BY_THE_SECOND = BillingRule()
OfferKey = tuple[str, str, str, Reliability]
"""Identity of an offer: provider, type, zone, reliability, but not the price."""
BlockSettings = tuple[tuple[str, BlockValue], ...]
"""A job's settings for one provider: names and values."""


class Offer(Tagged, frozen=True):
    """A machine type that a provider offers.

    Attributes:
        price_usd_per_hour: current price of one machine: a quote; `billing` says which price is charged.
        on_demand_usd_per_hour: price of the same machine on demand; the on-demand baseline.
        reliability: whether it can be preempted.
        notice_s: the promised notice before a preemption [s]; 0 for none.
        startup_s: usual time from an order to the start of the machine [s]; None if unknown.
        bid: whether an order may set a price limit.
        refund: whether the hour in which it is preempted is free.
        quoted_at: when this price was queried.
        promise_s: how long to wait for a confirmed machine to start before it is given up [s]; None where the provider
            itself withdraws what it does not start.
        billing: how a machine's time is billed.
        egress_usd_per_gib: what data costs that leave the zone [USD/GiB].
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
    promise_s: Seconds | None = None
    billing: BillingRule = BY_THE_SECOND
    egress_usd_per_gib: float = 0.0

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


class BootSecret(Tagged, frozen=True):
    """A variable whose value must reach the machine's first process unseen; its `repr` does not show the value."""

    name: str
    value: str

    def __repr__(self) -> str:
        return f"BootSecret(name={self.name!r})"


class BootImage(Tagged, frozen=True):
    """What a machine boots from: the provider's own name of a machine image, or a container image."""

    name: str
    container: bool = False


class AgentArchive(Tagged, frozen=True):
    """How the node agent arrives on a bare Linux machine: an archive of wheels at a URL, and its SHA-256 in hexadecimal."""

    url: str
    sha256: str


class BootSetup(Tagged, frozen=True):
    """The job's set-up command, which the node agent runs, and the key of what it leaves behind.

    Two machines with the same image, code and command have the same key: a disk or an image on which the command once
    succeeded can be kept under that name, and on a machine that has it the command is not run again.
    """

    command: str
    cache_key: str


class BootSpec(Tagged, frozen=True):
    """How a machine starts.  Never written to the journal: it carries secrets.

    Attributes:
        argv: the command the machine runs once the agent is there; when it ends, the machine stops itself.
        env: open part of that process's environment; it may be in user data that others can read.
        secrets: the rest of it; not readable by other processes or users, in no command line, tag or log.
        credential: name of the one-time credential among `secrets`, which its first use makes worthless; empty if none.
        image: None for the provider's default.
        agent: None if the image has the node agent.
        setup: None if the job has none.
        block: the job's settings for this provider.
    """

    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()
    secrets: tuple[BootSecret, ...] = ()
    credential: str = ""
    image: BootImage | None = None
    agent: AgentArchive | None = None
    setup: BootSetup | None = None
    block: BlockSettings = ()

    def environment(self) -> dict[str, str]:
        """Return the whole environment of the first process, for a provider that starts it itself."""
        return {**dict(self.env), **{secret.name: secret.value for secret in self.secrets}}


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


class OrderPreview(Struct, frozen=True):
    """What a provider says of an order that is not made.

    Attributes:
        refusal: why it would be refused; None if it would be accepted.
        message: of a refusal, what is wrong and what to write instead; otherwise what the user should know, or empty.
        starts_at: when the first machine would start, as the provider estimates it; None if it does not say.
        estimate: what that estimate rests on, for the user.
        units_per_hour: what an hour of one machine counts in the account of a site that has no prices; 0 if it has none.
        unit: name of those units.
        ends_after_s: how long after its start a machine ends at the latest [s]; None for no limit.
    """

    refusal: Refusal | None = None
    message: str = ""
    starts_at: WallTime | None = None
    estimate: str = ""
    units_per_hour: float = 0.0
    unit: str = ""
    ends_after_s: Seconds | None = None


class PriceChange(Struct, frozen=True):
    """A price [USD/h] that is in effect from a moment of the provider's clock on."""

    since: WallTime
    usd_per_hour: float


class Machine(Tagged, frozen=True):
    """A machine in its provider's listing.

    Attributes:
        token: of its order.
        price_usd_per_hour: recorded at the purchase.
        price_changes: the newest changes of the price in effect since then, oldest first, where prices float; a listing
            may leave out those that it showed for `PRICES_LISTED_S`.  Empty: the price at the purchase holds.
        allocation: what the machines of one all-or-nothing order have in common; empty if they stand alone.
        started: when billing started; None while pending.
        ended: when billing ended; None while it runs.
        cause: why it ended; None while it runs, or if unknown.
        preemption_at: when the provider will preempt it, if announced; never a reason to buy on its own.
        limit_at: when it ends at the latest, by a time limit that it has had from its start; None for no limit.
        address: where other machines reach it; empty if unknown.
        pending_reason: why a pending machine waits, in its provider's words; empty if it does not say.
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
    price_changes: tuple[PriceChange, ...] = ()
    pending_reason: str = ""
    limit_at: WallTime | None = None

    @property
    def price_now_usd_per_hour(self) -> float:
        """The newest price in effect that the listing told [USD/h]."""
        return self.price_changes[-1].usd_per_hour if self.price_changes else self.price_usd_per_hour


PRICES_LISTED_S = 3600.0
"""How long a listing repeats a change of a price at least [s]."""


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
        token_memory_s: how long after an order its token is surely recognized [s]; None for ever.  An older order is never
            sent again: a listing shows what it bought.
        listing_lag_s: how long a listing may lack what an answer named, or show an older state [s].
        keeps_ended_s: how long an ended machine stays listed at least [s]; 0: it may vanish at its end, without a cause.
        promises_dated: a confirmed machine starts within minutes or is withdrawn; otherwise it may be pending for ever.
        promises_fail: a confirmed machine may end before it starts, with a refusal in place of a cause.
        price_floats: a machine costs the price in effect, which `Machine.price_changes` reports, not the one at purchase.
        false_deaths: the listing may call a machine gone whose processes still run; releasing it ends them.
        rises_again: a machine may start again after its end; each start is listed as a machine of its own.
        announces: the listing tells an announced end (`Machine.preemption_at`), also when the machine itself cannot.
        gangs: it takes orders for several machines that are sold together, carry one allocation and are lost together.
        queues: it accepts orders for more machines than there are, which are pending until it has them.
        nearby: its calls do not leave this host, so it may be asked many times a second.
        previews: it says beforehand what would become of an order (`preview`).
    """

    bids: bool
    refunds: bool
    preempts: bool
    idempotent_orders: bool
    notice_format: str
    bill_lag_s: Seconds
    token_memory_s: Seconds | None = None
    listing_lag_s: Seconds = Seconds(0.0)
    keeps_ended_s: Seconds = Seconds(3600.0)
    promises_dated: bool = True
    promises_fail: bool = False
    price_floats: bool = False
    false_deaths: bool = False
    rises_again: bool = False
    announces: bool = True
    gangs: bool = False
    queues: bool = False
    nearby: bool = False
    previews: bool = False
