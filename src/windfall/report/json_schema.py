"""JSON Schema (draft 2020-12) of what `--json` prints and what the store holds, derived from type hints."""

from __future__ import annotations

import enum
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from windfall import codec, events, fleet, results, terms
from windfall.report.account import Account, SaveCount
from windfall.report.doctor_checks import Verdict
from windfall.report.interval_kinds import Kind
from windfall.report.step_counts import StepRange
from windfall.storage import manifest, run_state
from windfall.structs import Struct
from windfall.wire import run_layout

Schema = dict[str, Any]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_WORDS = (events.__name__, results.__name__, fleet.__name__)
_SCALARS: Mapping[Any, Schema] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    type(None): {"type": "null"},
    terms.Metric: {"anyOf": [{"type": "number"}, {"enum": list(codec.NOT_FINITE)}]},
}
_TEXT, _COUNT, _NUMBER = {"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "number"}
_TEXT_OR_NULL = {"type": ["string", "null"]}
_TEXTS = {"type": "array", "items": _TEXT}


class SchemaDefinitions:
    """Collects the definitions that a schema refers to.

    Args:
        tagged: whether objects carry their class name (journal and store) or not (accounts).
    """

    def __init__(self, *, tagged: bool = True) -> None:
        self.definitions: dict[str, Schema] = {}
        self._tagged = tagged

    def of(self, hint: Any) -> Schema:
        """Return the schema of a type hint: structs and enums, plain values, tuples, free maps, optional values.

        Raises:
            TypeError: the hint cannot occur in a journal.
        """
        hint = getattr(hint, "__supertype__", hint)
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin in (typing.Union, types.UnionType):
            return {"anyOf": [self.of(option) for option in arguments]}
        if origin is tuple:
            return self._array(arguments)
        if origin is Mapping:
            assert arguments == (str, Any), "a runtime's own settings and messages are the only free maps of a journal"
            return {"type": "object"}
        if hint in _SCALARS:
            return dict(_SCALARS[hint])
        if isinstance(hint, type) and issubclass(hint, (Struct, events.Fact, events.Command)):
            return self._reference(hint)
        if isinstance(hint, type) and issubclass(hint, enum.Enum):
            return {"enum": [member.value for member in hint]}
        raise TypeError(f"{hint!r} has no schema")

    def _array(self, arguments: tuple[Any, ...]) -> Schema:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return {"type": "array", "items": self.of(arguments[0])}
        items = [self.of(argument) for argument in arguments]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}

    def _reference(self, cls: type) -> Schema:
        if cls.__name__ not in self.definitions:
            self.definitions[cls.__name__] = {}
            # Facts that other modules define for their own use never reach a journal.
            below: list[type] = cls.__subclasses__()
            kinds = [kind for kind in below if kind.__module__ in _WORDS]
            self.definitions[cls.__name__] = (
                {"anyOf": [self.of(kind) for kind in kinds]} if kinds else self._object(cls)
            )
        return {"$ref": f"#/$defs/{cls.__name__}"}

    def _object(self, cls: type[Struct]) -> Schema:
        hints = typing.get_type_hints(cls)
        fields = {field.name: self.of(hints[field.name]) for field in msgspec.structs.fields(cls)}
        described = {"description": " ".join((cls.__doc__ or "").partition("\n\n")[0].split())}
        tag: Schema = {"type": {"const": cls.__name__}} if self._tagged else {}
        # Data from an older Windfall may lack a field that was added with a default.
        required = [field.name for field in msgspec.structs.fields(cls) if field.required]
        return described | _closed(tag | fields, [*tag, *required])


def _closed(properties: Schema, required: list[str] | None = None) -> Schema:
    needed = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": needed, "additionalProperties": False}


def _versioned(words: SchemaDefinitions, name: str, word: type, version: int) -> Schema:
    return _closed({"version": {"type": "integer", "minimum": 1, "maximum": version}, name: words.of(word)})


def _account(words: SchemaDefinitions) -> Schema:
    words.of(Account)
    plain = words.definitions.pop(Account.__name__)["properties"]
    spent = _closed({f"{kind.value}_s": _NUMBER for kind in Kind})
    del plain["uncertain_s"]
    ranges = {name: words.of(StepRange) for name in ("machine_s", "compute_s", "redo_s", "machine_hours")}
    derived = {"spent": spent, "saves": words.of(tuple[SaveCount, ...]), "total_s": _NUMBER}
    return _closed(plain | ranges | derived | {"goodput": words.of(StepRange | None)})


def _ps(words: SchemaDefinitions) -> Schema:
    return _closed({"url": _TEXT, "newest_step": _COUNT, "state": words.of(terms.RunState)})


def _get(_: SchemaDefinitions) -> Schema:
    checkpoint = _closed({"step": _COUNT, "checkpoint": _TEXT, "files": _TEXTS})
    result = _closed({"name": _TEXT, "rank": _COUNT, "step": _COUNT, "file": _TEXT})
    model = _closed({"step": _COUNT, "tensors": _COUNT, "files": _TEXTS})
    return {"anyOf": [checkpoint, model, _closed({"results": {"type": "array", "items": result}})]}


def _doctor(_: SchemaDefinitions) -> Schema:
    numbers = {"type": "object", "additionalProperties": _NUMBER}
    verdict = {"enum": [verdict.value for verdict in Verdict]}
    return _closed({"check": _TEXT, "verdict": verdict, "says": _TEXT, "do": _TEXT_OR_NULL, "numbers": numbers})


def _job(words: SchemaDefinitions) -> Schema:
    from windfall.extras import for_job_files  # noqa: PLC0415 - the job file's packages are an extra

    with for_job_files():
        from windfall.spec.job_loader import job_schema  # noqa: PLC0415

        made = job_schema()
    words.definitions |= made.pop("$defs")
    return made


def _import(_: SchemaDefinitions) -> Schema:
    dropped = _closed({"position": _TEXT, "key": _TEXT, "reason": _TEXT})
    unfilled = {"type": "array", "items": _TEXT}
    return _closed({"yaml": _TEXT, "dropped": {"type": "array", "items": dropped}, "unfilled": unfilled})


def _notice(_: SchemaDefinitions) -> Schema:
    level, number = {"enum": [level.value for level in terms.NoticeLevel]}, {"type": ["number", "null"]}
    return _closed({"level": level, "seconds_left": number, "deadline_unix": number, "source": _TEXT})


def _simulate(_: SchemaDefinitions) -> Schema:
    number_or_null, share = {"type": ["number", "null"]}, {"type": ["number", "null"], "minimum": 0, "maximum": 1}
    spread = _closed(dict.fromkeys(("mean", "p10", "p50", "p90", "p99", "stderr"), _NUMBER))
    lost = dict.fromkeys(("redo_s", "save_s", "allocate_s", "prepare_s", "preemptions"), _NUMBER)
    row = _closed({"policy": _TEXT, "cost_usd": spread, "finish_s": spread, **lost, "trials": _COUNT})
    best = _closed(
        {"policy": _TEXT, "following": _TEXT_OR_NULL, "difference": _NUMBER, "stderr": number_or_null}
        | {"sure": {"type": "boolean"}, "same": {"type": "boolean"}}
    )
    number = _closed({"name": _TEXT, "low": number_or_null, "high": number_or_null, "unit": _TEXT, "source": _TEXT})
    odds = _closed({"policy": _TEXT, "in_time": share, "in_budget": share})
    return _closed(
        {
            "rows": {"type": "array", "items": row, "minItems": 1},
            "best": _closed({"cost_usd": best, "finish_s": best}),
            "odds": {"type": "array", "items": odds},
            "inputs": {"type": "array", "items": number},
            "verdict": _TEXT,
            "notes": _TEXTS,
            "seed": _COUNT,
        }
    )


class SchemaDocument(Struct, frozen=True):
    """A kind of data that has a schema.

    Attributes:
        where: where users find it.
        body: builds the schema and collects definitions.
        tagged: see `SchemaDefinitions`.
    """

    where: str
    body: Callable[[SchemaDefinitions], Schema]
    tagged: bool = True


DOCUMENTS: Mapping[str, SchemaDocument] = {
    "job": SchemaDocument("the job file", _job),
    "journal": SchemaDocument(
        "a line of `windfall events --json`, and of spool/ in the store",
        lambda words: _versioned(words, "row", events.Row, events.VERSION),
    ),
    "record": SchemaDocument(
        "an object of log/ in the store", lambda words: _versioned(words, "record", terms.Record, run_state.VERSION)
    ),
    "manifest": SchemaDocument(
        "checkpoints/CHECKPOINT/manifest.json in the store",
        lambda words: _versioned(words, "checkpoint", terms.Checkpoint, manifest.VERSION),
    ),
    "marker": SchemaDocument(
        "windfall.json in the store",
        lambda _: _closed(
            {"version": {"type": "integer", "minimum": 1, "maximum": run_layout.FORMAT_VERSION}, "run_id": _TEXT}
        ),
    ),
    "heartbeat": SchemaDocument(
        "an object of heartbeats/ in the store",
        lambda _: _closed(
            {"version": _COUNT, "counter": _COUNT, "wall_time": _NUMBER, "head": _COUNT, "nonce": _TEXT}
            | {"attempt": _COUNT, "first_step": _COUNT, "step": _COUNT, "max_gap_s": _NUMBER}
        ),
    ),
    "notice": SchemaDocument("the file named by WINDFALL_NOTICE_FILE", _notice),
    "ps": SchemaDocument("a line of `windfall ps --json`", _ps),
    "checkpoints": SchemaDocument(
        "a line of `windfall checkpoints --json`",
        lambda words: {"anyOf": [words.of(terms.CheckpointRef), words.of(terms.Result)]},
    ),
    "explain": SchemaDocument("a line of `windfall explain --json`", lambda words: words.of(events.Decision)),
    "cost": SchemaDocument("`windfall cost --json`", _account, tagged=False),
    "simulate": SchemaDocument("`windfall simulate --json`", _simulate),
    "get": SchemaDocument("`windfall get --json`", _get),
    "rm": SchemaDocument(
        "`windfall rm --json`",
        lambda _: _closed({"url": _TEXT, "run_id": _TEXT, "deleted": _COUNT, "left": _TEXTS}),
    ),
    "replay": SchemaDocument(
        "`windfall replay --json`", lambda _: _closed({"rows": _COUNT, "gaps": _COUNT, "differences": _TEXTS})
    ),
    "import": SchemaDocument("`windfall import --json`", _import),
    "doctor": SchemaDocument("a line of `windfall doctor --json`", _doctor),
}
"""Every kind of data that has a schema, by name."""


def schema(name: str) -> Schema:
    """Return the JSON Schema of one document of `DOCUMENTS`.

    Raises:
        KeyError: the name is unknown.
    """
    document = DOCUMENTS[name]
    words = SchemaDefinitions(tagged=document.tagged)
    body = document.body(words)
    head = {"$schema": DIALECT, "title": f"windfall {name}", "description": document.where}
    # A reference goes into `allOf`, so that the referenced description does not replace the document's own.
    whole = {"allOf": [body]} if "$ref" in body else body
    return head | whole | ({"$defs": dict(sorted(words.definitions.items()))} if words.definitions else {})
