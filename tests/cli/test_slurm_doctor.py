"""What `windfall doctor slurm` says that saving costs: by the product's own policy, from a stated save and a stated hazard."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.providers.test_slurm_tables import site
from windfall.cli import slurm_checks
from windfall.providers.slurm.site_checks import Insurance
from windfall.structs import replace


def insured(tmp_path: Path, grace_s: float) -> Insurance:
    """A partition that gives way with this grace, on an installation that has run nothing yet."""
    found = site()
    low = replace(found.partitions["low"], grace_s=grace_s)
    partitions = {**found.partitions, "low": low}
    (insurance,) = [slurm_checks._insurance(replace(found, partitions=partitions), tmp_path)(low)]
    assert insurance is not None
    return insurance


def test_without_a_grace_saving_pays_every_eleven_minutes(tmp_path: Path) -> None:
    """Young, CACM 17(9), 1974: sqrt(2 x 20 s x 3 h) is 657 s, and 20 s of 677 s are 3 %; the saving policy agrees."""
    found = insured(tmp_path, 0.0)

    assert found.interval_s == pytest.approx(math.sqrt(2.0 * 20.0 * 10_800.0), rel=0.03)
    assert found.save_share == pytest.approx(20.0 / 657.0, rel=0.05)
    assert found.share > 2.0 * found.save_share, (
        "what is lost costs about as much as the saves, and machines come on top"
    )
    assert found.fits is False
    assert found.assumed == "assumed a preemption every 3 h, and assumed 20 s for a save"


def test_a_grace_with_room_for_a_save_makes_saves_rarer(tmp_path: Path) -> None:
    """Most losses then redo nothing."""
    none, minute = insured(tmp_path, 0.0), insured(tmp_path, 60.0)

    assert minute.fits is True
    assert minute.interval_s > 1.3 * none.interval_s
    assert minute.share < none.share


def test_a_partition_that_is_not_preempted_needs_no_advice(tmp_path: Path) -> None:
    """Nothing is said of saves there."""
    found = site()

    assert slurm_checks._insurance(found, tmp_path)(found.partitions["high"]) is None
