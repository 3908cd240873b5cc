"""`windfall drill JOB --profile`: spotDNN's profiling on a parameter server of small machines on this host.

The protocol (spotDNN, IWQoS 2023, sections III and V-D): some turns of one machine of each type alone, then clusters of 2, 4
and 7 machines of mixed types, each from the start; and, which the paper takes from the provider, what the servers carry.  The
constants are fitted by `models.asp_turn_fits`.
"""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from windfall.cli import tier_process
from windfall.drill.profile_report import ProfiledTraining, ProfileResult
from windfall.drill.profile_words import IdleTable, MachineSize, ProfiledProgram, ProfileTraining, SeenTraining
from windfall.errors import Misuse, RunFailed
from windfall.jobs import Job
from windfall.linux.clock import SystemClock
from windfall.linux.random_names import new_nonce
from windfall.models import asp, asp_turn_fits, asp_turns
from windfall.models.asp import AspModel
from windfall.models.asp_profiling import ALONE_ITERATIONS, CLUSTER_SIZES, WorkerShape, mixed_clusters
from windfall.models.asp_turns import TurnRun
from windfall.policies.acquisition import ranking
from windfall.policies.layout import runtime_list, tier_profile, tier_rules
from windfall.policies.layout.tier_rules import TierJob
from windfall.policies.planning import fleet_inputs
from windfall.policies.policy_registry import PARAMSERVER
from windfall.providers.local import market_config, market_engine
from windfall.providers.local.local_provider import MARKET
from windfall.providers.local.market_config import MarketConfig
from windfall.runtimes.machine_limits import MachineLimits
from windfall.structs import Struct
from windfall.units import rate_bytes_per_s
from windfall.wire.ray_environment import ray_environment

if TYPE_CHECKING:
    # Imports Ray, which must find its variables in the environment then.
    from windfall.drill.profile_cluster import ProfileCluster
TURNS: Final = 300
"""Of each cluster, by default."""
TURNS_MIN: Final = 20
WARM_UP: Final = 3
"""Turns of a machine alone beside those that count."""
IDLE_TURNS, IDLE_MACHINES, IDLE_S = 400, 4, 20.0
"""Workers that compute nothing, to see what servers carry: turns, machines, and for how long at most [s]."""
IDLE_WIDTH: Final = 32
"""Numbers in a row of their table."""
PATIENT: Final = {"RAY_gcs_rpc_server_reconnect_timeout_s": "120"}
"""All small machines are on one host, which may be slow: Ray's head is not gone that does not answer."""
Show = Callable[[str, str], None]


class ProfileRequest(Struct, frozen=True):
    """What is profiled.

    Attributes:
        job: with the runtime `paramserver`.
        fill: copies the user's code into a folder.
        environ: variables of the job.
        turns: of each cluster.
        limit_s: within which all must be done [s].
        home: this installation's folder, with its local market.
        folder: for code and stores.
    """

    job: Job
    fill: Callable[[Path], None]
    environ: dict[str, str]
    turns: int
    limit_s: float
    home: Path
    folder: Path


class ProfileKinds(Struct, frozen=True):
    """Machine types.

    Attributes:
        workers: that fit the job's workers.
        server: of its reliable machines.
    """

    workers: tuple[MachineSize, ...]
    server: MachineSize


def tiers_of(job: Job) -> TierJob:
    """Return a job's settings if its training can be profiled.

    Raises:
        Misuse: what it is not, or has, that the model does not cover.
    """
    if job.runtime.name != PARAMSERVER:
        raise Misuse(
            f"--profile measures the training of a parameter server, and the job has runtime {job.runtime.name}: write "
            "runtime: {paramserver: ...}, or drill it without --profile"
        )
    settings = dict(job.runtime.settings)
    if settings.get(tier_profile.PROFILE) is not None:
        raise Misuse(
            f"the job has a {tier_profile.PROFILE}, which a new one would contradict: take it out of the file first"
        )
    tiers = tier_rules.job_of(settings)
    if tiers.servers != tier_rules.RELIABLE:
        raise Misuse(
            "workers serve too and reliable machines compute in this job, which the model of a profile does not cover: write "
            "servers: reliable under paramserver"
        )
    if tiers.staleness is not None:
        raise Misuse(
            f"machines of this job wait for one another (staleness: {tiers.staleness}), which the model of a profile does not "
            "cover: write staleness: none under paramserver"
        )
    return tiers


def kinds_of(job: Job, config: MarketConfig) -> ProfileKinds:
    """Return the machine types of the local market that fit a job.

    Raises:
        Misuse: none fits, or one is limited in a way that small machines of a profile are not.
    """
    now, scaling = SystemClock().wall_time(), runtime_list.scaling_of(job)
    assert scaling is not None, "a parameter server scales"
    offers = market_engine.offers_of(config, now, now)
    reasons = {offer.machine_type: ranking.refusal(job, offer) for offer in offers}
    reasons |= {offer.machine_type: None for offer in offers if ranking.refusal(job, offer) is None}
    workers = [kind for kind, reason in reasons.items() if reason is None]
    server = fleet_inputs.reliable_offer(job, scaling, offers)
    if not workers or server is None:
        why = "; ".join(f"{kind}: {reason}" for kind, reason in reasons.items() if reason) or "none is sold on demand"
        raise Misuse(
            f"a profile is measured on machine types of the local market, and none fits the job ({why}): change its resources, "
            f"or {MARKET}/{market_config.FILE} in the folder of --state"
        )
    return ProfileKinds(tuple(_size(kind, config) for kind in workers), _size(server.machine_type, config))


def _size(kind: str, config: MarketConfig) -> MachineSize:
    sold = config.types[kind]
    if sold.speed < 1.0:
        raise Misuse(
            f"machine type {kind} of the local market has speed {sold.speed:g}, which a profile does not reproduce: write "
            f"kernel_speed: {sold.speed:g} instead, or exclude the type"
        )
    link_bytes_per_s = math.inf if sold.network is None else rate_bytes_per_s(sold.network, "network")
    limits = MachineLimits(sold.kernel_speed, link_bytes_per_s)
    return MachineSize(kind, max(1, int(sold.cpus)), limits, sold.memory_gib)


def cluster_sizes(tiers: TierJob, sizes: Sequence[int]) -> tuple[int, ...]:
    """Return how many workers the clusters have: the paper's sizes, as far as the job has as many, and its most."""
    return tuple(sorted({min(size, tiers.workers_max, tiers.partitions) for size in sizes} - {1}))


def profiled(request: ProfileRequest, show: Show) -> ProfileResult:
    """Profile a job's training.

    Args:
        request: what is profiled.
        show: is told the phase, and how far it is.

    Raises:
        Misuse: the job cannot be profiled, or tells too little; the message says what to change.
        RunFailed: the program failed, or time is up.
    """
    tiers, clock = tiers_of(request.job), SystemClock()
    tier_process.check_ray()
    until = clock.now() + request.limit_s
    kinds = kinds_of(request.job, market_config.load(request.home / MARKET))
    code = request.folder / "code"
    code.mkdir()
    request.fill(code)
    os.environ.update({**ray_environment(new_nonce()), **PATIENT})
    machines: Any = importlib.import_module("windfall.drill.profile_cluster")
    sizes = cluster_sizes(tiers, CLUSTER_SIZES)
    most = max(sizes, default=1)
    show(f"start {tiers.reliable + most} small machines", "")
    cluster = machines.ProfileCluster(tiers.reliable, most, request.folder, clock)
    program = ProfiledProgram(tiers, request.job.command, str(code), request.environ)
    protocol = ProfileProtocol(cluster, program, kinds, ProfileLength(request.turns, until), show)
    try:
        trainings, idle = protocol.run(sizes)
    finally:
        cluster.close()
    show("fit the constants", "")
    fit = asp_turn_fits.fit_turns([one.run for one in trainings], idle.run)
    model = asp_turn_fits.model_of(fit, request.job.name, servers=tiers.reliable)
    servers = f"{tiers.reliable} {kinds.server.kind}"
    seen = tuple(training_of(one, model) for one in trainings)
    return ProfileResult(request.job.name, servers, fit, tier_profile.block_of(model), seen)


class ProfileLength(Struct, frozen=True):
    """How long a profile takes.

    Attributes:
        turns: of each cluster.
        until: time of the clock at which all must be done.
    """

    turns: int
    until: float


class ProfileProtocol:
    """The trainings of a profile, one after another.

    Args:
        cluster: small machines.
        program: what is trained.
        kinds: machine types.
        length: how long they train.
        show: is told the phase, and how far it is.
    """

    def __init__(
        self,
        cluster: ProfileCluster,
        program: ProfiledProgram,
        kinds: ProfileKinds,
        length: ProfileLength,
        show: Show,
    ) -> None:
        self._cluster, self._program, self._kinds, self._length = cluster, program, kinds, length
        self._show, self._samples = show, dict[str, float]()

    def run(self, sizes: Sequence[int]) -> tuple[list[SeenTraining], SeenTraining]:
        """Run all; return trainings, and what the servers carried for workers that compute nothing.

        Raises:
            Misuse, RunFailed: as `profiled`.
        """
        by_name = {size.kind: size for size in self._kinds.workers}
        self._show("load the program", "")
        for size in self._kinds.workers:
            self._samples[size.kind] = self._cluster.samples(self._program, size)
        shapes = [WorkerShape(kind, kind, 1, 1) for kind in by_name]
        trainings = [self.train((size,), ALONE_ITERATIONS + WARM_UP) for size in self._kinds.workers]
        trainings += [
            self.train(tuple(by_name[one.name] for one in cluster), self._length.turns)
            for cluster in mixed_clusters(shapes, sizes)
        ]
        return trainings, self._idle(max(sizes, default=1), trainings[0].run)

    def train(self, workers: tuple[MachineSize, ...], turns: int) -> SeenTraining:
        """Train from the start.

        Raises:
            RunFailed: time was up before.
        """
        mix = asp_turns.mix_text([asp_turns.TurnMachine(size.kind) for size in workers])
        found = self._one(workers, self._program, turns, self._length.until, f"train on {mix}")
        if len(found.run.loss) < turns:
            raise RunFailed(
                f"time was up after {len(found.run.loss)} of {turns} turns on {mix}: raise --limit, or lower --turns"
            )
        return found

    def _idle(self, most: int, alone: TurnRun) -> SeenTraining:
        """Let workers of the fastest links move what a turn moves, and compute nothing."""
        turn_mb = float(alone.moved_mb[-1]) / len(alone.moved_mb)
        rows = max(1, round(turn_mb * 1e6 / 2.0 / (8 * (IDLE_WIDTH + 1))))
        fastest = max(self._kinds.workers, key=lambda size: size.limits.link_bytes_per_s)
        until = min(self._length.until, SystemClock().now() + IDLE_S)
        workers = (fastest,) * min(most, IDLE_MACHINES)
        return self._one(workers, IdleTable(rows, IDLE_WIDTH), IDLE_TURNS, until, "see what the servers carry")

    def _one(
        self,
        workers: tuple[MachineSize, ...],
        program: ProfiledProgram | IdleTable,
        turns: int,
        until: float,
        title: str,
    ) -> SeenTraining:
        self._show(title, "")
        servers = (self._kinds.server,) * self._program.job.reliable
        wanted = ProfileTraining(servers, workers, program, turns, until)
        return self._cluster.train(
            wanted, self._program.job, self._samples, lambda done: self._show(title, f"turn {done} of {turns}")
        )


def training_of(seen: SeenTraining, model: AspModel) -> ProfiledTraining:
    """Return a training for the report, beside what the fitted model predicts."""
    kinds = [machine.kind for machine in seen.run.machines]
    counts = [kinds.count(one.name) for one in model.types]
    predicted = float(asp.cluster_speed(model, counts).iterations_per_s)
    measured = asp_turns.turns_per_s(seen.run, WARM_UP)
    return ProfiledTraining(asp_turns.mix_text(seen.run.machines), len(seen.run.loss), measured, predicted, seen.busy)
