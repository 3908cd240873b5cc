"""The plain PyTorch adapter: the same weights and the same samples, whatever interrupts the run."""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, TensorDataset  # noqa: E402

from tests.support.fake_agent import FakeAgent  # noqa: E402
from tests.support.forked import server  # noqa: E402
from windfall.sdk.torch import Loader, random_state, set_random_state  # noqa: E402


class Numbers(Dataset):
    """0, 1, 2, ... as samples; with noise from whatever generator is current."""

    def __init__(self, count: int, *, noisy: bool = False) -> None:
        self.count = count
        self.noisy = noisy

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        noise = torch.rand(()) + random.random() if self.noisy else torch.zeros(())
        return torch.stack([torch.tensor(float(index)), noise])


def _epochs(
    loader: Loader, count: int, stops: set[int]
) -> tuple[list[list[tuple[float, float]]], dict[str, int] | None]:
    """Receive batches up to the last epoch or until the number of batches received is one of `stops`."""
    received = []
    while loader.epoch < count:
        for batch in loader:
            received.append([(index, noise) for index, noise in batch.tolist()])
            if len(received) in stops:
                return received, loader.state_dict()
        if loader.epoch == count - 1:
            break
    return received, None


def _received(make, epochs: int, pieces: list[int]) -> list[list[tuple[float, float]]]:
    """Receive all batches in a new loader for each piece; a piece is a number of batches after which the process ends."""
    everything, state = [], None
    for piece in [*pieces, 10**9]:
        loader = make()
        if state is not None:
            loader.load_state_dict(state)
        part, state = _epochs(loader, epochs, {piece})
        everything += part
    return everything


@pytest.mark.parametrize("workers", [0, 2])
def test_every_sample_once_an_epoch_over_ten_resumes(workers: int) -> None:
    """Shuffled, with or without workers that prefetch, each epoch has each sample exactly once, in the same order."""
    chance = random.Random(7)
    pieces = [chance.randint(1, 8) for _ in range(10)]

    def make() -> Loader:
        return Loader(Numbers(60), seed=3, batch_size=4, shuffle=True, num_workers=workers)

    batches = _received(make, 4, pieces)
    assert batches == _received(make, 4, [])
    epochs = [Counter(index for batch in batches[at : at + 15] for index, _ in batch) for at in range(0, 60, 15)]
    assert epochs == [Counter(dict.fromkeys(map(float, range(60)), 1))] * 4
    assert batches[:15] != batches[15:30]


def test_random_augmentation_in_workers_survives_a_resume() -> None:
    """What workers draw depends on the batch alone, not on how many workers there are or when they started."""

    def make(workers: int = 2) -> Loader:
        return Loader(Numbers(24, noisy=True), batch_size=4, shuffle=True, num_workers=workers)

    whole = _received(make, 2, [])
    assert _received(make, 2, [2, 5]) == whole
    assert _received(lambda: make(1), 2, []) == whole


def test_a_position_within_workers_prefetch_is_what_the_loop_received() -> None:
    """Batches that lie ready in the workers' queue are not counted."""
    loader = Loader(Numbers(40), batch_size=4, num_workers=2, prefetch_factor=4)
    for _, _batch in zip(range(3), loader, strict=False):
        assert loader.state_dict()["position"] <= 3
    assert loader.state_dict()["position"] == 3


def test_the_loader_leaves_the_global_generators_alone() -> None:
    """Drawing an order does not move the generators from which dropout draws."""
    before = random_state()
    next(iter(Loader(Numbers(8), batch_size=2, shuffle=True)))
    after = random_state()
    assert torch.equal(before["torch"], after["torch"])
    assert before["python"] == after["python"]


def test_an_existing_loader_keeps_its_settings() -> None:
    """A `DataLoader` of the user's own, with a sampler and a collate function, is taken as it is."""
    data = TensorDataset(torch.arange(10))
    mine = DataLoader(
        data,
        batch_size=3,
        sampler=RandomSampler(data, generator=torch.Generator()),
        drop_last=True,
        collate_fn=lambda items: [int(item) for (item,) in items],
    )
    loader = Loader(mine)
    batches = list(loader)
    assert len(loader) == len(batches) == 3
    assert len({item for batch in batches for item in batch}) == 9
    assert batches == list(Loader(mine))


def test_a_loader_without_batches_goes_item_by_item() -> None:
    """`batch_size=None` works with and without workers."""
    plain = [int(item[0]) for item in Loader(Numbers(6), batch_size=None)]
    assert plain == [int(item[0]) for item in Loader(Numbers(6), batch_size=None, num_workers=1)] == list(range(6))


def test_an_iterable_dataset_is_refused_by_name() -> None:
    """What has no positions cannot go on from one."""

    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(3))

    with pytest.raises(ValueError, match="Stream is an iterable dataset, which has no position to resume from"):
        Loader(Stream(), batch_size=1)


def test_an_epoch_of_another_length_is_refused() -> None:
    """A position within 15 batches means nothing among 5."""
    loader = Loader(Numbers(60), batch_size=4)
    next(iter(loader))
    with pytest.raises(ValueError, match="an epoch of 15 batches, but the loader now has 5"):
        Loader(Numbers(60), batch_size=12).load_state_dict(loader.state_dict())


def test_random_states_come_back() -> None:
    """Python, numpy and torch draw the same after a restore."""
    import numpy as np

    def draw() -> tuple[float, float, float]:
        return random.random(), np.random.rand(), torch.rand(()).item()

    state = random_state()
    first = draw()
    set_random_state(state)
    assert draw() == first


def _variables(agent: FakeAgent, *, until: int, restored: str = "", at: int = 0, **more: str) -> dict[str, str]:
    """Return the environment of one training that ends at a step."""
    job = {"STEPS": str(until), "OUT": str(agent.folder.parent / f"files-{until}")}
    return agent.environment(restored=restored or None, step=at) | job | more


@pytest.mark.real
@pytest.mark.parametrize("workers", ["0", "2"])
def test_weights_after_resumes_equal_an_uninterrupted_runs(tmp_path: Path, workers: str) -> None:
    """Model, AdamW, scheduler, dropout and shuffled noisy data: bit for bit the same after two interruptions."""
    restored, at = "", 0
    with server("tests.sdk.training_torch") as train:
        whole = train(_variables(FakeAgent(tmp_path / "whole"), until=20, WORKERS=workers))
        for until in (7, 13, 20):
            agent = FakeAgent(tmp_path / str(until))
            job = _variables(agent, until=until, restored=restored, at=at, SAVE_AT=str(until), WORKERS=workers)
            result = train(job)
            (backup,) = agent.backups()
            assert backup["step"] == until
            restored, at = str(backup["path"]), until
    assert result == whole


def test_old_files_go_and_a_failed_save_is_a_warning(
    environ: dict[str, str], agent: FakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two files stay on the disk; a file that cannot be written warns and is handed over as missing."""
    from windfall.sdk import torch as adapter
    from windfall.sdk.session import Session

    session = Session(environ)
    for call in ("step", "context", "backup", "last"):
        monkeypatch.setitem(vars(adapter.windfall), call, getattr(session, call))
    checkpoint = adapter.Checkpoint(model=nn.Linear(2, 2))
    for _ in range(4):
        session.step()
        checkpoint.save()
    files = sorted(os.listdir(agent.folder / "checkpoints"))
    assert [name[:14] for name in files] == ["step-000000003", "step-000000004"]
    monkeypatch.setattr(adapter.torch, "save", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.warns(RuntimeWarning, match="cannot write the checkpoint .* No space left"):
        checkpoint.save()
    assert not os.path.exists(str(agent.backups()[-1]["path"]))
