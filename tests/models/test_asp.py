"""Asynchronous training with parameter servers: the published numbers of ResNet-110, and what must hold for any workload."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windfall.errors import Misuse
from windfall.models import asp
from windfall.models.asp import AspModel, AspPlatform, AspWorker, AspWorkload

REFERENCE = Path(__file__).parents[2].parent / "shared" / "reference" / "spotdnn" / "resnet110_outputs.json"
needs_reference = pytest.mark.skipif(not REFERENCE.is_file(), reason="spotDNN's reference is not beside this checkout")

# Constants of the authors' public prototype; Table III and section V-A for the platform.
EC2 = AspPlatform(server_mb_per_s=1200.0, pcie_mb_per_s=10_000.0)
RESNET = AspWorkload("ResNet-110", 11.5, 142.0, 0.8, -1.92, 876.5, -0.2, 2507.6, None, 0.5)
PUBLISHED = (
    ("p3.2xlarge", 1, 1024, 1885.0),
    ("g4dn.4xlarge", 1, 1024, 750.0),
    ("g3.8xlarge", 2, 512, 1018.0),
    ("g3.16xlarge", 4, 512, 1995.0),
    ("p2.8xlarge", 8, 1024, 2115.0),
)


def resnet110(*, as_prototype: bool = True) -> AspModel:
    """ResNet-110 as published: each type's speed alone, with the batch of each of its GPUs."""
    types = (
        asp.worker_of_speed(name, gpus=gpus, batch=gpus * batch, samples_per_s=speed, workload=RESNET, platform=EC2)
        for name, gpus, batch, speed in PUBLISHED
    )
    return AspModel(RESNET, EC2, tuple(types), as_prototype)


def some_model(**changes: object) -> AspModel:
    """A workload with heavy traffic, and the paper's loss."""
    values = {
        "name": "some",
        "parameters_mb": 98.0,
        "required_mb_per_s": 562.0,
        "alpha1": 0.52,
        "beta1": -0.7,
        "gamma1": 4000.0,
        "gamma2": -20.0,
        "gamma3": 14_000.0,
        "gamma4": 0.4,
        "gamma5": 0.3,
        **changes,
    }
    return AspModel(AspWorkload(**values), EC2, (AspWorker("fast", 1, 128, 0.45), AspWorker("slow", 4, 256, 1.1)))  # type: ignore[arg-type]


@needs_reference
def test_every_reference_output_of_resnet_110_follows_from_the_published_constants() -> None:
    """Speed, mean batch, iterations and time of the 114 reference cases, among them Table I and Figures 6a and 7a."""
    cases = json.loads(REFERENCE.read_text())["clean"]
    model = resnet110()
    assert len(cases) == 114
    for case in cases:
        speed = asp.cluster_speed(model, case["plan"])
        assert float(speed.samples_per_s) == pytest.approx(case["v"], abs=1e-4)
        assert float(speed.batch) == case["bw"]
        if case["j"] < 0:  # the one worker starts below this loss; the prototype prints a time before the start
            assert float(asp.time_for_s(model, case["plan"], case["loss"])) == 0.0
            continue
        assert float(asp.iterations_for(model, case["plan"], case["loss"])) == case["j"]
        assert float(asp.time_for_s(model, case["plan"], case["loss"])) == pytest.approx(case["t"], abs=1e-4)


@pytest.mark.parametrize(
    ("plan", "loss", "time_s"),
    [
        ((0, 0, 5, 3, 0), 0.8, 2549.02),
        ((0, 2, 5, 2, 0), 0.8, 2597.34),
        ((2, 0, 2, 0, 0), 0.9, 1876.04),
        ((2, 0, 4, 0, 0), 0.8, 2340.76),
        ((2, 0, 4, 0, 0), 0.7, 3568.33),
        ((2, 1, 3, 0, 0), 0.7, 3694.59),
    ],
)
def test_the_times_of_table_i_and_figure_7a_are_those_printed(
    plan: tuple[int, ...], loss: float, time_s: float
) -> None:
    """Table I (spotDNN, Srifty+) and Figure 7a, to the 0.01 s in which they are printed and drawn."""
    assert round(float(asp.time_for_s(resnet110(), plan, loss)), 2) == time_s


def test_the_iterations_of_figure_6a_are_those_drawn() -> None:
    """4 g4dn.4xlarge and 4 g3.16xlarge: 2378, 3540, 5993, 14580 predicted iterations."""
    drawn = [(2.4, 2378), (1.9, 3540), (1.4, 5993), (0.9, 14_580)]
    assert [(loss, int(asp.iterations_for(resnet110(), (0, 4, 0, 4, 0), loss))) for loss, _ in drawn] == drawn


@pytest.mark.parametrize(("equal", "printed"), [(2, 0.71), (3, 0.82), (4, 0.87)])
def test_equal_workers_have_the_convergence_coefficient_of_table_vi(equal: int, printed: float) -> None:
    """Table VI prints 0.71, 0.82 and 0.87 for 2, 3 and 4 equal workers."""
    assert round(float(asp.cluster_speed(some_model(), (equal, 0)).coefficient), 2) == printed


def test_the_coefficient_is_measured_from_the_largest_share() -> None:
    """The order of the types does not matter, and shares of 0.64 and 0.36 give the 0.51 of Table VI's [1, 1]."""
    model = some_model()
    pair = asp.AspModel(model.workload, model.platform, model.types[::-1])
    assert float(asp.cluster_speed(model, (1, 2)).coefficient) == pytest.approx(
        float(asp.cluster_speed(pair, (2, 1)).coefficient)
    )
    _, _, _, found = asp.totals(np.array([1, 1]), np.array([1.0, 1.0]), np.array([0.36, 0.64]))
    assert round(float(found), 2) == 0.51


def test_the_bounds_on_the_workers_are_the_published_ones() -> None:
    """Equation 15 gives the prototype's 13 for ResNet-110; equation 16 by hand: 512 samples x 6481 / (2115 x 1900 s) is 1."""
    model = resnet110()
    assert asp.workers_upper(RESNET, EC2) == 13
    fewest = (-0.2 * 1024 + 2507.6) / (0.7 - 0.5) - 876.5
    by_hand = math.ceil(1024 * fewest / (2115 * 1900.0))
    assert by_hand == 3
    assert asp.workers_lower(model, 0.7, 1900.0) == by_hand
    assert asp.workers_lower(model, 0.7, 1900.0, types=[1]) == math.ceil(1024 * fewest / (750 * 1900.0))
    assert asp.workers_lower(model, 3.5, 1900.0) == 1


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)).filter(any), min_size=1, max_size=6),
    st.floats(0.35, 3.0),
    st.booleans(),
)
def test_many_plans_at_once_are_as_one_by_one(plans: list[tuple[int, int]], loss: float, as_prototype: bool) -> None:
    """A matrix of plans gives each plan's own time."""
    model = asp.AspModel(some_model().workload, EC2, some_model().types, as_prototype)
    alone = [float(asp.time_for_s(model, plan, loss)) for plan in plans]
    assert asp.time_for_s(model, plans, loss).tolist() == alone
    assert asp.time_for_s(model, [plans, plans], loss).tolist() == [alone, alone]


@given(st.tuples(st.integers(0, 12), st.integers(0, 12)).filter(any), st.floats(0.31, 3.0))
def test_the_loss_after_the_iterations_for_a_loss_is_that_loss(plan: tuple[int, int], loss: float) -> None:
    """The two are inverse to each other up to the loss at the start, and time is iterations over their rate."""
    model = some_model()
    needed = asp.iterations_for(model, plan, loss)
    start = float(asp.loss_after(model, plan, 0.0))
    assert float(asp.loss_after(model, plan, needed)) == pytest.approx(min(loss, start), rel=1e-9)
    assert float(asp.time_for_s(model, plan, loss)) == pytest.approx(
        float(needed / asp.cluster_speed(model, plan).iterations_per_s), rel=1e-12
    )


@given(st.tuples(st.integers(0, 12), st.integers(0, 12)).filter(any), st.floats(0.0, 1e5), st.floats(0.1, 1e4))
def test_the_loss_falls_with_iterations_and_stays_above_its_floor(
    plan: tuple[int, int], iterations: float, more: float
) -> None:
    """More iterations, less loss, never down to gamma5."""
    before, after = asp.loss_after(some_model(), plan, [iterations, iterations + more])
    assert before > after > 0.3


@given(st.integers(1, 60), st.floats(0.0, 0.05), st.integers(1, 4))
def test_contention_only_ever_slows(workers: int, margin: float, servers: int) -> None:
    """The bandwidth of a worker falls with others and with the margin, rises with servers, and stays between its bounds."""
    load = some_model().workload
    one, margined, served = (
        AspModel(load, AspPlatform(1200.0, 10_000.0, count, share), some_model().types)
        for count, share in ((1, 0.0), (1, margin), (servers, 0.0))
    )
    time_s = float(asp.network_time_s(one, workers))
    assert 2 * 98.0 / 562.0 <= time_s <= max(2 * 98.0 * workers / 1200.0, 2 * 98.0 / 562.0) * (1 + 1e-12)
    assert float(asp.network_time_s(one, workers + 1)) >= time_s
    assert float(asp.network_time_s(margined, workers)) >= time_s
    assert float(asp.network_time_s(served, workers)) <= time_s


def test_four_servers_are_one_with_four_times_the_bandwidth() -> None:
    """Section IV-C: in equation 8 the bandwidths of all servers add up."""
    load, types = some_model().workload, some_model().types
    four, wide = (AspModel(load, AspPlatform(total, 10_000.0, count), types) for total, count in ((300, 4), (1200, 1)))
    assert asp.network_time_s(four, [1, 4, 20]).tolist() == asp.network_time_s(wide, [1, 4, 20]).tolist()


def test_no_contention_below_the_servers_bandwidth_and_a_full_share_at_its_peak() -> None:
    """Equation 8 at its three places: enough for all, in between, and P = 1."""
    model = some_model()
    between = min(0.52 * math.sqrt(4) - 0.7, 1.0)
    found = asp.network_time_s(model, [2, 4, 50])
    assert found == pytest.approx([196 / 562, 196 / (between * 300.0 + (1 - between) * 562.0), 196 / 24.0])


def test_the_probability_stays_within_0_and_1_and_the_margin_raises_it() -> None:
    """P = alpha1 sqrt(n) + beta1, 2 % more with a margin of 2 %, and never outside [0, 1]."""
    assert asp.contention(np.array([1, 4, 100]), 0.8, -1.2, 0.0).tolist() == [0.0, pytest.approx(0.4), 1.0]
    assert asp.contention(np.array([1, 4, 100]), 0.8, -1.2, 0.02).tolist() == [0.0, pytest.approx(0.408), 1.0]


def test_with_a_common_start_every_cluster_begins_at_that_loss() -> None:
    """Before the first iteration the loss is start_loss for all; with one gamma1 it depends on the cluster."""
    one_start = some_model(gamma1=None, start_loss=4.605)
    plans = [(1, 0), (4, 0), (0, 3), (2, 5)]
    assert asp.loss_after(one_start, plans, 0.0) == pytest.approx([4.605] * 4, rel=1e-12)
    assert np.ptp(asp.loss_after(some_model(), plans, 0.0)) > 1.0
    needed = asp.iterations_for(one_start, plans, 0.9)
    assert asp.loss_after(one_start, plans, needed) == pytest.approx([0.9] * 4, rel=1e-12)
    # By hand: j = A (1 / (0.9 - 0.3) - 1 / (4.605 - 0.3)), A of one worker with a batch of 128 and R = 0.
    by_hand = (-20.0 * 128 + 14_000.0) * math.sqrt(0.4) * (1 / 0.6 - 1 / 4.305)
    assert needed[0] == pytest.approx(by_hand)
    assert asp.iterations_for(one_start, plans, 4.605).tolist() == pytest.approx([0.0] * 4, abs=1e-9)


def test_the_curves_of_figure_3_start_together_so_that_their_gamma1_is_in_proportion_to_their_scale() -> None:
    """Hyperbolas through the paper's Figure 3: A / gamma1 is 4.95 to 4.97 for all seven, while gamma1 varies 2.3-fold."""
    fits = {
        (20_258, 4073),
        (15_487, 3132),
        (10_381, 2096),
        (24_216, 4888),
        (19_660, 3965),
        (16_769, 3387),
        (10_313, 2083),
    }
    assert all(4.94 < scale / gamma1 < 4.98 for scale, gamma1 in fits)
    assert max(gamma1 for _, gamma1 in fits) > 2.3 * min(gamma1 for _, gamma1 in fits)


def test_the_upper_bound_is_the_last_size_below_certain_contention() -> None:
    """At n_upper P is below 1, one worker more makes it certain, with the margin counted."""
    for margin in (0.0, 0.05):
        platform = AspPlatform(1200.0, 10_000.0, 1, margin)
        most = asp.workers_upper(RESNET, platform)
        assert (0.8 * math.sqrt(most) - 1.92) * (1 + margin) < 1.0 <= (0.8 * math.sqrt(most + 1) - 1.92) * (1 + margin)


def test_a_worker_of_a_speed_has_that_speed_alone() -> None:
    """T_comp from a published speed gives the speed back, bus and network counted."""
    model = resnet110(as_prototype=False)
    alone = asp.cluster_speed(model, np.eye(5))
    assert alone.samples_per_s == pytest.approx([speed for *_, speed in PUBLISHED], rel=1e-12)
    assert model.types[4].compute_s == pytest.approx(8192 / 2115 - 23 / 142 - 8 * 23 / 10_000)


def test_a_gpu_takes_the_largest_power_of_two_that_fits() -> None:
    """Equation 10: 70 samples of memory are a batch of 64."""
    assert asp.largest_batch(16.0, 5.0, -10.0) == 64
    assert asp.largest_batch(14.8, 5.0, -10.0) == 64
    assert asp.largest_batch(14.7, 5.0, -10.0) == 32
    with pytest.raises(Misuse, match="2 GB has memory for 0 samples"):
        asp.largest_batch(2.0, 5.0, -10.0)


def test_the_plain_arrays_give_the_same_time() -> None:
    """What a compiled search reads: T_i from the two tables, then the plain formulas, in a compiled function."""
    numba = pytest.importorskip("numba")
    totals, scale_of, mean = map(numba.njit, (asp.totals, asp.loss_scale, asp.mean_batch))
    needed, head = map(numba.njit, (asp.iterations_to, asp.head_start))

    @numba.njit
    def time_s(plain: asp.AspArrays, counts: np.ndarray, loss: float) -> float:
        iteration_s = plain.fixed_s + plain.network_s[counts.sum()]
        workers, rate, speed, coefficient = totals(counts, iteration_s, plain.batches)
        scale = scale_of(mean(speed, rate, False), coefficient, workers, plain.loss)
        return needed(loss, scale, head(scale, plain.loss), plain.loss.gamma5) / rate

    for model in (some_model(), some_model(gamma1=None, start_loss=4.605), some_model(gamma4=None)):
        for plan in ((1, 0), (3, 2), (0, 7)):
            assert time_s(model.arrays(9), np.array(plan), 0.8) == pytest.approx(
                float(asp.time_for_s(model, plan, 0.8)), rel=1e-12
            )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gamma2": 0.2}, "gamma2 of workload 'some' is 0.2: write a number below 0"),
        ({"gamma3": math.nan}, "gamma3 of workload 'some' is nan"),
        ({"gamma1": 0.0}, "gamma1 of workload 'some' is 0.0"),
        ({"gamma4": 0.0}, "gamma4 of workload 'some' is 0.0"),
        ({"gamma5": math.inf}, "gamma5 of workload 'some' is inf"),
        ({"alpha1": -0.5}, "alpha1 of workload 'some' is -0.5"),
        ({"beta1": 1.0}, "beta1 of workload 'some' is 1.0"),
        ({"parameters_mb": -1.0}, "parameters_mb of workload 'some' is -1.0"),
        ({"required_mb_per_s": 0.0}, "required_mb_per_s of workload 'some' is 0.0"),
        ({"gamma1": None}, "either a gamma1 or a start_loss: write one of the two of workload 'some'"),
        ({"start_loss": 4.6}, "either a gamma1 or a start_loss"),
        ({"gamma1": None, "start_loss": 0.3}, "start_loss of workload 'some' is 0.3: write a loss above its floor"),
        ({"gamma2": -60.0}, "holds for batches below 233.333, and worker type 'slow' has 256"),
    ],
)
def test_constants_outside_their_range_are_refused_by_name(changes: dict[str, float], words: str) -> None:
    """The message names the constant, the workload and the range."""
    with pytest.raises(Misuse, match=words):
        some_model(**changes)


def test_platforms_workers_and_questions_outside_their_range_are_refused() -> None:
    """A margin above 5 %, no server, no GPU, an impossible speed, a loss at the floor, no worker, another number of types."""
    model = some_model()
    with pytest.raises(Misuse, match=r"safety margin is 0\.06"):
        AspPlatform(1200.0, 10_000.0, 1, 0.06)
    with pytest.raises(Misuse, match="at least 1 parameter server, not 0"):
        AspPlatform(1200.0, 10_000.0, 0)
    with pytest.raises(Misuse, match="pcie_mb_per_s of the platform is 0"):
        AspPlatform(1200.0, 0.0)
    with pytest.raises(Misuse, match="at least 1 GPU, not 0"):
        AspWorker("none", 0, 32, 0.1)
    with pytest.raises(Misuse, match=r"'quick' takes 0\.1 s for an iteration, and its transfers alone 0\.3"):
        asp.worker_of_speed("quick", gpus=1, batch=64, samples_per_s=640.0, workload=model.workload, platform=EC2)
    with pytest.raises(Misuse, match=r"cannot reach a loss of 0\.3, as its loss stays above 0\.3"):
        asp.time_for_s(model, (1, 0), 0.3)
    with pytest.raises(Misuse, match="at least one worker"):
        asp.cluster_speed(model, [(1, 0), (0, 0)])
    with pytest.raises(Misuse, match="0 or more of each type"):
        asp.cluster_speed(model, (3, -1))
    with pytest.raises(Misuse, match="one number for each of the 2 types"):
        asp.cluster_speed(model, (1, 0, 0))
    with pytest.raises(Misuse, match="0 or more iterations"):
        asp.loss_after(model, (1, 0), -1.0)
    with pytest.raises(Misuse, match="time_s of the objective is 0"):
        asp.workers_lower(model, 0.8, 0.0)
    with pytest.raises(Misuse, match="at least one type of worker"):
        asp.workers_lower(model, 0.8, 60.0, types=[])
    with pytest.raises(Misuse, match="at least one type of worker"):
        AspModel(model.workload, EC2, ())


# ------------------------------------------------------------------------------------------------------ going on from a loss


@pytest.mark.parametrize("start_loss", [None, 9.0])
def test_a_training_that_goes_on_is_where_one_without_a_break_is(start_loss: float | None) -> None:
    """Trained for an hour, then for another: the loss of two hours; no time changes nothing."""
    model = some_model(start_loss=start_loss, **({} if start_loss is None else {"gamma1": None}))
    plan = (3, 2)
    rate = float(asp.cluster_speed(model, plan).iterations_per_s)

    once = float(asp.loss_then(model, plan, math.inf, 3600.0))

    assert once == pytest.approx(float(asp.loss_after(model, plan, 3600.0 * rate)))
    assert float(asp.loss_then(model, plan, once, 3600.0)) == pytest.approx(
        float(asp.loss_after(model, plan, 7200.0 * rate))
    )
    assert float(asp.loss_then(model, plan, once, 0.0)) == pytest.approx(once)


def test_a_training_goes_on_for_as_long_as_its_time_says() -> None:
    """From the loss of one cluster to an objective on another: the time between the two losses of that one."""
    model = some_model()
    between_s = float(asp.time_for_s(model, (1, 4), 0.6) - asp.time_for_s(model, (1, 4), 0.9))
    assert float(asp.loss_then(model, (1, 4), 0.9, between_s)) == pytest.approx(0.6)


@pytest.mark.parametrize(("loss_now", "time_s"), [(0.3, 1.0), (1.0, -1.0), (1.0, math.inf)])
def test_a_training_does_not_go_on_from_below_its_floor_or_backwards(loss_now: float, time_s: float) -> None:
    """Each is refused."""
    with pytest.raises(Misuse):
        asp.loss_then(some_model(), (1, 1), loss_now, time_s)


def test_the_number_of_workers_counts_by_its_power() -> None:
    """4 equal workers need twice the iterations of one by sqrt(n), four times as many by n, and as many by its power 0."""
    needed = {
        power: float(
            asp.iterations_for(some_model(start_loss=9.0, gamma1=None, gamma4=None, workers_power=power), (4, 0), 0.6)
        )
        / float(
            asp.iterations_for(some_model(start_loss=9.0, gamma1=None, gamma4=None, workers_power=power), (1, 0), 0.6)
        )
        for power in (0.0, 0.5, 1.0)
    }

    assert needed == pytest.approx({0.0: 1.0, 0.5: 2.0, 1.0: 4.0})
