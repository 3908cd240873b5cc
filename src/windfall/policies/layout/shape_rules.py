"""The rules of the runtime `elastic`: machines that come and go train one model, as pipelines side by side.

Which machine trains which stage is decided while it trains, by `core.shape_coordinator`, and not by the driver: each machine
joins and leaves by itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from windfall.errors import Misuse
from windfall.fleet import Slot
from windfall.jobs import DEFAULT_FLEET, Job
from windfall.models.elastic_profile import ElasticProfile, profile_of
from windfall.models.shapes import Shape
from windfall.policies import policy_registry
from windfall.policies.layout.membership import ALONE, Membership
from windfall.policies.layout.runtime_list import Placement, RuntimeRules, Scaling, SettingProblem
from windfall.policies.policy_registry import ELASTIC, PolicyKind
from windfall.structs import Struct
from windfall.terms import Reliability

NODE, RELIABLE, AUTO = "node", "reliable", "auto"
LEADER_SLOT = f"{RELIABLE}-0"
"""The machine of this slot has the TCP store and the coordinator."""
HEAD, LEADS, ADDRESS = "head", "leads", "address"
"""Keys of an assignment: host:port of the TCP store, whether it is here, and this machine's host:port; empty until known."""
NODES_MAX = 256
_RANGE = re.compile(r"(\d{1,4})\s*(?:\.\.\s*(\d{1,4}))?")
_SHAPE = re.compile(r"(\d{1,3})x(\d{1,3})")
_KEYS = ("nodes", "shapes", "lookahead", "reliable", "save_every", "deterministic", "seed", "profile")
_SAVED = "write runtime: {elastic: {save_every: 100}}: steps from one checkpoint to the next; the backup keeps the newest step"
_WITHOUT_EFFECT = MappingProxyType(
    {
        "from": "training begins with the first values of the script, which may read them from a file in workdir",
        "insure": _SAVED,
        "keep_every": _SAVED,
        "keep": "the two newest checkpoints are kept; leave it out",
    }
)
"""Keys of a job file's block `checkpoint`, and what works instead."""


class BadShapeSetting(ValueError):
    """A setting is wrong; `key` is its name."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


class ElasticJob(Struct, frozen=True):
    """What a job's settings of the runtime say.

    Attributes:
        nodes_min, nodes_max: machines that train.
        shapes: those that are allowed; empty: all that a model can have.
        lookahead: intervals that a plan looks ahead; None: as far as counts of machines last.
        reliable: machines that cannot be preempted; the first has the coordinator and keeps the state.
        profile: of the model's layers; None: not known.
        save_every: steps from one checkpoint in the store to the next; 0: every minute, by the backup.
        script: settings that the script reads.
    """

    nodes_min: int
    nodes_max: int
    shapes: tuple[Shape, ...]
    lookahead: int | None
    reliable: int
    profile: ElasticProfile | None
    save_every: int
    script: Mapping[str, Any]


def job_of(settings: Mapping[str, Any]) -> ElasticJob:
    """Return what the settings of a job's runtime say.

    Raises:
        BadShapeSetting: what is wrong with them, in words that follow the runtime's name.
    """
    for key in settings:
        if key not in _KEYS:
            raise BadShapeSetting(key, f"has no setting {key}; there are {', '.join(_KEYS)}")
    least, most = _nodes(settings.get("nodes", 1))
    deterministic = settings.get("deterministic", False)
    if not isinstance(deterministic, bool):
        raise BadShapeSetting("deterministic", f"has deterministic {deterministic!r}: write true or false")
    save_every = _whole(settings, "save_every", 0, 0, "steps from one checkpoint to the next; 0 saves every minute")
    profile = None
    if "profile" in settings:
        try:
            profile = profile_of(settings["profile"])
        except Misuse as error:
            raise BadShapeSetting("profile", f"has a {error}") from None
    script = {"deterministic": deterministic, "save_every": save_every}
    if "seed" in settings:
        script["seed"] = _whole(settings, "seed", 0, 0, "it orders the samples")
    return ElasticJob(
        least,
        most,
        _shapes(settings.get("shapes", AUTO), most),
        _whole(settings, "lookahead", None, 1, "intervals of a minute that a plan looks ahead"),
        _whole(settings, "reliable", 1, 1, "it has the coordinator, and keeps the state when all others are lost") or 1,
        profile,
        save_every or 0,
        script,
    )


def _nodes(value: object) -> tuple[int, int]:
    text = value if isinstance(value, str) else str(value) if type(value) is int else ""
    found = _RANGE.fullmatch(text.strip())
    least, most = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= least <= most <= NODES_MAX:
        raise BadShapeSetting(
            "nodes", f"has nodes {value!r}: write a number, or a range such as 2..30, from 1 to {NODES_MAX}"
        )
    return least, most


def _shapes(value: object, most: int) -> tuple[Shape, ...]:
    if value == AUTO:
        return ()
    texts = value if isinstance(value, list) else [value]
    found = [_SHAPE.fullmatch(text) if isinstance(text, str) else None for text in texts]
    shapes = tuple(Shape(int(one[1]), int(one[2])) for one in found if one is not None)
    if not shapes or len(shapes) < len(texts) or any(0 in shape for shape in shapes):
        raise BadShapeSetting(
            "shapes", f"has shapes {value!r}: write auto, or a list of pipelines x stages, for example [1x2, 2x2, 4x1]"
        )
    smallest = min(shapes, key=lambda shape: shape.machines)
    if smallest.machines > most:
        raise BadShapeSetting(
            "shapes",
            f"has shapes that need at least {smallest.machines} machines ({smallest}), and at most {most} nodes",
        )
    return tuple(sorted(set(shapes)))


def _whole(settings: Mapping[str, Any], key: str, default: int | None, least: int, why: str) -> int | None:
    value = settings.get(key, default)
    if value is None:
        return None
    if type(value) is not int or value < least:
        raise BadShapeSetting(key, f"has {key} {value!r}: write a whole number, at least {least}: {why}")
    return int(value)


def slots(job: Job) -> tuple[Slot, ...]:
    """Return a slot for each reliable machine, and one for each other that there must be."""
    elastic = job_of(job.runtime.settings)
    reliable = [Slot(f"{RELIABLE}-{number}", RELIABLE, Reliability.RELIABLE) for number in range(elastic.reliable)]
    return (*reliable, *(Slot(f"{NODE}-{number}", NODE) for number in range(elastic.nodes_min)))


def membership(job: Job) -> Membership:
    """Return the rule: the driver forms no generations; the coordinator says who trains what."""
    del job
    return ALONE


def scaling(job: Job) -> Scaling:
    """Return how many machines a job can use; a fleet that does not change has the first number."""
    elastic = job_of(job.runtime.settings)
    most = elastic.nodes_min if job.fleet == DEFAULT_FLEET else elastic.nodes_max
    return Scaling(elastic.nodes_min, most, NODE, reliable=elastic.reliable, reliable_role=RELIABLE)


def assign(job: Job, slot: Slot, placed: Mapping[str, Placement]) -> Mapping[str, Any]:
    """Return where the TCP store is, and where this machine is; empty where that is not known yet."""
    del job
    found = {id_: placed[id_].address if id_ in placed else "" for id_ in (LEADER_SLOT, slot.id)}
    return {HEAD: found[LEADER_SLOT], LEADS: slot.id == LEADER_SLOT, ADDRESS: found[slot.id]}


def settings_problem(settings: Mapping[str, Any]) -> str | None:
    """Return what is wrong with settings; None if they are valid."""
    try:
        job_of(settings)
    except BadShapeSetting as error:
        return SettingProblem(str(error), error.key)
    return None


RULES = RuntimeRules(
    ELASTIC,
    policy_registry.find(PolicyKind.RUNTIME, ELASTIC).help,
    (RELIABLE, NODE),
    slots,
    membership,
    live="windfall.runtimes.shape_progress:open_runtime",
    program="windfall.cli.shape_process",
    assign=assign,
    reliable_roles=(RELIABLE,),
    check=settings_problem,
    scaling=scaling,
    without_effect=_WITHOUT_EFFECT,
)
