"""Numbers that Parcae's slides print, and totals of its public simulator.

`OURS` are policies that were added to that simulator to judge the others.

Source:
    J. Duan et al., "Parcae: Proactive, Liveput-Optimized DNN Training on Preemptible Instances", NSDI 2024, as slides (the text
    was not at hand); the simulator of JF-D/Parcae at commit efedee7e, run with look-ahead 12 and 30 to 100 draws.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

PAPER: Final = "Parcae"
NO_DATA: Final = "needs the measured tables of Parcae's public program: pass their folder as --data"
MODELS: Final[Mapping[str, str]] = {
    "GPT-2": "gpt-1.5b",
    "BERT": "bert",
    "GPT-3": "gpt-6.7b",
    "ResNet-152": "resnet152",
    "VGG-19": "vgg19",
}
"""Names in the rows, and in the tables."""
DRAWN: Final = "GPT-2"
"""The model whose shapes are drawn over time."""
AHEAD, HISTORY, INTERVAL_S, MOST, LEAST = 12, 12, 60.0, 32, 8
"""Intervals ahead and back, their length [s], and the bounds of the published forecast."""

IDEAL, CHECKPOINTS, MIGRATING = "ideal", "throughput_optimized", "reactive_migrate"
TRUTH, PERSISTING, FORECASTING = "liveput_truth", "nowcast_persist", "nowcast_arima"
BOTH: Final = "nowcast_both"
"""Ours alone: the shape that is best on average over the last value and ARIMA."""

SAMPLES: Final[Mapping[str, Mapping[str, float]]] = {
    "GPT-2": {
        IDEAL: 1_506_023.70, CHECKPOINTS: 1_171_346.1578, MIGRATING: 1_389_850.6259, TRUTH: 1_424_557.2212,
        PERSISTING: 1_413_401.1841, FORECASTING: 1_399_416.7238,
    },
    "BERT": {
        IDEAL: 18_585_497.58, CHECKPOINTS: 16_680_332.9899, MIGRATING: 17_990_309.1133, TRUTH: 18_074_458.3218,
        PERSISTING: 18_022_616.508, FORECASTING: 17_991_732.6561,
    },
    "GPT-3": {
        IDEAL: 385_767.06, CHECKPOINTS: 197_271.2391, MIGRATING: 352_761.4274, TRUTH: 357_957.0704,
        PERSISTING: 355_482.5824, FORECASTING: 356_823.392,
    },
    "ResNet-152": {
        IDEAL: 94_554_281.88, CHECKPOINTS: 86_120_323.3694, MIGRATING: 91_744_550.8091, TRUTH: 91_915_476.0167,
        PERSISTING: 91_744_550.8091,
    },
    "VGG-19": {
        IDEAL: 66_484_452.06, CHECKPOINTS: 58_534_009.3318, MIGRATING: 62_772_547.579, TRUTH: 63_333_315.569,
        PERSISTING: 63_026_131.318,
    },
}  # fmt: skip
"""Samples trained on the whole trace, by policy."""

L1: Final[Mapping[str, float]] = {
    "Parcae's ARIMA": 0.12115814,
    "last value": 0.09947452,
    "mean of the window": 0.13850971,
}
"""Normalised L1 at 12 intervals: each forecast begins without damping, and no losses are drawn."""
L1_AS_RUN: Final = 0.12092825
"""That of Parcae's ARIMA as it runs, with damping that stays and losses that are drawn."""

EXAMPLE: Final = (((2, 3), 50.0, (100.0, 50.0, 20.0)), ((3, 2), 30.0, (90.0, 60.0, 36.0)))
"""Slides: shape, throughput of a pipeline, and liveput with 0, 1 and 2 losses, where whole pipelines are lost."""

SEGMENTS: Final[Mapping[str, tuple[int, int]]] = {
    "HADP": (330, 390),
    "HASP": (90, 150),
    "LADP": (480, 540),
    "LASP": (600, 660),
}
"""Intervals of the trace."""
SYSTEMS: Final = ("on demand", "Varuna", "Bamboo", "Parcae")
COST: Final[Mapping[str, Mapping[str, tuple[float, float | None, float | None, float]]]] = {
    "ResNet-152": {
        "HADP": (8.68, 10.86, 9.77, 3.81), "HASP": (8.68, 5.32, 7.61, 3.62),
        "LADP": (8.68, 4.89, 6.72, 2.71), "LASP": (8.68, 2.43, 6.96, 2.54),
    },
    "VGG-19": {
        "HADP": (12.43, 12.10, 12.11, 4.62), "HASP": (12.43, 6.52, 13.12, 4.66),
        "LADP": (12.43, 5.43, 9.40, 3.66), "LASP": (12.43, 3.37, 8.88, 3.11),
    },
    "BERT": {
        "HADP": (0.10, 0.09, 0.09, 0.03), "HASP": (0.10, 0.06, 0.06, 0.03),
        "LADP": (0.10, 0.07, 0.07, 0.03), "LASP": (0.10, 0.03, 0.07, 0.02),
    },
    "GPT-2": {
        "HADP": (0.62, 0.49, 0.55, 0.21), "HASP": (0.62, 0.44, 0.62, 0.21),
        "LADP": (0.62, 0.63, 0.64, 0.18), "LASP": (0.62, 0.27, 0.31, 0.15),
    },
    "GPT-3": {
        "HADP": (2.39, 9.35, 2.07, 0.94), "HASP": (2.39, 1.81, 1.74, 0.80),
        "LADP": (2.39, 3.81, 7.28, 0.67), "LASP": (2.39, None, None, 0.49),
    },
}  # fmt: skip
"""Slides: 1e-6 USD per image or token; None: unreadable there."""
RATIOS: Final[Mapping[str, tuple[tuple[float | None, ...], ...]]] = {
    "ResNet-152": ((2.3, 2.8, 2.6), (2.4, 1.5, 2.1), (3.2, 1.8, 2.5), (3.4, 1.0, 2.7)),
    "VGG-19": ((2.7, 2.6, 2.6), (2.7, 1.4, 2.8), (3.4, 1.5, 2.6), (4.0, 1.1, 2.9)),
    "BERT": ((2.9, 2.6, 2.6), (2.8, 1.6, 1.9), (3.4, 2.4, 2.4), (4.2, 1.2, 3.0)),
    "GPT-2": ((2.9, 2.3, 2.6), (3.0, 2.1, 3.0), (3.5, 3.6, 3.6), (4.1, 1.8, 2.1)),
    "GPT-3": ((2.5, 9.9, 2.2), (3.0, 2.3, 2.2), (3.6, 5.7, 10.8), (4.8, None, None)),
}
"""Slides: how much dearer than Parcae, by segment and system, as printed."""
HEADLINES: Final = (3.24, 2.59, 3.0)
"""Abstract: cheaper than on demand, Varuna and Bamboo."""
ON_DEMAND_USD, SPOT_USD = 3.06, 0.91
"""A p3.2xlarge in an hour; the spot price is that of Bamboo's simulator."""
