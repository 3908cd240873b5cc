"""Small machines of a parameter server, each a process of its own with a node of Ray at its own loopback address.

`SmallMachines` starts them and notes when clocks are committed, which one of them hears from the coordinator; nothing is taken
from the machines' own counters.  What a machine imports and compiles is there before it is admitted; loading data and all else
is not.
"""

from __future__ import annotations

import itertools
import json
import os
import queue
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from windfall.drill.busy_cores import BusyCores
from windfall.linux.processes import kill_marked
from windfall.policies.layout.tiers import StageRatios

LIMIT_S = 120.0
EVENTS = ("joined", "begun", "left", "over")
MARK = "WINDFALL_SMALL_MACHINE"
"""In the environment of all processes of a machine: its host."""
RATINGS, USERS, ITEMS, RANK = 7_500_000, 8000, 400, 32
"""Matrix factorisation: 1 MB of users' factors, of which each data partition has its own, and 50 KB of items'."""
SETTINGS = {"users": USERS, "items": ITEMS, "ratings": RATINGS, "rank": RANK, "rate": 1e-5, "clocks": 1}
STAGE_RATIOS = StageRatios()


@dataclass(frozen=True)
class Smallness:
    """By how much less machines do than this one.

    Attributes:
        speed: of a kernel, as a share of this computer's [1].
        link_bytes_per_s: each way.
        turns_s: how long a turn computes on this computer, by the number of data partitions; without it, as it does there [s].
    """

    speed: float
    link_bytes_per_s: float
    turns_s: Mapping[int, float] = field(default_factory=dict)


USUAL = Smallness(speed=0.02, link_bytes_per_s=5e6)
"""Iterations take seconds, as the paper's do: of what is shorter, one spare half second on two shared cores is half.  Links
have 40 Mb/s each way."""


def program(data: int) -> Any:
    """Return what is trained: generated ratings; each clock goes through all of a data partition's."""
    from windfall.apps import mf

    return mf.program(SETTINGS, data)


class ProgramOnArrival:
    """What is trained, made and compiled as soon as it arrives in a machine's process: before the machine is admitted.

    Ratings that are generated, and a kernel that is compiled, are no part of an admission; reading a data partition is.

    Args:
        data: how many data partitions there are.
    """

    def __init__(self, data: int) -> None:
        self._data = data

    def __reduce__(self) -> tuple[Any, tuple[int]]:
        return _arrived, (self._data,)


def _arrived(data: int) -> Callable[[], Any]:
    made = program(data)
    made.warm_up()
    return lambda: made


class SmallMachines:
    """Machines by name: `r...` are reliable, `t...` are not.

    Args:
        names: of all machines, started or to be admitted later; the first one leads.
        parts, data: how many parts of the state and data partitions there are.
        folder: of the run's store, of an earlier run that continues; empty for a new one.
        found_within_s: how long a coordinator awaits machines that it finds in the log.
        small: how small they are.
        ratios: above which the later stages begin.

    Attributes:
        clocks: when each clock was first seen as committed [s].
        cores: how busy they are.
    """

    def __init__(
        self,
        names: list[str],
        parts: int,
        data: int,
        *,
        folder: str = "",
        found_within_s: float = 5.0,
        small: Smallness = USUAL,
        ratios: StageRatios = STAGE_RATIOS,
    ) -> None:
        self.folder = folder or tempfile.mkdtemp(prefix="windfall-small-")
        self.names, self.clocks = names, {}
        self._events: dict[str, queue.Queue[str]] = {name: queue.Queue() for name in names}
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        base = int.from_bytes(os.urandom(1)) % 200 + 10
        hosts = {name: f"127.{base}.{os.getpid() % 250}.{place + 1}" for place, name in enumerate(names)}
        common = {
            "head": f"{hosts[names[0]]}:{port}", "store": self.folder, "parts": parts, "data": data,
            "secret": "small machines", "found_within_s": found_within_s,
            "reliable": sum(name.startswith("r") for name in names),
            "speed": small.speed, "link_bytes_per_s": small.link_bytes_per_s, "turn_s": small.turns_s.get(data, 0.0),
            "stage_2_above": ratios.stage_2_above, "stage_3_above": ratios.stage_3_above,
        }  # fmt: skip
        self._processes = {}
        self._hosts = hosts
        for order, name in enumerate(names):
            about = {**common, "name": name, "host": hosts[name], "leads": order == 0, "order": order}
            self._processes[name] = subprocess.Popen(
                [sys.executable, "-m", "benchmarks._small_machine", json.dumps(about)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
                env={**os.environ, "OMP_NUM_THREADS": "1", MARK: hosts[name]},
            )  # fmt: skip
            threading.Thread(target=self._hear, args=(name,), daemon=True).start()
        self.cores = BusyCores()

    def await_event(self, event: str, *names: str) -> None:
        """Wait until machines have said so."""
        for name in names:
            said = self._events[name].get(timeout=LIMIT_S)
            assert said == event, f"{name}: {said}, not {event}"

    def order(self, word: str, *names: str) -> None:
        """Send an order: `begin` or `leave`."""
        for name in names:
            self._processes[name].stdin.write(f"{word}\n")
            self._processes[name].stdin.flush()

    def kill(self, *names: str) -> None:
        """Kill all processes of machines, those of their nodes of Ray too."""
        for name in names:
            kill_marked(MARK, self._hosts[name])
            self._processes.pop(name).wait()

    def start(self, *names: str) -> None:
        """Admit the first machines, once all have joined the cluster."""
        self.await_event("joined", *self.names)
        self.order("begin", *names)

    def newest(self) -> int:
        """Return the newest committed clock."""
        return max(self.clocks, default=0)

    def until(self, clock: int) -> None:
        """Wait for a clock to be committed."""
        deadline = time.monotonic() + LIMIT_S
        while self.newest() < clock:
            assert time.monotonic() < deadline, f"clock {clock} is not committed: {self.newest()}"
            dead = [name for name, one in self._processes.items() if one.poll() not in (None, 0)]
            assert not dead, f"{dead} ended"
            time.sleep(0.01)

    def stop(self) -> None:
        """Let training end with a checkpoint of the newest committed clock."""
        self._store().ask_to_stop(self.layout().coordinator)

    def layout(self) -> Any:
        """Return the newest layout."""
        return self._store().newest_layout()

    def _store(self) -> Any:
        from windfall.runtimes.tier_store import ObjectTierStore
        from windfall.storage.object_stores import folder_url, open_store

        return ObjectTierStore(open_store(folder_url(self.folder)))

    def until_settled(self, serving: set[str], computing: set[str], *, servers: int | None = None) -> int:
        """Wait until these machines, and no others, serve and compute; return the newest clock then.

        Args:
            serving: which may serve.
            computing: which compute.
            servers: how many of them serve; None: all.
        """
        deadline = time.monotonic() + LIMIT_S
        while True:
            layout = self.layout()
            moving = any(place.next_active for place in layout.parts) or any(one.next_holder for one in layout.data)
            serves, computes = {one.active for one in layout.parts}, {one.holder for one in layout.data}
            enough = serves <= serving and len(serves) == (len(serving) if servers is None else servers)
            if not moving and enough and computes == computing:
                return self.newest()
            assert time.monotonic() < deadline, f"{layout}"
            time.sleep(0.05)

    def iterations(self, first: int, last: int) -> list[float]:
        """Return how long clocks from the first to the last took [s]; those that were seen together share their time."""
        found = []
        known = sorted(self.clocks)
        for before, after in itertools.pairwise(known):
            share_s = (self.clocks[after] - self.clocks[before]) / (after - before)
            found += [(clock, share_s) for clock in range(before + 1, after + 1)]
        return [took_s for clock, took_s in found if first <= clock <= last]

    def busiest(self, first: int, last: int) -> float:
        """Return the largest share of the cores that was busy in any of these clocks."""
        found = 0.0
        for clock in range(first, last + 1):
            since_s, until_s = self.clocks.get(clock - 1), self.clocks.get(clock)
            if since_s is not None and until_s is not None:
                found = max(found, self.cores.between(since_s, until_s))
        return found

    def end(self, *, keep: bool = False) -> None:
        """End all processes; the store is removed too unless it is kept."""
        self.cores.end()
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(15.0)
            except subprocess.TimeoutExpired:
                process.kill()
        # A machine that is told to end while it ends its node of Ray leaves that behind, and it loads the host.
        for host in self._hosts.values():
            kill_marked(MARK, host)
        if not keep:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _hear(self, name: str) -> None:
        for line in self._processes[name].stdout:
            # Ray prints to it too.
            words = line.split()
            if words[:1] == ["clock"]:
                self.clocks.setdefault(int(words[1]), float(words[2]))
            elif len(words) == 1 and words[0] in EVENTS:
                self._events[name].put(words[0])
