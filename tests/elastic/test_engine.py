"""Fixed shapes: what is trained does not depend on how many machines do it, nor on how the layers are cut."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.elastic.elastic_script import SAMPLES
from tests.elastic.scripted_fleet import alone, fleet

STEPS = 8


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[int, float], str]:
    """Losses and final state of one process without a coordinator."""
    return alone(tmp_path_factory.mktemp("alone") / "run", {"steps": STEPS})


@pytest.mark.real
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "shape",
    [
        (2, 2), (3, 1), (2, 4),
        *(pytest.param(shape, marks=pytest.mark.slow) for shape in [(1, 1), (2, 1), (1, 2), (4, 1)]),
    ],
    ids=lambda shape: f"{shape[0]}x{shape[1]}",
)  # fmt: skip
def test_every_shape_trains_the_same_to_the_last_bit(
    shape: tuple[int, int], reference: tuple[dict[int, float], str], tmp_path: Path
) -> None:
    """Losses and final state are bitwise those of one process alone, and each sample of an epoch is trained exactly once."""
    names = [f"m{number}" for number in range(shape[0] * shape[1])]
    with fleet(tmp_path / "run", steps=STEPS) as machines:
        machines.start(*names)
        machines.begin(*shape, names)
        machines.finish(names, STEPS)

        assert machines.losses() == reference[0]
        assert machines.digests() == {reference[1]}
        samples = machines.samples()
        for epoch in (range(1, 5), range(5, 9)):
            assert sorted(number for step in epoch for number in samples[step]) == list(range(SAMPLES))
