"""A plan as a picture: cost against finish of what it compared, with P50 and P90 where they were computed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windfall.errors import Misuse
from windfall.extras import install
from windfall.policies.planning.offer_notes import fleet_text
from windfall.structs import Struct

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HOUR_S = 3600.0
_LABEL_MAX = 34
# Paper, ink, faint ink, the best, the others (Okabe and Ito's blue, lighter on dark paper).
_LIGHT = ("#FFFFFF", "#1A1A1A", "#D8D8D8", "#0072B2", "#7A7A7A")
_DARK = ("#14171A", "#E8E8E8", "#3A3F45", "#56B4E9", "#9AA0A6")


class PlanPoint(Struct, frozen=True):
    """What a plan compared: (median or expected value, P90 or the same) of cost and finish."""

    name: str
    cost_usd: tuple[float, float]
    finish_h: tuple[float, float]
    chosen: bool


def points(plan: Mapping[str, Any]) -> list[PlanPoint]:
    """Return the points of a plan as JSON: its fleets, or its offers; those without a known finish are left out."""
    fleets = plan.get("fleet")
    found = _offers(plan) if fleets is None else _fleets(fleets)
    unique: dict[str, PlanPoint] = {}
    for point in found:
        unique.setdefault(point.name, point)
    return list(unique.values())


def _fleets(fleets: Mapping[str, Any]) -> Iterator[PlanPoint]:
    rows = [fleets["chosen"], fleets["runner_up"], fleets["on_demand"], *fleets["front"]]
    for place, row in enumerate(rows):
        if row is not None and row["finish_s"] is not None:
            yield _point(
                fleet_text(row["counts"]), row["cost_usd"], row["finish_s"], row.get("odds"), chosen=place == 0
            )


def _offers(plan: Mapping[str, Any]) -> Iterator[PlanPoint]:
    for place, row in enumerate((plan["chosen"], *plan["alternatives"])):
        offer, expected = row["offer"], row["expected"]
        if expected is not None:
            kind = "" if offer["reliability"] == "transient" else " on demand"
            name = f"{row['machines']} {offer['machine_type']} in {offer['zone']}{kind}"
            odds = plan.get("odds") if place == 0 else None
            yield _point(name, expected["cost_usd"], expected["wall_s"], odds, chosen=place == 0)
    baseline = plan["baseline"]
    if baseline is not None and plan["chosen"]["offer"]["reliability"] == "transient":
        yield _point("the same on demand", baseline["cost_usd"], baseline["wall_s"], None, chosen=False)


def _point(name: str, usd: float, took_s: float, odds: Mapping[str, Any] | None, *, chosen: bool) -> PlanPoint:
    cost, finish = (usd, usd), (took_s / HOUR_S, took_s / HOUR_S)
    if odds is not None and odds["cost_usd"] is not None:
        cost = odds["cost_usd"]["p50"], odds["cost_usd"]["p90"]
        finish = odds["finish_s"]["p50"] / HOUR_S, odds["finish_s"]["p90"] / HOUR_S
    return PlanPoint(name, cost, finish, chosen)


def draw(plan: Mapping[str, Any], name: str, folder: Path) -> list[Path]:
    """Draw a plan twice, `NAME-plan.png` and `NAME-plan-dark.png`, 900 x 520 pixels; return the files.

    Raises:
        Misuse: matplotlib is not installed, the folder cannot be written, or the plan has no cost and finish.
    """
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise Misuse(f"--plot needs matplotlib, which is not installed: {install('plot')}") from error
    found = points(plan)
    if not found:
        raise Misuse(
            "--plot: the plan's cost and finish are unknown, so there is nothing to draw; `windfall drill` measures them"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Misuse(f"--plot: cannot write to {folder}: {error.strerror}") from error
    written = []
    for suffix, colours in (("", _LIGHT), ("-dark", _DARK)):
        figure = Figure(figsize=(9.0, 5.2), dpi=100, facecolor=colours[0], layout="constrained")
        _fill(figure.add_subplot(facecolor=colours[0]), found, name, colours)
        path = folder / f"{name}-plan{suffix}.png"
        figure.savefig(path, facecolor=colours[0])
        written.append(path)
    return written


def _fill(axes: Axes, found: list[PlanPoint], name: str, colours: tuple[str, ...]) -> None:
    _, ink, faint, best, other = colours
    for place, point in enumerate(found):
        colour = best if point.chosen else other
        spread = [[0.0], [point.finish_h[1] - point.finish_h[0]]], [[0.0], [point.cost_usd[1] - point.cost_usd[0]]]
        axes.errorbar(
            [point.finish_h[0]], [point.cost_usd[0]], xerr=spread[0], yerr=spread[1], fmt="o", color=colour, capsize=3,
            markersize=8 if point.chosen else 5,
        )  # fmt: skip
        label = point.name if len(point.name) <= _LABEL_MAX else f"{point.name[:_LABEL_MAX]}..."
        axes.annotate(
            label,
            (point.finish_h[0], point.cost_usd[0]),
            (7, -14 if place % 2 else 7),
            textcoords="offset points",
            color=colour,
            fontsize=8,
        )
    axes.set_xlabel("finish: P50, whisker to P90 [h]", color=ink)
    axes.set_ylabel("cost: P50, whisker to P90 [USD]", color=ink)
    axes.set_title(f"{name}: what its plan compared", color=ink, loc="left")
    axes.margins(0.25)
    axes.set_ylim(bottom=0.0)
    axes.tick_params(colors=ink)
    axes.grid(color=faint, linewidth=0.6)
    for side in axes.spines.values():
        side.set_color(faint)
