"""Connections among the machines of a layout: process groups of torch that are made for it and end with it.

All groups of a layout meet under a prefix of their own, so that nothing of an earlier one is mistaken for them.  A peer that
is killed breaks its connections at once.  One that hangs does not: then `abort` ends all waits of this machine, from another
thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from windfall.runtimes.shape_times import TransferTimes

DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
    torch.bool, torch.complex64, torch.complex128,
)  # fmt: skip
TENSORS_MAX = 8
"""Tensors that a layer may hand to the next one."""
_DIMS_MAX = 8
_FORM_NUMBERS = 2 + _DIMS_MAX
_WAIT_S = timedelta(days=1)
"""How long a call waits for a peer that is connected: until this machine is told that it is lost."""
_ABORT_TAG = 1 << 20
_PROBE_TAG = (1 << 20) + 1
PROBES_BYTES = (8, 1 << 18)
"""Sizes of messages that new connections are measured with."""
MEET_WITHIN_S = 20.0
"""How long machines that are all there may take to connect."""


class LinkBroken(Exception):
    """A connection to another machine is broken, or the layout was given up.

    Args:
        words: what happened.
        peers: machines at the other end; of a sum those whose connections are broken.
    """

    def __init__(self, words: str, peers: Sequence[str] = ()) -> None:
        super().__init__(words)
        self.peers = tuple(peers)


@contextmanager
def _broken(what: str, peers: Callable[[], Sequence[str]]) -> Iterator[None]:
    """Turn torch's errors into `LinkBroken`; what they say differs from peer to peer."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        raise LinkBroken(f"{what}: {error}", peers()) from None


class Links:
    """A process group of some machines; of one machine alone it is empty, and sends nothing.

    Args:
        store: where they meet, under a prefix that no other group has.
        machines: all of them, in the same order everywhere.
        machine: this one.
        address: at which its peers reach it.
        device: of the tensors; `cpu` uses gloo, `cuda` NCCL.
        wait: called with a function that says whether the group is made: returns once it is, or raises.
        transfers: takes how long messages took.

    Raises:
        LinkBroken: it could not be made.
    """

    def __init__(
        self,
        store: Any,
        machines: Sequence[str],
        machine: str,
        *,
        address: str,
        device: Any,
        wait: Callable[[Any], None],
        transfers: TransferTimes | None = None,
    ) -> None:
        self._transfers = transfers
        self.machines = tuple(machines)
        self._rank = self.machines.index(machine)
        self._others = tuple(one for one in self.machines if one != machine)
        self._aborted = False
        self._sent: list[tuple[int, Any, Any]] = []
        self._group: Any = None
        self._device = torch.device(device)
        self._cuda = self._device.type == "cuda"
        if len(self.machines) > 1:
            self._group = self._made(store, address, wait)

    def _made(self, store: Any, address: str, wait: Callable[[Any], None]) -> Any:
        found: list[Any] = []

        def make() -> None:
            try:
                found.append(_new_group(store, self._rank, len(self.machines), address, cuda=self._cuda))
            except (RuntimeError, ValueError) as error:
                found.append(LinkBroken(f"no connection to {', '.join(self._others)}: {error}", self._others))

        # In a thread: while a peer is missing it cannot be interrupted, only left behind.
        threading.Thread(target=make, daemon=True).start()
        wait(lambda: bool(found))
        if isinstance(found[0], LinkBroken):
            raise found[0]
        return found[0]

    def abort(self) -> None:
        """End all waits on this group, with `LinkBroken`; any thread may call it."""
        group, self._aborted = self._group, True
        if group is None:
            return
        if self._cuda:
            group.abort()
            return
        try:
            # A wait that ends by its time limit closes every connection of the group: gloo has no other way to end a wait.
            peer = (self._rank + 1) % len(self.machines)
            group.recv([torch.zeros(1)], peer, _ABORT_TAG).wait(timedelta(milliseconds=1))
        except RuntimeError:
            pass

    def close(self) -> None:
        """End the group; peers that wait for this machine see a broken connection."""
        self._sent.clear()
        self._group = None

    def check(self) -> None:
        """Raise `LinkBroken` if the group was aborted."""
        if self._aborted:
            raise LinkBroken("the layout was given up")

    # --------------------------------------------------------------------------------------------------------- one to another

    def send(self, value: Any, to: str, tag: int, about: int = -1) -> None:
        """Begin to send a tensor whose form the receiver knows; it must not be changed before `sent`."""
        self.check()
        with _broken(f"sending to {to}", lambda: (to,)):
            self._sent.append((about, self._group.send([value], self.machines.index(to), tag), value))

    def receive(self, value: Any, source: str, tag: int) -> Any:
        """Fill a tensor with what a machine sends, and return it."""
        self.check()
        with _broken(f"receiving from {source}", lambda: (source,)):
            self._group.recv([value], self.machines.index(source), tag).wait(_WAIT_S)
        self.check()
        return value

    def sent(self, about: int | None = None) -> None:
        """Wait until what was sent, or sent about something, has left."""
        for one in list(self._sent):
            if about is None or one[0] == about:
                self.check()
                with _broken("sending", self._gone):
                    one[1].wait(_WAIT_S)
                self._sent = [other for other in self._sent if other is not one]

    def send_formed(self, values: Sequence[Any], to: str, tag: int, about: int) -> None:
        """Begin to send some tensors of any form."""
        assert len(values) <= TENSORS_MAX, len(values)
        rows = [[len(values)] + [0] * (_FORM_NUMBERS - 1), *map(_form, values)]
        rows += [[0] * _FORM_NUMBERS] * (1 + TENSORS_MAX - len(rows))
        self.send(torch.tensor(rows, dtype=torch.int64, device=self._device), to, tag, about)
        for value in values:
            self.send(value.contiguous(), to, tag, about)

    def receive_formed(self, source: str, tag: int) -> list[Any]:
        """Return the tensors that were sent so."""
        empty = torch.empty((1 + TENSORS_MAX, _FORM_NUMBERS), dtype=torch.int64, device=self._device)
        (count, *_), *forms = self.receive(empty, source, tag).tolist()
        found = []
        for kind, dims, *shape in forms[:count]:
            place = torch.empty(shape[:dims], dtype=DTYPES[kind], device=self._device)
            found.append(self._timed(place, source, tag))
        return found

    def send_bytes(self, data: Any, to: str, tag: int) -> None:
        """Begin to send a row of bytes of any length."""
        self.send(torch.tensor([len(data)], device=self._device), to, tag)
        self.send(data.to(self._device), to, tag)

    def receive_bytes(self, source: str, tag: int) -> Any:
        """Return a row of bytes."""
        length = int(self.receive(torch.zeros(1, dtype=torch.int64, device=self._device), source, tag))
        return self._timed(torch.empty(length, dtype=torch.uint8, device=self._device), source, tag).cpu()

    def _timed(self, value: Any, source: str, tag: int) -> Any:
        """Receive what its sender has begun to send, as what came before it shows."""
        began_s = time.perf_counter()
        self.receive(value, source, tag)
        # On an accelerator the call returns before anything has arrived.
        if self._transfers is not None and not self._cuda:
            self._transfers.add(value.numel() * value.element_size(), time.perf_counter() - began_s)
        return value

    def probe(self) -> None:
        """Measure the connections: machines two by two, one way and then the other."""
        other = self._rank ^ 1
        if self._group is None or self._cuda or other >= len(self.machines):
            return
        peer = self.machines[other]
        for sender in (0, 1):
            for size in PROBES_BYTES:
                if self._rank % 2 == sender:
                    self.send_bytes(torch.zeros(size, dtype=torch.uint8), peer, _PROBE_TAG)
                    self.sent()
                else:
                    self.receive_bytes(peer, _PROBE_TAG)

    # ------------------------------------------------------------------------------------------------------------------- all

    def sum_all(self, value: Any) -> None:
        """Replace a tensor by the sum over all machines."""
        self._reduce(value, dist.ReduceOp.SUM)

    def max_all(self, value: Any) -> None:
        """Replace a tensor by the largest values of all machines."""
        self._reduce(value, dist.ReduceOp.MAX)

    def _reduce(self, value: Any, kind: Any) -> None:
        self.check()
        if self._group is None:
            return
        options = dist.AllreduceOptions()
        options.reduceOp, options.timeout = kind, _WAIT_S
        with _broken("a sum over all machines", self._gone):
            self._group.allreduce([value], options).wait(_WAIT_S)
        self.check()

    def _gone(self) -> tuple[str, ...]:
        """Return the machines to which a connection is broken, once one is; what is sent to the others is never read."""
        if self._cuda:
            return self._others
        found = []
        for machine in self._others:
            try:
                self._group.send([torch.zeros(1)], self.machines.index(machine), _ABORT_TAG)
            except (RuntimeError, ValueError):
                found.append(machine)
        return tuple(found)


def _form(value: Any) -> list[int]:
    shape = list(value.shape)
    assert len(shape) <= _DIMS_MAX, shape
    return [DTYPES.index(value.dtype), len(shape), *shape, *[0] * (_DIMS_MAX - len(shape))]


# torch has no public way to choose gloo's interface.
def _new_group(store: Any, rank: int, count: int, address: str, *, cuda: bool) -> Any:
    if cuda:
        return dist.ProcessGroupNCCL(store, rank, count, timeout=timedelta(seconds=MEET_WITHIN_S))
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
    options._timeout = timedelta(seconds=MEET_WITHIN_S)
    return dist.ProcessGroupGloo(store, rank, count, options)
