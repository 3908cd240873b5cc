"""SkyPilot's task files: most of what they say, ours says in the same words."""

from __future__ import annotations

import copy
from typing import Any

from windfall.spec.carry import Carry, Imported, document_of, finish
from windfall.spec.fields import PROVIDERS
from windfall.spec.loading import LATER
from windfall.spec.places import Path

_NO_TASK = ("service", "pool")
_ELSEWHERE = "names machines of a provider that is not there yet"


def import_sky(text: str, name: str) -> Imported:
    """Return our file for a SkyPilot task.

    Args:
        text: the task file.
        name: its path, for messages.

    Raises:
        Misspelt: it is no task, or wrong in itself.
    """
    document = document_of(text, name)
    carry = Carry(document, copy.deepcopy(document.value))
    for key in _NO_TASK:
        if key in carry.value:
            raise carry.refuse((key,), LATER[key])
    _variables(carry)
    if isinstance(carry.value.get("workdir"), dict):
        _leave(carry, carry.value, ("workdir",), "is a repository there; clone it, and give its folder")
    resources = carry.value.setdefault("resources", {})
    if not _names_types(resources):
        carry.unnamed = 0
    if isinstance(resources, dict):
        _resources(carry, resources)
    return finish(carry)


def _names_types(resources: Any) -> bool:
    """Whether machines are asked for by their type, which may have accelerators that are not named."""
    if isinstance(resources, dict):
        return "instance_type" in resources or any(_names_types(below) for below in resources.values())
    return isinstance(resources, list) and any(_names_types(below) for below in resources)


def _leave(carry: Carry, block: dict[str, Any], path: Path, why: str) -> None:
    if path[-1] in block:
        del block[str(path[-1])]
        carry.drop(path, why)


def _variables(carry: Carry) -> None:
    envs, secrets = carry.value.get("envs"), carry.value.get("secrets")
    names: list[str] = []
    if isinstance(secrets, dict):
        names = list(secrets)
        for name, value in secrets.items():
            if value not in (None, ""):
                carry.drop(("secrets", name), "has a value, which belongs in no file: set it in your environment")
    if isinstance(envs, dict):
        for name in [name for name, value in envs.items() if value in (None, "")]:
            names += [name] if name not in names else []
            _leave(carry, envs, ("envs", name), "has no value; it is listed under secrets: set it in your environment")
        carry.value["envs"] = {
            name: carry.document.raw.get(("envs", name), value) if isinstance(value, (bool, int, float)) else value
            for name, value in envs.items()
        }
        if not envs:
            del carry.value["envs"]
    if names:
        carry.value["secrets"] = names


def _resources(carry: Carry, resources: dict[str, Any]) -> None:
    for listed in ("any_of", "ordered"):
        alternatives = resources.get(listed)
        if not isinstance(alternatives, list):
            continue
        for number, one in enumerate(alternatives):
            if isinstance(one, dict):
                _machines(carry, one, ("resources", listed, number))
        distinct = [one for number, one in enumerate(alternatives) if one not in alternatives[:number]]
        resources[listed] = distinct
        if distinct in ([], [{}]):
            del resources[listed]
    _machines(carry, resources, ("resources",))
    _recovery(carry, resources)
    everyone = [resources, *resources.get("any_of", []), *resources.get("ordered", [])]
    if not any(isinstance(one, dict) and "use_spot" in one for one in everyone):
        # What is not said means machines that stay there, and machines that may go here.
        resources["use_spot"] = False


def _machines(carry: Carry, block: dict[str, Any], path: Path) -> None:
    provider, *rest = str(block.get("infra", block.get("cloud", "*"))).split("/")
    if provider in PROVIDERS:
        zone = rest[-1] if rest else block.get("zone", block.get("region"))
        for key in ("cloud", "region", "zone"):
            block.pop(key, None)
        block["infra"] = f"{provider}/{zone}" if zone else provider
        return
    # Zones and machine types are a provider's own words: they mean nothing at another.
    for key in ("cloud", "region", "zone", "instance_type"):
        _leave(carry, block, (*path, key), _ELSEWHERE)
    if provider != "*":
        _leave(carry, block, (*path, "infra"), _ELSEWHERE)


def _recovery(carry: Carry, resources: dict[str, Any]) -> None:
    path: Path = ("resources", "job_recovery")
    recovery = resources.get("job_recovery")
    if isinstance(recovery, dict):
        _leave(carry, recovery, (*path, "strategy"), LATER["job_recovery.strategy"])
    elif "job_recovery" in resources:
        _leave(
            carry, resources, path, "names a strategy; lost machines are always replaced, in every zone that will do"
        )
    if resources.get("job_recovery") == {}:
        del resources["job_recovery"]
