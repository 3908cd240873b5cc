"""From a file to a `JobFile`, or to one message with the position of the mistake.

The job file's JSON Schema (draft 2020-12), for editors and for other programs that write job files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from windfall.errors import InvalidFile, Misuse
from windfall.policies.policy_registry import ELASTIC
from windfall.providers import provider_list
from windfall.spec import bag_block, bag_rows, deadline_words, job_file, runtime_problems, yaml_positions
from windfall.spec.allocation_problems import allocation_problems
from windfall.spec.bag_block import BagBlock, StopWhenBlock
from windfall.spec.fields import Below, shown
from windfall.spec.job_file import (
    CheckpointBlock,
    ControllerBlock,
    ExcludeBlock,
    JobFile,
    MachinesBlock,
    NotifyBlock,
    ObjectiveBlock,
    ResourcesBlock,
    WorkBlock,
)
from windfall.spec.stop_item_block import ItemStepsBlock, StopItemBlock, call_problems
from windfall.spec.yaml_positions import YamlDocument, YamlPath, dotted
from windfall.spelling import closest, nearest
from windfall.structs import Struct, replace
from windfall.wire import environment

LATER: Mapping[str, str] = {
    "file_mounts": "is not supported yet: put code under workdir, and have the script read its data by URL",
    "volumes": "is not supported yet: store what must outlast a machine in checkpoint.store",
    ELASTIC: f"is the name of a runtime: write runtime: {{{ELASTIC}: {{nodes: 2..8}}}}",
    "service": "is not supported: a job must end, and a service does not",
    "pool": "is not supported: machines are ordered for one job and released after it",
    "config": "is not supported: settings of other tools do not apply",
    "experimental": "is not supported: settings of other tools do not apply",
    "inputs": "is not supported yet: have the script read its data by URL",
    "outputs": "is not supported yet: have the script write its results by URL",
    "type": "is a key of dstack: convert the file with `windfall import`",
    "commands": "is a key of dstack: convert the file with `windfall import`",
    "resources.disk_size": "is not supported yet: the machine type decides",
    "resources.disk_tier": "is not supported yet: the machine type decides",
    "resources.network_tier": "is not supported yet: the machine type decides",
    "resources.local_disk": "is not supported yet: the machine type decides",
    "resources.image_id": "is not supported yet: machines run their provider's image; install what you need in setup",
    "resources.ports": "is not supported: a job opens no ports to the outside",
    "resources.labels": "is not supported yet: machines carry Windfall's own tags",
    "resources.autostop": "is not supported: machines are released when the job ends",
    "resources.accelerator_args": "is not supported yet",
    "resources.cloud": "is written as infra: PROVIDER/ZONE",
    "resources.region": "is written as infra: PROVIDER/ZONE",
    "job_recovery.strategy": "is not supported: every suitable zone and machine type is tried",
}
"""Keys of other tools, and keys that are not supported yet, with what to do instead."""
EXAMPLES: Mapping[str, str] = {
    "run": "the command that trains, for example run: python train.py",
    "metric": "which of bag.results decides, for example metric: energy",
    "regex": "it finds the step in the file of the metric, for example regex: 'step (.*)'",
    "of": "the step at the end of a run, for example of: 8000",
}
VARIABLES: Mapping[str, str | None] = {
    "SKYPILOT_NODE_RANK": environment.NODE_RANK,
    "SKYPILOT_NUM_NODES": environment.NODE_COUNT,
    "SKYPILOT_TASK_ID": environment.RUN,
    "DSTACK_NODE_RANK": environment.NODE_RANK,
    "DSTACK_NODES_NUM": environment.NODE_COUNT,
    "DSTACK_RUN_NAME": environment.RUN,
}
"""Other tools' variables, and Windfall's that mean the same."""
_LINES = f"$(echo \"${{{environment.NODE_ADDRESSES}:-127.0.0.1}}\" | tr , '\\n')"
DERIVED: Mapping[str, tuple[str, str]] = {
    "SKYPILOT_NODE_IPS": (environment.NODE_ADDRESSES, f'"{_LINES}"'),
    "DSTACK_NODES_IPS": (environment.NODE_ADDRESSES, f'"{_LINES}"'),
    "DSTACK_MASTER_NODE_IP": (environment.MASTER_ADDR, f'"${{{environment.MASTER_ADDR}:-127.0.0.1}}"'),
}
"""Other tools' variables that Windfall has in another form: Windfall's, and the shell text that converts it."""
FOREIGN = re.compile(r"\$\{?((?:SKYPILOT|DSTACK)_[A-Z0-9_]+)\b(?!:?-)")
"""A use of another tool's variable without a default."""
FILL_IN = "<fill in>"
"""What the importer writes for an unknown value; a job file that contains it is refused."""

_INFRA = f"`resources: {{infra: {provider_list.EXAMPLE}}}`"
_SECRET_NAME = re.compile(
    r"(?:^|_)(TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|SECRET_KEY|ACCESS_KEY|PRIVATE_KEY)$", re.IGNORECASE
)
SECRET_VALUE = re.compile(
    r"(hf_|sk-|ghp_|github_pat_|glpat-|xox[bp]-|AIza)[A-Za-z0-9_-]{16,}|AKIA[A-Z0-9]{16}|-----BEGIN |[a-z0-9+]+://[^/@\s]+:[^/@\s]+@"
)
_NO_SECRET = re.compile(r"[0-9.]*|[/~$].*|true|false", re.DOTALL)
_DEADLINE: YamlPath = ("objective", "deadline")
_HOMES: Mapping[str, type[BaseModel]] = {
    "resources": ResourcesBlock,
    "objective": ObjectiveBlock,
    "checkpoint": CheckpointBlock,
    "work": WorkBlock,
    "notify": NotifyBlock,
    "bag": BagBlock,
    "controller": ControllerBlock,
    "exclude": ExcludeBlock,
}
_INNER: Mapping[str, type[BaseModel]] = {
    "job_recovery": job_file.JobRecoveryBlock,
    "stop_when": StopWhenBlock,
    "stop_item": StopItemBlock,
    "steps": ItemStepsBlock,
}
_KINDS: Mapping[str, str] = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "bool_type": "true or false",
    "dict_type": "a map of keys and values",
    "model_type": "a map of keys and values",
    "model_attributes_type": "a map of keys and values",
    "tuple_type": "a list",
}


class Fault(Struct, frozen=True):
    """One mistake in a file.

    Attributes:
        path: of the mistake.
        message: without the place.
        key: whether the key is wrong rather than its value.
    """

    path: YamlPath
    message: str
    key: bool = False


def load(
    path: str,
    *,
    overrides: Mapping[str, str] | None = None,
    warn: Callable[[str], None] | None = None,
    now: datetime | None = None,
    options: Mapping[str, str] | None = None,
) -> JobFile:
    """Read a job file.

    Args:
        path: of the file; a relative `workdir` in it counts from the file's folder.
        overrides: dotted keys and their values as YAML, from the command line; they override the file.
        warn: receives a message for what is valid but unwise.
        now: the current time, in the user's zone: a deadline that has passed is refused; None leaves it unchecked.
        options: of the overridden keys that have one, the option's name for messages; the others came by `--set`.

    Raises:
        InvalidFile: something in it is wrong; the message starts with file:line:column.
        Misuse: it cannot be read.
    """
    document = yaml_positions.parse(yaml_positions.read(path), path)
    for key, text in (overrides or {}).items():
        document = yaml_positions.override(document, key, text, (options or {}).get(key))
    stem = re.sub(r"[^A-Za-z0-9]+", "-", os.path.basename(path).partition(".")[0]).strip("-")[:60]
    made = checked(_from_its_folder(document, path), name=stem or "job")
    if now is not None and made.objective.deadline is not None:
        try:
            deadline_words.resolve(made.objective.deadline, now)
        except ValueError as error:
            raise InvalidFile(f"{document.position(_DEADLINE)}: {dotted(_DEADLINE)} {error}") from error
    for fault in _unwise(made):
        if warn is not None:
            warn(f"{document.position(fault.path)}: {fault.message}")
    return made


def _from_its_folder(document: YamlDocument, path: str) -> YamlDocument:
    """Resolve relative paths against the file's folder; those from the command line are relative to the current one."""
    value = document.value
    if not isinstance(value, dict):
        return document
    changed = dict(value)
    if (workdir := _beside(document, ("workdir",), value.get("workdir"), path)) is not None:
        changed["workdir"] = workdir
    bag = value.get("bag")
    if isinstance(bag, dict) and (rows := _beside(document, ("bag", "rows"), bag.get("rows"), path)) is not None:
        changed["bag"] = {**bag, "rows": rows}
    return replace(document, value=changed)


def _beside(document: YamlDocument, key: YamlPath, written: object, path: str) -> str | None:
    """Return a path as seen from the file's folder; None if the file has none there."""
    if not isinstance(written, str) or not written.strip() or not document.position(key).line:
        return None
    return os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(path)), os.path.expanduser(written)))


def checked(document: YamlDocument, *, name: str) -> JobFile:
    """Return a document as a job file.

    Args:
        document: a parsed file.
        name: of the job, if the document has none.

    Raises:
        InvalidFile: something in it is wrong; the message is about the first mistake.
    """
    made = read_document(document, name=name)
    if isinstance(made, JobFile):
        return made
    first = min(made, key=lambda fault: (document.position(fault.path, key=fault.key), not fault.key))
    raise InvalidFile(f"{document.position(first.path, key=first.key)}: {first.message}")


def read_document(document: YamlDocument, *, name: str, here: bool = True) -> JobFile | tuple[Fault, ...]:
    """Return a document as a job file, or all its mistakes (at least one).

    Args:
        document: a parsed file.
        name: of the job, if the document has none.
        here: whether the job will run from this folder, so that its workdir must exist.
    """
    if document.value is None:
        return (Fault((), "the file is empty; it needs at least run: python train.py"),)
    if not isinstance(document.value, dict):
        return (Fault((), f"a job file is a map of keys and values, not {shown(document.value)}"),)
    empty = tuple(_empty(document.value))
    document = runtime_problems.with_command(document)
    try:
        made = job_file.MODEL.model_validate({"name": name, **_with_raw_envs(document)})
    except ValidationError as error:
        # An unknown key is a mistake whatever its value, so it is reported first, before a missing value.
        details = [detail for detail in error.errors(include_url=False) if _is_cause(detail)]
        return (*(_fault(detail) for detail in details if not _is_misspelt(detail, details)), *empty)
    if empty:
        return empty
    return tuple(_contradictions(made, here=here)) or made


def _with_raw_envs(document: YamlDocument) -> dict[str, Any]:
    """Take environment values as written: there, 1.10 is not a number and `no` is not a truth value."""
    value = dict(document.value)
    if isinstance(envs := value.get("envs"), dict):
        value["envs"] = {
            name: document.raw.get(("envs", name), item) if isinstance(item, (bool, int, float)) else item
            for name, item in envs.items()
        }
    return value


def _empty(value: Any, path: YamlPath = ()) -> Iterable[Fault]:
    """A key without a value: the author of `budget_usd:` meant to set a budget."""
    if value is None:
        yield Fault(path, f"{dotted(path)} has no value; set one, or remove the line")
    elif path[:1] in (("envs",), ("secrets",)):
        return
    elif isinstance(value, (dict, list)):
        for part, below in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _empty(below, (*path, part))


def _is_cause(detail: ErrorDetails) -> bool:
    """Whether it is a mistake of its own, not the consequence of a missing value or of a list's wrong items."""
    if detail["type"] == "too_short":
        return not detail["input"]
    return detail["input"] is not None or detail["type"] == "extra_forbidden"


def _is_misspelt(detail: ErrorDetails, details: Iterable[ErrorDetails]) -> bool:
    """Whether a key is missing because an unknown key beside it is a misspelling of it."""
    *above, key = detail["loc"]
    return detail["type"] == "missing" and any(
        other["type"] == "extra_forbidden"
        and list(other["loc"][:-1]) == above
        and closest(str(other["loc"][-1]), _names(_model_at(tuple(above)))) == key
        for other in details
    )


def _fault(detail: ErrorDetails) -> Fault:
    path, kind = tuple(detail["loc"]), detail["type"]
    if kind == "extra_forbidden":
        return Fault(path, _unknown(path), key=True)
    if kind == "missing":
        return Fault(path[:-1], f"{dotted(path)} is missing: {EXAMPLES[str(path[-1])]}")
    error = detail.get("ctx", {}).get("error")
    at = path
    if isinstance(error, Below):
        path = (*path, error.below)
        at = path if error.setting is None else (*path, error.setting)
    return Fault(at, f"{dotted(path)} {error if kind == 'value_error' else _wrong(detail, kind)}")


def _wrong(detail: ErrorDetails, kind: str) -> str:
    value, context = detail["input"], detail.get("ctx", {})
    if kind == "too_short":
        return "is an empty list; add an item, or remove the key"
    if kind == "literal_error":
        words = str(context["expected"]).replace("'", "")
        guess = nearest(value, re.split(", | or ", words)) if isinstance(value, str) else ""
        return f"must be {words}, not {shown(value)}{f'; {guess}' if 'did you mean' in guess else ''}"
    bound = {"greater_than_equal": "at least {ge}", "less_than_equal": "at most {le}"}.get(kind, _KINDS.get(kind))
    assert bound is not None, f"a kind of mistake without a sentence: {kind}"
    return f"must be {bound.format(**context)}, not {shown(value)}"


def _unknown(path: YamlPath) -> str:
    names = [part for part in path if isinstance(part, str)]
    key, written = names[-1], dotted(path)
    # An alternative of any_of has the keys of resources, and job_recovery can be in two places.
    general = ".".join(name for name in names if name not in ("any_of", "ordered"))
    for later in (general, general.removeprefix("resources.")) if len(names) > 1 else (general,):
        if later in LATER:
            return f"{written} {LATER[later]}"
    if len(names) == 1 and key in provider_list.names_later():
        there = f"supported providers: {', '.join(provider_list.names())} (choose with {_INFRA})"
        return f"{written} is a block for a provider, which is not supported; {there}"
    for home, model in _HOMES.items():
        if len(names) == 1 and key in _names(model):
            return f"{written} belongs under {home}: write {home}: {{{key}: ...}}"
    return f"{written} is an unknown key; {nearest(key, _names(_model_at(path[:-1])))}"


def _model_at(path: YamlPath) -> type[BaseModel]:
    words = [part for part in path if isinstance(part, str)]
    if not words:
        return job_file.MODEL
    if words[-1] in job_file.BLOCKS:
        return job_file.BLOCKS[words[-1]]
    if words[-1] in ("any_of", "ordered"):
        return MachinesBlock
    return _INNER[words[-1]] if words[-1] in _INNER else _HOMES[words[-1]]


def _names(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


# --------------------------------------------------------------------------------------------------- beyond one value


def _contradictions(job: JobFile, *, here: bool) -> Iterable[Fault]:
    yield from _twice(job)
    yield from _of_machines(job)
    if job.work is not None and len(job.work.model_fields_set) != 1:
        yield Fault(
            ("work",), "work must have one of steps, samples, tokens or items, for example work: {steps: 20000}"
        )
    yield from (Fault(path, message, key=True) for path, message in runtime_problems.problems(job))
    yield from _of_bag(job, here=here)
    for name in job.secrets:
        if name in job.envs:
            yield Fault(("envs", name), f"envs.{name} is also listed under secrets; remove it here", key=True)
    folder = os.path.expanduser(job.workdir or ".")
    if here and not os.path.isdir(folder):
        there = "is a file" if os.path.exists(folder) else "does not exist"
        yield Fault(("workdir",), f"workdir must be a folder, but {job.workdir} {there}")
    yield from _foreign(job)
    if here:
        yield from _unfilled(job)


def _of_bag(job: JobFile, *, here: bool) -> Iterable[Fault]:
    if job.bag is None:
        return
    try:
        columns = bag_rows.names_of(job.bag.rows) if job.bag.rows is not None and here else ()
    except Misuse as error:
        yield Fault(("bag", "rows"), f"bag.rows: {str(error).removeprefix('bag.rows: ')}")
        return
    yield from (Fault(path, message) for path, message in bag_block.problems(job.bag, job.run, columns))
    if here:
        yield from (Fault(path, message) for path, message in call_problems(job.bag.stop_item, job.workdir))
    for key in ("work", "runtime"):
        if getattr(job, key) is not None:
            yield Fault((key,), f"{key} follows from bag; remove it", key=True)
    if job.bag.nodes_per_item > 1:
        found = allocation_problems(job.alternatives, job.machines, job.fleet, job.bag.nodes_per_item)
        yield from (Fault(path, message, key=True) for path, message in found)


def _unfilled(job: JobFile) -> Iterable[Fault]:
    for name, value in job.envs.items():
        if value == FILL_IN:
            message = f"envs.{name} is not filled in: say what it is, which the imported file did not tell"
            yield Fault(("envs", name), message)


def _foreign(job: JobFile) -> Iterable[Fault]:
    for key, text in (("setup", job.setup or ""), ("run", job.run)):
        for name in FOREIGN.findall(text):
            if name not in job.envs and not re.search(rf"\b{name}=", text):
                target = VARIABLES.get(name) or DERIVED.get(name, (None,))[0]
                instead = f"write {target}" if target else "set it under envs"
                yield Fault((key,), f"{key} uses {name}, which another tool sets and Windfall does not; {instead}")


def _twice(job: JobFile) -> Iterable[Fault]:
    """A setting with two names must be given only once."""
    resources, given = job.resources, job.resources.model_fields_set
    pairs = (
        (job.max_price, ("max_price",), resources.max_hourly_cost, ("resources", "max_hourly_cost")),
        (job.job_recovery, ("job_recovery",), resources.job_recovery, ("resources", "job_recovery")),
        (job.notify.command, ("notify", "command"), job.event_callback, ("event_callback",)),
        (resources.any_of, ("resources", "any_of"), resources.ordered, ("resources", "ordered")),
    )
    for one, path, other, instead in pairs:
        if one is not None and other is not None:
            yield Fault(path, f"{dotted(path)} and {dotted(instead)} mean the same; keep one of them", key=True)
    if job.spot_policy is not None and ("use_spot" in given or any(_has_use_spot(resources))):
        yield Fault(("spot_policy",), "spot_policy and resources.use_spot mean the same; keep one of them", key=True)


def _has_use_spot(resources: ResourcesBlock) -> list[bool]:
    return [one.use_spot is not None for one in resources.any_of or resources.ordered or ()]


def _of_machines(job: JobFile) -> Iterable[Fault]:
    listed = "any_of" if job.resources.any_of else "ordered"
    for number, one in enumerate(job.alternatives):
        if one.zone is not None and one.infra is not None and one.infra.zone is not None:
            own = job.resources.any_of or job.resources.ordered
            inside = own is not None and {"zone", "infra"} & own[number].model_fields_set
            path: YamlPath = ("resources", listed, number) if inside else ("resources", "zone")
            yield Fault(path, f"infra already has the zone {one.infra.zone}; remove zone")
    yield from _wanted_and_excluded(job)
    spot, on_demand = (
        {
            one.model_copy(update={"use_spot": None})
            for one in job.alternatives
            if (one.use_spot is not False) is is_spot
        }
        for is_spot in (True, False)
    )
    if spot and on_demand and spot != on_demand and job.spot_policy is None:
        message = "use_spot cannot differ between different machines; remove it and set spot_policy: auto"
        yield Fault(("resources", listed), message)


def _wanted_and_excluded(job: JobFile) -> Iterable[Fault]:
    """A name that is both wanted and excluded: one of the two was meant."""
    exclude = job.resources.exclude
    pairs = (
        ("zone", exclude.zone, [name for one in job.alternatives for name in one.zones]),
        (
            "instance_type",
            exclude.instance_type,
            [name for one in job.alternatives for name in one.instance_type or ()],
        ),
    )
    for key, excluded, wanted in pairs:
        for name in excluded or ():
            if name in wanted:
                path: YamlPath = ("resources", "exclude", key)
                yield Fault(path, f"{dotted(path)} excludes {name}, which resources also asks for; keep one of them")


def _unwise(job: JobFile) -> Iterable[Fault]:
    for name, value in job.envs.items():
        named = _SECRET_NAME.search(name) and value and not _NO_SECRET.fullmatch(value)
        if named or SECRET_VALUE.search(value):
            yield Fault(
                ("envs", name),
                f"envs.{name} looks like a secret, and envs are stored with the job; list its name under secrets and "
                "export it instead",
            )


FILE = "job.schema.json"
"""The name of the schema's file."""
LINK = f"# yaml-language-server: $schema={FILE}\n"
"""The first line of a job file for editors to check and complete it; `windfall schema job` prints the schema."""


def job_schema() -> dict[str, Any]:
    """Return the schema of a job file, with its definitions under `$defs`."""
    made: dict[str, Any] = _plain(job_file.MODEL.model_json_schema())
    return made | runtime_problems.required(made.pop("required"))


def _plain(node: Any) -> Any:
    """Remove what pydantic adds: titles, internal defaults, and null as a value, which the loader refuses."""
    if isinstance(node, list):
        return [_plain(item) for item in node]
    if not isinstance(node, dict):
        return node
    made = {key: _plain(item) for key, item in node.items() if key not in ("title", "default")}
    if "properties" in node:
        made["properties"] = {key: _plain(item) for key, item in node["properties"].items()}
    options = [option for option in made.get("anyOf", ()) if option != {"type": "null"}]
    if options and len(options) < len(made["anyOf"]):
        del made["anyOf"]
        made |= options[0] if len(options) == 1 else {"anyOf": options}
    return made
