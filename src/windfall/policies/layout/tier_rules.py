"""The rules of the runtime `paramserver`: workers of different speed train shared parameters, which survive without workers.

The parameter server in three tiers of Proteus (EuroSys 2017, section 3).  Which machine serves and computes what is decided
while it trains, by `core.tier_coordinator`, and not by the driver: each machine joins and leaves by itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from windfall.errors import Misuse
from windfall.fleet import Slot
from windfall.jobs import Job, Work
from windfall.policies import policy_registry
from windfall.policies.layout import tier_profile
from windfall.policies.layout.membership import ALONE, Membership
from windfall.policies.layout.runtime_list import Placement, RuntimeRules, Scaling, SettingProblem
from windfall.policies.layout.tiers import SERVERS_APART, StageRatios
from windfall.policies.policy_registry import PARAMSERVER, PolicyKind
from windfall.structs import Struct
from windfall.terms import Reliability, Unit

if TYPE_CHECKING:
    # Needs numpy, which a controller need not have.
    from windfall.models.asp import AspModel

WORKER, RELIABLE, TIERS = "worker", "reliable", "tiers"
LEADER_SLOT = f"{RELIABLE}-0"
"""The machine of this slot has Ray's head and the coordinator."""
HEAD, LEADS, ADDRESS, LOSS = "head", "leads", "address", "loss"
"""Keys of an assignment: host:port of Ray's head, whether it is here, this machine's host:port, empty until they are known; and
the training loss with which training ends, if there is one."""
WORKERS_MAX = 1000
SAVE_EVERY = 100
"""Clocks from one checkpoint in the store to the next, by default."""
_RANGE = re.compile(r"(\d{1,5})\s*(?:\.\.\s*(\d{1,5}))?")
_ADDRESS = re.compile(r"([A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?):(\d{1,5})", re.ASCII)
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
_KEYS = (
    "workers",
    "reliable",
    "staleness",
    "clocks",
    "partitions",
    "save_every",
    "servers",
    "app",
    "settings",
    "ray",
    tier_profile.PROFILE,
)
_SAVED = (
    "write runtime: {paramserver: {save_every: 100}}: clocks from one checkpoint to the next; backups keep the newest"
)
_WITHOUT_EFFECT = MappingProxyType(
    {
        "from": "training begins with the first values of its program, which may read them from a file in workdir",
        "insure": _SAVED,
        "keep_every": _SAVED,
        "keep": "the two newest checkpoints are kept; leave it out",
    }
)
"""Keys of a job file's block `checkpoint`, and what works instead."""
APPS = ("mf", "mlr", "lda", "cnn")
"""Programs of `windfall.apps`."""
_OWN_APPS = "windfall.apps."
_EXAMPLE = "{paramserver: {workers: 2..8, clocks: 500, app: windfall.apps.mf}}"


class BadSetting(ValueError):
    """A setting is wrong; `key` is its name."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


class TierJob(Struct, frozen=True):
    """What a job's settings of the runtime say.

    Attributes:
        workers_min, workers_max: transient machines.
        reliable: machines that cannot be preempted.
        clocks: training ends with this one.
        staleness: by how many clocks a worker may be ahead of what it reads; None: by any number.
        partitions: data partitions; the most that can compute at once.
        save_every: clocks from one checkpoint in the store to the next.
        app: module of the program; empty if the job's command is a script that imports `windfall.paramserver`.
        settings: of the program.
        servers: `tiers`, or `reliable`: reliable machines serve and compute nothing while there are workers.
        ray: host:port of a Ray cluster that is there, and which machines join; empty: they form one of their own.
    """

    workers_min: int
    workers_max: int
    reliable: int
    clocks: int
    staleness: int | None
    partitions: int
    save_every: int
    app: str
    settings: Mapping[str, Any]
    servers: str = TIERS
    ray: str = ""

    @property
    def parts(self) -> int:
        """Parts of the state: as many as machines serve, at most half the largest number (Proteus, section 3.3)."""
        return self.reliable if self.servers == RELIABLE else max(1, (self.workers_max + self.reliable) // 2)

    @property
    def ratios(self) -> StageRatios:
        """Above which the later stages begin, and whether reliable machines compute."""
        return SERVERS_APART if self.servers == RELIABLE else StageRatios()


def job_of(settings: Mapping[str, Any]) -> TierJob:
    """Return what the settings of a job's runtime say.

    Raises:
        BadSetting: what is wrong with them, in words that follow the runtime's name.
    """
    for key in settings:
        if key not in _KEYS:
            raise BadSetting(key, f"has no setting {key}; there are {', '.join(_KEYS)}")
    least, most = _workers(settings.get("workers", 1))
    staleness = settings.get("staleness", 1)
    if staleness is not None and staleness != "none":
        staleness = _whole(settings, "staleness", 1, 0, "write none for no bound")
    servers = settings.get("servers", TIERS)
    if servers not in (TIERS, RELIABLE):
        advice = "workers serve too, and reliable machines compute; or reliable: these serve, and compute nothing"
        raise BadSetting("servers", f"has servers {servers!r}: write {TIERS}, where {advice}")
    app = settings.get("app", "")
    if "app" in settings and not (isinstance(app, str) and _MODULE.fullmatch(app) and not app.endswith(".py")):
        advice = "the name of a module as Python imports it, for example app: windfall.apps.mf"
        raise BadSetting("app", f"has app {app!r}: write {advice}")
    if app.startswith(_OWN_APPS) and app.removeprefix(_OWN_APPS) not in APPS:
        advice = f"one of {', '.join(APPS)} after {_OWN_APPS}, or a module of yours in workdir"
        raise BadSetting("app", f"has app {app!r}, which Windfall has not: write {advice}")
    given = settings.get("settings", {})
    if not isinstance(given, dict):
        advice = "a map of the program's settings, for example settings: {rank: 16}"
        raise BadSetting("settings", f"has settings {given!r}: write {advice}")
    if given and not app:
        raise BadSetting("settings", "has settings and no app that reads them: give a script its arguments in run")
    return TierJob(
        least,
        most,
        _whole(settings, "reliable", 1, 1, "it keeps the state when all workers are lost"),
        _whole(settings, "clocks", None, 1, "training ends with this clock"),
        None if staleness == "none" else staleness,
        _whole(settings, "partitions", most, 1, "the number of parts of the data"),
        _whole(settings, "save_every", SAVE_EVERY, 1, "clocks from one checkpoint in the store to the next"),
        app,
        given,
        servers,
        _address(settings),
    )


def _address(settings: Mapping[str, Any]) -> str:
    value = settings.get("ray", "")
    found = _ADDRESS.fullmatch(value) if isinstance(value, str) else None
    if "ray" in settings and (found is None or not 0 < int(found[3]) < 1 << 16):
        raise BadSetting(
            "ray", f"has ray {value!r}: write host:port of the head of your Ray cluster, for example 10.0.0.5:6379"
        )
    return str(value)


def _workers(value: object) -> tuple[int, int]:
    text = value if isinstance(value, str) else str(value) if type(value) is int else ""
    found = _RANGE.fullmatch(text.strip())
    least, most = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= least <= most <= WORKERS_MAX:
        text = f"has workers {value!r}: write a number, or a range such as 2..8, from 1 to {WORKERS_MAX}"
        raise BadSetting("workers", text)
    return least, most


def _whole(settings: Mapping[str, Any], key: str, default: int | None, least: int, why: str) -> int:
    value = settings.get(key, default)
    if value is None:
        raise BadSetting(key, f"needs {key}, a whole number: {why}; for example {_EXAMPLE}")
    if type(value) is not int or value < least:
        raise BadSetting(key, f"has {key} {value!r}: write a whole number, at least {least}; {why}")
    return value


def slots(job: Job) -> tuple[Slot, ...]:
    """Return a slot for each reliable machine, and one for each worker that there must be."""
    tiers = job_of(job.runtime.settings)
    reliable = [Slot(f"{RELIABLE}-{number}", RELIABLE, Reliability.RELIABLE) for number in range(tiers.reliable)]
    return (*reliable, *(Slot(f"{WORKER}-{number}", WORKER) for number in range(tiers.workers_min)))


def membership(job: Job) -> Membership:
    """Return the rule: the driver forms no generations; the coordinator says who serves and computes what."""
    del job
    return ALONE


def scaling(job: Job) -> Scaling:
    """Return how many workers a job can use."""
    tiers = job_of(job.runtime.settings)
    return Scaling(tiers.workers_min, tiers.workers_max, WORKER, reliable=tiers.reliable, reliable_role=RELIABLE)


def work(job: Job) -> Work:
    """Return the work: a step is a clock."""
    return Work(float(job_of(job.runtime.settings).clocks), Unit.STEP)


def training(job: Job) -> AspModel:
    """Return how fast a job trains on workers of each machine type, and to which loss, by the profile in its settings.

    Raises:
        Misuse: it has none, or it is not valid.
    """
    profile = job.runtime.settings.get(tier_profile.PROFILE)
    if profile is None:
        raise Misuse("has no profile, which predicts its training: the how-to of the parameter server shows one")
    return tier_profile.model_of(profile, job.name)


def turns(job: Job) -> float:
    """Return how many turns there are at most: each data partition has one in each clock."""
    tiers = job_of(job.runtime.settings)
    return float(tiers.clocks * tiers.partitions)


def assign(job: Job, slot: Slot, placed: Mapping[str, Placement]) -> Mapping[str, Any]:
    """Return where Ray's head is, and where this machine is; empty where that is not known yet."""
    goal = {} if job.objective.loss is None else {LOSS: job.objective.loss}
    found = {id_: placed[id_].address if id_ in placed else "" for id_ in (LEADER_SLOT, slot.id)}
    return {HEAD: found[LEADER_SLOT], LEADS: slot.id == LEADER_SLOT, ADDRESS: found[slot.id], **goal}


def command(settings: Mapping[str, Any]) -> str | None:
    """Return the command that names the program; None if the job file's own command is a script."""
    # Also of a wrong one: then it is what is wrong, and not that `run` is missing.
    return f"python -m {settings['app']}" if "app" in settings else None


def settings_problem(settings: Mapping[str, Any]) -> str | None:
    """Return what is wrong with settings; None if they are valid."""
    try:
        job_of(settings)
    except BadSetting as error:
        return SettingProblem(str(error), error.key)
    profile = settings.get(tier_profile.PROFILE)
    if profile is not None and (problem := tier_profile.problem(profile)) is not None:
        return SettingProblem(f"has a profile that {problem}", tier_profile.PROFILE)
    return None


RULES = RuntimeRules(
    PARAMSERVER,
    policy_registry.find(PolicyKind.RUNTIME, PARAMSERVER).help,
    (RELIABLE, WORKER),
    slots,
    membership,
    live="windfall.runtimes.tier_watch:open_runtime",
    program="windfall.cli.tier_process",
    assign=assign,
    reliable_roles=(RELIABLE,),
    check=settings_problem,
    scaling=scaling,
    command=command,
    work=work,
    training=training,
    ends_at_loss=True,
    iterations=turns,
    without_effect=_WITHOUT_EFFECT,
)
