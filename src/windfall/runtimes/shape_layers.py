"""The layers of a model that is trained in stages: each with an optimizer of its own, and what cannot be cut is refused."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from windfall.errors import Misuse
from windfall.runtimes.shape_links import DTYPES, TENSORS_MAX
from windfall.runtimes.shape_states import Layer, LayerState, packed


def layers_of(modules: Any, optimizer: Callable[[list[Any]], Any]) -> list[Layer]:
    """Return a model's layers.

    Args:
        modules: `nn.Sequential`, or a list of modules.
        optimizer: makes an optimizer of some parameters.

    Raises:
        Misuse: they cannot be cut.
    """
    listed = list(modules) if isinstance(modules, (torch.nn.Sequential, torch.nn.ModuleList, list, tuple)) else []
    if not listed:
        raise Misuse(
            f"layers are {type(modules).__name__}: give an nn.Sequential or a list of modules, at least one, which can be cut "
            "between any two"
        )
    for number, module in enumerate(listed):
        if not isinstance(module, torch.nn.Module):
            raise Misuse(f"layer {number} is {type(module).__name__}: each layer must be an nn.Module")
    _check_not_shared(listed)
    _check_statistics(listed)
    return [_layer(number, module, optimizer) for number, module in enumerate(listed)]


def _layer(number: int, module: Any, optimizer: Callable[[list[Any]], Any]) -> Layer:
    trained = [one for one in module.parameters() if one.requires_grad]
    if not trained:
        return Layer(module, None)
    found = optimizer(trained)
    if not isinstance(found, torch.optim.Optimizer):
        raise Misuse(
            f"optimizer(parameters) returned {type(found).__name__} for layer {number}: it must return a torch optimizer, as "
            "`lambda parameters: torch.optim.AdamW(parameters, lr=1e-3)` does"
        )
    return Layer(module, found, tuple(group.get("lr", 0.0) for group in found.param_groups))


def _check_not_shared(modules: Sequence[Any]) -> None:
    owners: dict[int, tuple[int, str]] = {}
    for number, module in enumerate(modules):
        named = [*module.named_parameters(), *module.named_buffers()]
        for name, value in named:
            first, other = owners.setdefault(id(value), (number, name))
            if first != number:
                raise Misuse(
                    f"layers {first} and {number} share the tensor {other}: layers are cut apart, so put what shares tensors "
                    "into one layer"
                )


def _check_statistics(modules: Sequence[Any]) -> None:
    kinds = (torch.nn.modules.batchnorm._NormBase,)  # the base of all that keep running statistics
    for number, module in enumerate(modules):
        for name, part in module.named_modules():
            if isinstance(part, kinds) and part.track_running_stats:
                raise Misuse(
                    f"layer {number} has running statistics ({type(part).__name__} {name or 'itself'}), which depend on the "
                    "order of micro-batches: use GroupNorm or LayerNorm, or track_running_stats=False"
                )


class BufferCheck:
    """Finds layers that change a buffer as they compute.

    Args:
        layers: to look at, by number.
    """

    def __init__(self, layers: dict[int, Layer]) -> None:
        self._layers = layers
        self._versions = dict(self._found())

    def check(self) -> None:
        """Check that no buffer has changed.

        Raises:
            Misuse: one has.
        """
        for (number, name), version in self._found():
            if self._versions.get((number, name)) != version:
                raise Misuse(
                    f"layer {number} changes its buffer {name} as it computes, which would depend on the shape: compute it "
                    "from the input, or make it a parameter"
                )

    def _found(self) -> Iterator[tuple[tuple[int, str], tuple[int, int]]]:
        for number, layer in self._layers.items():
            for name, value in layer.module.named_buffers():
                yield (number, name), (id(value), value._version)  # how autograd sees changes in place


class Activation:
    """What a layer hands to the next one: a tensor or a tuple of tensors.

    Args:
        value: as the layer returned it.
        number: of the layer.

    Attributes:
        tensors: all of them.

    Raises:
        Misuse: it is something else.
    """

    def __init__(self, value: Any, number: int) -> None:
        tensors = value if isinstance(value, tuple) else (value,)
        shortest = 2 if isinstance(value, tuple) else 1
        if not shortest <= len(tensors) <= TENSORS_MAX or not all(isinstance(one, torch.Tensor) for one in tensors):
            raise Misuse(
                f"layer {number} returns {_kind(value)}: a layer that is cut from the next must return a tensor, or a tuple of "
                f"2 to {TENSORS_MAX}"
            )
        for one in tensors:
            if one.dtype not in DTYPES:
                raise Misuse(f"layer {number} returns a tensor of {one.dtype}: it cannot be sent to another machine")
        self.tensors: tuple[Any, ...] = tensors
        self._one = not isinstance(value, tuple)

    def leaves(self) -> tuple[Any, ...]:
        """Return the tensors cut off from what made them; gradients are wanted of those that can have one."""
        return tuple(one.detach().requires_grad_(differentiable(one)) for one in self.tensors)

    def given(self, leaves: tuple[Any, ...]) -> Any:
        """Return leaves as the next layer gets them."""
        return leaves[0] if self._one else leaves


def differentiable(value: Any) -> bool:
    """Return whether a tensor can have a gradient."""
    return bool(value.is_floating_point() or value.is_complex())


def _kind(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"{type(value).__name__} of {', '.join(sorted({type(one).__name__ for one in value})) or 'nothing'}"
    return type(value).__name__


def digest_of(states: Sequence[LayerState]) -> str:
    """Return a digest of states."""
    digest = hashlib.blake2b(digest_size=16)
    for state in states:
        digest.update(packed(state).numpy())
    return digest.hexdigest()
