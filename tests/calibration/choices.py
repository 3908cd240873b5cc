"""What the calibration experiment forecasts, where and when: named and committed before the prices of its test are read.

Prices are those of 2015 (us-east-1, every change).  `HISTORY_S` warms up, `VALIDATION_S` chose the constants below,
`TEST_S` judges: it is played once, and nothing is chosen by it.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final


def _day(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


FILE: Final = "2015_mar_aug.csv.gz"
ZONES: Final = ("us-east-1a", "us-east-1b")
KINDS: Final = {
    "c3.xlarge": (4, 0.21), "g2.2xlarge": (8, 0.65), "r3.large": (2, 0.175), "m3.medium": (1, 0.067)
}  # fmt: skip
"""Cores and on-demand price [USD/h] of the types whose on-demand price per core is at most twice c3's; d2.8xlarge's is not."""

HISTORY_S: Final = (_day("2015-03-12"), _day("2015-04-15"))
VALIDATION_S: Final = (_day("2015-04-15"), _day("2015-06-01"))
TEST_S: Final = (_day("2015-06-01"), _day("2015-07-29"))

HOURS: Final = 6.0
"""Length of the job on its cores, undisturbed [h]."""
CORES: Final = 64.0
EVERY_S: Final = 7200.0
"""A job starts every two hours; those that overlap are not independent, and their blocks are counted."""
HORIZON: Final = 6.0
"""A history is given up after this many times the job's hours; the run then counts as never finished."""
WINDOW: Final = 168
"""A forecast rests on the newest outcomes that were known at its start: two weeks of starts."""
GAIN: Final = 0.01
"""How fast the level of a quantile follows its misses: of 0, 0.01, 0.02 and 0.05 the one with P90 coverage nearest 0.9 in the
validation span (cost 0.901, finish 0.900)."""
BAND: Final = (0.85, 0.95)
ABOVE_USD_PER_HOUR: Final = 0.001
"""Bids are this much above the price: at the on-demand price 9 of 10 runs are never evicted and all finish at one and the same
time, so that no quantile of the finish can be tested."""
