"""The simulated outcome of a job against the live one (thesis, table 6.1, in small)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulated import living, matrix

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(3600)]


def test_simulated_jobs_do_the_steps_and_end_at_the_time_of_live_ones(tmp_path: Path) -> None:
    """Over two policies, two models and three MTTPs the mean absolute error is 3 % at most, of steps and of finish."""
    with living.installation(tmp_path / "rig") as rig:
        made = matrix.run(rig)
    print(matrix.report(made))

    assert len(made.cells) == 12
    assert all(cell.losses for cell in made.cells), "every job lost a machine at least"
    assert matrix.steps_mae(made.cells) <= matrix.ERROR_MAX, matrix.report(made)
    assert matrix.finish_mae(made.cells) <= matrix.ERROR_MAX, matrix.report(made)
