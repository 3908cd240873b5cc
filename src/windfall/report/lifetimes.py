"""What lives of machines say, as tables for a terminal of 80 columns, as data, and as a picture.

The picture has three panels.  *Lost by age*: Kaplan-Meier with its 95 % band, and the laws.  *Quantiles*: the age by which a
share was lost, observed against the chosen law's; on the diagonal they agree.  *Hazard*: losses per hour among the
machines of an age, by the laws, and as a step function by the data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Group as Stack
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from windfall.errors import Misuse
from windfall.extras import install
from windfall.models.lifetimes.choosing import Candidate, Comparison, Fit
from windfall.models.lifetimes.grouping import Group
from windfall.models.lifetimes.law import Curve, Law
from windfall.units import duration_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NATS_MAX = 1e6
HOUR_S = 3600.0
WIDTH_IN, HEIGHT_IN, DOTS_PER_IN = 13.0, 4.8, 100
_AGES_S = (0.0, 1 * HOUR_S, 6 * HOUR_S, 12 * HOUR_S, 20 * HOUR_S, 24 * HOUR_S)
_POINTS = 600
_QUANTILES = 60

# Ink, paper, faint ink; then the chosen law, and the others by name (Okabe and Ito's colours, lighter on dark paper).
_LIGHT = {"paper": "#FFFFFF", "ink": "#1A1A1A", "faint": "#B8B8B8", "chosen": "#0072B2", "data": "#4D4D4D"}
_DARK = {"paper": "#14171A", "ink": "#E8E8E8", "faint": "#4A4F55", "chosen": "#56B4E9", "data": "#C9C9C9"}
_OTHERS = {
    "exponential": ("#D55E00", (0, (1, 1.2))),
    "weibull": ("#CC79A7", (0, (4, 1.5))),
    "gompertz-makeham": ("#E69F00", (0, (3, 1.2, 1, 1.2))),
    "blended": ("#009E73", (0, (6, 1.5))),
    "bathtub": ("#999933", (0, (5, 1, 1, 1))),
    "piecewise": ("#8C7AE6", (0, (2, 1))),
}


# ---------------------------------------------------------------------------------------------------------------- tables


def whole(fit: Fit, groups: Sequence[Group] = ()) -> RenderableType:
    """Return everything: what was read, the laws, the chosen one, remaining life, groups, doubts."""
    lives = fit.lives
    read = (
        f"{len(lives)} lives in {lives.batches} launch batches: {lives.losses} losses, {len(lives) - lives.losses} censored; "
        f"the oldest {duration_text(lives.oldest_s)}"
    )
    parts: list[RenderableType] = [Text(read), "", laws(fit), "", parameters(fit), "", remaining(fit.law)]
    if groups:
        parts += ["", grouped(groups)]
    doubts = [Text(f"Do not trust this fit: {doubt}.", style="bold") for doubt in fit.doubts]
    return Stack(*parts, *([""] if doubts else []), *doubts)


def laws(fit: Fit) -> Table:
    """Every law with its held-out likelihood against the chosen one's."""
    table = Table(title="Laws, by how they predict lives they were not fitted to", title_justify="left", box=None)
    table.pad_edge = False
    table.add_column("law")
    for name in ("numbers", "held-out", "chosen gains", "95 % interval", "KS", "AIC"):
        table.add_column(name, justify="right")
    versus = {comparison.worse: comparison for comparison in fit.comparisons}
    for candidate in fit.candidates:
        score = "-" if math.isnan(candidate.score) else _nats(candidate.score, ".1f")
        gain, interval = _gain(versus.get(candidate.name))
        name = f"{candidate.name} *" if candidate.law is fit.law else candidate.name
        fitted = (f"{candidate.parameters}", score, gain, interval, f"{candidate.ks:.3f}", f"{candidate.aic:.0f}")
        table.add_row(name, *fitted)
    return table


def _gain(comparison: Comparison | None) -> tuple[str, str]:
    if comparison is None:
        return "", ""
    gain, low, high = (
        _nats(x, "+.1f" if abs(x) < 10 else "+.0f") for x in (comparison.gain, comparison.low, comparison.high)
    )
    return gain, f"{low} .. {high}"


def _nats(likelihood: float, form: str) -> str:
    """Write a log-likelihood; a law that holds a life for impossible is told so, not by its many digits."""
    return format(likelihood, form) if abs(likelihood) < _NATS_MAX else format(math.copysign(math.inf, likelihood), "+")


def parameters(fit: Fit) -> RenderableType:
    """The chosen law, why, and its parameters."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, value in fit.law.parameters().items():
        table.add_row(*_parameter_text(name, value))
    return Stack(Text(f"Chosen: {fit.law.name} ({fit.reason})"), Padding(table, (0, 0, 0, 2)))


def _parameter_text(name: str, value: float) -> tuple[str, str]:
    if name.endswith("_per_s"):
        return f"{name.removesuffix('s')}h", f"{value * HOUR_S:.4g}"
    if name.endswith("_s"):
        return f"{name.removesuffix('s')}h", f"{value / HOUR_S:.4g}"
    return name, f"{value:.4g}"


def remaining(law: Law) -> Table:
    """Expected remaining life at some ages, with its bounds."""
    table = Table(title="Expected remaining life", title_justify="left", box=None, pad_edge=False)
    for name in ("at age", "mean", "counted up to age", "which so many outlive"):
        table.add_column(name, justify="right")
    for age_s in _AGES_S:
        if age_s >= min(law.end_s, law.observed_s):
            break
        found = law.remaining(age_s)
        until = "any" if found.until_s == math.inf else duration_text(found.until_s)
        table.add_row(f"{age_s / HOUR_S:.0f} h", duration_text(found.mean_s), until, f"{found.outliving:.1%}")
    return table


def grouped(groups: Sequence[Group]) -> Table:
    """Which values of a property have a law of their own."""
    table = Table(title=f"By {groups[0].key}", title_justify="left", box=None, pad_edge=False)
    table.add_column(groups[0].key)
    for name in ("lives", "losses", "batches"):
        table.add_column(name, justify="right")
    table.add_column("law")
    table.add_column("mean life", justify="right")
    table.add_column("why", overflow="fold")
    for group in groups:
        counts = (f"{group.lives}", f"{group.losses}", f"{group.batches}")
        table.add_row(group.value, *counts, group.how.value, duration_text(group.law.remaining().mean_s), group.reason)
    return table


# ------------------------------------------------------------------------------------------------------------------ data


def as_json(fit: Fit, groups: Sequence[Group] = ()) -> dict[str, Any]:
    """Return a fit as data; names end with their unit, likelihoods are of lives in seconds [nats]."""
    whole_life = fit.law.remaining()
    return {
        "lives": len(fit.lives),
        "losses": fit.lives.losses,
        "censored": len(fit.lives) - fit.lives.losses,
        "batches": fit.lives.batches,
        "oldest_s": fit.lives.oldest_s,
        "chosen": fit.law.name,
        "reason": fit.reason,
        "trusted": fit.trusted,
        "doubts": list(fit.doubts),
        "mean_life_s": whole_life.mean_s,
        "mean_life_until_s": _finite(whole_life.until_s),
        "mean_life_outliving": whole_life.outliving,
        "mean_life_note": whole_life.note,
        "laws": [_candidate_json(fit, candidate) for candidate in fit.candidates],
        "groups": [_group_json(group) for group in groups],
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _candidate_json(fit: Fit, candidate: Candidate) -> dict[str, Any]:
    versus = next((found for found in fit.comparisons if found.worse == candidate.name), None)
    return {
        "law": candidate.name,
        "parameters": {name: _finite(value) for name, value in candidate.law.parameters().items()},
        "log_likelihood": candidate.log_likelihood,
        "held_out": _finite(candidate.score),
        "aic": candidate.aic,
        "ks": candidate.ks,
        "chosen_gains": None if versus is None else [_finite(x) for x in (versus.gain, versus.low, versus.high)],
    }


def _group_json(group: Group) -> dict[str, Any]:
    return {
        "key": group.key,
        "value": group.value,
        "lives": group.lives,
        "losses": group.losses,
        "batches": group.batches,
        "how": group.how.value,
        "reason": group.reason,
        "parameters": {name: _finite(value) for name, value in group.law.parameters().items()},
        "mean_life_s": _finite(group.law.remaining().mean_s),
    }


# --------------------------------------------------------------------------------------------------------------- picture


def draw(fit: Fit, path: Path, *, title: str, dark: bool = False) -> None:
    """Draw distribution, quantiles and hazard, 1300 x 480 pixels, in the format that the path's ending names.

    Args:
        fit: what to draw.
        path: a `.png` or `.svg`.
        title: what the lives are, for its first line.
        dark: light ink on dark paper.

    Raises:
        Misuse: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - an extra, needed here alone
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError as error:
        raise Misuse(f"the picture needs matplotlib: {install('plot')}") from error
    colours = _DARK if dark else _LIGHT
    figure = Figure(figsize=(WIDTH_IN, HEIGHT_IN), dpi=DOTS_PER_IN, layout="constrained", facecolor=colours["paper"])
    FigureCanvasAgg(figure)
    left, middle, right = figure.subplots(1, 3, width_ratios=(1.25, 0.9, 1.25))
    _draw_lost(left, fit, colours)
    _draw_quantiles(middle, fit, colours)
    _draw_hazard(right, fit, colours)
    for axes in (left, middle, right):
        _decorate(axes, colours)
    lives = fit.lives
    counts = f"{len(lives)} lives, {lives.losses} losses, {len(lives) - lives.losses} censored"
    figure.suptitle(f"{title}: {counts}", x=0.01, ha="left", fontsize=11, color=colours["ink"])
    handles, names = left.get_legend_handles_labels()
    figure.legend(
        handles,
        names,
        loc="outside lower center",
        ncols=len(names),
        frameon=False,
        fontsize=9,
        labelcolor=colours["ink"],
        columnspacing=1.4,
    )
    figure.savefig(path, facecolor=colours["paper"])


def _shown_ages(fit: Fit) -> tuple[Any, float]:
    """Ages to draw at [s], dense where the chosen law moves, and the last one [h]."""
    last_s = fit.lives.oldest_s * 1.03
    moving = fit.law.quantile(np.linspace(0.0, 0.999, _POINTS))
    found = np.concatenate([np.linspace(0.0, last_s, _POINTS), moving[moving <= last_s], fit.law.kinks_s])
    return np.unique(found[found <= last_s]), last_s / HOUR_S


def _others(fit: Fit) -> list[Candidate]:
    return [candidate for candidate in fit.candidates if candidate.law is not fit.law and candidate.name in _OTHERS]


def _draw_lost(axes: Axes, fit: Fit, colours: dict[str, str]) -> None:
    ages_s, last_h = _shown_ages(fit)
    steps_s = np.concatenate([[0.0], fit.kaplan.ages_s, [fit.kaplan.observed_s]])
    lost = fit.kaplan.cdf(steps_s)
    error = 1.96 * fit.kaplan.standard_error(steps_s)
    low, high = np.clip(lost - error, 0, 1), np.clip(lost + error, 0, 1)
    axes.fill_between(steps_s / HOUR_S, low, high, step="post", color=colours["data"], alpha=0.25, linewidth=0)
    axes.step(
        steps_s / HOUR_S,
        lost,
        where="post",
        color=colours["data"],
        linewidth=1.4,
        label="observed (Kaplan-Meier, 95 %; hazard piecewise)",
    )
    for candidate in _others(fit):
        if candidate.name == "piecewise":
            continue  # it lies on the observed curve, and stands for the data in the hazard's panel
        colour, dashes = _OTHERS[candidate.name]
        axes.plot(
            ages_s / HOUR_S,
            candidate.law.cdf(ages_s),
            color=colour,
            linestyle=dashes,
            linewidth=1.3,
            label=candidate.name,
        )
    axes.plot(
        ages_s / HOUR_S, fit.law.cdf(ages_s), color=colours["chosen"], linewidth=2.2, label=f"{fit.law.name} (chosen)"
    )
    axes.set_xlim(0, last_h)
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("age of the machine [h]")
    axes.set_title("Lost by age: share of machines")


def _draw_quantiles(axes: Axes, fit: Fit, colours: dict[str, str]) -> None:
    last_h = fit.lives.oldest_s * 1.03 / HOUR_S
    reach = float(fit.kaplan.cdf(fit.kaplan.observed_s))
    shares = np.linspace(0.0, reach, _QUANTILES + 2)[1:-1]
    axes.plot([0, last_h], [0, last_h], color=colours["faint"], linewidth=1.2)
    observed_h = fit.kaplan.quantile(shares) / HOUR_S
    drawn: list[tuple[Curve, str, str, float]] = [(fit.law, colours["chosen"], "o", 22.0)]
    shown = [other for other in _others(fit) if other.name in ("blended", "weibull")]
    drawn += [(other.law, _OTHERS[other.name][0], "x", 16.0) for other in shown]
    for law, colour, marker, size in reversed(drawn):
        axes.scatter(
            law.quantile(shares) / HOUR_S, observed_h, s=size, color=colour, marker=marker, linewidth=1, zorder=3
        )
    axes.set_xlim(0, last_h)
    axes.set_ylim(0, last_h)
    axes.set_xlabel("age by the law [h]")
    axes.set_title("Quantiles: observed age [h]")


def _draw_hazard(axes: Axes, fit: Fit, colours: dict[str, str]) -> None:
    ages_s, last_h = _shown_ages(fit)
    ages_s = ages_s[(ages_s > 0) & (ages_s <= fit.lives.oldest_s)]
    for candidate in _others(fit):
        colour, dashes = _OTHERS[candidate.name]
        data = candidate.name == "piecewise"
        hazard = candidate.law.hazard(ages_s) * HOUR_S
        style = {"color": colours["data"], "linewidth": 1.4} if data else {"color": colour, "linestyle": dashes}
        axes.plot(ages_s / HOUR_S, hazard, drawstyle="steps-post" if data else "default", **{"linewidth": 1.3} | style)
    hazard = fit.law.hazard(ages_s) * HOUR_S
    top = float(np.max(hazard))
    bottom = float(np.min(hazard[hazard > 0]))
    axes.plot(ages_s / HOUR_S, hazard, color=colours["chosen"], linewidth=2.2)
    axes.set_yscale("log")
    axes.set_xlim(0, last_h)
    axes.set_ylim(bottom / 3, top * 5)
    axes.set_xlabel("age of the machine [h]")
    axes.set_title("Hazard: losses per machine-hour")


def _decorate(axes: Axes, colours: dict[str, str]) -> None:
    axes.set_facecolor(colours["paper"])
    axes.title.set(fontsize=10, color=colours["ink"], ha="left", x=0.0)
    axes.xaxis.label.set(color=colours["ink"], fontsize=9)
    axes.tick_params(colors=colours["ink"], labelsize=9, which="both")
    axes.grid(color=colours["faint"], linewidth=0.5, alpha=0.5)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(colours["faint"])
