"""What Proteus' text prints of its cost analysis; the bars of its figures are drawn only.

Source: A. Harlap et al., "Proteus: agile ML elasticity through tiered reliability in dynamic resource markets", EuroSys
2017, sections 1 and 6.3.
"""

from __future__ import annotations

from typing import Final

Range = tuple[float, float]
FIGURE_1_COST_PCT: Final = 15.0
"""Proteus for one application, of 128 machines on demand: "reduces cost by 85 %"."""
FIGURE_1_RUN_PCT: Final = 76.0
"""Its run time: "while running 24 % faster"."""
COST_PCT: Final[dict[str, Range]] = {
    "proteus": (15.0, 17.0),
    "standard+agileml": (22.6, 24.0),
    "standard+checkpoint": (28.3, 29.3),
}
"""Cost of on-demand's; Proteus' is printed ("by 83 %-85 %"), the others follow from the reductions below."""
BELOW_CHECKPOINT_PCT: Final[Range] = (42.0, 47.0)
"""Proteus' cost below that of Standard + Checkpoint."""
FASTER_THAN_CHECKPOINT_PCT: Final[Range] = (32.0, 43.0)
"""Proteus' run time below that of Standard + Checkpoint."""
AGILEML_PCT: Final[Range] = (18.0, 20.0)
"""Cost with AgileML below that with checkpoints, for both ways to buy."""
HALF_PCT: Final = 50.0
"""BidBrain with checkpoints, or AgileML with standard bids, has at most this share of the savings."""
JUST_ABOVE_RUN: Final[Range] = (3.0, 4.0)
"""Run time of bids just above the market, times that without."""
FREE_PCT: Final = 32.0
"""Share of free computing, Figure 10."""
