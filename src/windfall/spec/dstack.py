"""dstack's task files: other keys and ways of writing, most of them with a counterpart here."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any

from windfall.spec.carry import Carry, Imported, document_of, finish
from windfall.spec.fields import shown
from windfall.spec.places import Path

_MACHINE = "is the provider's business: any machine with enough of `resources` will do"
_IMAGE = "is not there yet: machines run their provider's own image; install what you need in setup"
_NO_NETWORK = "is not there: a job opens no ports to the outside"
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
    "shell": "is not there: run is for bash where there is one, else sh",
    "ports": _NO_NETWORK,
    "backends": "names providers that are not there yet",
    "regions": "names zones of providers that are not there yet",
    "availability_zones": "names zones of providers that are not there yet",
    "instance_types": "names machines of providers that are not there yet",
    "reservation": _MACHINE,
    "fleets": "is not there: machines are bought for one job and released after it",
    "creation_policy": "is not there: machines are bought for one job and released after it",
    "idle_duration": "is not there: machines are bought for one job and released after it",
    "instances": "is not there: machines are bought for one job and released after it",
    "volumes": "is not there yet: what must outlast a machine goes into the checkpoint store",
    "files": "is not there yet: put code under workdir",
    "utilization_policy": "is not there yet; max_duration bounds what an idle job may cost",
    "schedule": "is not there: start `windfall run` by cron",
    "startup_order": "is not there: all machines start alike",
    "stop_criteria": "is not there: the job is done when its first machine's script is",
    "priority": "is not there: every job buys its own machines",
    "tags": "is not there yet: machines carry Windfall's own tags",
}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(?:GB|gb|G)?(?:\.\..*)?")
_COUNT = re.compile(r"(?:[a-z0-9]+:)?([0-9]+)(?:\.\.[0-9]*)?")
_GPU_COUNT = re.compile(r"([0-9]+)(?:\.\.[0-9]*)?")
_GPU_MEMORY = re.compile(r"[0-9.]*(?:GB|gb)?\.\.[0-9.]*(?:GB|gb)?|[0-9.]+(?:GB|gb)")
_VENDORS = ("nvidia", "amd", "google", "intel", "tenstorrent")
_SECRET = re.compile(r"\$\{\{ *secrets\.([A-Za-z_][A-Za-z0-9_]*) *\}\}")


def import_dstack(text: str, name: str) -> Imported:
    """Return our file for a dstack task.

    Args:
        text: the configuration.
        name: its path, for messages.

    Raises:
        Misspelt: it is a service, a development environment or the like, or wrong in itself.
    """
    document = document_of(text, name)
    carry = Carry(document)
    kind = document.value.get("type")
    if kind != "task":
        raise carry.refuse(("type",), f"is {shown(kind)}, and only a task has an end, as a job has")
    if "commands" not in document.value:
        raise carry.refuse(("type",), "is task, but it has no commands: there is nothing to run")
    if "spot_policy" not in document.value:
        # What is not said means machines that stay there, and machines that may go here.
        carry.put(("spot_policy",), "on-demand", ("type",))
    for key, value in document.value.items():
        if key in _HANDLERS:
            _HANDLERS[key](carry, (key,), value)
        elif key != "type":
            carry.drop((key,), _LATER.get(key, "is not known here"))
    return finish(carry)


def _same(ours: str) -> Callable[[Carry, Path, Any], None]:
    return lambda carry, path, value: carry.put((ours,), value, path)


def _commands(carry: Carry, path: Path, value: Any) -> None:
    lines = value if isinstance(value, list) else [value]
    for number, line in enumerate(lines):
        if not isinstance(line, str):
            raise carry.refuse((*path, number), f"must be text, not {shown(line)}")
    folder = carry.document.value.get("working_dir")
    into = [f"cd {shlex.quote(folder)}"] if isinstance(folder, str) and folder not in (".", "./") else []
    carry.put(("run",), "\n".join([*into, *lines]), path)


def _env(carry: Carry, path: Path, value: Any) -> None:
    pairs: list[tuple[str, str | None, Path]] = []
    if isinstance(value, dict):
        raw = carry.document.raw
        pairs = [
            (name, None if said is None else raw.get((*path, name)), (*path, name)) for name, said in value.items()
        ]
    elif isinstance(value, list) and all(isinstance(item, str) for item in value):
        for number, item in enumerate(value):
            name, equals, said = item.partition("=")
            pairs.append((name, said if equals else None, (*path, number)))
    else:
        raise carry.refuse(path, f"must be a list of NAME=value, or a map, not {shown(value)}")
    secrets = []
    for name, written, theirs in pairs:
        secret = _SECRET.search(written or "")
        if written is None or (secret and secret[1] == name and secret[0] == written.strip()):
            secrets.append(name)
        elif secret:
            carry.drop(theirs, f"holds the secret {secret[1]}, whose name must be the variable's own here")
        else:
            carry.put(("envs", name), written, theirs)
    if secrets:
        carry.put(("secrets",), secrets, path)


def _resources(carry: Carry, path: Path, value: Any) -> None:
    if not isinstance(value, dict):
        raise carry.refuse(path, f"must be a map of keys and values, not {shown(value)}")
    for key, said in value.items():
        theirs = (*path, key)
        if key == "gpu":
            _gpu(carry, theirs, said)
        elif key in ("cpu", "memory"):
            _at_least(carry, theirs, said)
        else:
            carry.drop(theirs, "is not there yet: the machine type decides")


def _at_least(carry: Carry, path: Path, value: Any) -> None:
    if isinstance(value, dict):
        value = value.get("min", value.get("count"))
    ours, form = ("cpus", _COUNT) if path[-1] == "cpu" else ("memory", _SIZE)
    match = form.fullmatch(str(value))
    if match is None:
        carry.drop(path, f"says no least amount ({shown(value)}): any machine will do")
        return
    carry.put(("resources", ours), f"{match[1]}+", path)


def _gpu(carry: Carry, path: Path, value: Any) -> None:
    if isinstance(value, dict):
        named = value.get("name")
        names = named if isinstance(named, list) else str(named or "").split(",")
        count = _GPU_COUNT.fullmatch(str(value.get("count", 1)))
        for key in value:
            if key not in ("name", "count"):
                carry.drop((*path, key), "is not asked for yet: accelerators are chosen by name")
    else:
        parts = [part for part in str(value).split(":") if part.lower() not in _VENDORS]
        names = [name for part in parts if part[:1].isalpha() for name in part.split(",")]
        count = next((match for part in parts if (match := _GPU_COUNT.fullmatch(part))), None)
        if any(_GPU_MEMORY.fullmatch(part) and not _GPU_COUNT.fullmatch(part) for part in parts):
            carry.drop(path, "says how much memory, which is not asked for yet: accelerators are chosen by name")
    wanted = [f"{name.strip()}:{count[1] if count else 1}" for name in names if name.strip()]
    if not wanted:
        carry.drop(path, f"names no accelerator ({shown(value)}): write accelerators: NAME:COUNT")
        return
    carry.put(("resources", "accelerators"), wanted[0] if len(wanted) == 1 else wanted, path)


def _duration(ours: Path) -> Callable[[Carry, Path, Any], None]:
    def handle(carry: Carry, path: Path, value: Any) -> None:
        if value is False or value == "off":
            carry.drop(path, "is off: nothing is limited unless it is said, and the last save always has a limit")
        else:
            carry.put(ours, f"{value}s" if isinstance(value, int) else value, path)

    return handle


def _retry(carry: Carry, path: Path, value: Any) -> None:
    if isinstance(value, dict):
        if "duration" in value:
            why = "is not there: machines are waited for until max_duration, the budget or `windfall stop`"
            carry.drop((*path, "duration"), why)
        events = value.get("on_events", [])
        failing = isinstance(events, list) and "error" in events
    else:
        failing = value is True
    if not failing:
        carry.put(("job_recovery", "max_restarts_on_errors"), 0, path)
    if value is False:
        carry.drop(path, "is off there: here lost machines are always replaced")


def _repos(carry: Carry, path: Path, value: Any) -> None:
    found = value if isinstance(value, list) else [value]
    local = [
        item for item in found if isinstance(item, str) and "://" not in item and "@" not in item and ":" not in item
    ]
    if len(found) == 1 and local:
        carry.put(("workdir",), local[0], path)
    else:
        carry.drop(path, "is not there yet: clone the repository, and give its folder as workdir")


def _folder(carry: Carry, path: Path, value: Any) -> None:
    # It is the first line of `run`; only what is no folder's name has to be told.
    if not isinstance(value, str):
        carry.drop(path, f"must be text, not {shown(value)}")


_HANDLERS: Mapping[str, Callable[[Carry, Path, Any], None]] = {
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
