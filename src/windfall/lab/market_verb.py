"""`windfall lab market`: what can be bought, at which price, with which risk, and how fresh each number is."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from windfall.cli.locations import state_folder
from windfall.cli.options import Json, StateFolder
from windfall.errors import Infeasible, WindfallError
from windfall.extras import for_jobs
from windfall.fleet import Lifetime
from windfall.jobs import Job, Resources
from windfall.lab import catalogue, market_plot
from windfall.lab.catalogue import CLOUDS, CataloguedType
from windfall.market import Offer
from windfall.models import lifetime_pool
from windfall.models.preemption_rates import PRIOR_MTTP_S, preemption_pattern
from windfall.policies.planning.offer_notes import PRICE_S_MAX
from windfall.structs import Struct, plain
from windfall.terms import Reliability, WallTime
from windfall.units import duration_text

ROWS_MAX = 25
"""How many rows are printed, those with the cheapest cores first; --json has all of them."""
_ASSUMED = f"a mean lifetime of {duration_text(PRIOR_MTTP_S)} is assumed"


class MarketRow(Struct, frozen=True):
    """An offer that is known.

    Attributes:
        price_usd_per_hour: as spot, or on demand if it is not sold as spot.
        price_source, risk_source: where the price and the risk come from, and how old they are.
        risk: of a loss, in words.
    """

    provider: str
    zone: str
    machine_type: str
    cpus: float
    memory_gib: float
    accelerator: str
    accelerators: int
    spot: bool
    price_usd_per_hour: float
    on_demand_usd_per_hour: float
    price_source: str
    risk: str
    risk_source: str
    notice_s: float


def market(
    *,
    catalogue_: Annotated[Path | None, Parameter(name="--catalogue", metavar="FILE")] = None,
    provider: Annotated[str, Parameter(name="--provider", metavar="NAME")] = "",
    machine_type: Annotated[str, Parameter(name="--type", metavar="TEXT")] = "",
    zone: Annotated[str, Parameter(name="--zone", metavar="TEXT")] = "",
    plot: Annotated[Path | None, Parameter(name="--plot", metavar="FOLDER")] = None,
    state: StateFolder = None,
    json_: Json = False,
) -> None:
    """Show what can be bought: prices, risks, and how fresh each number is.

    Lists what the installation's providers offer now, with the losses of its own machines, and a catalogue of public list
    prices.  The catalogue is dated, not a quote: nothing is bought by it.

    Example: `windfall lab market --type g5 --plot pictures`

    Args:
        catalogue_: a catalogue of your own in place of the package's (CSV; owned machines can cost 0).
        provider: only this provider's offers: local, aws, google, azure.
        machine_type: only machine types whose name contains this.
        zone: only zones whose name contains this.
        plot: draw price against saving into this folder, with light and dark background.
        state: folder for Windfall's own files (default: $XDG_STATE_HOME/windfall).
        json_: print one JSON array, with all rows.
    """
    listed = catalogue.own() if catalogue_ is None else catalogue.read(catalogue_)
    known = [*_offered(state or state_folder()), *map(_listed, listed)]
    rows = sorted(
        (
            row
            for row in known
            if provider in ("", row.provider) and machine_type in row.machine_type and zone in row.zone
        ),
        key=lambda row: (row.price_usd_per_hour / (row.cpus or 1.0), row.machine_type, row.zone),
    )
    if not rows:
        raise Infeasible(f"none of {len(known)} known offers matches: leave out --provider, --type or --zone")
    if plot is not None:
        for path in market_plot.draw(rows, plot):
            print(f"windfall: wrote {path}", file=sys.stderr)
    if json_:
        print(json.dumps([plain(row) for row in rows]))
        return
    for line in lines(rows):
        print(line)


def lines(rows: Sequence[MarketRow]) -> Iterator[str]:
    """Yield the table and its sources, in 80 columns."""
    yield f"{'offer':<42}{'vCPU':>5}{'USD/h':>9}{'saved':>7}  losses"
    for row in rows[:ROWS_MAX]:
        name = f"{row.machine_type} in {row.zone}{'' if row.spot else ', on demand'}"
        saved = f"{saving_percent(row):.0f} %" if row.spot else ""
        yield f"{name[:41]:<42}{row.cpus:>5g}{row.price_usd_per_hour:>9.4g}{saved:>7}  {row.risk[:15]:<15}".rstrip()
    if len(rows) > ROWS_MAX:
        yield f"{len(rows) - ROWS_MAX} more: narrow with --type, --zone or --provider, or use --json"
    yield ""
    for name in dict.fromkeys(row.provider for row in rows):
        found = [row for row in rows if row.provider == name]
        yield f"{name}: {len(found)} offers"
        for source in dict.fromkeys(text for row in found for text in (row.price_source, row.risk_source) if text):
            yield f"  {source}"
        if name in CLOUDS:
            rules = CLOUDS[name]
            least = f", at least {rules.minimum_s:g} s" if rules.minimum_s else ""
            yield f"  notice {preemption_pattern(name).notice_s:g} s; billed at {rules.price}{least}"


def saving_percent(row: MarketRow) -> float:
    """Return by how much spot is cheaper than on demand [%]; 0 for what costs nothing."""
    if row.on_demand_usd_per_hour <= 0.0:
        return 0.0
    return 100.0 * (1.0 - row.price_usd_per_hour / row.on_demand_usd_per_hour)


def _listed(row: CataloguedType) -> MarketRow:
    """Return a row of a catalogue."""
    spot = row.spot_usd_per_hour
    source = f"on-demand prices of {row.priced}"
    if spot is not None:
        how = "derived from the savings" if row.spot_basis == "derived" else "list prices"
        source = f"spot: {how} of {row.spot_as_of or 'an unknown date'}; {source}"
    risk, risk_source = "unknown", f"losses: not published; {_ASSUMED}"
    if row.lost_per_month is not None:
        low, high = (100.0 * share for share in row.lost_per_month)
        risk = f"> {low:.0f} % a month" if high >= 100.0 else f"{low:.0f}-{high:.0f} % a month"
        risk_source = f"losses: share of machines interrupted in a month, of {row.losses_as_of or 'an unknown date'}"
    notice = preemption_pattern(row.provider).notice_s if row.provider in CLOUDS else 0.0
    return MarketRow(
        row.provider, row.zone, row.machine_type, row.cpus, row.memory_gib, row.accelerator, row.accelerators,
        spot is not None, row.on_demand_usd_per_hour if spot is None else spot, row.on_demand_usd_per_hour, source,
        risk if spot is not None else "none", risk_source if spot is not None else "", notice,
    )  # fmt: skip


def _offered(folder: Path) -> list[MarketRow]:
    """Return what the installation's providers offer now, with what its own machines showed of losses."""
    with for_jobs():
        from windfall.cli import client  # noqa: PLC0415 - its packages are an extra
    asked = Job("market", "market", "", "memory://market", ("true",), (Resources(),))
    try:
        with client.planner(folder) as controller:
            offers, inputs = controller.offers().offers, controller.plan_inputs(asked)
    except WindfallError as error:
        print(f"windfall: the providers' offers are unknown: {error}", file=sys.stderr)
        return []
    pooled = lifetime_pool.pool(inputs.lifetimes, inputs.now)
    return [_quoted(offer, pooled, inputs.lifetimes, inputs.now) for offer in offers]


def _ago(age_s: float) -> str:
    return "just now" if age_s < 2.0 else f"{duration_text(age_s)} ago"


def _quoted(
    offer: Offer, pooled: Sequence[lifetime_pool.PooledEstimate], lifetimes: Sequence[Lifetime], now: WallTime
) -> MarketRow:
    """Return a provider's offer, with the losses of this installation's machines."""
    spot = offer.reliability is Reliability.TRANSIENT
    age_s = max(now - offer.quoted_at, 0.0)
    old = ", which is old" if age_s > PRICE_S_MAX else ""
    rows = [row for row in pooled if (row.provider, row.machine_type, row.zone) == offer.key[:3]]
    risk, source = "unknown", f"losses: no machine of it was observed; {_ASSUMED}"
    if rows:
        newest = max((one.ended or now for one in lifetimes if one.provider == offer.provider), default=now)
        risk = f"after {duration_text(rows[0].mttp_s)}"
        source = (
            f"losses: {rows[0].preemptions} of {rows[0].lifetimes} machines were preempted, the newest ended "
            f"{_ago(max(now - newest, 0.0))}"
        )
    return MarketRow(
        offer.provider, offer.zone, offer.machine_type, offer.cpus, offer.memory_gib, offer.accelerator or "",
        offer.accelerators, spot, offer.price_usd_per_hour, offer.on_demand_usd_per_hour,
        f"prices: quoted {_ago(age_s)}{old}", risk if spot else "none", source if spot else "", offer.notice_s,
    )  # fmt: skip
