"""What every importer shares: a job file in the making, where each part came from, and what was left behind."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from windfall.errors import Misspelt
from windfall.spec import loading, places
from windfall.spec.jobfile import JobFile
from windfall.spec.places import Document, Path, Place, dotted
from windfall.spec.schema import LINK

_PER_NODE = ("SKYPILOT_NUM_GPUS_PER_NODE", "SKYPILOT_SETUP_NUM_GPUS_PER_NODE", "DSTACK_GPUS_PER_NODE")
_IN_ALL = "DSTACK_GPUS_NUM"


@dataclass(frozen=True, slots=True)
class Dropped:
    """A part of the other tool's file that ours does not say.

    Attributes:
        place: where it stands there.
        key: its dotted key there.
        why: the rest of a sentence that begins with the key.
    """

    place: Place
    key: str
    why: str


@dataclass(frozen=True, slots=True)
class Imported:
    """Our file, as YAML text that our own loader reads, and what it lacks of the other.

    Attributes:
        text: the file.
        dropped: what was left behind.
        unfilled: keys of values that nobody but the user knows; the loader refuses the file until they are there.
    """

    text: str
    dropped: tuple[Dropped, ...]
    unfilled: tuple[str, ...] = ()


@dataclass(slots=True)
class Carry:
    """A job file in the making.

    Attributes:
        document: the other tool's file.
        value: ours.
        origins: where parts of ours stand there, by our path; the same path if not said.
        dropped: what was left behind so far.
        waiting: variables whose value is not known yet, and where they are used first.
        unnamed: how many accelerators a machine has for which none are named; None if that is not known.
    """

    document: Document
    value: dict[str, Any] = field(default_factory=dict)
    origins: dict[Path, Path] = field(default_factory=dict)
    dropped: list[Dropped] = field(default_factory=list)
    waiting: dict[str, str] = field(default_factory=dict)
    unnamed: int | None = None

    def put(self, ours: Path, value: Any, theirs: Path) -> None:
        """Write a value, which stood at `theirs`, to `ours` (through maps that are made)."""
        target = self.value
        for part in ours[:-1]:
            target = target.setdefault(str(part), {})
        target[str(ours[-1])] = value
        self.origins[ours] = theirs

    def drop(self, theirs: Path, why: str) -> None:
        """Leave a part behind; `why` goes on after its key."""
        self.dropped.append(Dropped(self.document.place(theirs, key=True), dotted(theirs), why))

    def refuse(self, theirs: Path, why: str) -> Misspelt:
        """Return the error of a file that cannot be a job of ours."""
        return Misspelt(f"{self.document.place(theirs, key=True)}: {dotted(theirs)} {why}")


def document_of(text: str, name: str) -> Document:
    """Return another tool's file, which must be a map.

    Raises:
        Misspelt: it is not.
    """
    document = places.parse(text, name)
    if not isinstance(document.value, dict):
        raise Misspelt(f"{Place(1, 1, name)}: there is no task in this file: it must be a map of keys and values")
    return document


def finish(carry: Carry) -> Imported:
    """Return our file.  Keys that ours does not have are left behind; values that are wrong are refused.

    Raises:
        Misspelt: a value is wrong in the other tool's file too, or the task lacks what a job needs.
    """
    _own_variables(carry)
    while True:
        made = loading.read_document(_as_document(carry), name="imported", here=False)
        if isinstance(made, JobFile):
            _fill_in(carry, made)
            break
        unknown = [fault for fault in made if fault.key and _remove(carry.value, fault.path)]
        if not unknown:
            fault = min(made, key=lambda fault: _origin(carry, fault.path))
            raise Misspelt(f"{_origin(carry, fault.path)}: {fault.sentence}")
        for fault in unknown:
            carry.drop(
                carry.origins.get(fault.path, fault.path), fault.sentence.removeprefix(dotted(fault.path)).strip()
            )
    ordered = {key: carry.value[key] for key in JobFile.model_fields if key in carry.value}
    text = yaml.dump(ordered, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
    dropped = tuple(sorted(carry.dropped, key=lambda one: (one.place, one.key)))
    return Imported(LINK + text, dropped, tuple(f"envs.{name}" for name in carry.waiting))


def _as_document(carry: Carry) -> Document:
    document = carry.document
    return Document(document.name, carry.value, document.keys, document.values, document.raw)


def _origin(carry: Carry, path: Path) -> Place:
    for length in range(len(path), 0, -1):
        if path[:length] in carry.origins:
            return carry.document.place((*carry.origins[path[:length]], *path[length:]))
    return carry.document.place(path)


def _remove(value: Any, path: Path) -> bool:
    for part in path[:-1]:
        value = value[part]
    return value.pop(path[-1], None) is not None


def _own_variables(carry: Carry) -> None:
    """Call other tools' variables in shell text by our names, or set them; what nobody knows is left to be filled in."""
    for key in ("setup", "run"):
        text = carry.value.get(key)
        if not isinstance(text, str):
            continue
        set_here = []
        for name in dict.fromkeys(loading.FOREIGN.findall(text)):
            if ours := loading.VARIABLES.get(name):
                text = re.sub(rf"\b{name}\b", ours, text)
            elif name not in (carry.value.get("envs") or {}) and not re.search(rf"\b{name}=", text):
                if name in loading.DERIVED:
                    set_here.append(f"{name}={loading.DERIVED[name][1]}\n")
                elif isinstance(envs := carry.value.setdefault("envs", {}), dict):
                    envs[name] = loading.FILL_IN
                    carry.waiting[name] = key
                    carry.origins["envs", name] = carry.origins.get((key,), (key,))
        carry.value[key] = "".join(set_here) + text


def _fill_in(carry: Carry, made: JobFile) -> None:
    """Give the variables that wait for it their value, as far as our own file tells it."""
    envs = carry.value.get("envs", {})
    for name, used in list(carry.waiting.items()):
        count = _count(carry, made, name)
        if count is not None:
            envs[name] = str(count)
            del carry.waiting[name]
        else:
            why = f"uses {name}, whose value nothing here tells: the job is refused until envs.{name} is filled in"
            carry.drop(carry.origins.get((used,), (used,)), why)


def _count(carry: Carry, made: JobFile, name: str) -> int | None:
    """Return how many accelerators a variable counts; None if it counts none, or if nobody knows."""
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
    """Writes shell text as people do, line by line."""

    def represent_str(self, data: str) -> yaml.ScalarNode:
        """Write text; of several lines as a block."""
        return self.represent_scalar("tag:yaml.org,2002:str", data, style="|" if "\n" in data else None)


_Dumper.add_representer(str, _Dumper.represent_str)
