"""Numbers that the thesis on adaptive checkpointing prints, and the inputs that its tables imply.

Tables are in seconds (printed as days and hours) and USD.  In Tables 6.2 and 6.3 "Comp." includes "Recomp.", and
Comp. + Save + Alloc. + Prep. = Total to 2 s, except in one misprinted cell.  The simulator's inputs are not printed;
`INPUTS` derives them from the tables by division; its docstring has the equations.

Source:
    "Spotify" (adaptive checkpointing on preemptible machines), thesis, Seoul National University, August 2022.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_CELLS = ("comp_s", "recompute_s", "save_s", "alloc_s", "prep_s", "total_s", "cost_usd")


def _columns(**columns: tuple[float, ...]) -> dict[str, dict[str, float]]:
    return {name: dict(zip(_CELLS, cells, strict=True)) for name, cells in columns.items()}


def _measured(model: str, mttp_s: int, adaptive: int, static: int) -> dict[str, Any]:
    return {"model": model, "mttp_s": mttp_s, "adaptive_steps_12h": adaptive, "static_steps_12h": static}


TABLES: Final[Mapping[str, Any]] = {
    "table_6_2_gpt117m": _columns(
        adaptive=(460_008, 0, 707, 5_902, 6_870, 473_488, 303.1),
        per10=(462_060, 2_051, 25_497, 6_449, 7_531, 501_539, 321.1),
        per51=(466_224, 6_217, 4_998, 6_307, 7_365, 484_894, 310.3),
        per100=(488_135, 11_851, 2_549, 6_362, 7_363, 488_135, 312.5),
        on_demand=(460_001, 0, 25, 127, 160, 460_314, 793.4),
    ),
    "table_6_3_gpt1_3b": _columns(
        adaptive=(2_065_928, 90_897, 58_949, 28_157, 66_692, 2_219_727, 1421.1),
        per10=(2_021_101, 46_069, 195_003, 29_557, 69_792, 2_315_454, 1482.4),
        per33=(2_066_865, 91_880, 59_082, 28_147, 66_619, 2_220_715, 1421.7),
        per100=(2_214_042, 239_021, 19_498, 29_996, 70_880, 2_334_417, 1494.5),
        on_demand=(1_975_029, 0, 1_950, 136, 325, 1_977_442, 3408.3),
    ),
    "table_6_1": [
        _measured("117M", 1_500, 7_310, 6_910),
        _measured("117M", 2_700, 8_390, 8_090),
        _measured("117M", 5_400, 8_910, 8_420),
        _measured("1.3B", 1_500, 1_070, 1_000),
        _measured("1.3B", 2_400, 1_400, 1_380),
        _measured("1.3B", 4_500, 1_860, 1_770),
    ],
}
"""Tables 6.1 (steps done in 12 h), 6.2 (GPT-117M) and 6.3 (GPT-1.3B)."""

INPUTS: Final[Mapping[str, Any]] = {
    "steps": 100_000,
    "mttp_s": 10_800,
    "grace_s": 30,
    "prices_printed_usd_h": {"on_demand": 6.2, "spot": 2.3},
    "prices_implied_by_costs_usd_h": {"on_demand": 6.205, "spot": 2.3048},
    "on_demand_alloc_117m_s": 127,
    "gpt117m": {
        "step_s": 4.60001,
        "delta_s": 2.5495,
        "backup_s": 13.0,
        "alloc_s": 136.5,
        "prep_s": 160.0,
        "user_interval_steps": 10_000,
    },
    "gpt1_3b": {
        "step_s": 19.75029,
        "delta_s": 19.4995,
        "backup_s": 69.25,
        "alloc_s": 136.5,
        "prep_s": 325.0,
        "on_demand_interval_steps": 1_000,
    },
    "interval_check": {"117M": {"published": 51}, "1.3B": {"published": 33}},
}
"""Printed: steps (captions of Figures 6.1 to 6.3), MTTP and notice (sections 6.1.1, 6.3.1), prices (6.1.1), intervals.

Implied by Tables 6.2 and 6.3, with k the interval in steps and N = Total / MTTP losses:

* step: (Comp. - Recomp.) / 100 000; delta: Save / (100 000 / k); prices: Cost / Total;
* backup, 117M: (Save of adaptive - 10 delta) / N - delta; 1.3B: Recomp. / N less half a cycle, a step and delta;
* allocation and preparation: their row / (N + 1); the on-demand columns have them once.
"""

OVERHEADS_PCT: Final[Mapping[tuple[str, str], float]] = {
    ("gpt117m", "adaptive"): 2.86,
    ("gpt117m", "per10"): 8.96,
    ("gpt117m", "per51"): 5.34,
    ("gpt117m", "per100"): 6.04,
}
"""How much longer than on demand a run takes [%]: section 6.3.1 about Figure 6.1, and the abstract."""

SAVED_PCT: Final[Mapping[str, float]] = {"gpt117m": 62.0, "gpt1_3b": 58.0}
"""How much cheaper than on demand the adaptive column is [%]: sections 6.3.1 and 6.3.2."""

SAVE_SHARE_PCT: Final = 5.08
"""Share of saves in the run per 10 steps of Table 6.2 [%]: section 6.3.1."""

MTTPS_H: Final = tuple(range(1, 13))
"""Mean times to preemption of Figure 6.3 [h]: section 6.4 says from 3,600 to 43,200 s; no values are printed."""

NOTICES_S: Final = (
    ("section 2.1", "Amazon EC2", 3_600.0, 120.0),
    ("section 2.1", "Google Cloud", 120.0, 30.0),
    ("section 4.2", "Google Cloud", 3_600.0, 30.0),
    ("section 4.2", "Amazon EC2", 120.0, 120.0),
    ("section 4.2", "Azure", 30.0, 30.0),
)
"""Place, provider, notice as printed there and according to the provider's documentation [s]."""

CAPTIONS: Final = (
    ("Figure 6.2", 117.0, 1_300.0, "its section and Table 6.3 are about GPT-1.3B: 19.75 s a step, not 4.6 s"),
    ("Figure 6.3", 1.3, 1_300.0, "GPT-1.3M is printed for the GPT-1.3B of its section"),
)
"""Figure, number of parameters in its caption and the correct one [millions], and the reason."""
