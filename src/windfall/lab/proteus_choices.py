"""The constants of Proteus' arms, chosen on months that judge nothing, and the sweep that chose them.

The paper prints neither the application's lambda, sigma and phi, nor how large an allocation and the fleet may be, nor how
often it saves.  The application's constants are stated (`proteus_arms.Choices`) and the same for all arms; what an arm
is free to choose was swept on the last third of the months to learn from, and the value with the lowest mean cost was taken,
for each arm by itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import msgspec

from windfall.lab import proteus_arms as arms
from windfall.lab.proteus_arms import Choices
from windfall.structs import replace

STATED: Final = Choices()
CHANGE_S: Final = 0.4
EVICTION_S: Final = 1.5
"""Sigma and lambda of training whose iterations take seconds, as `python -m benchmarks sigma lambda_` prints them: four
machines are added to two, and are killed as an iteration begins, so that little of it is lost [s]."""
LOSS_PER_CORE: Final = 4.6e-4
"""Phi's slope at 64 machines of 8 cores, of which 4 only back up: by the model that Proteus' Figure 13 is predicted with
(`models.tier_costs`), they do 0.76 of what 64 times one machine would."""

CHOICES: Mapping[str, Choices] = {
    arms.ON_DEMAND: STATED,
    arms.STANDARD_CHECKPOINT: replace(STATED, checkpoint_s=300.0),
    arms.STANDARD_AGILEML: STATED,
    arms.BIDBRAIN_CHECKPOINT: replace(STATED, checkpoint_s=300.0, allocation_cores=32.0),
    arms.PROTEUS: replace(STATED, whole_hour=True),
    arms.JUST_ABOVE: STATED,
    arms.GREEDY: STATED,
    arms.OMNISCIENT: replace(STATED, allocation_cores=256.0, purchases_max=16, delta_usd=(1e-5, 0.4), whole_hour=True),
}
"""By mean cost of 30 jobs of 2 h and 15 of 20 h in each zone, one constant after another in the order of `FREE`.

The costs were, in % of on demand: standard+checkpoint 23.9, bidbrain+checkpoint 22.2, proteus 19.7, just-above 18.9,
omniscient 14.5; without anything to choose, standard+agileml 22.3 and greedy 22.0.  The sweep was before the first look at the
months held out.
"""

MEASURED_CHOICES: Mapping[str, Choices] = {
    arm: replace(one, change_s=CHANGE_S, eviction_s=EVICTION_S, loss_per_core=LOSS_PER_CORE)
    for arm, one in CHOICES.items()
}
"""The same choices with the application's constants as they are measured."""

_BIDBRAIN: Final[dict[str, tuple[object, ...]]] = {
    "allocation_cores": (32.0, 64.0, 128.0, 256.0),
    "purchases_max": (1, 4, 16),
    "delta_usd": ((1e-4, 0.4), (1e-5, 0.4)),
    "whole_hour": (False, True),
}
_CHECKPOINT: Final[dict[str, tuple[object, ...]]] = {"checkpoint_s": (300.0, 900.0, 1800.0)}
FREE: Mapping[str, Mapping[str, tuple[object, ...]]] = {
    arms.STANDARD_CHECKPOINT: _CHECKPOINT,
    arms.BIDBRAIN_CHECKPOINT: _CHECKPOINT | _BIDBRAIN,
    arms.PROTEUS: _BIDBRAIN,
    arms.JUST_ABOVE: {"above_usd": (1e-4, 1e-3, 1e-2)},
    arms.OMNISCIENT: _BIDBRAIN,
}
"""What each arm is free to choose, and from what; the others have nothing to choose."""

UNPRINTED: Mapping[str, tuple[object, ...]] = {
    "cores_max": (512.0, 768.0, 1536.0),
    "allocation_cores": (32.0, 64.0, 128.0, 256.0),
    "purchases_max": (1, 4, 16),
    "delta_usd": ((1e-4, 0.4), (1e-5, 0.4), (1e-4, 0.1)),
    "deltas": (10, 20, 40),
    "above_usd": (1e-4, 1e-3, 1e-2),
    "whole_hour": (False, True),
    "price_max": (1.0, math.inf),
    "eviction_s": (0.0, 60.0, 300.0, 1800.0),
    "change_s": (0.0, 30.0, 120.0),
    "loss_per_core": (0.0, 2e-4, 5e-4),
    "servers": (1, 3),
    "slowdown": (1.05, 1.17),
    "checkpoint_s": (300.0, 900.0),
    "restart_s": (60.0, 300.0),
    "startup_s": (0.0, 120.0, 600.0),
}
"""Every constant that the paper does not print, and values at which its effect is shown."""


def varied(base: Choices, name: str, value: object) -> Choices:
    """Return choices with another value of one constant."""
    return msgspec.structs.replace(base, **{name: value})
