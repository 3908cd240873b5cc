"""What of a torch training belongs to a data partition, as numbers of a table: optimizer state, buffers, schedules.

The table only adds changes up.  A tensor of at most 32-bit floats is stored as its numbers, so it may differ in its last bit
from what the partition computed; that does not matter, since every turn begins with what the table has.  All else (whole
numbers, flags, float64, numbers of Python) is stored in pieces of 16 bits, whose sums and differences are exact.
"""

from __future__ import annotations

import copy
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from windfall.errors import Misuse

Numbers = NDArray[Any]
NUMBER_PIECES = 5
"""A number of Python: which type it has, and its 64 bits."""
NONE, BOOL, INT, FLOAT = range(4)
NUMBERS = (bool, int, float, np.bool_, np.integer, np.floating)
AS_NUMBERS = frozenset({torch.float32, torch.float16, torch.bfloat16})
"""Tensors that are stored as their numbers; others in pieces."""


class TensorForm(NamedTuple):
    """How a tensor of an optimizer's state is created.

    Attributes:
        shape, stride, dtype, device: of the tensor.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: Any
    device: Any

    def empty(self) -> Any:
        """Return such a tensor."""
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=self.device)


class StateWriter:
    """Writes values one after another.

    Args:
        out: where to; None counts alone.

    Attributes:
        size: numbers so far.
    """

    def __init__(self, out: Numbers | None) -> None:
        self._out, self.size = out, 0

    def skip(self, size: int) -> None:
        """Write zeros."""
        self._put(np.zeros(size, np.uint16) if self._out is not None else None, size)

    def tensor(self, value: Any) -> Any:
        """Write a tensor and return it."""
        if self._out is None:
            self.size += _size(value)
            return value
        flat = value.detach().reshape(-1).cpu()
        if value.dtype in AS_NUMBERS:
            self._put(flat.to(torch.float32).numpy(), len(flat))
        else:
            pieces = np.frombuffer(flat.numpy().tobytes().ljust(2 * _size(value), b"\0"), np.uint16)
            self._put(pieces, len(pieces))
        return value

    def number(self, value: Any) -> Any:
        """Write a number or None, and return it."""
        kind = NONE if value is None else FLOAT
        for one, types in ((INT, (int, np.integer)), (BOOL, (bool, np.bool_))):
            kind = one if isinstance(value, types) else kind
        whole = struct.pack("<d", value) if kind == FLOAT else struct.pack("<q", int(value or 0))
        self._put(np.array([kind, *np.frombuffer(whole, np.uint16)], np.uint16), NUMBER_PIECES)
        return value

    def _put(self, values: Numbers | None, size: int) -> None:
        if self._out is not None:
            self._out[self.size : self.size + size] = values
        self.size += size


class StateReader:
    """Reads values in the order in which they were written.

    Args:
        values: what was written.

    Attributes:
        size: numbers so far.
    """

    def __init__(self, values: Numbers) -> None:
        self._values, self.size = values, 0

    def skip(self, size: int) -> None:
        """Pass over numbers."""
        self.size += size

    def tensor(self, value: Any) -> Any:
        """Read a tensor into the given one, and return it."""
        found = self._take(_size(value))
        if value.dtype in AS_NUMBERS:
            value.copy_(torch.from_numpy(found).view(value.shape))
        else:
            whole = bytearray(found.astype(np.uint16).tobytes()[: value.numel() * value.element_size()])
            if whole:
                value.copy_(torch.frombuffer(whole, dtype=value.dtype).view(value.shape))
        return value

    def number(self, value: Any) -> Any:
        """Read a number or None."""
        del value
        kind, *pieces = (int(piece) for piece in self._take(NUMBER_PIECES))
        whole = np.array(pieces, np.uint16).tobytes()
        if kind == NONE:
            return None
        number = struct.unpack("<d" if kind == FLOAT else "<q", whole)[0]
        return bool(number) if kind == BOOL else number

    def _take(self, size: int) -> Numbers:
        found = self._values[self.size : self.size + size]
        self.size += size
        return found


class PartitionState:
    """The part of a training's state that belongs to a data partition.

    Args:
        model: whose buffers belong to it, as far as `state_dict` has them.
        optimizer: whose state and settings belong to it.
        stateful: schedules, scalers and the like.

    Attributes:
        size: how many numbers it has.

    Raises:
        Misuse: something keeps a state that is neither tensors nor numbers.
    """

    def __init__(self, model: Any, optimizer: Any, stateful: Sequence[Any]) -> None:
        kept = model.state_dict().keys()
        self._buffers = [(name, buffer) for name, buffer in model.named_buffers() if name in kept]
        self._optimizer, self._stateful = optimizer, stateful
        self._forms = _forms_of_state(optimizer)
        counted = StateWriter(None)
        self._pass_all(counted)
        self.size = counted.size

    def save(self, out: Numbers) -> None:
        """Write the state, shape (size,).

        Raises:
            Misuse: it has more or fewer values than at first.
        """
        # Counted first: what has grown must not be written over what follows.
        counted = StateWriter(None)
        self._pass_all(counted)
        if counted.size != self.size:
            raise Misuse(
                f"the state of optimizer, schedules and buffers had {self.size} numbers at first, and has {counted.size} "
                "now: what grows during training cannot belong to a data partition"
            )
        self._pass_all(StateWriter(out))

    def load(self, values: Numbers) -> None:
        """Make the state the one that was written, shape (size,)."""
        reader = StateReader(values)
        self._pass_all(reader)
        assert reader.size == self.size, "the state has another size than at first"

    def not_finite(self) -> str | None:
        """Return the name of what is not finite, if something is that is stored as its numbers."""
        for name, buffer in self._buffers:
            if buffer.dtype in AS_NUMBERS and not bool(torch.isfinite(buffer).all()):
                return f"the buffer {name}"
        for forms in self._forms.values():
            for key, (place, _) in forms.items():
                value = self._optimizer.state.get(place, {}).get(key)
                if torch.is_tensor(value) and value.dtype in AS_NUMBERS and not bool(torch.isfinite(value).all()):
                    return f"{key} of the optimizer"
        return None

    def _pass_all(self, codec: StateWriter | StateReader) -> None:
        """Let each value of the state pass by, in a fixed order."""
        for _, buffer in self._buffers:
            codec.tensor(buffer)
        for forms in self._forms.values():
            self._pass_parameter(codec, forms)
        for group in self._optimizer.param_groups:
            settings = {key: value for key, value in group.items() if key != "params"}
            group.update(_passed(settings, codec))
        for thing in self._stateful:
            state = _passed(thing.state_dict(), codec)
            if isinstance(codec, StateReader):
                thing.load_state_dict(state)

    def _pass_parameter(self, codec: StateWriter | StateReader, forms: dict[str, tuple[Any, Any]]) -> None:
        """Let the optimizer's state of one parameter pass by: that it has one, and what it is."""
        parameter = next(iter(forms.values()))[0]
        state = self._optimizer.state.get(parameter) or {}
        if state and state.keys() != forms.keys():
            raise Misuse(f"the optimizer keeps {sorted(state)} of a parameter, and in its first step {sorted(forms)}")
        if not codec.number(bool(state)):
            codec.skip(sum(_size(form) for _, form in forms.values()))
            self._optimizer.state.pop(parameter, None)
            return
        passed = {}
        for key, (_, form) in forms.items():
            if not isinstance(form, TensorForm):
                passed[key] = codec.number(state.get(key))
            else:
                passed[key] = codec.tensor(state[key] if key in state else form.empty())
        self._optimizer.state[parameter] = passed


def _forms_of_state(optimizer: Any) -> dict[int, dict[str, tuple[Any, Any]]]:
    """Return, for each parameter with a state, each key's parameter and form, as the first step of a copy makes them.

    Raises:
        Misuse: the optimizer cannot take a step, or its state is neither tensors nor numbers.
    """
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    copies, trial = copy.deepcopy((parameters, optimizer))
    for one in copies:
        one.grad = torch.zeros_like(one) if one.requires_grad else None
    try:
        # Of the class: a schedule has put its own step into the optimizer itself, which would step the original.
        type(optimizer).step(trial)
    except Exception as error:
        raise Misuse(
            f"{type(optimizer).__name__} cannot be wrapped: a step without gradients fails: {error}"
        ) from error
    found: dict[int, dict[str, tuple[Any, Any]]] = {}
    for number, (parameter, copied) in enumerate(zip(parameters, copies, strict=True)):
        state = trial.state.get(copied) or {}
        if state:
            found[number] = {key: (parameter, _form(key, value, optimizer)) for key, value in state.items()}
    return found


def _form(key: str, value: Any, optimizer: Any) -> TensorForm | None:
    if torch.is_tensor(value):
        return TensorForm(tuple(value.shape), value.stride(), value.dtype, value.device)
    if value is None or isinstance(value, NUMBERS):
        return None
    raise Misuse(
        f"{type(optimizer).__name__} cannot be wrapped: its {key} is a {type(value).__name__}, neither tensor nor number"
    )


def _passed(tree: Any, codec: StateWriter | StateReader) -> Any:
    """Return a tree of dictionaries and sequences with each tensor and number passed by; all else stays as it is."""
    each: Callable[[Any], Any] | None = None
    if torch.is_tensor(tree):
        each = codec.tensor
    elif tree is None or isinstance(tree, NUMBERS):
        each = codec.number
    if each is not None:
        return each(tree)
    if isinstance(tree, dict):
        passed = copy.copy(tree)
        for key, value in tree.items():
            passed[key] = _passed(value, codec)
        return passed
    if isinstance(tree, (list, tuple)) and not hasattr(tree, "_fields"):
        return type(tree)(_passed(value, codec) for value in tree)
    return tree


def _size(value: Any) -> int:
    """Return how many numbers of the table a value takes, by its tensor, or the form of one; None: a number."""
    if value is None:
        return NUMBER_PIECES
    count = int(np.prod(value.shape, dtype=np.int64))
    return count if value.dtype in AS_NUMBERS else -(-count * value.dtype.itemsize // 2)
