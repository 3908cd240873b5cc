"""A fit of machine lifetimes as tables for a terminal of 80 columns, as data, and as a picture.

The picture has three panels.  *Lost by age*: Kaplan-Meier with its 95 % band, and the laws.  *Quantiles*: the age by
which a share was lost, observed against the chosen law; on the diagonal they agree.  *Hazard*: losses per machine-hour at
an age, from the laws, and from the data as a step function.
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
from windfall.models.lifetimes.groups import Group
from windfall.models.lifetimes.lifetime_law import Curve, Law
from windfall.models.lifetimes.model_selection import Comparison, Fit, ModelCandidate
from windfall.units import count_text, duration_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NATS_MAX = 1e6
HOUR_S = 3600.0
WIDTH_IN, HEIGHT_IN, DOTS_PER_IN = 13.0, 4.8, 100
_AGES_S = (0.0, 1 * HOUR_S, 6 * HOUR_S, 12 * HOUR_S, 20 * HOUR_S, 24 * HOUR_S)
_CHECKPOINTS = 600
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


def render(fit: Fit, groups: Sequence[Group] = ()) -> RenderableType:
    """Return everything: the data, the laws, the chosen law, remaining lifetime, groups, doubts."""
    lifetimes = fit.lifetimes
    batches = count_text(lifetimes.batches, "launch batch", "launch batches")
    read = f"{_lifetimes(fit)} in {batches}: {_losses(fit)}; the oldest {duration_text(lifetimes.oldest_s)}"
    parts: list[RenderableType] = [Text(read), "", laws(fit), "", parameters(fit), "", remaining(fit.law)]
    if groups:
        parts += ["", grouped(groups)]
    doubts = [Text(f"Do not trust this fit: {doubt}.", style="bold") for doubt in fit.doubts]
    return Stack(*parts, *([""] if doubts else []), *doubts)


def _lifetimes(fit: Fit) -> str:
    return count_text(len(fit.lifetimes), "lifetime", "lifetimes")


def _losses(fit: Fit) -> str:
    losses = fit.lifetimes.losses
    return f"{count_text(losses, 'loss', 'losses')}, {len(fit.lifetimes) - losses} censored"


def laws(fit: Fit) -> Table:
    """Return every law with its held-out likelihood compared with the chosen law's."""
    table = Table(title="Laws, by how well they predict held-out lifetimes", title_justify="left", box=None)
    table.pad_edge = False
    table.add_column("law")
    for name in ("parameters", "held-out", "chosen gains", "95 % interval", "KS", "AIC"):
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
    """Write a log-likelihood; -inf for a law under which an observed lifetime is practically impossible."""
    return format(likelihood, form) if abs(likelihood) < _NATS_MAX else format(math.copysign(math.inf, likelihood), "+")


def parameters(fit: Fit) -> RenderableType:
    """Return the chosen law, the reason, and its parameters."""
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
    """Return the expected remaining lifetime at some ages, with its bounds."""
    table = Table(title="Expected remaining lifetime", title_justify="left", box=None, pad_edge=False)
    for name in ("at age", "mean", "counted up to age", "share beyond it"):
        table.add_column(name, justify="right")
    for age_s in _AGES_S:
        if age_s >= min(law.end_s, law.observed_s):
            break
        found = law.remaining(age_s)
        until = "any" if found.until_s == math.inf else duration_text(found.until_s)
        share = f"{found.surviving_share:.1%}".replace("%", " %")
        table.add_row(f"{age_s / HOUR_S:.0f} h", duration_text(found.mean_s), until, share)
    return table


def grouped(groups: Sequence[Group]) -> Table:
    """Return which values of a property have a separate law."""
    table = Table(title=f"By {groups[0].key}", title_justify="left", box=None, pad_edge=False)
    table.add_column(groups[0].key)
    for name in ("lifetimes", "losses", "batches"):
        table.add_column(name, justify="right")
    table.add_column("law")
    table.add_column("mean lifetime", justify="right")
    table.add_column("reason", overflow="fold")
    for group in groups:
        counts = (f"{group.lifetimes}", f"{group.losses}", f"{group.batches}")
        table.add_row(group.value, *counts, group.kind.value, duration_text(group.law.remaining().mean_s), group.reason)
    return table


# ------------------------------------------------------------------------------------------------------------------ data


def as_json(fit: Fit, groups: Sequence[Group] = ()) -> dict[str, Any]:
    """Return a fit as data; names end with their unit, likelihoods are of lifetimes in seconds [nats]."""
    from_start = fit.law.remaining()
    return {
        "lifetimes": len(fit.lifetimes),
        "losses": fit.lifetimes.losses,
        "censored": len(fit.lifetimes) - fit.lifetimes.losses,
        "batches": fit.lifetimes.batches,
        "oldest_s": fit.lifetimes.oldest_s,
        "chosen": fit.law.name,
        "reason": fit.reason,
        "trusted": fit.trusted,
        "doubts": list(fit.doubts),
        "mean_lifetime_s": from_start.mean_s,
        "mean_lifetime_until_s": _finite(from_start.until_s),
        "mean_lifetime_surviving_share": from_start.surviving_share,
        "mean_lifetime_note": from_start.note,
        "laws": [_candidate_json(fit, candidate) for candidate in fit.candidates],
        "groups": [_group_json(group) for group in groups],
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _candidate_json(fit: Fit, candidate: ModelCandidate) -> dict[str, Any]:
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
        "lifetimes": group.lifetimes,
        "losses": group.losses,
        "batches": group.batches,
        "kind": group.kind.value,
        "reason": group.reason,
        "parameters": {name: _finite(value) for name, value in group.law.parameters().items()},
        "mean_lifetime_s": _finite(group.law.remaining().mean_s),
    }


# --------------------------------------------------------------------------------------------------------------- picture


def draw(fit: Fit, path: Path, *, title: str, dark: bool = False) -> None:
    """Draw distribution, quantiles and hazard, 1300 x 480 pixels, in the format of the path's suffix.

    Args:
        fit: what to draw.
        path: a `.png` or `.svg`.
        title: what the lifetimes are of, for the first line.
        dark: use a dark background.

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
    figure.suptitle(f"{title}: {_lifetimes(fit)}, {_losses(fit)}", x=0.01, ha="left", fontsize=11, color=colours["ink"])
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
    """Return the ages to draw at [s], dense where the chosen law changes, and the last one [h]."""
    last_s = fit.lifetimes.oldest_s * 1.03
    moving = fit.law.quantile(np.linspace(0.0, 0.999, _CHECKPOINTS))
    found = np.concatenate([np.linspace(0.0, last_s, _CHECKPOINTS), moving[moving <= last_s], fit.law.breakpoints_s])
    return np.unique(found[found <= last_s]), last_s / HOUR_S


def _others(fit: Fit) -> list[ModelCandidate]:
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
            continue  # it coincides with the observed curve; in the hazard panel it represents the data
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
    last_h = fit.lifetimes.oldest_s * 1.03 / HOUR_S
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
    ages_s = ages_s[(ages_s > 0) & (ages_s <= fit.lifetimes.oldest_s)]
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
