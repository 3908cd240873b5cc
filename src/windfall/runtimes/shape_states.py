"""The state of layers on a machine: parameters, buffers, the optimiser's states; of the newest step and the one before.

A layer's state is complete without any other's, because each layer has an optimizer of its own: so it can be sent to the
machine that trains the layer next.  Before each update the state is copied, so that a step that turns out to be lost elsewhere
can be taken back here.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch

from windfall.structs import Struct

_LENGTH_BYTES = 8


class LayerState(Struct, frozen=True, eq=False):
    """The state of a layer.

    Attributes:
        step: after which it is the state.
        tensors: by name: `parameter/weight`, `buffer/mask`, `optimizer/0/exp_avg` (of the layer's first parameter).
        numbers: of the optimiser, by name.
    """

    step: int
    tensors: Mapping[str, torch.Tensor]
    numbers: Mapping[str, float]

    def copied(self, onto: LayerState | None = None) -> LayerState:
        """Return a copy.

        Args:
            onto: a state that is no longer needed; its memory is used if it has the same form.
        """
        old = onto.tensors if onto is not None else {}
        tensors = {}
        for name, value in self.tensors.items():
            place = old.get(name)
            if place is not None and place.shape == value.shape and place.dtype == value.dtype:
                tensors[name] = place.copy_(value)
            else:
                tensors[name] = value.detach().clone()
        return LayerState(self.step, tensors, dict(self.numbers))


class Layer(NamedTuple):
    """A layer with its optimizer.

    Attributes:
        module: what it computes.
        optimizer: None if it has nothing to train.
        rates: learning rates with which the optimizer began, of each of its groups.
        stateful: what else has a state that belongs to it.
    """

    module: Any
    optimizer: Any
    rates: tuple[float, ...] = ()
    stateful: tuple[Any, ...] = ()


def _parameters(layer: Layer) -> list[Any]:
    if layer.optimizer is None:
        return []
    return [one for group in layer.optimizer.param_groups for one in group["params"]]


def captured(layer: Layer, step: int) -> LayerState:
    """Return a layer's state; its tensors are the layer's own."""
    tensors = {f"parameter/{name}": value.detach() for name, value in layer.module.named_parameters()}
    tensors |= {f"buffer/{name}": value for name, value in layer.module.named_buffers()}
    found: dict[str, Any] = {}
    for number, parameter in enumerate(_parameters(layer)):
        for key, value in layer.optimizer.state.get(parameter, {}).items():
            found[f"optimizer/{number}/{key}"] = value
    for number, group in enumerate(layer.optimizer.param_groups if layer.optimizer else ()):
        for key, value in group.items():
            found[f"group/{number}/{key}"] = value
    tensors |= {name: value for name, value in found.items() if isinstance(value, torch.Tensor)}
    tensors |= {f"stateful/{number}": _bytes_of(one.state_dict()) for number, one in enumerate(layer.stateful)}
    return LayerState(
        step, tensors, {name: value for name, value in found.items() if isinstance(value, (bool, int, float))}
    )


def install(layer: Layer, state: LayerState) -> None:
    """Give a layer a state, which stays as it is."""
    with torch.no_grad():
        _install(layer, state)


def _install(layer: Layer, state: LayerState) -> None:
    for kind, named in (("parameter", layer.module.named_parameters()), ("buffer", layer.module.named_buffers())):
        for name, value in named:
            value.copy_(state.tensors[f"{kind}/{name}"])
    for place, one in enumerate(layer.stateful):
        data = io.BytesIO(state.tensors[f"stateful/{place}"].numpy().tobytes())
        one.load_state_dict(torch.load(data, weights_only=True))
    if layer.optimizer is None:
        return
    of_optimizer = {**state.tensors, **state.numbers}
    for parameter in _parameters(layer):
        layer.optimizer.state.pop(parameter, None)
    parameters = _parameters(layer)
    for name, value in of_optimizer.items():
        kind, number, *key = name.split("/", 2)
        own = value.detach().clone() if isinstance(value, torch.Tensor) else value
        if kind == "optimizer":
            parameter = parameters[int(number)]
            # Counters of steps stay where they are; what is as large as a parameter belongs to its device.
            placed = own.to(parameter.device) if isinstance(own, torch.Tensor) and own.dim() else own
            layer.optimizer.state[parameter][key[0]] = placed
        elif kind == "group":
            layer.optimizer.param_groups[int(number)][key[0]] = own


def _bytes_of(state: Any) -> torch.Tensor:
    file = io.BytesIO()
    torch.save(state, file)
    return torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)


def packed(state: LayerState) -> torch.Tensor:
    """Return a state as one row of bytes."""
    kinds = {
        name: (str(value.dtype).removeprefix("torch."), list(value.shape)) for name, value in state.tensors.items()
    }
    header = json.dumps({"step": state.step, "tensors": kinds, "numbers": dict(state.numbers)}).encode()
    # Aligned, so that the numbers behind it can be read in place.
    header += b" " * (-len(header) % _LENGTH_BYTES)
    head = len(header).to_bytes(_LENGTH_BYTES, "little") + header
    parts = [torch.frombuffer(bytearray(head), dtype=torch.uint8)]
    for value in state.tensors.values():
        flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        parts += [flat, torch.zeros(-len(flat) % _LENGTH_BYTES, dtype=torch.uint8)]
    return torch.cat(parts)


def unpacked(data: torch.Tensor) -> LayerState:
    """Return the state that `packed` wrote; its tensors share the memory of the row.

    Raises:
        ValueError: it is damaged.
    """
    try:
        length = int.from_bytes(bytes(data[:_LENGTH_BYTES].tolist()), "little")
        header = json.loads(bytes(data[_LENGTH_BYTES : _LENGTH_BYTES + length].numpy()))
        place, tensors = _LENGTH_BYTES + length, {}
        for name, (kind, shape) in header["tensors"].items():
            dtype = getattr(torch, kind)
            size = torch.Size(shape).numel() * dtype.itemsize
            tensors[name] = data[place : place + size].view(dtype).reshape(shape)
            place += size + -size % _LENGTH_BYTES
        if place != len(data):
            raise ValueError(f"{len(data)} bytes where {place} were expected")
        return LayerState(int(header["step"]), tensors, header["numbers"])
    except (KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(str(error)) from None


class HeldStates:
    """What a machine holds of each layer: the state that is in the layer, and the one before.

    Args:
        layers: of the whole model, with the script's first values, which are kept.
    """

    def __init__(self, layers: list[Layer]) -> None:
        self.layers = layers
        self._first: list[LayerState] | None = [captured(layer, 0).copied() for layer in layers]
        self._now: dict[int, int] = {}
        self._before: dict[int, LayerState] = {}

    def first_values(self, number: int) -> LayerState | None:
        """Return a layer's state before the first step; None if it was forgotten."""
        return None if self._first is None else self._first[number]

    def forget_first_values(self) -> None:
        """Free the memory of the first values: there is a checkpoint."""
        self._first = None

    def begin_update(self, numbers: Iterable[int]) -> None:
        """Keep the state of layers before they are updated."""
        for number in numbers:
            old = self._before.pop(number, None)
            self._before[number] = captured(self.layers[number], self._now[number]).copied(old)

    def end_update(self, numbers: Iterable[int]) -> None:
        """Say that layers were updated."""
        for number in numbers:
            self._now[number] += 1

    def undo_update(self, numbers: Iterable[int]) -> None:
        """Put the states back that were kept before an update that was not made."""
        for number in numbers:
            install(self.layers[number], self._before[number])

    def replace(self, number: int, state: LayerState) -> None:
        """Hold the next state of a layer, and the one that is in it."""
        self.begin_update([number])
        install(self.layers[number], state)
        self._now[number] = state.step

    def put(self, number: int, state: LayerState) -> None:
        """Hold another state of a layer, and no other."""
        install(self.layers[number], state)
        self._now[number] = state.step
        self._before.pop(number, None)

    def take_back(self, base: int) -> None:
        """Forget the states that are newer than a step."""
        for number in list(self._now):
            self._before = {one: state for one, state in self._before.items() if one != number or state.step <= base}
            if self._now[number] > base:
                if number in self._before:
                    self.put(number, self._before[number])
                else:
                    del self._now[number]

    def go_to(self, step: int) -> None:
        """Put the state after a step into every layer of which it is held."""
        for number, before in list(self._before.items()):
            if self._now[number] != step and before.step == step:
                self.put(number, before)

    def has(self, number: int, step: int) -> bool:
        """Return whether the state after a step is in a layer."""
        return self._now.get(number) == step

    def state(self, number: int) -> LayerState:
        """Return the state that is in a layer; its tensors are the layer's own."""
        found: LayerState = captured(self.layers[number], self._now[number])
        return found

    def keep_only(self, numbers: Iterable[int]) -> None:
        """Forget the states of all other layers."""
        wanted = set(numbers)
        self._now = {number: step for number, step in self._now.items() if number in wanted}
        self._before = {number: state for number, state in self._before.items() if number in wanted}

    def forget(self) -> None:
        """Forget all states but the first values."""
        self.keep_only(())

    def ranges(self) -> tuple[tuple[int, int, int], ...]:
        """Return (first layer, end, step) of all states, newest last."""
        held = [(step, number) for number, step in self._now.items()]
        held += [(state.step, number) for number, state in self._before.items()]
        found: list[tuple[int, int, int]] = []
        for step, number in sorted(set(held)):
            if found and found[-1][1:] == (number, step):
                found[-1] = (found[-1][0], number + 1, step)
            else:
                found.append((number, number + 1, step))
        return tuple(found)
