"""What a job file's runtime says of its other keys: the command that its settings stand for, its work, its loss."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from windfall.jobs import RuntimeSpec
from windfall.policies import policy_registry
from windfall.policies.layout import runtime_list
from windfall.policies.policy_registry import BAG, PolicyKind
from windfall.spec.job_file import JobFile
from windfall.spec.yaml_positions import YamlDocument, YamlPath
from windfall.structs import replace


def with_command(document: YamlDocument) -> YamlDocument:
    """Return a document whose `run` is filled in where the settings of the runtime say what runs."""
    value = document.value
    written = value.get("runtime") if isinstance(value, dict) and "run" not in value else None
    if not isinstance(written, dict) or len(written) != 1:
        return document
    ((name, settings),) = written.items()
    if name not in policy_registry.names(PolicyKind.RUNTIME) or not isinstance(settings, dict):
        return document
    found = runtime_list.rules(name).command
    command = None if found is None else found(settings)
    return document if command is None else replace(document, value={**value, "run": command})


def required(keys: Sequence[str]) -> dict[str, Any]:
    """Return the part of a JSON Schema that says which keys there must be: `run` only where no runtime's settings stand for it.

    Args:
        keys: that must be there otherwise.
    """
    names = [name for name in policy_registry.names(PolicyKind.RUNTIME) if runtime_list.rules(name).command is not None]
    named = {"runtime": {"type": "object", "minProperties": 1, "propertyNames": {"enum": names}}}
    others = [key for key in keys if key != "run"]
    return {"anyOf": [{"required": list(keys)}, {"required": [*others, "runtime"], "properties": named}]}


def problems(job: JobFile) -> Iterator[tuple[YamlPath, str]]:
    """Yield where keys contradict the runtime, and how."""
    yield from _of_runtime(job)
    yield from _of_checkpoints(job)
    yield from _of_loss(job)


def _of_runtime(job: JobFile) -> Iterator[tuple[YamlPath, str]]:
    runtime = job.runtime or RuntimeSpec()
    rules = runtime_list.rules(runtime.name)
    command = None if rules.command is None else rules.command(runtime.settings)
    if command is not None and job.run != command:
        yield ("run",), f"run and the settings of {runtime.name} both say what runs; remove one"
    if rules.work is not None:
        if job.work is not None:
            yield ("work",), f"work follows from the settings of {runtime.name}; remove it"
        if "num_nodes" in job.model_fields_set:
            yield ("num_nodes",), f"the settings of {runtime.name} say how many machines there are; remove num_nodes"


def _of_checkpoints(job: JobFile) -> Iterator[tuple[YamlPath, str]]:
    name = (job.runtime or RuntimeSpec()).name if job.bag is None else BAG
    instead = runtime_list.rules(name).without_effect
    block = type(job.checkpoint).model_fields
    for field in sorted(job.checkpoint.model_fields_set):
        key = block[field].alias or field
        if key in instead:
            yield ("checkpoint", key), f"checkpoint.{key} has no effect on runtime {name}: {instead[key]}"


def _of_loss(job: JobFile) -> Iterator[tuple[YamlPath, str]]:
    if job.objective.loss is None:
        return
    runtime = job.runtime or RuntimeSpec()
    if problem := runtime_list.loss_problem(runtime.name):
        yield ("objective", "loss"), f"objective.loss {problem}"
    elif job.work is not None:
        yield ("objective", "loss"), "objective.loss and work both say when the job is done; keep one of them"
