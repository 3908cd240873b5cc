"""SkyPilot's task files: most of their keys mean the same in a job file."""

from __future__ import annotations

import copy
from typing import Any

from windfall.providers import provider_list
from windfall.spec.import_draft import Carry, Imported, document_of, finish
from windfall.spec.job_loader import LATER
from windfall.spec.yaml_positions import YamlPath

_NO_TASK = ("service", "pool")
_ELSEWHERE = "is for a provider that is not supported yet"


def import_sky(text: str, name: str) -> Imported:
    """Return the job file for a SkyPilot task.

    Args:
        text: the task file.
        name: its path, for messages.

    Raises:
        InvalidFile: it is not a task, or is not valid.
    """
    document = document_of(text, name)
    carry = Carry(document, copy.deepcopy(document.value))
    for key in _NO_TASK:
        if key in carry.value:
            raise carry.refuse((key,), LATER[key])
    _variables(carry)
    if isinstance(carry.value.get("workdir"), dict):
        _leave(carry, carry.value, ("workdir",), "is a repository: clone it, and give its folder")
    resources = carry.value.setdefault("resources", {})
    if not _names_types(resources):
        carry.unnamed = 0
    if isinstance(resources, dict):
        _resources(carry, resources)
    return finish(carry)


def _names_types(resources: Any) -> bool:
    """Whether the task requests machine types, which can have accelerators that it does not name."""
    if isinstance(resources, dict):
        return "instance_type" in resources or any(_names_types(below) for below in resources.values())
    return isinstance(resources, list) and any(_names_types(below) for below in resources)


def _leave(carry: Carry, block: dict[str, Any], path: YamlPath, reason: str) -> None:
    if path[-1] in block:
        del block[str(path[-1])]
        carry.drop(path, reason)


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
        # Without the key, SkyPilot means on-demand machines and a job file spot machines.
        resources["use_spot"] = False


def _machines(carry: Carry, block: dict[str, Any], path: YamlPath) -> None:
    provider, *rest = str(block.get("infra", block.get("cloud", "*"))).split("/")
    if provider in provider_list.names():
        zone = rest[-1] if rest else block.get("zone", block.get("region"))
        for key in ("cloud", "region", "zone"):
            block.pop(key, None)
        block["infra"] = f"{provider}/{zone}" if zone else provider
        return
    # Zones and machine types are a provider's own names: they mean nothing to another.
    for key in ("cloud", "region", "zone", "instance_type"):
        _leave(carry, block, (*path, key), _ELSEWHERE)
    if provider != "*":
        _leave(carry, block, (*path, "infra"), _ELSEWHERE)


def _recovery(carry: Carry, resources: dict[str, Any]) -> None:
    path: YamlPath = ("resources", "job_recovery")
    recovery = resources.get("job_recovery")
    if isinstance(recovery, dict):
        _leave(carry, recovery, (*path, "strategy"), LATER["job_recovery.strategy"])
    elif "job_recovery" in resources:
        _leave(carry, resources, path, "names a strategy: Windfall always replaces lost machines, in any suitable zone")
    if resources.get("job_recovery") == {}:
        del resources["job_recovery"]
