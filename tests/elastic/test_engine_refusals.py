"""What an elastic training refuses: one clear sentence each."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.elastic.scripted_fleet import fleet
from windfall import elastic
from windfall.errors import Misuse
from windfall.runtimes.shape_terms import check_same


def sgd(parameters: list[Any]) -> Any:
    return torch.optim.SGD(parameters, lr=0.1)


def mse(output: Any, target: Any) -> Any:
    return torch.nn.functional.mse_loss(output, target)


class Pairs:
    """Numbers to learn from."""

    def __init__(self, values: list[float]) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.full((2,), self.values[number]), torch.zeros(2)


class Listed(torch.nn.Module):
    """Returns what cannot be sent."""

    def forward(self, value: torch.Tensor) -> Any:
        return {"value": value}


class Counting(torch.nn.Module):
    """Counts in a buffer how often it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return value


def model(*layers: Any, loss: Callable[[Any, Any], Any] = mse, optimizer: Any = sgd, batch: int = 4) -> elastic.Model:
    return elastic.Model(list(layers), loss, optimizer, batch=batch, micro_batch=2)


def trained(found: elastic.Model, dataset: Any = None) -> list[tuple[int, float]]:
    return list(found.train(dataset or Pairs([1.0] * 8), 3))


SHARED = torch.nn.Linear(2, 2)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: elastic.Model(SHARED, mse, sgd, batch=4, micro_batch=2), "layers are Linear: give an nn.Sequential"),
        (model, "layers are list: give"),
        (lambda: model(torch.nn.Linear(2, 2), len), "layer 1 is builtin_function_or_method: each"),
        (lambda: model(SHARED, torch.nn.ReLU(), SHARED), "layers 0 and 2 share the tensor weight"),
        (lambda: model(torch.nn.BatchNorm1d(2)), "layer 0 has running statistics .BatchNorm1d itself"),
        (lambda: model(torch.nn.Linear(2, 2), batch=5), "a batch of 5 in micro-batches of 2: write a batch that is a multiple"),
        (lambda: model(torch.nn.Linear(2, 2), optimizer=list), "optimizer.parameters. returned list for layer 0"),
        (lambda: trained(model(Listed())), "layer 0 returns dict: a layer that is cut"),
        (lambda: trained(model(torch.nn.Linear(2, 2), Counting())), "layer 1 changes its buffer count as it computes"),
        (lambda: trained(model(torch.nn.Linear(2, 2), loss=lambda output, target: output)), "a tensor of shape .2, 2."),
        (lambda: trained(model(torch.nn.Linear(2, 2)), [1.0, 2.0]), "sample . of the data set is float: dataset.i."),
        (lambda: trained(model(torch.nn.Linear(2, 2)), Pairs([float("nan")] * 4)), "step 1 is refused: the loss of"),
        (lambda: list(model(torch.nn.Linear(2, 2)).train(Pairs([1.0]), 0)), "steps is 0: write how many to train"),
    ],
)  # fmt: skip
def test_a_script_that_cannot_be_trained_so_is_refused(make: Callable[[], Any], words: str) -> None:
    """Layers that cannot be cut, bad batches, samples, losses and numbers are named, with what to write instead."""
    with pytest.raises(Misuse, match=words):
        make()


def _loader(**more: Any) -> Any:
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(8, 2)), batch_size=4, **more)


@pytest.mark.parametrize(
    ("loader", "words"),
    [
        (lambda: _loader(sampler=torch.utils.data.WeightedRandomSampler([0.1] * 8, 8)), "has a WeightedRandomSampler: wrap"),
        (
            lambda: _loader(sampler=torch.utils.data.DistributedSampler(Pairs([1.0] * 8), num_replicas=2, rank=0)),
            "has a DistributedSampler: wrap gives each machine its part of each batch",
        ),
        (lambda: _loader(sampler=torch.utils.data.RandomSampler(Pairs([1.0] * 8), num_samples=5)), "has a RandomSampler"),
    ],
)  # fmt: skip
def test_a_sampler_of_the_scripts_own_is_refused(loader: Callable[[], Any], words: str) -> None:
    """Which samples a machine gets is decided from their numbers: another choice would be dropped without a word."""
    layer = torch.nn.Linear(2, 2)
    with pytest.raises(Misuse, match=words):
        elastic.wrap(layer, sgd(list(layer.parameters())), loader(), steps=3)


def test_a_mistake_ends_a_script_with_its_place_and_a_sentence(tmp_path: Path) -> None:
    """Nobody has to read the inside of Windfall; an error of the script's own keeps its traceback."""
    begin = "import torch\nfrom windfall import elastic\nlayers = [torch.nn.Linear(2, 2)]\n"
    make = "elastic.Model(layers, len, lambda one: torch.optim.SGD(one, lr=0.1), batch={}, micro_batch=2)\n"
    said = []
    for number, text in enumerate((begin + make.format(5), begin + make.format(4) + "layers[3]\n")):
        path = tmp_path / f"train{number}.py"
        path.write_text(text)
        done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=100, check=False)
        assert (done.returncode, done.stdout) == (1, "")
        said.append(done.stderr)

    assert said[0].startswith("train0.py:4: a batch of 5 in micro-batches of 2: write a batch that is a multiple")
    assert said[0].count("\n") == 1
    assert said[1].startswith("Traceback")
    assert said[1].endswith("IndexError: list index out of range\n")


def test_a_data_set_that_changes_its_length_is_refused() -> None:
    """A sample that is added while training would be trained never or twice."""
    data = Pairs([1.0] * 8)
    steps = model(torch.nn.Linear(2, 2)).train(data, 3)
    next(steps)
    data.values.append(1.0)
    with pytest.raises(Misuse, match="the data set had 8 samples and now has 9: its length must stay the same"):
        next(steps)


def test_a_gradient_that_is_not_finite_is_named() -> None:
    """The loss may be finite and its gradient not: the layer is named, and the parameters stay."""

    def root(output: Any, target: Any) -> Any:
        return (output * 0.0).sqrt().mean()

    layer = torch.nn.Linear(2, 2)
    before = layer.weight.detach().clone()
    with pytest.raises(Misuse, match="step 1 is refused: the gradient of layer 0 is not finite"):
        trained(model(layer, loss=root))
    assert torch.equal(layer.weight, before)


@pytest.mark.real
@pytest.mark.timeout(300)
def test_machines_that_built_other_layers_are_refused(tmp_path: Path) -> None:
    """Of two machines that draw other first values the later one ends with the cause, before a step is trained."""
    with fleet(tmp_path / "run", steps=4) as machines:
        machines.start("a", first=1)
        machines.start("b", first=2)
        machines.wait(["a", "b"], lambda report: report.layers > 0)
        machines.begin(2, 1, ["a", "b"])
        machines.wait_failure(["a", "b"])

        (found,) = [path.read_text() for path in machines.folder.glob("*.error")]
        assert "first values of the layers is" in found
        assert "call torch.manual_seed before you build the layers" in found
        assert machines.losses() == {}


def test_a_machine_of_another_torch_is_refused() -> None:
    """Ranks of different torch versions are told apart by name before they meet."""
    with pytest.raises(Misuse, match=r"torch is 2\.13\.0 on this machine, and 2\.12\.1 on another machine"):
        check_same({"torch": "2.13.0", "layers": 2}, {"torch": "2.12.1", "layers": 2}, "another machine")
