"""What only the first turn of a process needs is done before a machine joins: no other machine waits for it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tiers.least_squares import LeastSquares
from windfall.apps import lda, mf, mlr
from windfall.runtimes.tier_program import PracticeTable
from windfall.runtimes.tier_server import ServerSettings
from windfall.storage.object_stores import folder_url, open_store
from windfall.tier_layout import TierMachine

SETTINGS: dict[str, dict[str, object]] = {
    "mf": {"users": 50, "items": 20, "rank": 4, "ratings": 500},
    "mlr": {"observations": 100, "features": 5, "classes": 3, "batch": 10},
    "lda": {"documents": 20, "topics": 5},
}
KERNELS: dict[str, Any] = {"mf": mf.descend, "mlr": mlr.gradient, "lda": lda.draw_topics}
APPS: dict[str, Any] = {"mf": mf, "mlr": mlr, "lda": lda}


@pytest.mark.parametrize("app", APPS)
def test_the_first_turn_after_warming_up_compiles_nothing(app: str) -> None:
    """The kernel has been compiled for the very types that a turn has, and the table is as it was."""
    program = APPS[app].program(SETTINGS[app], 2)
    program.warm_up()
    before = set(KERNELS[app].signatures)
    first = program.first(np.arange(program.rows))
    program.compute(program.load(0), 1, PracticeTable(program))
    assert before
    assert set(KERNELS[app].signatures) == before
    assert np.array_equal(program.first(np.arange(program.rows)), first)


def test_a_convolutional_network_warms_up() -> None:
    """A turn of one picture runs to its end."""
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install '.[torch]'")
    from windfall.apps import cnn

    program: Any = cnn.program({"pictures": 40, "batch": 4}, 2)
    program.warm_up()
    assert np.isfinite(program.compute(program.load(0), 1, PracticeTable(program)))


def test_a_machine_warms_up_before_it_joins(tmp_path: Path) -> None:
    """A program is warm before the machine's loop, whose first report lets it join, exists."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install '.[paramserver]'")
    from windfall.runtimes import tier_actors
    from windfall.runtimes.tier_store import ObjectTierStore

    url = folder_url(str(tmp_path))
    training = tier_actors.TierTraining(url, ServerSettings(0, 1, 1), 1, 1)
    coordinator = tier_actors.CoordinatorActor(training, [TierMachine("r1", True)])
    layout = asyncio.run(coordinator.layout())
    assert ObjectTierStore(open_store(url)).newest_layout() == layout
    actor: tier_actors.MachineActor

    class Watched(LeastSquares):
        def warm_up(self) -> None:
            assert asyncio.run(actor.look(False)) is None, "the machine has begun"
            raise RuntimeError("warm")

    actor = tier_actors.MachineActor(TierMachine("r1", True), training, layout, lambda: Watched(1), 1)
    with pytest.raises(RuntimeError, match="warm"):
        asyncio.run(asyncio.wait_for(actor.run(), 10.0))
