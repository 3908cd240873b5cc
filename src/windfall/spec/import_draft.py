"""Shared by the importers: the job file being built, where each part comes from, and what was dropped."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from windfall.errors import InvalidFile
from windfall.spec import job_file, job_loader, yaml_positions
from windfall.spec.job_file import JobFile
from windfall.spec.job_loader import LINK
from windfall.spec.yaml_positions import YamlDocument, YamlPath, YamlPosition, dotted
from windfall.structs import Struct

_PER_NODE = ("SKYPILOT_NUM_GPUS_PER_NODE", "SKYPILOT_SETUP_NUM_GPUS_PER_NODE", "DSTACK_GPUS_PER_NODE")
_IN_ALL = "DSTACK_GPUS_NUM"


class Dropped(Struct, frozen=True):
    """A key of the other tool's file that is not in the job file.

    Attributes:
        place: its position there.
        key: its dotted key there.
        reason: the rest of a sentence that starts with the key.
    """

    position: YamlPosition
    key: str
    reason: str


class Imported(Struct, frozen=True):
    """A job file as YAML text, and what it lacks of the other tool's file.

    Attributes:
        text: the file.
        dropped: what was dropped.
        unfilled: keys of values that only the user knows; the loader refuses the file until they are filled in.
    """

    text: str
    dropped: tuple[Dropped, ...]
    unfilled: tuple[str, ...] = ()


@dataclass(slots=True)
class Carry:
    """A job file that is being built.

    Attributes:
        document: the other tool's file.
        value: the job file.
        origins: by path in the job file, the path in the other file; the same path if missing.
        dropped: what was dropped so far.
        waiting: variables whose value is not known yet, and the key that uses them first.
        unnamed: number of accelerators of a machine for which none are named; None if unknown.
    """

    document: YamlDocument
    value: dict[str, Any] = field(default_factory=dict)
    origins: dict[YamlPath, YamlPath] = field(default_factory=dict)
    dropped: list[Dropped] = field(default_factory=list)
    waiting: dict[str, str] = field(default_factory=dict)
    unnamed: int | None = None

    def put(self, target: YamlPath, value: Any, source: YamlPath) -> None:
        """Write a value from path `source` to path `target`; maps on the way are created."""
        block = self.value
        for part in target[:-1]:
            block = block.setdefault(str(part), {})
        block[str(target[-1])] = value
        self.origins[target] = source

    def drop(self, source: YamlPath, reason: str) -> None:
        """Drop a part; `reason` continues the sentence after its key."""
        self.dropped.append(Dropped(self.document.position(source, key=True), dotted(source), reason))

    def refuse(self, source: YamlPath, reason: str) -> InvalidFile:
        """Return the error for a file that cannot become a job."""
        return InvalidFile(f"{self.document.position(source, key=True)}: {dotted(source)} {reason}")


def document_of(text: str, name: str) -> YamlDocument:
    """Return another tool's file, which must be a map.

    Raises:
        InvalidFile: it is not a map.
    """
    document = yaml_positions.parse(text, name)
    if not isinstance(document.value, dict):
        raise InvalidFile(f"{YamlPosition(1, 1, name)}: not a task: the file must be a map of keys and values")
    return document


def finish(carry: Carry) -> Imported:
    """Return the job file.  Keys that it does not have are dropped; invalid values are refused.

    Raises:
        InvalidFile: a value is invalid in the other tool's file too, or the task lacks what a job needs.
    """
    _own_variables(carry)
    while True:
        made = job_loader.read_document(_as_document(carry), name="imported", here=False)
        if isinstance(made, JobFile):
            _fill_in(carry, made)
            break
        unknown = [fault for fault in made if fault.key and _remove(carry.value, fault.path)]
        if not unknown:
            fault = min(made, key=lambda fault: _origin(carry, fault.path))
            raise InvalidFile(f"{_origin(carry, fault.path)}: {fault.message}")
        for fault in unknown:
            carry.drop(
                carry.origins.get(fault.path, fault.path), fault.message.removeprefix(dotted(fault.path)).strip()
            )
    ordered = {key: carry.value[key] for key in job_file.MODEL.model_fields if key in carry.value}
    text = yaml.dump(ordered, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
    dropped = tuple(sorted(carry.dropped, key=lambda one: (one.position, one.key)))
    return Imported(LINK + text, dropped, tuple(f"envs.{name}" for name in carry.waiting))


def _as_document(carry: Carry) -> YamlDocument:
    document = carry.document
    return YamlDocument(document.name, carry.value, document.keys, document.values, document.raw)


def _origin(carry: Carry, path: YamlPath) -> YamlPosition:
    for length in range(len(path), 0, -1):
        if path[:length] in carry.origins:
            return carry.document.position((*carry.origins[path[:length]], *path[length:]))
    return carry.document.position(path)


def _remove(value: Any, path: YamlPath) -> bool:
    for part in path[:-1]:
        value = value[part]
    return value.pop(path[-1], None) is not None


def _own_variables(carry: Carry) -> None:
    """Replace other tools' variables in shell text by Windfall's, or set them; unknown values are left to fill in."""
    for key in ("setup", "run"):
        text = carry.value.get(key)
        if not isinstance(text, str):
            continue
        set_here = []
        for name in dict.fromkeys(job_loader.FOREIGN.findall(text)):
            if target := job_loader.VARIABLES.get(name):
                text = re.sub(rf"\b{name}\b", target, text)
            elif name not in (carry.value.get("envs") or {}) and not re.search(rf"\b{name}=", text):
                if name in job_loader.DERIVED:
                    set_here.append(f"{name}={job_loader.DERIVED[name][1]}\n")
                elif isinstance(envs := carry.value.setdefault("envs", {}), dict):
                    envs[name] = job_loader.FILL_IN
                    carry.waiting[name] = key
                    carry.origins["envs", name] = carry.origins.get((key,), (key,))
        carry.value[key] = "".join(set_here) + text


def _fill_in(carry: Carry, made: JobFile) -> None:
    """Fill in the values of waiting variables that the job file determines."""
    envs = carry.value.get("envs", {})
    for name, used in list(carry.waiting.items()):
        count = _count(carry, made, name)
        if count is not None:
            envs[name] = str(count)
            del carry.waiting[name]
        else:
            reason = f"uses {name}, whose value is unknown: fill in envs.{name} before you run the job"
            carry.drop(carry.origins.get((used,), (used,)), reason)


def _count(carry: Carry, made: JobFile, name: str) -> int | None:
    """Return the number of accelerators that a variable counts; None if it counts none, or the number is unknown."""
    if name not in _PER_NODE and name != _IN_ALL:
        return None
    accelerators = {
        one.count if one is not None else carry.unnamed
        for machine in made.alternatives
        for one in machine.accelerators or (None,)
    }
    if len(accelerators) != 1:
        return None
    (count,) = accelerators
    return None if count is None else count * (made.num_nodes if name == _IN_ALL else 1)


class _Dumper(yaml.SafeDumper):
    """Writes shell text as blocks of lines."""

    def represent_str(self, data: str) -> yaml.ScalarNode:
        """Write text; several lines become a block."""
        return self.represent_scalar("tag:yaml.org,2002:str", data, style="|" if "\n" in data else None)


_Dumper.add_representer(str, _Dumper.represent_str)
