"""From a file to a `JobFile`, or to one sentence with the place of what is wrong."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from windfall.errors import Misspelt
from windfall.spec import jobfile, places
from windfall.spec.fields import PROVIDERS, PROVIDERS_LATER, Below, shown
from windfall.spec.jobfile import Checkpoint, Controller, JobFile, Machines, Notify, Objective, Resources, Work
from windfall.spec.places import Document, Path, dotted
from windfall.spelling import nearest
from windfall.wire import environment

LATER: Mapping[str, str] = {
    "file_mounts": "is not there yet: put code under workdir, and let the script read its data by URL",
    "volumes": "is not there yet: what must outlast a machine goes into the checkpoint store",
    "bag": "is not there yet: a job is one training run, many small jobs are not taken together",
    "elastic": "is not there yet: num_nodes stays as it is, and lost machines are replaced",
    "service": "is not there: a job has an end, and what serves requests has none",
    "pool": "is not there: machines are bought for one job and released after it",
    "config": "is not there: settings of other tools do not apply",
    "experimental": "is not there: settings of other tools do not apply",
    "inputs": "is not there yet: let the script read its data by URL",
    "outputs": "is not there yet: let the script write its results by URL",
    "type": "is dstack's: `windfall import` turns its files into ours",
    "commands": "is dstack's: `windfall import` turns its files into ours",
    "objective.loss": "is not there yet: say in `work` how much there is to do",
    "resources.disk_size": "is not there yet: the machine type decides",
    "resources.disk_tier": "is not there yet: the machine type decides",
    "resources.network_tier": "is not there yet: the machine type decides",
    "resources.local_disk": "is not there yet: the machine type decides",
    "resources.image_id": "is not there yet: machines run their provider's own image, and setup installs the rest",
    "resources.ports": "is not there: a job opens no ports to the outside",
    "resources.labels": "is not there yet: machines carry Windfall's own tags",
    "resources.autostop": "is not there: machines are released when the job ends",
    "resources.accelerator_args": "is not there yet",
    "resources.cloud": "is written as infra: PROVIDER/ZONE",
    "resources.region": "is written as infra: PROVIDER/ZONE",
    "job_recovery.strategy": "is not there: every zone and type that will do is tried",
}
"""Words of other tools and of later work, by dotted key, and what to say of them."""
EXAMPLES: Mapping[str, str] = {
    "run": "the command that trains, for example run: python train.py",
}
VARIABLES: Mapping[str, str | None] = {
    "SKYPILOT_NODE_RANK": environment.NODE_RANK,
    "SKYPILOT_NUM_NODES": environment.NODE_COUNT,
    "SKYPILOT_TASK_ID": environment.RUN,
    "DSTACK_NODE_RANK": environment.NODE_RANK,
    "DSTACK_NODES_NUM": environment.NODE_COUNT,
    "DSTACK_RUN_NAME": environment.RUN,
}
"""Other tools' variables, and which of ours says the same."""
_LINES = f"$(echo \"${{{environment.NODE_ADDRESSES}:-127.0.0.1}}\" | tr , '\\n')"
DERIVED: Mapping[str, tuple[str, str]] = {
    "SKYPILOT_NODE_IPS": (environment.NODE_ADDRESSES, f'"{_LINES}"'),
    "DSTACK_NODES_IPS": (environment.NODE_ADDRESSES, f'"{_LINES}"'),
    "DSTACK_MASTER_NODE_IP": (environment.MASTER_ADDR, f'"${{{environment.MASTER_ADDR}:-127.0.0.1}}"'),
}
"""Other tools' variables that ours say in another form: which of ours, and the shell text that makes theirs of it."""
FOREIGN = re.compile(r"\$\{?((?:SKYPILOT|DSTACK)_[A-Z0-9_]+)\b(?!:?-)")
"""A use of another tool's variable without a default."""
FILL_IN = "<fill in>"
"""What the importer writes where a variable's value cannot be known: a job file with it is refused."""

_INFRA = "`resources: {infra: local}`"
_SECRET_NAME = re.compile(
    r"(?:^|_)(TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|SECRET_KEY|ACCESS_KEY|PRIVATE_KEY)$", re.IGNORECASE
)
_SECRET_VALUE = re.compile(
    r"(hf_|sk-|ghp_|github_pat_|glpat-|xox[bp]-|AIza)[A-Za-z0-9_-]{16,}|AKIA[A-Z0-9]{16}|-----BEGIN |[a-z0-9+]+://[^/@\s]+:[^/@\s]+@"
)
_NO_SECRET = re.compile(r"[0-9.]*|[/~$].*|true|false", re.DOTALL)
_HOMES: Mapping[str, type[BaseModel]] = {
    "resources": Resources,
    "objective": Objective,
    "checkpoint": Checkpoint,
    "work": Work,
    "notify": Notify,
    "controller": Controller,
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


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong.

    Attributes:
        path: of what is wrong.
        sentence: without the place.
        key: whether the key is wrong rather than its value.
    """

    path: Path
    sentence: str
    key: bool = False


def load(
    path: str,
    *,
    overrides: Mapping[str, str] | None = None,
    warn: Callable[[str], None] | None = None,
) -> JobFile:
    """Read a job file.

    Args:
        path: of the file; a relative `workdir` in it counts from the file's folder.
        overrides: dotted keys and their values as YAML, from the command line; they win over the file.
        warn: gets a sentence for what is not wrong but not wise.

    Raises:
        Misspelt: something in it is wrong; the sentence begins with file:line:column.
        Misuse: it cannot be read.
    """
    document = places.parse(places.read(path), path)
    for key, text in (overrides or {}).items():
        document = places.override(document, key, text)
    stem = re.sub(r"[^A-Za-z0-9]+", "-", os.path.basename(path).partition(".")[0]).strip("-")[:60]
    made = checked(_from_its_folder(document, path), name=stem or "job")
    for fault in _unwise(made):
        if warn is not None:
            warn(f"{document.place(fault.path)}: {fault.sentence}")
    return made


def _from_its_folder(document: Document, path: str) -> Document:
    """Let a relative `workdir` of the file count from the file's own folder; one of the command line from the current one."""
    value = document.value
    said = value.get("workdir") if isinstance(value, dict) else None
    if not isinstance(said, str) or not said.strip() or not document.place(("workdir",)).line:
        return document
    folder = os.path.join(os.path.dirname(os.path.abspath(path)), os.path.expanduser(said))
    return replace(document, value={**value, "workdir": os.path.normpath(folder)})


def checked(document: Document, *, name: str) -> JobFile:
    """Return what a document says, as a job file.

    Args:
        document: a parsed file.
        name: the job's, if the document gives none.

    Raises:
        Misspelt: something in it is wrong; what stands first is told.
    """
    made = read_document(document, name=name)
    if isinstance(made, JobFile):
        return made
    first = min(made, key=lambda fault: (document.place(fault.path, key=fault.key), not fault.key))
    raise Misspelt(f"{document.place(first.path, key=first.key)}: {first.sentence}")


def read_document(document: Document, *, name: str, here: bool = True) -> JobFile | tuple[Fault, ...]:
    """Return what a document says, as a job file, or everything that is wrong with it (at least one fault).

    Args:
        document: a parsed file.
        name: the job's, if the document gives none.
        here: whether the job is to be run from this folder, so that its workdir must exist.
    """
    if document.value is None:
        return (Fault((), "the file is empty; the least it needs is run: python train.py"),)
    if not isinstance(document.value, dict):
        return (Fault((), f"a job file is a map of keys and values, not {shown(document.value)}"),)
    empty = tuple(_empty(document.value))
    try:
        made = JobFile.model_validate({"name": name, **_with_raw_envs(document)})
    except ValidationError as error:
        # An unknown key is a fault whatever stands after it, so it is told rather than that nothing does.
        return (*(_fault(detail) for detail in error.errors(include_url=False) if _is_cause(detail)), *empty)
    if empty:
        return empty
    return tuple(_contradictions(made, here=here)) or made


def _with_raw_envs(document: Document) -> dict[str, Any]:
    """Take environment values as they are written: 1.10 is no number there, and no is no truth value."""
    value = dict(document.value)
    if isinstance(envs := value.get("envs"), dict):
        value["envs"] = {
            name: document.raw.get(("envs", name), item) if isinstance(item, (bool, int, float)) else item
            for name, item in envs.items()
        }
    return value


def _empty(value: Any, path: Path = ()) -> Iterable[Fault]:
    """A key with nothing after it: whoever wrote `budget_usd:` wanted a budget."""
    if value is None:
        yield Fault(path, f"{dotted(path)} has nothing after it; give it a value, or leave the line out")
    elif path[:1] in (("envs",), ("secrets",)):
        return
    elif isinstance(value, (dict, list)):
        for part, below in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _empty(below, (*path, part))


def _is_cause(detail: ErrorDetails) -> bool:
    """Whether it is more than the consequence of another fault: of a missing value, or of a list's wrong items."""
    if detail["type"] == "too_short":
        return not detail["input"]
    return detail["input"] is not None or detail["type"] == "extra_forbidden"


def _fault(detail: ErrorDetails) -> Fault:
    path, kind = tuple(detail["loc"]), detail["type"]
    if kind == "extra_forbidden":
        return Fault(path, _unknown(path), key=True)
    if kind == "missing":
        return Fault(path[:-1], f"{dotted(path)} is missing: {EXAMPLES[str(path[-1])]}")
    error = detail.get("ctx", {}).get("error")
    if isinstance(error, Below):
        path = (*path, error.below)
    return Fault(path, f"{dotted(path)} {error if kind == 'value_error' else _wrong(detail, kind)}")


def _wrong(detail: ErrorDetails, kind: str) -> str:
    value, context = detail["input"], detail.get("ctx", {})
    if kind == "too_short":
        return "is an empty list; leave it out, or fill it"
    if kind == "literal_error":
        words = str(context["expected"]).replace("'", "")
        guess = nearest(value, re.split(", | or ", words)) if isinstance(value, str) else ""
        return f"must be {words}, not {shown(value)}{f'; {guess}' if 'did you mean' in guess else ''}"
    bound = {"greater_than_equal": "at least {ge}", "less_than_equal": "at most {le}"}.get(kind, _KINDS.get(kind))
    assert bound is not None, f"a kind of mistake without a sentence: {kind}"
    return f"must be {bound.format(**context)}, not {shown(value)}"


def _unknown(path: Path) -> str:
    words = [part for part in path if isinstance(part, str)]
    key, written = words[-1], dotted(path)
    # An alternative of any_of has the words of resources, and job_recovery stands in two places.
    general = ".".join(word for word in words if word not in ("any_of", "ordered"))
    for later in (general, general.removeprefix("resources.")) if len(words) > 1 else (general,):
        if later in LATER:
            return f"{written} {LATER[later]}"
    if len(words) == 1 and key in (*PROVIDERS, *PROVIDERS_LATER):
        there = f"there is {', '.join(PROVIDERS)}: choose it by {_INFRA}"
        return f"{written} is a block for a provider, and none reads one; {there}"
    for home, model in _HOMES.items():
        if len(words) == 1 and key in _names(model):
            return f"{written} belongs under {home}: write {home}: {{{key}: ...}}"
    return f"{written} is not known; {nearest(key, _names(_model_at(path[:-1])))}"


def _model_at(path: Path) -> type[BaseModel]:
    words = [part for part in path if isinstance(part, str)]
    if not words:
        return JobFile
    if words[-1] in ("any_of", "ordered"):
        return Machines
    return jobfile.JobRecovery if words[-1] == "job_recovery" else _HOMES[words[-1]]


def _names(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


# --------------------------------------------------------------------------------------------------- beyond one value


def _contradictions(job: JobFile, *, here: bool) -> Iterable[Fault]:
    yield from _twice(job)
    yield from _of_machines(job)
    if job.work is not None and len(job.work.model_fields_set) != 1:
        yield Fault(("work",), "work must say one of steps, samples, tokens or items, for example work: {steps: 20000}")
    for name in job.secrets:
        if name in job.envs:
            yield Fault(("envs", name), f"envs.{name} is listed under secrets too; leave it out here", key=True)
    folder = os.path.expanduser(job.workdir or ".")
    if here and not os.path.isdir(folder):
        there = "is a file" if os.path.exists(folder) else "does not exist"
        yield Fault(("workdir",), f"workdir must be a folder, and {job.workdir} {there}")
    yield from _foreign(job)
    if here:
        yield from _unfilled(job)


def _unfilled(job: JobFile) -> Iterable[Fault]:
    for name, value in job.envs.items():
        if value == FILL_IN:
            sentence = f"envs.{name} is not filled in: say what it is, which the imported file did not tell"
            yield Fault(("envs", name), sentence)


def _foreign(job: JobFile) -> Iterable[Fault]:
    for key, text in (("setup", job.setup or ""), ("run", job.run)):
        for name in FOREIGN.findall(text):
            if name not in job.envs and not re.search(rf"\b{name}=", text):
                ours = VARIABLES.get(name) or DERIVED.get(name, (None,))[0]
                instead = f"write {ours}" if ours else "set it under envs"
                yield Fault((key,), f"{key} uses {name}, which another tool sets and Windfall does not; {instead}")


def _twice(job: JobFile) -> Iterable[Fault]:
    """What has two names must have one value."""
    resources, said = job.resources, job.resources.model_fields_set
    pairs = (
        (job.max_price, ("max_price",), resources.max_hourly_cost, ("resources", "max_hourly_cost")),
        (job.job_recovery, ("job_recovery",), resources.job_recovery, ("resources", "job_recovery")),
        (job.notify.command, ("notify", "command"), job.event_callback, ("event_callback",)),
        (resources.any_of, ("resources", "any_of"), resources.ordered, ("resources", "ordered")),
    )
    for one, path, other, instead in pairs:
        if one is not None and other is not None:
            yield Fault(path, f"{dotted(path)} and {dotted(instead)} say the same thing; keep one of them", key=True)
    if job.spot_policy is not None and ("use_spot" in said or any(_says_spot(resources))):
        yield Fault(
            ("spot_policy",), "spot_policy and resources.use_spot say the same thing; keep one of them", key=True
        )


def _says_spot(resources: Resources) -> list[bool]:
    return [one.use_spot is not None for one in resources.any_of or resources.ordered or ()]


def _of_machines(job: JobFile) -> Iterable[Fault]:
    listed = "any_of" if job.resources.any_of else "ordered"
    for number, one in enumerate(job.alternatives):
        if one.zone is not None and one.infra is not None and one.infra.zone is not None:
            own = job.resources.any_of or job.resources.ordered
            inside = own is not None and {"zone", "infra"} & own[number].model_fields_set
            path: Path = ("resources", listed, number) if inside else ("resources", "zone")
            yield Fault(path, f"infra names the zone {one.infra.zone} already; leave zone out")
    spot, owned = (
        {one.model_copy(update={"use_spot": None}) for one in job.alternatives if (one.use_spot is not False) is wanted}
        for wanted in (True, False)
    )
    if spot and owned and spot != owned and job.spot_policy is None:
        sentence = "use_spot differs between machines that differ otherwise too; leave it out and say spot_policy: auto"
        yield Fault(("resources", listed), sentence)


def _unwise(job: JobFile) -> Iterable[Fault]:
    for name, value in job.envs.items():
        named = _SECRET_NAME.search(name) and value and not _NO_SECRET.fullmatch(value)
        if named or _SECRET_VALUE.search(value):
            yield Fault(
                ("envs", name),
                f"envs.{name} looks like a secret, and envs are stored with the job; list its name under secrets and "
                "set it in your environment",
            )
