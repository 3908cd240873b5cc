"""Is asynchronous training worth it?  Loss against time of a network on machines of unlike speed, beside all-reduce.

The network is `windfall.apps.cnn` on the letters of matplotlib's fonts.  Four machines, two of them twice as fast as the
others, each with one data partition and a link of 80 Mbit/s each way, train it

    none, 1, 0      on the parameter server, with no bound, staleness 1 and 0: the real runtime on Ray, a process a machine
    all-reduce      with torch.distributed (gloo), a process a machine: the mean of all gradients, each step
    one             on one of the fast machines alone, without a link

all from the same weights, with the same batches of data partition and clock, by the same rule of learning.  Staleness 0 and
all-reduce take the same steps but for rounding, which `loss_synchronous` holds.  A machine of speed s computes for its
processor time / s, really and then idly (`MachineLimits`), so that two cores stand for all of them.  All are ready before the
time begins.  States are taken while they train, at no cost to their links, and judged once it is over.

The answers are claims to be held, as they came out first: not for this network.  A step costs little
beside what goes over the links, so all-reduce, which moves least, is sooner than every bound, staleness 0 is the soonest of
these, and one fast machine is sooner than all, as its steps are many.  What the parameter server brings here is that it
survives the loss of machines.

**What is not comparable.**  The link of all-reduce is a rule: each step takes as long as a ring would, 2 (n - 1) / n times the
gradients over the link, or longer.  The parameter server's messages really wait for one another, also those to backups, which
all-reduce has none of: it does not survive the loss of a machine.  A data partition's momentum is in the table and goes over
the link, as large as a gradient.  The machine alone has the batch of one data partition, so more steps with fewer pictures.
Every machine of all-reduce has the same batch, as torch's own sampler deals it; a share by speed would help it.  The rate is
one for all; it was not tuned for each.

`python -m benchmarks.allreduce FILE` draws one round of each.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import itertools
import multiprocessing
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.harness import Benchmark
from windfall.runtimes.table_rows import TableRows
from windfall.runtimes.tier_program import Table, TierProgram

SPEEDS = {"r1": 0.1, "t1": 0.2, "t2": 0.2, "t3": 0.1}
LINK_BYTES_PER_S = 10e6
DATA, PARTS = len(SPEEDS), 2
SETTINGS: dict[str, object] = {"source": "letters", "channels": 16, "batch": 256, "rate": 0.1}
TRAINS_S, LOOK_S = 30.0, 0.4
READY_WITHIN_S = 120.0
CLOCKS = 1_000_000
"""More than there is time for."""
ROUNDS = 3
ARMS: tuple[int | str | None, ...] = (None, 1, 0, "all-reduce", "one")


class State(NamedTuple):
    """A loss that was reached.

    Attributes:
        at_s: since the start [s].
        clock: that each data partition has done at least.
        loss: over all pictures.
    """

    at_s: float
    clock: int
    loss: float


def benchmarks() -> list[Callable[[], Benchmark]]:
    return [loss_synchronous, time_bulk_synchronous, time_staleness_1, time_asynchronous, time_one_machine]


class GatedProgram:
    """A program that computes once a file is there, so that all machines begin together, and notes which turns wait for it."""

    def __init__(self, program: TierProgram, gate: Path) -> None:
        self.program, self.rows, self.first, self.load = program, program.rows, program.first, program.load
        self._gate = gate

    def compute(self, loaded: Any, clock: int, table: Table) -> float | None:
        while not self._gate.exists():
            (self._gate.parent / f"waits-{loaded.data}").touch()
            time.sleep(0.005)
        return self.program.compute(loaded, clock, table)


def _program(settings: dict[str, object], data: int) -> Any:
    from windfall.apps import cnn

    return cnn.program(settings, data)


def _gated(gate: Path) -> GatedProgram:
    return GatedProgram(_program(SETTINGS, DATA), gate)


@functools.cache
def curve(arm: int | str | None, number: int) -> list[State]:
    """Train once; `number` tells repetitions apart."""
    with tempfile.TemporaryDirectory(prefix="windfall-allreduce-") as folder:
        if isinstance(arm, str):
            speeds = [SPEEDS["t1"]] if arm == "one" else list(SPEEDS.values())
            found = by_all_reduce(Path(folder), SETTINGS, speeds, TRAINS_S)
        else:
            found = _on_parameter_server(Path(folder), arm)
    print(f"    {_name(arm)}, round {number}: seconds, clock, loss:", file=sys.stderr)
    some = found[:: max(1, len(found) // 10)]
    print("        " + "  ".join(f"{one.at_s:.1f} {one.clock} {one.loss:.3f}" for one in some), file=sys.stderr)
    return found


def _name(arm: int | str | None) -> str:
    return arm if isinstance(arm, str) else f"staleness {'none' if arm is None else arm}"


# ---------------------------------------------------------------------------------------------------------- parameter server


@functools.cache
def _on_ray() -> Any:
    import ray

    ray.init(
        num_cpus=1, include_dashboard=False, namespace="allreduce", log_to_driver=False, _node_ip_address="127.0.0.1"
    )
    return ray


@contextlib.contextmanager
def _machines(folder: Path, staleness: int | None) -> Iterator[tuple[Any, dict[str, Any], list[Any]]]:
    """Start the coordinator and the machines; they are that, by name, and their calls, which only fail."""
    from windfall.policies.layout.tiers import StageRatios
    from windfall.runtimes import tier_actors
    from windfall.runtimes.machine_limits import MachineLimits
    from windfall.runtimes.tier_pace import TierPace
    from windfall.runtimes.tier_server import ServerSettings
    from windfall.storage.object_stores import folder_url
    from windfall.tier_layout import TierMachine

    ray, settings = _on_ray(), ServerSettings(staleness, 1, CLOCKS)
    url, pace = folder_url(str(folder)), TierPace(save_every=CLOCKS)
    training = tier_actors.TierTraining(url, settings, PARTS, DATA, StageRatios(), pace)
    names = [TierMachine(name, name[0] == "r", float(order)) for order, name in enumerate(SPEEDS)]
    options: dict[str, Any] = {"num_cpus": 0, "max_concurrency": 1000}
    remote = ray.remote(tier_actors.CoordinatorActor).options(name=tier_actors.COORDINATOR, **options)
    coordinator = remote.remote(training, names)
    calls, layout = [coordinator.run.remote()], ray.get(coordinator.layout.remote())
    machines = {}
    for one in names:
        actor = ray.remote(tier_actors.MachineActor).options(name=one.name, **options)
        limits = MachineLimits(SPEEDS[one.name], LINK_BYTES_PER_S)
        program = partial(_gated, folder / "go")
        machines[one.name] = actor.remote(one, training, layout, program, 1, limits=limits)
    calls += [machine.run.remote() for machine in machines.values()]
    try:
        yield coordinator, machines, calls
    finally:
        for actor in (*machines.values(), coordinator):
            ray.kill(actor)


def _on_parameter_server(folder: Path, staleness: int | None) -> list[State]:
    from windfall.runtimes.tier_messages import ReadRows, RowsRead

    ray, program = _on_ray(), _program(SETTINGS, DATA)
    rows = TableRows(program.rows, PARTS)
    with _machines(folder, staleness) as (coordinator, machines, calls):
        deadline = time.monotonic() + READY_WITHIN_S
        while any(one is None for one in ray.get([one.look.remote(False) for one in machines.values()])):
            _check(ray, calls, deadline)
            time.sleep(0.05)

        def tables() -> list[Any]:
            # In the name of the machine itself: what it says to itself goes over no link.
            return ray.get(
                [
                    machines[place.active].answer.remote(
                        ReadRows(part, 0, layout.term, 1, np.arange(len(rows.of_part(part)))), place.active
                    )
                    for part, place in enumerate(layout.parts)
                ]
            )

        layout, seen = ray.get(coordinator.layout.remote()), []
        while len(list(folder.glob("waits-*"))) < DATA or not all(isinstance(one, RowsRead) for one in tables()):
            _check(ray, calls, deadline)
            time.sleep(0.05)
        (folder / "go").touch()
        began_s = time.monotonic()
        for number in itertools.count(1):
            time.sleep(max(0.0, began_s + number * LOOK_S - time.monotonic()))
            _check(ray, calls, deadline + TRAINS_S)
            answers = tables()
            assert all(isinstance(answer, RowsRead) for answer in answers), answers
            at_s = time.monotonic() - began_s
            seen.append((at_s, answers))
            if at_s > TRAINS_S:
                break
    found = []
    for at_s, answers in seen:
        table = rows.joined(np.arange(rows.rows), [answer.values for answer in answers])
        # Parts are read one after the other; of states between two clocks the earlier one is named.
        found.append(State(at_s, min(answer.clock for answer in answers), program.evaluate(table)))
    return found


def _check(ray: Any, calls: list[Any], deadline: float) -> None:
    assert time.monotonic() < deadline, "machines are not ready"
    for over in ray.wait(calls, num_returns=len(calls), timeout=0.0)[0]:
        ray.get(over)


# ---------------------------------------------------------------------------------------------------------------- all-reduce


def by_all_reduce(folder: Path, settings: dict[str, object], speeds: list[float], trains_s: float) -> list[State]:
    """Train with a process for each machine, and return the states of the first one.

    Args:
        folder: for what they write.
        settings: of the application.
        speeds: of the machines, each with one data partition.
        trains_s: after the first step that ends later, training ends [s].
    """
    import torch

    context = multiprocessing.get_context("spawn")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    ranks = [
        context.Process(target=_rank, args=(rank, settings, speeds, port, trains_s, folder))
        for rank in range(len(speeds))
    ]
    try:
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(READY_WITHIN_S + trains_s)
            assert process.exitcode == 0, f"a rank of all-reduce ended with {process.exitcode}"
    finally:
        for process in ranks:
            process.kill()
    program = _program(settings, len(speeds))
    model, _ = program.made()
    found = []
    with np.load(folder / "states.npz") as states:
        for at_s, clock, weights in zip(states["at_s"], states["clocks"], states["weights"], strict=True):
            torch.nn.utils.vector_to_parameters(torch.from_numpy(weights), model.parameters())
            found.append(State(float(at_s), int(clock), program.loss(model)))
    return found


def _rank(
    rank: int, settings: dict[str, object], speeds: list[float], port: int, trains_s: float, folder: Path
) -> None:
    """Train as one machine of all-reduce; the first one writes the states."""
    import torch
    from torch import distributed

    from windfall.runtimes.machine_limits import KernelTimes, SlowedKernel

    torch.set_num_threads(1)
    program = _program(settings, len(speeds))
    model, optimizer = program.made()
    loaded, kernel = program.load(rank), SlowedKernel(speeds[rank], KernelTimes())
    distributed.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=len(speeds),
        timeout=dt.timedelta(seconds=READY_WITHIN_S),
    )
    states: list[tuple[float, int, np.ndarray]] = []
    going = torch.ones(1)
    distributed.barrier()
    began_s = time.monotonic()
    for clock in itertools.count(1):
        kernel.begin("slope")
        optimizer.zero_grad()
        program.slope(model, loaded, clock)
        kernel.rest()
        _mean_of_gradients(model, going)
        kernel.begin("step")
        optimizer.step()
        kernel.rest()
        if rank == 0:
            at_s = time.monotonic() - began_s
            # Each step of a slow cluster, some of a fast machine.
            if len(speeds) > 1 or not states or at_s >= states[-1][0] + LOOK_S:
                weights = torch.nn.utils.parameters_to_vector(model.parameters()).detach().numpy().copy()
                states.append((at_s, clock, weights))
            going.fill_(float(at_s <= trains_s))
        distributed.broadcast(going, 0)
        if not going.item():
            break
    if rank == 0:
        at, clocks, weights_all = zip(*states, strict=True)
        np.savez(folder / "states.npz", at_s=at, clocks=clocks, weights=np.stack(weights_all))
    distributed.destroy_process_group()


def _mean_of_gradients(model: Any, going: Any) -> None:
    """Replace gradients by the mean of those of all machines; it takes as long as on links of the rate."""
    import torch
    from torch import distributed

    world = distributed.get_world_size()
    if world == 1:
        return
    together = torch.cat([one.grad.reshape(-1) for one in model.parameters()])
    distributed.broadcast(going, 0)
    distributed.barrier()
    began_s = time.monotonic()
    distributed.all_reduce(together)
    link_s = 2.0 * (world - 1) / world * together.nbytes / LINK_BYTES_PER_S
    time.sleep(max(0.0, began_s + link_s - time.monotonic()))
    together /= world
    start = 0
    for one in model.parameters():
        one.grad.copy_(together[start : start + one.numel()].view_as(one))
        start += one.numel()


# -------------------------------------------------------------------------------------------------------------- what is held


def seconds_to(loss: float, found: list[State]) -> float:
    """When a curve is first down at a loss, on the straight line between two states."""
    for before, after in itertools.pairwise(found):
        if after.loss <= loss:
            share = max(0.0, before.loss - loss) / (before.loss - after.loss) if before.loss > loss else 0.0
            return before.at_s + share * (after.at_s - before.at_s)
    return float("inf")


def wanted_loss(number: int) -> float:
    """The loss that all-reduce has reached, smoothed over five states, after a third of the time, so that all come to it."""
    found = curve("all-reduce", number)
    last = next(place for place, one in enumerate(found) if one.at_s >= TRAINS_S / 3)
    return float(np.mean([one.loss for one in found[last - 2 : last + 3]]))


def _time(arm: int | str | None, target: float, *, at_most: bool) -> Benchmark:
    """Seconds to the loss that all-reduce has after a third of the time, beside its own."""
    rounds = {"ours": iter(range(ROUNDS + 1)), "yardstick": iter(range(ROUNDS + 1))}

    def seconds(who: str, which: int | str | None) -> float:
        number = next(rounds[who])
        return seconds_to(wanted_loss(number), curve(which, number))

    return Benchmark(
        f"cnn, time to a loss, {_name(arm)} vs all-reduce",
        lambda: seconds("ours", arm),
        lambda: seconds("yardstick", "all-reduce"),
        target,
        at_most=at_most,
        unit="s",
        rounds=ROUNDS,
    )


def loss_synchronous() -> Benchmark:
    """Staleness 0 and all-reduce take the same steps: at the same clock they have the same loss but for rounding."""
    rounds = {"ours": iter(range(ROUNDS + 1)), "yardstick": iter(range(ROUNDS + 1))}

    def loss(who: str, arm: int | str) -> float:
        number = next(rounds[who])
        clock = min(curve(one, number)[-1].clock for one in (0, "all-reduce")) // 2
        # Of the parameter server some states are taken: the nearest one that is, of both.
        clock = min((one.clock for one in curve(0, number)), key=lambda one: abs(one - clock))
        return next(one.loss for one in curve(arm, number) if one.clock == clock)

    return Benchmark(
        "cnn, loss at a clock, staleness 0 vs all-reduce",
        lambda: loss("ours", 0),
        lambda: loss("yardstick", "all-reduce"),
        1.01,
        at_most=True,
        unit="cross entropy",
        rounds=ROUNDS,
    )


def time_bulk_synchronous() -> Benchmark:
    """Staleness 0 beside all-reduce: the same steps, through servers and their backups."""
    return _time(0, 2.0, at_most=True)


def time_staleness_1() -> Benchmark:
    """Staleness 1 beside all-reduce: not sooner."""
    return _time(1, 1.0, at_most=False)


def time_asynchronous() -> Benchmark:
    """No bound beside all-reduce: not sooner, though fast machines do not wait for slow ones."""
    return _time(None, 1.0, at_most=False)


def time_one_machine() -> Benchmark:
    """A fast machine alone beside all-reduce: sooner."""
    return _time("one", 1.0, at_most=True)


def draw(path: Path) -> None:
    """Draw one round of each, as it was measured."""
    from windfall.report import attempt_timeline

    figure = attempt_timeline.new_figure()
    axes = figure.subplots()
    for arm, color in zip(ARMS, ("#E69F00", "#56B4E9", "#1F4E79", "#009E73", "#7F7F7F"), strict=True):
        found = curve(arm, 0)
        axes.plot(
            [one.at_s for one in found], [one.loss for one in found], color=color, label=_name(arm), linewidth=1.5
        )
    axes.set_yscale("log")
    axes.set_xlabel("time (s)")
    axes.set_ylabel("loss over all pictures")
    axes.legend(fontsize=8, frameon=False)
    axes.set_title(
        f"letters on {DATA} machines of speeds {', '.join(map(str, SPEEDS.values()))}", loc="left", fontsize=11
    )
    figure.savefig(path)


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
