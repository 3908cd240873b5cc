"""What `sbatch` refuses, at its trial or after it: nothing stays behind, and what may pass is no word about the job."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.providers import slurm_recorded as recorded
from tests.providers.test_slurm_orders import Scripted, buy, offer, provider, slurm
from windfall.market import BootSpec, Order, Refusal
from windfall.providers.slurm.slurm_provider import SlurmProvider

__all__ = ["provider", "slurm"]


@pytest.mark.parametrize(("text", "kind"), recorded.REFUSED.items())
def test_a_refusal_is_one_sentence_and_leaves_nothing(
    slurm: Scripted, provider: SlurmProvider, tmp_path: Path, text: str, kind: str
) -> None:
    """With Slurm's own words; nothing is in the queue, no secret on the disk, and the token may be used again."""
    slurm.trial = text

    answer = buy(provider)
    if kind == Refusal.NO_CAPACITY:  # it is queued
        assert answer.machine_ids == ("slurm-1",)
        return

    assert (answer.machine_ids, answer.refusal) == ((), kind)
    assert answer.message.startswith("Slurm refuses the job: ")
    assert "\n" not in answer.message
    assert not list((tmp_path / "machines").rglob("*.json"))
    slurm.trial = ""
    assert buy(provider).machine_ids == ("slurm-1",)


@pytest.mark.parametrize(("text", "kind"), recorded.REFUSED.items())
def test_a_refusal_after_an_accepted_trial_leaves_nothing_either(
    slurm: Scripted, provider: SlurmProvider, tmp_path: Path, text: str, kind: str
) -> None:
    """That no node can run what a moment ago one could is no word about the job."""
    slurm.refusal = text

    answer = buy(provider)

    known_nodes = "node configuration is not available" not in text
    assert (answer.machine_ids, answer.refusal) == ((), kind if known_nodes else Refusal.NO_CAPACITY)
    assert answer.message.startswith("Slurm refuses the job: " if known_nodes else "Slurm was started a moment ago")
    assert "\n" not in answer.message
    assert not list((tmp_path / "machines").rglob("*.json"))
    slurm.refusal = ""
    assert buy(provider).machine_ids == ("slurm-1",)


def test_a_slurm_that_does_not_know_its_nodes_yet_refuses_nothing_for_ever(
    slurm: Scripted, provider: SlurmProvider
) -> None:
    """For seconds after its start; an offer that was refused as impossible would not be ordered again."""
    order = Order("own-1", "own", "job", offer(provider), 1, 1)
    slurm.trial = slurm.refusal = "allocation failure: Requested node configuration is not available"
    slurm.nodes = recorded.NODES.replace("|allocated|", "|unknown|").replace("|idle|", "|unk*|")

    assert provider.preview(order, ()).refusal is None
    assert provider.order(order, BootSpec(("sleep", "9"))).refusal is Refusal.NO_CAPACITY
    slurm.nodes = recorded.NODES
    assert provider.preview(order, ()).refusal is Refusal.INVALID
    assert provider.order(order, BootSpec(("sleep", "9"))).refusal is Refusal.INVALID
    slurm.trial = slurm.refusal = ""
    assert provider.order(order, BootSpec(("sleep", "9"))).machine_ids == ("slurm-1",)


def test_what_could_never_run_is_not_submitted(slurm: Scripted, provider: SlurmProvider) -> None:
    """A trial says so, for nothing; the same request is tried only once."""
    slurm.trial = "allocation failure: Requested node configuration is not available"

    assert buy(provider).refusal is Refusal.INVALID
    assert slurm.queue == []
    slurm.trial = ""
    buy(provider)
    buy(provider, "own-2")
    assert len(slurm.calls("sbatch", "--test-only")) == 3, "a refusal of nodes is asked for twice, an accepted one kept"
