"""How spot machines came and went in public series: what is believed of a market before anything else is known of it.

Source: occurrences over exposure (`models.availability.learn`) of the 16 series of availability of skypilot-org/spot-traces
(commit 221da1a): AWS, seven zones, V100 and K80, single machines and gangs of 16, 2022 and 2023.
"""

from __future__ import annotations

from typing import Final

from windfall.models.availability import AGES_S, AvailabilityHazards

_ENDS_PER_H: Final = (
    *(1.31, 2.76, 1.13, 1.89, 0.86, 0.973, 0.544, 0.414, 0.387),
    *(0.267, 0.237, 0.178, 0.126, 0.129, 0.0929, 0.0895, 0.0395),
)
_BEGINS_PER_H: Final = (
    *(1.84, 2.95, 1.08, 2.69, 0.983, 0.876, 0.649, 0.613, 0.354),
    *(0.282, 0.286, 0.299, 0.169, 0.133, 0.151, 0.0873, 0.0266),
)
"""By class of age."""


def hazards() -> AvailabilityHazards:
    """Return the hazards of all public series together."""
    ends, begins = (tuple(rate / 3600.0 for rate in rates) for rates in (_ENDS_PER_H, _BEGINS_PER_H))
    return AvailabilityHazards(AGES_S, ends, begins)
