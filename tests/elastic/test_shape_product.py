"""The trained model of an elastic training, out of the run's store: as a file, and back in layers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from tests.elastic.shape_scene import Scene
from windfall import elastic
from windfall.cli.main import main
from windfall.core.shape_summary import shape_status
from windfall.errors import LogDamaged, Misuse
from windfall.runtimes.shape_layers import layers_of
from windfall.runtimes.shape_states import Layer, captured, packed
from windfall.runtimes.shape_store import save_layers
from windfall.storage.object_stores import open_store
from windfall.terms import WallTime
from windfall.wire.shape_files import StoredStep, layer_key


def built(seed: int = 0) -> torch.nn.Sequential:
    """Layers with parameters, a buffer of another type, and none at all."""
    torch.manual_seed(seed)
    layers = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU(), torch.nn.Linear(2, 2, dtype=torch.bfloat16))
    layers[0].register_buffer("mask", torch.tensor([True, False, True]))
    return layers


def stored(folder: Path, layers: Any, step: int, *, wrapped: bool = False) -> None:
    """Store a whole checkpoint, as the machines of a training do."""
    adam = torch.optim.Adam
    if wrapped:
        cut = [Layer(layers, adam(layers.parameters()))]
    else:
        cut = layers_of(layers, lambda parameters: adam(parameters, lr=0.1))
    for layer in cut:
        for one in layer.module.parameters():
            one.grad = torch.ones_like(one)
        if layer.optimizer is not None:
            layer.optimizer.step()
    terms = {"layers": len(cut), "steps": 9, **({} if wrapped else {"micro_batch": 2})}
    states = {number: packed(captured(layer, step)).numpy().tobytes() for number, layer in enumerate(cut)}
    assert save_layers(open_store(str(folder)), StoredStep(step, 1), states, len(cut), json.dumps(terms).encode())


@pytest.fixture
def run(tmp_path: Path) -> str:
    """The URL of a training that has begun."""
    folder = tmp_path / "run"
    folder.mkdir()
    scene = Scene(folder)
    scene.log.write_status(shape_status(scene.loop.coordinator, 0, WallTime(1.0), 0.0))
    return str(folder)


def test_get_writes_the_newest_model_as_a_file(run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its names are those of the layers' state_dict, its values those after the step, and safetensors reads it."""
    stored(Path(run), built(1), 4)
    trained = built(2)
    stored(Path(run), trained, 8)

    assert main(["get", run, str(tmp_path / "out"), "--json"]) == 0

    file = tmp_path / "out" / "model.safetensors"
    assert json.loads(capsys.readouterr().out) == {"step": 8, "tensors": 5, "files": [str(file)]}
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    found, wanted = safetensors.torch.load_file(file), trained.state_dict()
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], value) for name, value in wanted.items())
    assert main(["get", run, str(tmp_path / "out")]) == 2
    assert "already exists: choose another folder" in " ".join(capsys.readouterr().err.split())


def test_get_of_a_training_without_a_checkpoint_says_what_to_do(
    run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """How far it is, and how to get a checkpoint; options of other runs are refused."""
    assert main(["get", run, str(tmp_path / "out")]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "has no checkpoint yet: set save_every of the runtime, or `windfall stop` the job" in said
    assert main(["get", run, str(tmp_path / "out"), "--results"]) == 2
    assert "leave --checkpoint, --result and --results out to get its model" in " ".join(
        capsys.readouterr().err.split()
    )


@pytest.mark.parametrize("by_url", [False, True])
@pytest.mark.parametrize("wrapped", [False, True])
def test_load_gives_layers_their_trained_values(run: str, tmp_path: Path, by_url: bool, wrapped: bool) -> None:
    """From the file and from the run alike, for a list of layers, and for a model that was wrapped."""
    trained, fresh = built(1), built(2)
    stored(Path(run), trained, 4, wrapped=wrapped)
    assert main(["get", run, str(tmp_path / "out")]) == 0

    given = fresh if wrapped else list(fresh)
    step = elastic.load(run if by_url else tmp_path / "out", given)

    assert step == 4
    wanted = trained.state_dict()
    assert all(torch.equal(value, wanted[name]) for name, value in fresh.state_dict().items())


def test_load_refuses_another_model(run: str, tmp_path: Path) -> None:
    """One sentence says which tensor is missing, or of another form; and no value has changed."""
    stored(Path(run), built(1), 4)
    other = built(2)
    was = other[0].weight.detach().clone()

    with pytest.raises(Misuse, match=r"^the model has no 2\.bias, 2\.weight: build the same layers"):
        elastic.load(run, other[:2])
    other[2] = torch.nn.Linear(2, 3)
    with pytest.raises(Misuse, match=r"^2\.weight of the model is \(3, 2\), and \(2, 2\) in "):
        elastic.load(run, other)
    with pytest.raises(Misuse, match="has no checkpoint of an elastic training"):
        elastic.load(tmp_path, other)
    (tmp_path / "model.safetensors").write_bytes(b"not a model")
    with pytest.raises(Misuse, match="cannot be read as a trained model"):
        elastic.load(tmp_path, other)
    assert torch.equal(other[0].weight, was)


def test_a_damaged_layer_is_found(run: str, tmp_path: Path) -> None:
    """Nothing is written then, not even half a file."""
    stored(Path(run), built(1), 4)
    objects, key = open_store(run), layer_key(StoredStep(4, 1), 0)
    objects.put(key, (objects.get(key) or b"")[:-8])

    assert main(["get", run, str(tmp_path / "out")]) == 1
    assert not list((tmp_path / "out").iterdir())
    with pytest.raises(LogDamaged, match="layer 0 of the checkpoint of step 4 is damaged"):
        elastic.load(run, built(2))
