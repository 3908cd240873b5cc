"""`market.yaml`: what the local market sells and how it behaves; without the file, the defaults below.

Strict: an unknown key, a wrong value, or an unknown type or zone is an error that names the place.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from windfall.errors import InvalidFile, Misuse
from windfall.market import BillingBasis, BillingRule
from windfall.terms import Reliability
from windfall.units import duration_s, rate_bytes_per_s

FILE = "market.yaml"


def _duration(value: object) -> object:
    if isinstance(value, str):
        try:
            return duration_s(value, "")
        except Misuse:
            raise ValueError(f"{value!r} is not a duration; write for example 30s, 10m or 250ms") from None
    return value


def _rate(value: object) -> object:
    if isinstance(value, str):
        try:
            rate_bytes_per_s(value, "")
        except Misuse:
            raise ValueError(f"{value!r} is not a transfer rate; write for example 20MB/s") from None
    return value


Duration = Annotated[float, BeforeValidator(_duration), Field(ge=0, allow_inf_nan=False)]


def _price(value: object) -> object:
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            raise ValueError(
                f"{value!r} is not a price; prices are numbers in USD per hour, for example 0.10"
            ) from None
    return value


Price = Annotated[float, BeforeValidator(_price), Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class MachineType(_Strict):
    """A kind of machine.

    Attributes:
        on_demand: its price when it cannot be preempted [USD/h].
        speed: share of the host's speed at which its processes run.
        uplink: upload limit that is passed to its agent; None for no limit.
        network: what its link carries each way, of the messages of a parameter server; None for no limit.
        kernel_speed: share of the host's speed at which applications of a parameter server compute.
        turn_s: how long a turn of the application computes at the host's full speed, measured before [s]; 0: as it is found to.
    """

    on_demand: Price
    cpus: Annotated[float, Field(gt=0)] = 1.0
    memory_gib: Annotated[float, Field(gt=0)] = 1.0
    speed: Annotated[float, Field(gt=0, le=1)] = 1.0
    uplink: Annotated[str, BeforeValidator(_rate)] | None = None
    network: Annotated[str, BeforeValidator(_rate)] | None = None
    kernel_speed: Annotated[float, Field(gt=0, le=1)] = 1.0
    turn_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0


class SpotPrices(_Strict):
    """How spot prices move: by given points, or by a seeded generator where there are none.

    Attributes:
        seed: of the generator.
        step: how long a generated price lasts [s of the series].
        low, high: bounds of generated prices, as shares of the on-demand price.
        pace: seconds of the series that pass in a second.
        points: by `type/zone`: (start [s of the series], price [USD/h]), in order, the first at 0.
    """

    seed: int = 1
    step: Annotated[float, BeforeValidator(_duration), Field(gt=0)] = 300.0
    low: Annotated[float, Field(gt=0, le=1)] = 0.1
    high: Annotated[float, Field(gt=0, le=1)] = 0.4
    pace: Annotated[float, Field(gt=0)] = 1.0
    points: dict[str, list[tuple[Duration, Price]]] = {}

    @model_validator(mode="after")
    def _is_in_order(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low ({self.low}) is above high ({self.high})")
        for place, points in self.points.items():
            moments = [moment for moment, _ in points]
            if not points or moments[0] != 0 or moments != sorted(set(moments)):
                raise ValueError(f"the points of {place} must start at 0 and increase in time")
        return self


class Billing(_Strict):
    """How a machine's time is billed.

    Attributes:
        by: bill every second, or every started hour, counted from the machine's start.
        price: that of the purchase, or the one in effect: in each second, or at the start of each hour.  None: by second
            that of the purchase, by hour the one in effect, which is the only choice there.
        minimum: a machine that ends earlier is billed for this long [s], unless the hour of its preemption is free.
        hour: length of a billed hour, also of a free one [s]; shorter ones are for rehearsals.
        refund: whether the hour in which a spot machine is preempted is free.
        lag: how long after a machine's end its bill is settled [s].
    """

    by: Literal["second", "hour"] = "second"
    price: Literal["purchase", "in-effect"] | None = None
    minimum: Duration = 0.0
    hour: Annotated[float, BeforeValidator(_duration), Field(gt=0)] = 3600.0
    refund: bool = False
    lag: Duration = 5.0

    @model_validator(mode="after")
    def _has_a_rule(self) -> Self:
        if self.by == "hour" and self.price == "purchase":
            raise ValueError("by: hour charges the price at the start of each hour; remove price: purchase")
        return self

    def rule(self, reliability: Reliability) -> BillingRule:
        """Return the rule of machines that can be preempted, or of others, whose price does not move."""
        if self.by == "hour":
            basis = BillingBasis.STARTED_HOUR
        else:
            floats = self.price == "in-effect" and reliability is Reliability.TRANSIENT
            basis = BillingBasis.IN_EFFECT if floats else BillingBasis.PURCHASE
        return BillingRule(basis, self.minimum, self.hour)

    @property
    def floats(self) -> bool:
        """Whether a machine costs the price in effect, not that of its purchase."""
        return self.rule(Reliability.TRANSIENT).basis is not BillingBasis.PURCHASE


class MarketConfig(_Strict):
    """The whole file.

    Attributes:
        capacity, quota: how many machines there are, and how many one owner may have: one number, or a number by
            `type/zone`, `type` or `default`, of which the most specific counts.
        allocation_delay: from an order to the start of its machines [s].
        notice: the warning before a machine is preempted [s].
        bids: whether an order may have a price limit.
        deny: reject all credentials (for rehearsals).
        forget_after: how long ended machines are listed [s].
        idle_exit: how long the market runs without machines and callers [s].
        isolation: `auto`, or `subreaper` to avoid PID namespaces.
    """

    types: dict[str, MachineType] = {
        "small": MachineType(on_demand=0.10, cpus=1, memory_gib=2),
        "medium": MachineType(on_demand=0.20, cpus=2, memory_gib=4),
        "large": MachineType(on_demand=0.40, cpus=4, memory_gib=8),
    }
    zones: list[str] = ["zone-a", "zone-b"]
    prices: SpotPrices = SpotPrices()
    billing: Billing = Billing()
    capacity: Count | dict[str, Count] = 100
    quota: Count | dict[str, Count] = 100
    allocation_delay: Duration = 1.0
    notice: Duration = 30.0
    bids: bool = True
    deny: bool = False
    forget_after: Duration = 3600.0
    idle_exit: Duration = 600.0
    isolation: Literal["auto", "subreaper"] = "auto"

    @model_validator(mode="after")
    def _names_only_what_exists(self) -> Self:
        places = {f"{kind}/{zone}" for kind in self.types for zone in self.zones}
        for table, allowed in (("capacity", places | set(self.types)), ("quota", places | set(self.types))):
            limits = getattr(self, table)
            for name in limits if isinstance(limits, dict) else ():
                if name != "default" and name not in allowed:
                    raise ValueError(f"{table}: unknown {name!r}; {_nearest(name, allowed)}")
        for name in self.prices.points:
            if name not in places:
                raise ValueError(f"prices.points: unknown {name!r}; {_nearest(name, places)}")
        return self

    def capacity_of(self, machine_type: str, zone: str) -> int:
        """Return how many machines of a type exist in a zone."""
        return _limit(self.capacity, machine_type, zone)

    def quota_of(self, machine_type: str, zone: str) -> int:
        """Return how many machines of a type one owner may have in a zone."""
        return _limit(self.quota, machine_type, zone)


def _limit(limits: int | dict[str, int], machine_type: str, zone: str) -> int:
    if isinstance(limits, int):
        return limits
    for name in (f"{machine_type}/{zone}", machine_type, "default"):
        if name in limits:
            return limits[name]
    return 100


def load(folder: Path) -> MarketConfig:
    """Read the market's file; return the defaults if there is none.

    Raises:
        InvalidFile: it is not YAML; the message starts with file:line:column.
        Misuse: a key or value is wrong; the message names it.
    """
    path = folder / FILE
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return MarketConfig()
    except (OSError, UnicodeDecodeError) as error:
        raise Misuse(f"{path} cannot be read: {error}") from error
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        raise InvalidFile(f"{where}: not YAML: {getattr(error, 'problem', None) or error}") from error
    if document is None:
        return MarketConfig()
    if not isinstance(document, dict):
        raise Misuse(f"{path}: the file must be a mapping of keys to values, not a {type(document).__name__}")
    try:
        return MarketConfig.model_validate(document)
    except ValidationError as error:
        raise Misuse(f"{path}: {_message_of(error)}") from error


def _message_of(error: ValidationError) -> str:
    # A value that may have one of several types yields one error per type; the last is the most specific.
    first: Any = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"] if "[" not in str(part))
    if first["type"] == "extra_forbidden":
        return f"unknown key {where!r}; {_nearest(str(first['loc'][-1]), _keys(first['loc']))}"
    what = first["msg"].removeprefix("Value error, ")
    what = what[0].lower() + what[1:] if what.startswith(("Input", "Field")) else what
    given = "" if first["type"] == "value_error" else f", not {first['input']!r}"
    return f"{where}: {what}{given}" if where else what


def _keys(place: tuple[str | int, ...]) -> set[str]:
    """Return the keys that are allowed in the place of a wrong one."""
    models: dict[str, type[BaseModel]] = {"types": MachineType, "prices": SpotPrices, "billing": Billing}
    model = MarketConfig if len(place) == 1 else models.get(str(place[0]), MarketConfig)
    return set(model.model_fields)


def _nearest(name: str, allowed: set[str]) -> str:
    close = difflib.get_close_matches(name, allowed, n=1)
    return f"did you mean {close[0]!r}?" if close else f"choose {', '.join(sorted(allowed))}"
