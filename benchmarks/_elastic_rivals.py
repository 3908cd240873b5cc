"""The model of `_elastic_model` below torchft, or below Ray Train v2: run by a Python that has them, which need not be ours.

    PYTHON _elastic_rivals.py torchft|ray FOLDER WAIT_S BATCH WIDTH

Four ranks train until standard input ends.  Each writes its steps to FOLDER/RANK-PID.steps; who measures kills one by its PID.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

RANKS, SAVE_EVERY = 4, 20
HEARTBEAT_S = 1.0
"""After which torchft takes a replica for lost [s]."""


def until_input_ends(end: Any) -> None:
    """Call a function once standard input ends, from a thread."""

    def wait() -> None:
        sys.stdin.read()
        end()
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()


def parts_of(batch: int, rank: int, ranks: int) -> range:
    """Return this rank's share of a batch, in samples."""
    return range(batch * rank // ranks, batch * (rank + 1) // ranks)


def batch_of(step: int, batch: int, rank: int, ranks: int) -> Any:
    """Return a rank's samples of a step."""
    import torch
    from _elastic_model import DrawnWords

    data = DrawnWords()
    found = [data[(step * batch + place) % len(data)] for place in parts_of(batch, rank, ranks)]
    return torch.stack([one for one, _ in found]), torch.stack([one for _, one in found])


# -------------------------------------------------------------------------------------------------------------------- torchft


def torchft_replica(lighthouse: str, folder: str, rank: int, wait_s: float, batch: int, width: int) -> None:
    """Train as a replica group of one rank."""
    import torch
    import torch.distributed as dist
    from _elastic_model import StepTimes, layers_of, loss_of

    torchft = importlib.import_module("torchft")
    model = torch.nn.Sequential(*layers_of(width, wait_s))
    inner = torch.optim.AdamW(model.parameters(), lr=1e-3)
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=timedelta(seconds=5)), min_replica_size=1, load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": inner.state_dict()},
        replica_id=f"replica{rank}", store_addr="localhost", store_port=store.port, rank=0, world_size=1,
        lighthouse_addr=lighthouse, hostname="localhost", timeout=timedelta(seconds=10),
    )  # fmt: skip
    parallel = torchft.DistributedDataParallel(manager, model)
    optimizer = importlib.import_module("torchft.optim").OptimizerWrapper(manager, inner)
    times = StepTimes(f"{folder}/{rank}-{os.getpid()}.steps")
    while True:
        inputs, targets = batch_of(manager.current_step(), batch, rank, RANKS)
        optimizer.zero_grad()
        before = manager.current_step()
        loss_of(parallel(inputs), targets).backward()
        optimizer.step()
        if manager.current_step() > before:
            # A step that is not committed does not count.
            times.done(manager.current_step())


def run_torchft(folder: str, wait_s: float, batch: int, width: int) -> None:
    """Have a lighthouse and four replica groups, which are forks of one process that has imported everything."""
    for name in ("torch", "torch._dynamo", "torchft", "torchft.optim"):
        importlib.import_module(name)
    told = []
    for rank in range(RANKS):
        reads, writes = os.pipe()
        if os.fork() == 0:
            with os.fdopen(reads) as pipe:
                address = pipe.readline().strip()
            torchft_replica(address, folder, rank, wait_s, batch, width)
            os._exit(0)
        told.append(writes)
    coordination = importlib.import_module("torchft.coordination")
    lighthouse = coordination.LighthouseServer(
        bind="[::]:0", min_replicas=1, join_timeout_ms=100, quorum_tick_ms=100,
        heartbeat_timeout_ms=int(HEARTBEAT_S * 1e3),
    )  # fmt: skip
    address = f"http://localhost:{lighthouse.address().rpartition(':')[2]}"
    for pipe_end in told:
        os.write(pipe_end, f"{address}\n".encode())
    sys.stdin.read()
    lighthouse.shutdown()


# ------------------------------------------------------------------------------------------------------------------ Ray Train


def ray_worker(told: dict[str, Any]) -> None:
    """Train as a rank of Ray Train."""
    import tempfile

    import ray.train
    import torch
    from _elastic_model import StepTimes, layers_of, loss_of

    context = ray.train.get_context()
    rank, ranks = context.get_world_rank(), context.get_world_size()
    model = torch.nn.Sequential(*layers_of(told["width"], told["wait_s"]))
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step = 0
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as saved:
            state = torch.load(Path(saved, "state.pt"))
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    times = StepTimes(f"{told['folder']}/{rank}-{os.getpid()}.steps")
    while True:
        inputs, targets = batch_of(step, told["batch"], rank, ranks)
        optimizer.zero_grad()
        loss_of(parallel(inputs), targets).backward()
        optimizer.step()
        step += 1
        times.done(step)
        if step % SAVE_EVERY == 0:
            with tempfile.TemporaryDirectory() as saved:
                if rank == 0:
                    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                    torch.save(state, Path(saved, "state.pt"))
                point = ray.train.Checkpoint.from_directory(saved) if rank == 0 else None
                ray.train.report({"step": step}, checkpoint=point)


def run_ray(folder: str, wait_s: float, batch: int, width: int) -> None:
    """Have four workers of Ray Train on this host."""
    import ray
    import ray.train
    import ray.train.torch

    here = {"PYTHONPATH": str(Path(__file__).parent)}
    ray.init(num_cpus=RANKS, include_dashboard=False, runtime_env={"env_vars": here}, log_to_driver=False)
    until_input_ends(ray.shutdown)
    told = {"folder": folder, "wait_s": wait_s, "batch": batch, "width": width}
    ray.train.torch.TorchTrainer(
        ray_worker,
        train_loop_config=told,
        scaling_config=ray.train.ScalingConfig(num_workers=RANKS, resources_per_worker={"CPU": 1}),
        run_config=ray.train.RunConfig(
            storage_path=f"{folder}/storage", name="run", failure_config=ray.train.FailureConfig(max_failures=-1)
        ),
    ).fit()


def installed() -> dict[str, bool]:
    """Return which of the two this interpreter can import."""
    found = {}
    for name, modules in (("torchft", ("torchft", "torchft.coordination")), ("ray", ("ray.train", "ray.train.torch"))):
        try:
            for module in modules:
                importlib.import_module(module)
            found[name] = True
        except ImportError:
            found[name] = False
    return found


if __name__ == "__main__":
    if sys.argv[1] == "installed":
        print(json.dumps(installed()))
    else:
        run = {"torchft": run_torchft, "ray": run_ray}[sys.argv[1]]
        run(sys.argv[2], float(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
