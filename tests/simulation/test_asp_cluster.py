"""The simulated cluster: what workers, network, bus and the servers' queue do to one another, by hand and by conservation."""

from __future__ import annotations

import numpy as np
import pytest

from windfall.errors import Misuse
from windfall.models.asp_profiling import WorkerShape
from windfall.simulation.asp_cluster import (
    AspWorld,
    GpuKind,
    SharedLink,
    SimulatedAspRunner,
    StopRule,
    simulate_cluster,
)
from windfall.simulation.virtual_time import Timeline
from windfall.structs import replace

STILL = AspWorld(
    gpus={"fast": GpuKind(0.1, 0.01), "slow": GpuKind(0.1, 0.05)},
    parameters_mb=100.0,
    connection_mb_per_s=500.0,
    server_mb_per_s=1000.0,
    pcie_mb_per_s=10_000.0,
    apply_s=0.01,
    compute_spread=0.0,
    transfer_spread=0.0,
    traffic_spread=0.0,
    model_gb=1.0,
    sample_gb=0.1,
    memory_spread_gb=0.0,
    loss_start=4.0,
    loss_floor=0.5,
    gain=1e-5,
    batch_power=0.5,
    staleness_cost=0.2,
    loss_spread=0.0,
    epoch_samples=1000,
)
"""No chance at all."""
NOISY = replace(STILL, compute_spread=0.1, transfer_spread=0.05, traffic_spread=0.01, loss_spread=1.0)
ONE = WorkerShape("one", "fast", 1, 40)
FOUR = WorkerShape("four", "slow", 4, 10)


def rng(seed: int = 0) -> np.random.Generator:
    """A stream of chance."""
    return np.random.default_rng(seed)


def test_a_worker_alone_takes_its_transfers_its_copies_its_computation_and_the_update() -> None:
    """By hand: 2 x 100/500 on the network, 2 x 4 x 100/10,000 on the bus, 0.1 + 10 x 0.05 of computation, 0.01 to apply."""
    history = simulate_cluster(STILL, (FOUR,), StopRule(updates=5), rng())
    assert history.iteration_s == pytest.approx([0.4 + 0.08 + 0.6 + 0.01] * 5)
    assert history.staleness.tolist() == [0] * 5
    assert history.transfers_s == pytest.approx(np.full((5, 2), 0.2))


def test_a_worker_waits_for_the_slowest_of_its_gpus() -> None:
    """The largest of four computations with a spread of 30 % is some 31 % above their mean of 0.6 s; transfers take 0.45 s."""
    history = simulate_cluster(replace(STILL, compute_spread=0.3), (FOUR,), StopRule(updates=4000), rng(3))
    assert 1.26 < (history.iteration_s.mean() - 0.45) / 0.6 < 1.36


def test_transfers_share_a_link_evenly_and_each_has_a_bandwidth_of_its_own() -> None:
    """By hand: at 4 MB/s in all and 3 for each, 6 MB and later 2 MB: 3 MB/s alone, 2 MB/s each together."""
    timeline, ended = Timeline(), dict[str, float]()
    link = SharedLink(timeline, total_mb_per_s=4.0, each_mb_per_s=3.0)
    link.send(6.0, lambda: ended.update(first=timeline.time))
    timeline.at(1.0, lambda: link.send(2.0, lambda: ended.update(second=timeline.time)))
    timeline.run(10.0)
    # 3 MB in the first second; 2 each in the second one, when the small one ends; 1 MB is left.
    assert ended == pytest.approx({"second": 2.0, "first": 2.0 + 1.0 / 3.0})


def test_updates_wait_for_one_another_at_the_servers() -> None:
    """Three equal workers push at once: their iterations end one application apart."""
    slow = replace(STILL, apply_s=0.5, server_mb_per_s=10_000.0)
    history = simulate_cluster(slow, (ONE,) * 3, StopRule(updates=3), rng())
    assert np.diff(history.ended_s) == pytest.approx([0.5, 0.5])
    assert history.staleness.tolist() == [0, 1, 2]


@pytest.mark.parametrize("seed", range(3))
def test_the_network_carries_what_it_can_and_no_more(seed: int) -> None:
    """Twelve workers want more than the servers have: the traffic comes to their bandwidth within 2 %, and not above it."""
    history = simulate_cluster(replace(NOISY, transfer_spread=0.0), (ONE,) * 12, StopRule(updates=3000), rng(seed))
    assert 0.98 < history.transfers_mb.sum() / history.ended_s[-1] / 1000.0 <= 1.001
    few = simulate_cluster(NOISY, (ONE,) * 2, StopRule(updates=300), rng(seed))
    assert few.transfers_mb.sum() / few.ended_s[-1] < 1000.0


def test_more_workers_are_slower_each_and_more_servers_undo_it() -> None:
    """An iteration is longer at 4 and at 8 workers, and with four servers as short as alone."""
    mean_s = [simulate_cluster(NOISY, (ONE,) * n, StopRule(updates=2000), rng(1)).iteration_s.mean() for n in (1, 4, 8)]
    assert mean_s[0] * 1.02 < mean_s[1] < mean_s[2]
    served = simulate_cluster(replace(NOISY, servers=8), (ONE,) * 8, StopRule(updates=2000), rng(1))
    assert served.iteration_s.mean() == pytest.approx(mean_s[0], rel=0.05)


def test_an_update_gains_less_the_staler_it_is_and_more_the_larger_its_batch() -> None:
    """By hand: each update adds 1e-5 sqrt(batch) / (1 + 0.2 staleness) to 1 / (loss - 0.5)."""
    history = simulate_cluster(NOISY, (ONE, ONE, FOUR), StopRule(updates=400), rng(2))
    batches = np.array([40, 40, 40])[history.worker]
    gains = 1e-5 * np.sqrt(batches) / (1.0 + 0.2 * history.staleness)
    assert 1.0 / (history.true_loss - 0.5) == pytest.approx(1.0 / 3.5 + np.cumsum(gains), rel=1e-12)
    assert history.staleness.mean() == pytest.approx(2.0, abs=0.05)
    assert bool(np.all(np.diff(history.true_loss) < 0.0))


def test_a_run_ends_at_the_first_rule_that_is_reached() -> None:
    """Updates, samples, or a loss; and the same seed gives the same history."""
    assert len(simulate_cluster(NOISY, (ONE, FOUR), StopRule(updates=7), rng()).loss) == 7
    assert len(simulate_cluster(NOISY, (ONE,), StopRule(samples=100.0), rng()).loss) == 3
    reached = simulate_cluster(NOISY, (ONE,), StopRule(loss=3.9), rng()).true_loss
    assert reached[-1] <= 3.9 < reached[-2]
    one, two = (simulate_cluster(NOISY, (ONE, FOUR), StopRule(updates=50), rng(9)) for _ in range(2))
    assert one.ended_s.tolist() == two.ended_s.tolist()
    assert one.loss.tolist() == two.loss.tolist()


def test_a_cluster_without_workers_or_with_unknown_gpus_is_refused() -> None:
    """The message names the GPUs that there are."""
    with pytest.raises(Misuse, match="has workers with fast, slow, not none"):
        simulate_cluster(STILL, (), StopRule(updates=1), rng())
    with pytest.raises(Misuse, match=r"not .*H100"):
        simulate_cluster(STILL, (replace(ONE, gpu="H100"),), StopRule(updates=1), rng())


def test_the_runner_reports_what_can_be_seen_from_outside() -> None:
    """Traffic of both ways, bandwidth of a single connection, memory by batch, three epochs of samples."""
    runner = SimulatedAspRunner(STILL, rng())
    alone = runner.alone(ONE, 30)
    assert (len(alone.iteration_s), alone.memory_gb) == (30, 5.0)
    assert alone.traffic_mb == pytest.approx([200.0] * 30)
    assert alone.bandwidth_mb_per_s == pytest.approx([500.0] * 60)
    cluster = runner.cluster((ONE, FOUR), 3.0)
    assert len(cluster.loss) == 3000 / 40
    assert set(cluster.worker.tolist()) == {0, 1}
