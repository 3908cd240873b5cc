"""What machines of a parameter server in tiers move and how long that takes, against sums made by hand."""

from __future__ import annotations

import pytest

from windfall.errors import Misuse
from windfall.models.tier_costs import ServedModel, TierShape, compute_s_for, iteration_s, last_push_s, traffic
from windfall.structs import replace

MODEL = ServedModel(own_bytes=1200.0, shared_bytes=100.0, compute_s=24.0)
"""A worker of four uses 300 bytes alone and 100 with the others."""
LINK = 10.0


def test_every_server_of_a_traditional_cluster_also_works() -> None:
    """Of four machines each sends 3/4 of its 400 bytes, and 100 bytes to each of three others: 600; 6 s and 60 s."""
    shape = TierShape(4, 0)

    assert set(traffic(MODEL, shape)) == {"reliable"}
    assert traffic(MODEL, shape)["reliable"].out_bytes == 600.0
    assert iteration_s(MODEL, shape, LINK) == 66.0


def test_one_server_for_four_workers_is_the_bottleneck() -> None:
    """Three others read 400 bytes each from it, and it uses its own part without a link."""
    moved = traffic(MODEL, TierShape(1, 3))

    assert (moved["reliable"].out_bytes, moved["transient"].out_bytes) == (1200.0, 400.0)
    assert iteration_s(MODEL, TierShape(1, 3), LINK) == 6.0 + 120.0


def test_backups_take_in_all_changes_and_active_servers_send_them() -> None:
    """Two of three transient machines serve: 1300 / 2 bytes out of each, 1300 bytes into the one backup."""
    moved = traffic(MODEL, TierShape(1, 3, active=2))

    # A server: half of its own 400 bytes, 200 to each of three others, and its half of the changes.
    assert moved["active"].out_bytes == 200.0 + 3 * 200.0 + 650.0
    assert (moved["reliable"].in_bytes, moved["reliable"].out_bytes) == (400.0 + 1300.0, 400.0)
    assert iteration_s(MODEL, TierShape(1, 3, active=2), LINK) == 6.0 + 170.0


def test_nobody_waits_for_a_machine_that_only_backs_up() -> None:
    """In stage 3 three machines compute, each uses 500 bytes, and the backup's 1300 bytes hold up nobody."""
    shape = TierShape(1, 3, active=2, reliable_compute=False)

    assert traffic(MODEL, shape)["reliable"].in_bytes == 1300.0
    assert iteration_s(MODEL, shape, LINK) == 8.0 + (250.0 + 2 * 250.0 + 650.0) / LINK


@pytest.mark.parametrize("ratio", [1.01, 1.5, 1.9])
def test_the_computing_that_a_ratio_needs_gives_this_ratio(ratio: float) -> None:
    """Put into the model, it makes an iteration of the slow shape this many times as long."""
    slow, fast = TierShape(1, 3), TierShape(4, 0)
    model = replace(MODEL, compute_s=compute_s_for(MODEL, slow, fast, ratio, LINK))

    assert iteration_s(model, slow, LINK) == pytest.approx(ratio * iteration_s(model, fast, LINK))


@pytest.mark.parametrize("ratio", [1.0, 2.0, 3.0])
def test_a_ratio_that_no_computing_gives_is_refused(ratio: float) -> None:
    """Without any computing one server takes twice as long; computing brings the shapes closer."""
    with pytest.raises(Misuse, match="without any computing it is 2 times as long"):
        compute_s_for(MODEL, TierShape(1, 3), TierShape(4, 0), ratio, LINK)


def test_the_last_push_is_shared_by_the_reliable_machines() -> None:
    """1300 bytes into two machines at 10 bytes/s."""
    assert last_push_s(MODEL, 2, LINK) == 65.0


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ((0, 4), "0 reliable and 4 transient machines, 0 of which serve"),
        ((1, 2, 3), "1 reliable and 2 transient machines, 3 of which serve"),
        ((1, 0, 0, False), "no machine computes"),
        ((1, 4, 0, False), "reliable machines serve without computing"),
    ],
)
def test_a_shape_that_no_stage_has_is_refused(numbers: tuple[int, int, int, bool], words: str) -> None:
    """The sentence has the numbers."""
    with pytest.raises(Misuse, match=words):
        TierShape(*numbers)
