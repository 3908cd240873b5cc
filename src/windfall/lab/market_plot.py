"""The market as a picture: price of a core against the saving, one colour for each provider."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from windfall.errors import Misuse
from windfall.extras import install

if TYPE_CHECKING:
    from windfall.lab.market_verb import MarketRow

# Okabe and Ito's colours, lighter on dark paper.
_LIGHT = ("#FFFFFF", "#1A1A1A", "#D8D8D8", ("#0072B2", "#D55E00", "#009E73", "#CC79A7"))
_DARK = ("#14171A", "#E8E8E8", "#3A3F45", ("#56B4E9", "#F0883E", "#3FBF93", "#E39CC5"))


def draw(rows: Sequence[MarketRow], folder: Path) -> list[Path]:
    """Draw the spot offers, twice: `market.png` and `market-dark.png`, 900 x 520 pixels; return the files.

    Raises:
        Misuse: matplotlib is not installed, or the folder cannot be written.
    """
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise Misuse(f"--plot needs matplotlib, which is not installed: {install('plot')}") from error
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Misuse(f"--plot: cannot write to {folder}: {error.strerror}") from error
    spot = [row for row in rows if row.spot and row.cpus > 0.0 and row.on_demand_usd_per_hour > 0.0]
    written = []
    for name, (paper, ink, faint, colours) in (("market.png", _LIGHT), ("market-dark.png", _DARK)):
        figure = Figure(figsize=(9.0, 5.2), dpi=100, facecolor=paper, layout="constrained")
        axes = figure.add_subplot(facecolor=paper)
        for place, provider in enumerate(dict.fromkeys(row.provider for row in spot)):
            for marker, gpu in (("o", False), ("^", True)):
                some = [row for row in spot if row.provider == provider and bool(row.accelerators) is gpu]
                axes.scatter(
                    [row.price_usd_per_hour / row.cpus for row in some],
                    [100.0 * (1.0 - row.price_usd_per_hour / row.on_demand_usd_per_hour) for row in some],
                    s=26, marker=marker, color=colours[place % len(colours)], alpha=0.75,
                    label=f"{provider}, {'with' if gpu else 'without'} accelerators" if some else None,
                )  # fmt: skip
        axes.set_xscale("log")
        axes.set_xlabel("spot price of a core [USD/h]", color=ink)
        axes.set_ylabel("cheaper than on demand [%]", color=ink)
        axes.set_title("Known offers", color=ink, loc="left")
        axes.tick_params(colors=ink, which="both")
        axes.grid(color=faint, linewidth=0.6)
        for side in axes.spines.values():
            side.set_color(faint)
        if spot:
            axes.legend(facecolor=paper, edgecolor=faint, labelcolor=ink, fontsize=8)
        figure.savefig(folder / name, facecolor=paper)
        written.append(folder / name)
    return written
