"""A torch model on a parameter server: what `windfall.paramserver.wrap` does around each turn.

**What is shared.**  The parameters, one after another in rows of one width.  A turn begins with what the table has of them;
at its end the difference is pushed, divided by the number of data partitions.  So a clock moves the parameters by the *mean*
of what the data partitions found.  With plain SGD and one step a turn that is the step of one process along the mean of all
gradients: the learning rate means what it means there, with a batch of all data partitions together, and a step does not grow
with their number.  With several steps a turn it is the average of models (Zinkevich et al., NIPS 2010, algorithm 3; McMahan
et al., AISTATS 2017, algorithm 1 with equal weights).

**What belongs to a data partition.**  The optimizer's state and settings (moments, momentum, step counts, the rate that a
schedule has set), buffers (BatchNorm's statistics) and the state of schedules.  They are rows of the same table that no other
data partition reads or writes: so they move with it, roll back with it, and nothing else needs to be saved.

**Chance.**  Each turn begins with torch's, numpy's and Python's generators seeded by the training's seed, the data partition
and the clock, so their states need not be stored.

What a turn computes depends on nothing but the table, the data partition and the clock, so with staleness 0 the result is the
same bit for bit wherever and however often turns were computed; on machines whose kernels give the same bits, that is: the
same version of torch, the same kind of processor, the same number of threads.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from windfall import paramserver
from windfall.errors import Misuse
from windfall.sdk.partition_state import PartitionState

DIGEST_PIECES = 6
"""Numbers of 16 bits that say which model the table has."""


class WrappedModel:
    """`TurnHooks` that take a model from the table before each turn, and push how it has changed after it.

    Rows of the table: one that says which model it is, then the parameters', then each data partition's.

    Args:
        model: what is trained.
        optimizer: that steps.
        stateful: what else belongs to data partitions.
        width: numbers in a row.
        partitions: how many data partitions there are.

    Attributes:
        rows: of the table.
        dtype: of the table: float64 if a parameter is, else float32.

    Raises:
        Misuse: model or optimizer cannot be wrapped.
    """

    def __init__(self, model: Any, optimizer: Any, stateful: Sequence[Any], width: int, partitions: int) -> None:
        self._named = list(model.named_parameters())
        known = {id(parameter) for _, parameter in self._named}
        if any(id(one) not in known for group in optimizer.param_groups for one in group["params"]):
            raise Misuse("the optimizer has a parameter that is not in the model: wrap the module that has all of them")
        if not self._named:
            raise Misuse("the model has no parameters")
        self.dtype = np.dtype(
            np.float64 if any(parameter.dtype == torch.float64 for _, parameter in self._named) else np.float32
        )
        self._state = PartitionState(model, optimizer, stateful)
        self._width = width
        self._shared = 1 + -(-sum(parameter.numel() for _, parameter in self._named) // width)
        self._private = -(-self._state.size // width)
        self.rows = self._shared + self._private * partitions
        self._first_shared = np.zeros((self._shared, width), self.dtype)
        self._first_private = np.zeros((self._private, width), self.dtype)
        for start, parameter in self._placed():
            self._first_shared[1:].reshape(-1)[start : start + parameter.numel()] = self._numbers(parameter)
        self._state.save(self._first_private.reshape(-1)[: self._state.size])
        self._first_shared[0, :DIGEST_PIECES] = self._digest()
        self._before = self._first_shared

    def first(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return the first values of rows: the model as it was wrapped, the same state for each data partition."""
        found = np.empty((len(rows), self._width), self.dtype)
        shared = rows < self._shared
        found[shared] = self._first_shared[rows[shared]]
        found[~shared] = self._first_private[(rows[~shared] - self._shared) % self._private]
        return found

    def begin(self, server: paramserver.Server, turn: paramserver.Turn) -> None:
        """Make the model, and all that belongs to the data partition, what the table has.

        Raises:
            Misuse: the table is of another model.
        """
        _seed(turn)
        self.take_rows(server.pull(self.rows_of(turn.data)))

    def take_rows(self, found: NDArray[Any]) -> None:
        """Make the model, and all that belongs to a data partition, what rows of the table have; changes count from there.

        Args:
            found: values of `rows_of` the data partition.

        Raises:
            Misuse: the table is of another model.
        """
        if not np.array_equal(found[0], self._first_shared[0]):
            raise Misuse(
                "the parameter server has another model, or one with other first weights, than this process built: call "
                "torch.manual_seed with a fixed number before the model is built"
            )
        self._take(found)
        self._before = found

    def take_table(self, values: NDArray[Any], data: int) -> None:
        """Make the model what a whole table has, and all that belongs to a data partition what the table has for this one.

        Raises:
            Misuse: the table is not one of such a model, or has no such data partition.
        """
        partitions = (len(values) - self._shared) / self._private
        if values.dtype != self.dtype or partitions < 1 or partitions != int(partitions):
            raise Misuse(
                f"the table of {len(values)} rows of {values.shape[1]} {values.dtype} is not one of this model and optimizer: "
                "build them as the script that was trained does"
            )
        if not 0 <= data < partitions:
            raise Misuse(f"there is no data partition {data}: the table has {partitions:.0f}")
        self._take(values[self.rows_of(data)])

    def _take(self, found: NDArray[Any]) -> None:
        parameters = torch.from_numpy(found[1 : self._shared].reshape(-1))
        with torch.no_grad():
            for start, parameter in self._placed():
                parameter.copy_(parameters[start : start + parameter.numel()].view(parameter.shape))
                parameter.grad = None
            self._state.load(found[self._shared :].reshape(-1)[: self._state.size])

    def end(self, server: paramserver.Server, turn: paramserver.Turn) -> None:
        """Push how the model, and what belongs to the data partition, have changed.

        Raises:
            Misuse: something is not finite any more.
        """
        if server.is_given_up():
            return
        self.check_finite(turn.data, turn.clock)
        server.push_written(self.rows_of(turn.data)[1:], self.write_changes)

    def check_finite(self, data: int, clock: int) -> None:
        """Check what a turn has made of the model, and of what belongs to the data partition.

        Raises:
            Misuse: something is not finite any more.
        """
        bad = self._state.not_finite()
        for name, parameter in self._named:
            if not bool(torch.isfinite(parameter).all()):
                bad = f"the parameter {name}"
        if bad is not None:
            raise Misuse(
                f"{bad} is not finite after clock {clock} of data partition {data}: lower the learning rate, or "
                "clip the gradients"
            )

    def write_changes(self, out: NDArray[Any]) -> None:
        """Write how the rows that were taken have changed, without the first one, which never does.

        Args:
            out: where to; shape (rows taken - 1, width).
        """
        partitions = (self.rows - self._shared) // self._private
        before, changes = self._before[1:].reshape(-1), out.reshape(-1)
        private = (self._shared - 1) * self._width
        for start, parameter in self._placed():
            end = start + parameter.numel()
            np.subtract(self._numbers(parameter), before[start:end], out=changes[start:end])
            changes[start:end] /= partitions
        changes[sum(parameter.numel() for _, parameter in self._named) : private] = 0
        self._state.save(changes[private : private + self._state.size])
        changes[private + self._state.size :] = 0
        changes[private:] -= before[private:]

    def rows_of(self, data: int) -> NDArray[np.int64]:
        """Return the rows that a turn of a data partition reads."""
        start = self._shared + data * self._private
        return np.concatenate((np.arange(self._shared), np.arange(start, start + self._private)))

    def _placed(self) -> list[tuple[int, Any]]:
        """Return each parameter with the place of its first number."""
        found, start = [], 0
        for _, parameter in self._named:
            found.append((start, parameter))
            start += parameter.numel()
        return found

    def _numbers(self, parameter: Any) -> NDArray[Any]:
        kind = torch.float64 if self.dtype == np.float64 else torch.float32
        numbers: NDArray[Any] = parameter.detach().reshape(-1).to("cpu", kind).numpy()
        return numbers

    def _digest(self) -> NDArray[np.uint16]:
        """Return what tells models apart: names, shapes, and all first values."""
        names = repr([(name, tuple(parameter.shape), str(parameter.dtype)) for name, parameter in self._named])
        digest = hashlib.blake2b(names.encode(), digest_size=2 * DIGEST_PIECES)
        digest.update(self._first_shared.tobytes())
        digest.update(self._first_private.tobytes())
        return np.frombuffer(digest.digest(), np.uint16)


def wrapped(model: Any, optimizer: Any, stateful: Sequence[Any], width: int) -> paramserver.Server:
    """Return the parameter server that trains a model; see `windfall.paramserver.wrap`."""
    if width < DIGEST_PIECES:
        raise Misuse(f"rows of width {width}: they need at least {DIGEST_PIECES} numbers")
    opened = paramserver.opened()
    hooks = WrappedModel(model, optimizer, stateful, width, opened.partitions)
    return paramserver.Server(opened, paramserver.TableForm(hooks.rows, width, hooks.dtype), hooks.first, hooks)


def loaded(table: NDArray[Any], model: Any, optimizer: Any, stateful: Sequence[Any], data: int) -> None:
    """Make a model what a table has; see `windfall.paramserver.load`."""
    WrappedModel(model, optimizer, stateful, table.shape[1], 1).take_table(table, data)


def _seed(turn: paramserver.Turn) -> None:
    """Seed all generators for a turn."""
    text = f"{turn.seed}/{turn.data}/{turn.clock}"
    seed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
    torch.manual_seed(seed >> 1)
    np.random.seed(seed & 0xFFFFFFFF)
    random.seed(seed)
