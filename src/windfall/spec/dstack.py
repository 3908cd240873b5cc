"""dstack's task files: other keys and notations, most of them with a counterpart in a job file."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any

from windfall.spec.fields import shown
from windfall.spec.import_draft import Carry, Imported, document_of, finish
from windfall.spec.yaml_positions import YamlPath

_MACHINE = "is chosen by the provider: any machine that meets `resources` is used"
_IMAGE = "is not supported yet: machines run their provider's image; install what you need in setup"
_NO_NETWORK = "is not supported: a job opens no ports to the outside"
_ONE_JOB = "is not supported: machines are ordered for one job and released after it"
_FUTURE = "is for providers that are not supported yet"
_LATER: Mapping[str, str] = {
    "python": _IMAGE,
    "image": _IMAGE,
    "docker": _IMAGE,
    "nvcc": _IMAGE,
    "user": _IMAGE,
    "privileged": _IMAGE,
    "entrypoint": _IMAGE,
    "registry_auth": _IMAGE,
    "home_dir": _IMAGE,
    "shell": "is not supported: run uses bash if the machine has it, else sh",
    "ports": _NO_NETWORK,
    "backends": _FUTURE,
    "regions": _FUTURE,
    "availability_zones": _FUTURE,
    "instance_types": _FUTURE,
    "reservation": _MACHINE,
    "fleets": _ONE_JOB,
    "creation_policy": _ONE_JOB,
    "idle_duration": _ONE_JOB,
    "instances": _ONE_JOB,
    "volumes": "is not supported yet: store what must outlast a machine in checkpoint.store",
    "files": "is not supported yet: put code under workdir",
    "utilization_policy": "is not supported yet: limit the cost of an idle job with max_duration",
    "schedule": "is not supported: run `windfall run` from cron",
    "startup_order": "is not supported: all machines start at the same time",
    "stop_criteria": "is not supported: the job is done when the script of its first machine is done",
    "priority": "is not supported: every job orders its own machines",
    "tags": "is not supported yet: machines carry Windfall's own tags",
}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(?:GB|gb|G)?(?:\.\..*)?")
_COUNT = re.compile(r"(?:[a-z0-9]+:)?([0-9]+)(?:\.\.[0-9]*)?")
_GPU_COUNT = re.compile(r"([0-9]+)(?:\.\.[0-9]*)?")
_GPU_MEMORY = re.compile(r"[0-9.]*(?:GB|gb)?\.\.[0-9.]*(?:GB|gb)?|[0-9.]+(?:GB|gb)")
_VENDORS = ("nvidia", "amd", "google", "intel", "tenstorrent")
_SECRET = re.compile(r"\$\{\{ *secrets\.([A-Za-z_][A-Za-z0-9_]*) *\}\}")


def import_dstack(text: str, name: str) -> Imported:
    """Return the job file for a dstack task.

    Args:
        text: the configuration.
        name: its path, for messages.

    Raises:
        InvalidFile: it is not a task (a service, a development environment), or is not valid.
    """
    document = document_of(text, name)
    carry = Carry(document)
    kind = document.value.get("type")
    if kind != "task":
        raise carry.refuse(("type",), f"is {shown(kind)}: only a task can become a job")
    if "commands" not in document.value:
        raise carry.refuse(("type",), "is task, but the file has no commands to run")
    if "spot_policy" not in document.value:
        # Without the key, dstack means on-demand machines and a job file spot machines.
        carry.put(("spot_policy",), "on-demand", ("type",))
    for key, value in document.value.items():
        if key in _HANDLERS:
            _HANDLERS[key](carry, (key,), value)
        elif key != "type":
            carry.drop((key,), _LATER.get(key, "has no counterpart in a job file"))
    return finish(carry)


def _same(target: str) -> Callable[[Carry, YamlPath, Any], None]:
    return lambda carry, path, value: carry.put((target,), value, path)


def _commands(carry: Carry, path: YamlPath, value: Any) -> None:
    lines = value if isinstance(value, list) else [value]
    for number, line in enumerate(lines):
        if not isinstance(line, str):
            raise carry.refuse((*path, number), f"must be text, not {shown(line)}")
    folder = carry.document.value.get("working_dir")
    into = [f"cd {shlex.quote(folder)}"] if isinstance(folder, str) and folder not in (".", "./") else []
    carry.put(("run",), "\n".join([*into, *lines]), path)


def _env(carry: Carry, path: YamlPath, value: Any) -> None:
    pairs: list[tuple[str, str | None, YamlPath]] = []
    if isinstance(value, dict):
        raw = carry.document.raw
        pairs = [
            (name, None if given is None else raw.get((*path, name)), (*path, name)) for name, given in value.items()
        ]
    elif isinstance(value, list) and all(isinstance(item, str) for item in value):
        for number, item in enumerate(value):
            name, equals, given = item.partition("=")
            pairs.append((name, given if equals else None, (*path, number)))
    else:
        raise carry.refuse(path, f"must be a list of NAME=value, or a map, not {shown(value)}")
    secrets = []
    for name, written, source in pairs:
        secret = _SECRET.search(written or "")
        if written is None or (secret and secret[1] == name and secret[0] == written.strip()):
            secrets.append(name)
        elif secret:
            carry.drop(source, f"uses the secret {secret[1]}: in a job file, variable and secret need the same name")
        else:
            carry.put(("envs", name), written, source)
    if secrets:
        carry.put(("secrets",), secrets, path)


def _resources(carry: Carry, path: YamlPath, value: Any) -> None:
    if not isinstance(value, dict):
        raise carry.refuse(path, f"must be a map of keys and values, not {shown(value)}")
    for key, given in value.items():
        source = (*path, key)
        if key == "gpu":
            _gpu(carry, source, given)
        elif key in ("cpu", "memory"):
            _at_least(carry, source, given)
        else:
            carry.drop(source, "is not supported yet: the machine type decides")


def _at_least(carry: Carry, path: YamlPath, value: Any) -> None:
    if isinstance(value, dict):
        value = value.get("min", value.get("count"))
    target, form = ("cpus", _COUNT) if path[-1] == "cpu" else ("memory", _SIZE)
    match = form.fullmatch(str(value))
    if match is None:
        carry.drop(path, f"has no minimum ({shown(value)}): any amount is accepted")
        return
    carry.put(("resources", target), f"{match[1]}+", path)


def _gpu(carry: Carry, path: YamlPath, value: Any) -> None:
    if isinstance(value, dict):
        named = value.get("name")
        names = named if isinstance(named, list) else str(named or "").split(",")
        count = _GPU_COUNT.fullmatch(str(value.get("count", 1)))
        for key in value:
            if key not in ("name", "count"):
                carry.drop((*path, key), "is not supported yet: accelerators are chosen by name")
    else:
        parts = [part for part in str(value).split(":") if part.lower() not in _VENDORS]
        names = [name for part in parts if part[:1].isalpha() for name in part.split(",")]
        count = next((match for part in parts if (match := _GPU_COUNT.fullmatch(part))), None)
        if any(_GPU_MEMORY.fullmatch(part) and not _GPU_COUNT.fullmatch(part) for part in parts):
            carry.drop(path, "has a memory size, which is not supported yet: accelerators are chosen by name")
    accelerators = [f"{name.strip()}:{count[1] if count else 1}" for name in names if name.strip()]
    if not accelerators:
        carry.drop(path, f"names no accelerator ({shown(value)}): write accelerators: NAME:COUNT")
        return
    carry.put(("resources", "accelerators"), accelerators[0] if len(accelerators) == 1 else accelerators, path)


def _duration(target: YamlPath) -> Callable[[Carry, YamlPath, Any], None]:
    def handle(carry: Carry, path: YamlPath, value: Any) -> None:
        if value is False or value == "off":
            carry.drop(path, "is off: a job has no limit by default, and the last save always has one")
        else:
            carry.put(target, f"{value}s" if isinstance(value, int) else value, path)

    return handle


def _retry(carry: Carry, path: YamlPath, value: Any) -> None:
    if isinstance(value, dict):
        if "duration" in value:
            reason = "is not supported: a job waits for machines until max_duration, its budget or `windfall stop`"
            carry.drop((*path, "duration"), reason)
        events = value.get("on_events", [])
        failing = isinstance(events, list) and "error" in events
    else:
        failing = value is True
    if not failing:
        carry.put(("job_recovery", "max_restarts_on_errors"), 0, path)
    if value is False:
        carry.drop(path, "is off: Windfall always replaces lost machines")


def _repos(carry: Carry, path: YamlPath, value: Any) -> None:
    found = value if isinstance(value, list) else [value]
    local = [
        item for item in found if isinstance(item, str) and "://" not in item and "@" not in item and ":" not in item
    ]
    if len(found) == 1 and local:
        carry.put(("workdir",), local[0], path)
    else:
        carry.drop(path, "is not supported yet: clone the repository, and give its folder as workdir")


def _folder(carry: Carry, path: YamlPath, value: Any) -> None:
    # It is the first line of `run`; only a value that is not a folder's name is reported.
    if not isinstance(value, str):
        carry.drop(path, f"must be text, not {shown(value)}")


_HANDLERS: Mapping[str, Callable[[Carry, YamlPath, Any], None]] = {
    "name": _same("name"),
    "nodes": _same("num_nodes"),
    "commands": _commands,
    "env": _env,
    "resources": _resources,
    "spot_policy": _same("spot_policy"),
    "max_price": _same("max_price"),
    "max_duration": _duration(("max_duration",)),
    "stop_duration": _duration(("checkpoint", "save_timeout")),
    "retry": _retry,
    "repos": _repos,
    "working_dir": _folder,
}
