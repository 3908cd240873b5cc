"""What turns show, and the constants that are fitted to them: planted ones come out, and what is not seen is said."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.models.planted_turns import KINDS, PARTITIONS, idle_of, model, run_of
from windfall.errors import Misuse
from windfall.models import asp, asp_turn_fits, asp_turns
from windfall.models.asp_turn_fits import TurnFit
from windfall.models.asp_turns import TurnRun
from windfall.structs import replace

CLUSTERS = (["small"] * 2, ["small"] * 2 + ["large"] * 2, ["large"] * 4 + ["small"] * 3)


def profiled(seed: int, **changes: object) -> list[TurnRun]:
    """Each type alone, and clusters of 2, 4 and 7."""
    rng, planted = np.random.default_rng(seed), model(**changes)
    alone = [run_of([kind], 60, rng, planted=planted) for kind in KINDS]
    return [*alone, *(run_of(kinds, 600, rng, planted=planted) for kinds in CLUSTERS)]


@pytest.fixture(scope="module")
def fit() -> TurnFit:
    """One profile."""
    return asp_turn_fits.fit_turns(profiled(0), idle_of(np.random.default_rng(9)))


def test_planted_constants_are_found(fit: TurnFit) -> None:
    """Times and bandwidths within 3 %, the contention's line and the loss within what their noise allows."""
    load = model().workload
    for found, true, share in (
        (fit.parameters_mb, load.parameters_mb, 1e-6),
        (fit.required_mb_per_s, load.required_mb_per_s, 0.03),
        (fit.server_mb_per_s, 16.0, 0.03),
        (fit.compute_s["small"], 0.4, 0.02),
        (fit.compute_s["large"], 0.15, 0.02),
        (fit.alpha1, load.alpha1, 0.1),
        (fit.start_loss, load.start_loss, 0.02),
        (fit.gamma5, load.gamma5, 0.1),
        (fit.workers_power, load.workers_power, 0.2),
    ):
        assert true is not None
        assert found.value == pytest.approx(true, rel=share)
        assert found.low - 1e-9 <= found.value <= found.high + 1e-9
    assert fit.contended == (4, 7)
    assert fit.batch == {"small": 3000.0, "large": 3000.0}


def test_intervals_hold_what_was_planted() -> None:
    """In 10 profiles, at least 45 of 50 intervals."""
    load, held = model().workload, 0
    for seed in range(10):
        rng = np.random.default_rng(100 + seed)
        found = asp_turn_fits.fit_turns(profiled(seed), idle_of(rng), seed)
        for one, true in (
            (found.compute_s["small"], 0.4),
            (found.required_mb_per_s, load.required_mb_per_s),
            (found.gamma5, load.gamma5),
            (found.start_loss, load.start_loss),
            (found.workers_power, load.workers_power),
        ):
            assert true is not None
            held += one.low <= true <= one.high
    assert held >= 45


def test_the_model_predicts_a_mix_that_was_not_profiled(fit: TurnFit) -> None:
    """Rate within 3 %, turns to a loss within 7 %, of the planted model."""
    fitted, planted, mix = asp_turn_fits.model_of(fit, "planted", servers=1), model(), [3, 2]
    for ours, theirs, share in (
        (asp.cluster_speed(fitted, mix).iterations_per_s, asp.cluster_speed(planted, mix).iterations_per_s, 0.03),
        (asp.iterations_for(fitted, mix, 0.6), asp.iterations_for(planted, mix, 0.6), 0.07),
    ):
        assert float(ours) == pytest.approx(float(theirs), rel=share)


def test_the_number_of_workers_may_not_matter() -> None:
    """A loss that all sizes share has the power 0, and an interval that says so; not the paper's 1/2."""
    found = asp_turn_fits.fit_loss(profiled(3, workers_power=0.0))["workers_power"]

    assert found.value == pytest.approx(0.0, abs=0.03)
    assert found.low <= 0.0 <= found.high
    assert found.high < 0.2


def test_what_a_profile_does_not_show_has_no_interval() -> None:
    """One batch says nothing of gamma2, one size nothing of the power: they are next to 0 and the paper's, unbounded."""
    found = asp_turn_fits.fit_loss([run_of(["small"] * 4, 400, np.random.default_rng(0))])

    assert found["gamma2"].value == pytest.approx(0.0, abs=1e-4)
    assert found["gamma2"].value < 0.0
    assert found["workers_power"].value == asp.WORKERS_POWER
    assert math.isinf(found["gamma2"].high)
    assert math.isinf(found["workers_power"].high)


def test_a_batch_of_its_own_for_each_type_tells_gamma2() -> None:
    """Machines with other batches bring the loss down at other rates, and the fit finds by how much."""
    rng, planted = np.random.default_rng(4), model(gamma2=-0.01)
    large = replace(planted.types[1], batch=6000.0)
    planted = replace(planted, types=(planted.types[0], large))
    runs = []
    for kinds in (["small"] * 2, ["large"] * 2, ["small", "large"], ["large"] * 5):
        run = run_of(kinds, 600, rng, planted=planted)
        machines = tuple(replace(one, batch=6000.0) if one.kind == "large" else one for one in run.machines)
        runs.append(replace(run, machines=machines))

    found = asp_turn_fits.fit_loss(runs)

    assert found["gamma2"].value == pytest.approx(-0.01, rel=0.1)
    assert found["gamma2"].low <= -0.01 <= found["gamma2"].high


def test_without_contention_there_is_no_line() -> None:
    """Servers that carry more than all need: P stays at 0, whatever noise the clusters' times have."""
    rng = np.random.default_rng(5)
    found = asp_turn_fits.fit_turns(profiled(5, alpha1=1e-6, beta1=0.0), idle_of(rng, total_mb_per_s=80.0))

    assert (found.contended, found.alpha1.value, found.beta1.value) == ((), asp_turn_fits.ALPHA1_LEAST, 0.0)


def test_turns_of_a_machine_that_overlap_count_by_their_ends() -> None:
    """A machine with two slots ends a turn every 0.15 s though each computes for 0.3 s."""
    run = run_of(["large"], 50, np.random.default_rng(0), noise=0.0)

    assert asp_turns.iteration_s(run, 0) == pytest.approx(0.15 + 2.0 * 0.5 / 5.0)
    assert asp_turns.turns_per_s(run) == pytest.approx(1.0 / (0.15 + 2.0 * 0.5 / 5.0))
    assert asp_turns.rows_of(run, 0)[:, asp_turns.COMPUTED].mean() == pytest.approx(0.3)


def test_the_training_loss_is_that_of_the_newest_turns() -> None:
    """It begins when all data partitions have one; a turn without a loss leaves the last one."""
    run = run_of(["small"], PARTITIONS + 2, np.random.default_rng(0))
    run = replace(run, loss=np.array([8.0] * PARTITIONS + [math.nan, 0.0]))

    found = asp_turns.training_losses(run)

    assert np.all(np.isnan(found[: PARTITIONS - 1]))
    assert found[PARTITIONS - 1 :].tolist() == [8.0, 8.0, 7.0]
    assert (asp_turns.turns_to(run, 7.5), asp_turns.turns_to(run, 6.0)) == (PARTITIONS + 2 - (PARTITIONS - 1) / 2, None)


@pytest.mark.parametrize(
    ("runs", "says"),
    [
        (lambda rng: [run_of(["small"] * 2, 200, rng)], "no machine was profiled alone"),
        (lambda rng: [run_of(["small"], 3, rng)], "had 1 turns that count"),
        (lambda rng: [replace(run_of(["small"], 40, rng), loss=np.full(40, np.nan))], "says no loss of its turns"),
        (lambda rng: [replace(run_of(["small"], 40, rng), loss=np.linspace(1, 2, 40))], "the loss did not fall"),
        (lambda rng: [run_of(["small"], PARTITIONS + 1, rng)], "train for more turns"),
    ],
)
def test_a_profile_that_tells_too_little_is_refused(runs, says: str) -> None:  # type: ignore[no-untyped-def]
    """In a sentence that says what to do."""
    rng = np.random.default_rng(0)
    with pytest.raises(Misuse, match=says):
        asp_turn_fits.fit_turns(runs(rng), idle_of(rng))
