"""Torch models on a parameter server: what is shared, what belongs to a data partition, and that nothing else counts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from windfall.errors import Misuse
from windfall.paramserver import Turn, load

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'windfall[torch]'")

from torch import nn, optim  # noqa: E402 - torch may be missing

from windfall.sdk.partition_state import PartitionState  # noqa: E402 - as above
from windfall.sdk.wrapped_model import WrappedModel  # noqa: E402 - as above

Made = tuple[nn.Module, Any, list[Any]]


class OneTable:
    """`Server` of one turn after another, with a table of its own.

    Attributes:
        values: of the table.
    """

    def __init__(self, hooks: WrappedModel) -> None:
        self.values = hooks.first(np.arange(hooks.rows))

    def pull(self, rows: np.ndarray) -> np.ndarray:
        """Return values."""
        return self.values[rows]

    def push_written(self, rows: np.ndarray, write: Callable[[np.ndarray], None]) -> None:
        """Add what is written, into memory that held something else."""
        out = np.full((len(rows), self.values.shape[1]), 7, self.values.dtype)
        write(out)
        assert np.isfinite(out).all()
        self.values[rows] += out

    def is_given_up(self) -> bool:
        """Return that it counts."""
        return False


def made(optimizer: Callable[[Any], Any], *schedules: Callable[[Any], Any], dtype: Any = None) -> Made:
    """Return a model with BatchNorm, its optimizer, and schedules."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Dropout(0.1), nn.Linear(7, 2)).to(dtype)
    chosen = optimizer(model.parameters())
    return model, chosen, [schedule(chosen) for schedule in schedules]


def wrapped(parts: Made, partitions: int = 2) -> WrappedModel:
    """Return its hooks."""
    return WrappedModel(*parts, 16, partitions)


def learn(parts: Made, data: int) -> None:
    """Take a step, on a batch that is random."""
    model, optimizer, schedules = parts
    batch = torch.randn(8, 5, dtype=next(model.parameters()).dtype)
    loss = ((model(batch) - data) ** 2).mean()
    loss.backward()
    optimizer.step()
    for schedule in schedules:
        if isinstance(schedule, optim.lr_scheduler.ReduceLROnPlateau):
            schedule.step(loss.item())
        else:
            schedule.step()


def trained(make: Callable[[], Made], *, moved: bool, clocks: int = 7) -> np.ndarray:
    """Return the table after some clocks of two data partitions, each turn in a new process if they moved."""
    parts = make()
    hooks = wrapped(parts)
    table = OneTable(hooks)
    for clock in range(1, clocks + 1):
        for data in (0, 1):
            if moved:
                parts = make()
                hooks = wrapped(parts)
            turn = Turn(data, clock, 2, 0)
            hooks.begin(table, turn)
            learn(parts, data)
            hooks.end(table, turn)
    return table.values


OPTIMIZERS = {
    "SGD": lambda ps: optim.SGD(ps, 0.1),
    "SGD, momentum": lambda ps: optim.SGD(ps, 0.1, momentum=0.9, dampening=0.5),
    "Adam": lambda ps: optim.Adam(ps, 0.01, amsgrad=True),
    "Adam, rate as a tensor": lambda ps: optim.Adam(ps, torch.tensor(0.01)),
    "AdamW": lambda ps: optim.AdamW(ps, 0.01),
    "Adagrad": lambda ps: optim.Adagrad(ps, 0.01, initial_accumulator_value=0.1),
    "RMSprop": lambda ps: optim.RMSprop(ps, 0.01, centered=True, momentum=0.5),
    "NAdam": lambda ps: optim.NAdam(ps, 0.01),
    "Rprop": lambda ps: optim.Rprop(ps, 0.01),
    "ASGD": lambda ps: optim.ASGD(ps, 0.01),
    "Adafactor": lambda ps: optim.Adafactor(ps, 0.01),
}
SCHEDULES = {
    "StepLR": lambda o: optim.lr_scheduler.StepLR(o, 2),
    "OneCycleLR": lambda o: optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=50),
    "ReduceLROnPlateau": lambda o: optim.lr_scheduler.ReduceLROnPlateau(o, patience=0),
    "CosineAnnealingWarmRestarts": lambda o: optim.lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "LambdaLR": lambda o: optim.lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
    "MultiStepLR": lambda o: optim.lr_scheduler.MultiStepLR(o, [2, 4]),
    "SequentialLR": lambda o: optim.lr_scheduler.SequentialLR(
        o, [optim.lr_scheduler.ConstantLR(o, 0.1, 2), optim.lr_scheduler.ExponentialLR(o, 0.9)], [2]
    ),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_turn_depends_on_the_table_alone_whichever_process_computes_it(name: str) -> None:
    """Two data partitions in turns in one process end as in a new process for each turn, bit for bit."""
    optimizer = OPTIMIZERS[name]

    stayed, moved = (trained(lambda: made(optimizer), moved=moved) for moved in (False, True))

    assert np.array_equal(stayed, moved)


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_belongs_to_its_data_partition(name: str) -> None:
    """As above."""
    schedule = SCHEDULES[name]

    stayed, moved = (
        trained(lambda: made(OPTIMIZERS["SGD, momentum"], schedule), moved=moved) for moved in (False, True)
    )

    assert np.array_equal(stayed, moved)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_a_model_of_another_dtype_trains(dtype: str) -> None:
    """A table of float64 for the one; the other is stored as float32."""
    make = lambda: made(OPTIMIZERS["Adam"], dtype=getattr(torch, dtype))  # noqa: E731 - as short as it is

    stayed, moved = (trained(make, moved=moved) for moved in (False, True))

    assert stayed.dtype == (np.float64 if dtype == "float64" else np.float32)
    assert np.array_equal(stayed, moved)


@pytest.mark.parametrize("name", ["SGD, momentum", "Adam"])
def test_one_data_partition_trains_as_torch_alone_does(name: str) -> None:
    """But for the last bits, since the table adds up differences."""
    schedule = SCHEDULES["StepLR"]
    plain, parts = made(OPTIMIZERS[name], schedule), made(OPTIMIZERS[name], schedule)
    hooks = wrapped(parts, 1)
    table = OneTable(hooks)
    for clock in range(1, 11):
        hooks.begin(table, Turn(0, clock, 1, 0))
        chance = torch.get_rng_state()
        learn(parts, 0)
        hooks.end(table, Turn(0, clock, 1, 0))
        torch.set_rng_state(chance)
        plain[1].zero_grad()
        learn(plain, 0)
    hooks.begin(table, Turn(0, 11, 1, 0))

    for name_of, tensor in plain[0].state_dict().items():
        assert torch.allclose(parts[0].state_dict()[name_of], tensor, rtol=1e-4, atol=1e-6), name_of
    assert parts[1].param_groups[0]["lr"] == plain[1].param_groups[0]["lr"]


def test_a_clock_moves_parameters_by_the_mean_of_what_the_data_partitions_found() -> None:
    """Not by their sum: plain SGD takes the step of the mean gradient."""
    parts = made(OPTIMIZERS["SGD"])
    hooks = wrapped(parts, 2)
    start, table = OneTable(hooks), OneTable(hooks)
    before, found = parts[0][0].weight.detach().clone(), []
    for data in (0, 1):
        hooks.begin(start, Turn(data, 1, 2, 0))
        learn(parts, data)
        found.append(parts[0][0].weight.detach() - before)
        hooks.end(table, Turn(data, 1, 2, 0))
    hooks.begin(table, Turn(0, 2, 2, 0))

    assert found[0].abs().max() > 1e-4
    assert torch.allclose(parts[0][0].weight - before, (found[0] + found[1]) / 2, rtol=0, atol=1e-7)


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor([2**62 + 1, -(2**62), -1]),
        torch.tensor([True, False, True]),
        torch.tensor(7, dtype=torch.uint8),
        torch.tensor([1e-300, np.inf, np.nan], dtype=torch.float64),
        torch.zeros((0, 3), dtype=torch.int32),
    ],
)
def test_what_is_no_short_float_is_stored_exactly(value: Any) -> None:
    """Through differences and sums of a table of float32."""
    before, after = (_buffer_state(one) for one in (torch.zeros_like(value), value))
    table, out = (np.zeros(before.size, np.float32) for _ in range(2))
    before.save(table)
    after.save(out)
    table += out - table
    before.load(table)

    found = before._buffers[0][1]
    assert torch.equal(found.nan_to_num(5.0), value.nan_to_num(5.0))


def _buffer_state(value: Any) -> PartitionState:
    model = nn.Linear(1, 1)
    model.register_buffer("kept", value.clone())
    return PartitionState(model, optim.SGD(model.parameters(), 0.1), [])


def test_what_is_not_finite_is_named() -> None:
    """A parameter, in the clock in which it happens."""
    parts = made(OPTIMIZERS["SGD"])
    hooks = wrapped(parts)
    table = OneTable(hooks)
    hooks.begin(table, Turn(1, 4, 2, 0))
    with torch.no_grad():
        parts[0][4].bias[1] = np.nan

    with pytest.raises(Misuse, match=r"the parameter 4\.bias is not finite after clock 4 of data partition 1: lower"):
        hooks.end(table, Turn(1, 4, 2, 0))


def test_a_process_whose_model_starts_with_other_weights_is_refused() -> None:
    """It was built without a seed."""
    hooks = wrapped(made(OPTIMIZERS["SGD"]))
    other = made(OPTIMIZERS["SGD"])
    with torch.no_grad():
        other[0][0].weight[0, 0] += 1

    with pytest.raises(Misuse, match=r"call torch\.manual_seed with a fixed number before the model is built"):
        wrapped(other).begin(OneTable(hooks), Turn(0, 1, 2, 0))


def test_what_cannot_be_wrapped_is_refused_by_name() -> None:
    """An optimizer that needs a closure, a parameter of another model, a model without any, a state that grows."""
    model = nn.Linear(2, 2)
    with pytest.raises(Misuse, match="LBFGS cannot be wrapped: a step without gradients fails"):
        wrapped((model, optim.LBFGS(model.parameters()), []))
    with pytest.raises(Misuse, match="a parameter that is not in the model"):
        wrapped((model, optim.SGD(nn.Linear(2, 2).parameters(), 0.1), []))

    class Grows:
        def __init__(self) -> None:
            self.losses: list[float] = []

        def state_dict(self) -> dict[str, Any]:
            return {"losses": self.losses}

    grows = Grows()
    parts = (model, optim.SGD(model.parameters(), 0.1), [grows])
    hooks = wrapped(parts)
    grows.losses.append(1.0)
    with pytest.raises(Misuse, match="what grows during training cannot belong to a data partition"):
        hooks.end(OneTable(hooks), Turn(0, 1, 2, 0))


def test_a_trained_table_becomes_a_model_again(tmp_path: Path) -> None:
    """Parameters, and the statistics and the optimizer's state of the data partition that is asked for."""
    make = lambda: made(OPTIMIZERS["Adam"])  # noqa: E731 - as short as it is
    values = trained(make, moved=False)
    np.save(tmp_path / "table.npy", values)
    parts, expected = make(), make()
    wrapped(expected).begin(Seen(values), Turn(1, 8, 2, 0))

    load(tmp_path / "table.npy", *parts[:2], *parts[2], data=1)
    state, wanted = parts[0].state_dict(), expected[0].state_dict()
    assert all(torch.equal(state[name], wanted[name]) for name in wanted)
    assert not torch.equal(state["0.weight"], make()[0].state_dict()["0.weight"])
    assert str(parts[1].state_dict()) == str(expected[1].state_dict())


class Seen:
    """`Server` of a table that is read."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    def pull(self, rows: np.ndarray) -> np.ndarray:
        """Return values."""
        return self.values[rows]


@pytest.mark.parametrize(
    ("change", "data", "words"),
    [
        (lambda values: values[:-1], 0, "is not one of this model and optimizer"),
        (lambda values: values.astype(np.float64), 0, "is not one of this model and optimizer"),
        (lambda values: values, 2, "there is no data partition 2: the table has 2"),
        (lambda values: values[0], 0, "is not a table"),
    ],
)
def test_a_table_of_something_else_is_refused(change: Any, data: int, words: str, tmp_path: Path) -> None:
    """Rows missing, other numbers, a data partition that does not exist, no rows at all."""
    np.save(tmp_path / "table.npy", change(trained(lambda: made(OPTIMIZERS["SGD"]), moved=False, clocks=1)))
    model, optimizer, _ = made(OPTIMIZERS["SGD"])
    with pytest.raises(Misuse, match=words):
        load(tmp_path / "table.npy", model, optimizer, data=data)
