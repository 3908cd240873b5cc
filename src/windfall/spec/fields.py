"""The types of values in a job file: how each is written, checked, and described in the JSON Schema."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple

from pydantic import PlainValidator, WithJsonSchema

from windfall.errors import Misuse
from windfall.extras import install
from windfall.jobs import RuntimeSpec
from windfall.policies import policy_registry
from windfall.policies.acquisition import fleet_policy_list
from windfall.policies.checkpointing.decision import parse_policy
from windfall.policies.layout import runtime_list
from windfall.policies.planning import job_checks
from windfall.policies.policy_registry import PolicyKind
from windfall.providers import provider_list
from windfall.spec import deadline_words
from windfall.spec.deadline_words import DeadlineWords
from windfall.spelling import closest, nearest
from windfall.structs import Struct
from windfall.units import duration_s

STORES, DURATION_S_MAX = job_checks.STORES, job_checks.DURATION_S_MAX
_DURATION = r"(?=.*[1-9])([0-9]+(\.[0-9]+)?(ms|s|m|h|d))+"
_STEPS = r"[1-9][0-9]* *steps?"
_NAME, _VARIABLE, _WEBHOOK = job_checks.NAME, job_checks.VARIABLE, job_checks.WEBHOOK
_AMOUNT = r"(?=[^eE]*[1-9])[0-9][0-9_]*(\.[0-9]+)?([eE]\+?[0-9]{1,2})?"
_LOSS = r"(?=[^eE]*[1-9])([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,2})?"
_LEAST = r"(?=.*[1-9])[0-9]+(\.[0-9]+)?"
_MEMORY_UNIT = r" ?(GB|GiB|G|gb|g)?"
_ACCELERATOR = r"[A-Za-z][A-Za-z0-9._-]*"
_INFRA = r"(\*|[A-Za-z0-9_-]+)(/[A-Za-z0-9*._-]+){0,2}"
_CREDENTIALS = re.compile(r"^[a-z0-9+]+://[^/@]*@")


class Infra(Struct, frozen=True):
    """Where to order machines: None for anywhere."""

    provider: str | None
    zone: str | None


class Accelerator(Struct, frozen=True):
    """`A100:8`."""

    name: str
    count: int


class Below(ValueError):
    """The fault is deeper than the field: at this key or item of it, and there in the line of `setting`."""

    def __init__(self, below: str | int, message: str, setting: str | None = None) -> None:
        super().__init__(message)
        self.below, self.setting = below, setting


def shown(value: object) -> str:
    """Return a wrong value for a message: a plain value itself, a list or map by its kind."""
    if isinstance(value, dict):
        return "a map"
    if isinstance(value, (list, tuple)):
        return "a list"
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _kind(check: Callable[[Any], Any], schema: dict[str, Any]) -> tuple[PlainValidator, WithJsonSchema]:
    return PlainValidator(check), WithJsonSchema(schema)


def _pattern(*patterns: str) -> dict[str, Any]:
    return {"type": "string", "pattern": f"^({'|'.join(patterns)})$"}


def _text(value: object, example: str) -> str:
    if isinstance(value, str):
        return value
    quoted = isinstance(value, (bool, int, float))
    raise ValueError(
        f"must be text, not {shown(value)}; " + ("put it in quotes" if quoted else f"for example {example}")
    )


def duration(value: object) -> float:
    """Return a duration as written [s].

    Raises:
        ValueError: it is none; the message starts with a verb.
    """
    if isinstance(value, str) and re.fullmatch(_DURATION, value):
        length_s = duration_s(value, "a duration")
        if length_s <= DURATION_S_MAX:
            return length_s
        raise ValueError(f"{shown(value)} is more than 30 years")
    unit = f"; add a unit ({value}s? {value}m? {value}h?)" if _is_number(value) else ""
    raise ValueError(f"must be a duration above zero such as 30s, 10m or 1h30m, not {shown(value)}{unit}")


def deadline(value: object) -> DeadlineWords:
    """Return a deadline as written, not yet an instant.

    Raises:
        ValueError: it is none; the message starts with a verb.
    """
    if isinstance(value, str) or _is_number(value):
        return deadline_words.parse(str(value))
    raise ValueError(f"must be {deadline_words.FORMS}, not {shown(value)}")


def loss(value: object) -> float:
    """Return a training loss [1].

    Raises:
        ValueError: it is none; the message starts with a verb.
    """
    if re.fullmatch(_LOSS, str(value)) and not isinstance(value, bool):
        return float(str(value))
    raise ValueError(f"must be a number above zero such as 0.8, not {shown(value)}")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def money(value: Any) -> float:
    """Return an amount of dollars [USD].

    Raises:
        ValueError: it is none; the message starts with a verb.
    """
    if (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and 0 < value < job_checks.MONEY_USD_MAX
        and math.isfinite(value)
    ):
        return float(value)
    raise ValueError(f"must be a number of dollars above zero such as 2.50, not {shown(value)}")


def _amount(value: object) -> float:
    written = str(value) if _is_number(value) or isinstance(value, str) else ""
    if re.fullmatch(_AMOUNT, written):
        return float(written.replace("_", ""))
    raise ValueError(f"must be a number above zero such as 20000 or 3e9, not {shown(value)}")


def _least(unit: str, example: str) -> Callable[[object], float]:
    def check(value: object) -> float:
        written = str(value) if _is_number(value) or isinstance(value, str) else ""
        if match := re.fullmatch(rf"({_LEAST}){unit}\+?", written):
            return float(match[1])
        raise ValueError(f"must be a minimum such as {example}, not {shown(value)}")

    return check


def _accelerators(value: object) -> tuple[Accelerator, ...]:
    if isinstance(value, dict) and value:
        return tuple(_accelerator(f"{name}:{count}") for name, count in value.items())
    if isinstance(value, list) and value:
        return tuple(_accelerator(item) for item in value)
    return (_accelerator(value),)


def _accelerator(value: object) -> Accelerator:
    match = re.fullmatch(rf"({_ACCELERATOR})(?::([1-9][0-9]{{0,3}}))?", value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"must be a name and a whole number such as A100:8, not {shown(value)}")
    return Accelerator(match[1], int(match[2] or 1))


def _infra(value: object) -> Infra:
    text = _text(value, f"{provider_list.EXAMPLE}/zone-a")
    if not re.fullmatch(_INFRA, text):
        raise ValueError(f"must be PROVIDER or PROVIDER/ZONE such as {provider_list.EXAMPLE}/zone-a, not {shown(text)}")
    provider, *rest = text.split("/")
    zone = None if not rest or rest[-1] == "*" else rest[-1]
    if provider != "*" and provider not in provider_list.names():
        if provider.lower() in provider_list.names_later():
            raise ValueError(
                f"names the provider {provider}, which is not supported yet; supported: {', '.join(provider_list.names())}"
            )
        raise ValueError(f"names the unknown provider {provider}; {nearest(provider, provider_list.names())}")
    return Infra(None if provider == "*" else provider, zone)


_SAVING = [entry for entry in policy_registry.own(PolicyKind.SAVING) if entry.word]
_INSURE_WORDS = [entry.word for entry in _SAVING]
_INSURE = {word: entry for entry in _SAVING for word in dict.fromkeys((entry.word, entry.name))}
"""Saving policies by the words of a job file; its default one may also be written by its own name."""


def _insure(value: object) -> str:
    written = " ".join(value.split()) if isinstance(value, str) else ""
    entry = _INSURE.get(written)
    if entry is not None:
        return entry.name
    if re.fullmatch(_DURATION, written) or re.fullmatch(_STEPS, written):
        # Policies have no milliseconds and no days, so lengths are passed in seconds.
        length = f"{duration(written):.10g}s" if re.fullmatch(_DURATION, written) else written
        return parse_policy(f"every {length}")
    raise ValueError(
        f"must be {', '.join(_INSURE_WORDS)}, a duration (10m) or a number of steps (200 steps), not {shown(value)}"
    )


def _runtime(value: object) -> RuntimeSpec:
    name, settings = _named(value, "a runtime's name", _RUNTIME_FORM, "the runtime's settings")
    _loaded(PolicyKind.RUNTIME, name)
    spec = RuntimeSpec(name, settings)
    if problem := runtime_list.settings_problem(spec):
        key = problem.key if isinstance(problem, runtime_list.SettingProblem) else None
        raise Below(name, problem, key if key in settings else None)
    return spec


class FleetChoice(NamedTuple):
    """A fleet policy, and its settings."""

    name: str
    settings: Mapping[str, Any]


def _fleet(value: object) -> FleetChoice:
    name, settings = _named(value, "a fleet policy's name", "{bidbrain: {machines_max: 8}}", "the policy's settings")
    _loaded(PolicyKind.FLEET, name)
    if problem := fleet_policy_list.settings_problem(name, settings):
        raise Below(name, problem)
    return FleetChoice(name, settings)


def _named(value: object, what: str, example: str, of: str) -> tuple[str, Mapping[str, Any]]:
    """Return a policy's name and its settings: written as a name, or as a map with the name as its only key."""
    name: Any = value
    settings: Any = {}
    if isinstance(value, dict) and len(value) == 1:
        ((name, settings),) = value.items()
        if not isinstance(settings, dict):
            raise Below(name, f"must be a map of {of}, not {shown(settings)}")
    if not isinstance(name, str) or not name.strip():
        raise ValueError(f"must be {what}, or one name with its settings, {example}, not {shown(value)}")
    return name, settings


def _loaded(kind: PolicyKind, name: str) -> None:
    """Load a policy; a wrong name is compared with those that are installed."""
    known = policy_registry.names(kind)
    if name not in known:
        close = closest(name, known)
        guess = "" if close is None else f"did you mean {close}? "
        raise ValueError(f"names {shown(name)}, which is not installed; {guess}installed: {', '.join(known)}")
    try:
        policy_registry.load(kind, name)
    except Misuse as error:
        extra = policy_registry.find(kind, name).extra
        command = f": {install(extra)}" if extra else ""
        raise ValueError(f"cannot be used: {error}{command}") from error


def _every(value: object) -> str:
    written = " ".join(value.split()) if isinstance(value, str) else ""
    if re.fullmatch(_DURATION, written) or re.fullmatch(_STEPS, written):
        return written
    raise ValueError(f"must be a number of steps (1000 steps) or a duration (1h), not {shown(value)}")


def _store(value: object) -> str:
    text = _text(value, "s3://lab/runs")
    scheme, separator, rest = text.partition("://")
    if _CREDENTIALS.match(text):
        raise ValueError("must not contain credentials: they are read from the environment")
    if separator and scheme not in STORES:
        raise ValueError(f"has the unknown scheme {scheme}://; {nearest(scheme, STORES)}")
    if not text.strip() or (separator and not rest.strip("/")) or (not separator and ":" in text):
        raise ValueError(f"must be a folder or a URL such as s3://lab/runs, not {shown(text)}")
    return text


def _webhook(value: object) -> str:
    text = _text(value, "https://example.org/hook")
    if re.fullmatch(_WEBHOOK, text):
        return text
    # The value is not repeated: the address of a webhook is a secret.
    raise ValueError("must be an https:// or http:// address without a user name or password")


def _name(value: object) -> str:
    text = _text(value, "gpt-small")
    if wrong := job_checks.name_problem(text):
        raise ValueError(f"{wrong}, not {shown(text)}")
    return text


def _words(value: object) -> str:
    text = _text(value, "python train.py")
    if not text.strip():
        raise ValueError("is empty")
    return text


def _names(value: object) -> tuple[str, ...]:
    names = value if isinstance(value, list) else [value]
    if not names:
        raise ValueError("is an empty list; add an item, or remove the key")
    for name in names:
        if not isinstance(name, str) or not name.strip():
            raise ValueError(f"must be a name, or a list of names such as [zone-a, zone-b], not {shown(name)}")
    return tuple(dict.fromkeys(names))


variable_name = job_checks.variable_problem


def _envs(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ValueError(f"must be a map of names and values, not {shown(value)}")
    for name, written in value.items():
        if wrong := variable_name(name):
            raise Below(name, wrong)
        if written is None:
            raise Below(name, f"has no value: set one (--set envs.{name}=...), or list the name under secrets")
        if not isinstance(written, str):
            raise Below(name, f"must be text or a number, not {shown(written)}")
    return dict(value)


def _secrets(value: object) -> tuple[str, ...]:
    named = dict.fromkeys(value) if isinstance(value, list) and all(isinstance(name, str) for name in value) else value
    if not isinstance(named, dict):
        raise ValueError(f"must be a list of names such as [HF_TOKEN], not {shown(value)}")
    for number, (name, written) in enumerate(named.items()):
        below = name if named is value else number
        if wrong := variable_name(name):
            raise Below(below, wrong)
        if written is not None:
            raise Below(below, "has a value; leave it out: `windfall run` takes it from your environment")
    return tuple(named)


def _exit_codes(value: object) -> tuple[int, ...]:
    codes = value if isinstance(value, list) else [value]
    for code in codes:
        if not isinstance(code, int) or isinstance(code, bool) or not 1 <= code <= job_checks.EXIT_CODE_MAX:
            raise ValueError(f"must be exit codes from 1 to 255 such as [42, 43], not {shown(code)}")
    return tuple(codes)


def _policy_names(kind: PolicyKind) -> list[dict[str, Any]]:
    """Describe the names of policies: this package's, which editors complete, and any of another package."""
    own = [entry.word for entry in policy_registry.own(kind)]
    return [{"enum": own}, _pattern(r"[A-Za-z0-9][A-Za-z0-9._-]*")]


_RUNTIME_FORM = "for example {NAME: {key: value}}"
_POSITIVE: dict[str, Any] = {"type": "number", "exclusiveMinimum": 0}
_NAMED: dict[str, Any] = {"pattern": f"^(?!WINDFALL_){_VARIABLE}$"}
_ONE_ACCELERATOR = _pattern(rf"{_ACCELERATOR}(:[1-9][0-9]{{0,3}})?")
_CODE: dict[str, Any] = {"type": "integer", "minimum": 1, "maximum": 255}
_COUNTS: dict[str, Any] = {
    "type": "object",
    "minProperties": 1,
    "propertyNames": _pattern(_ACCELERATOR),
    "additionalProperties": {"type": "integer", "minimum": 1, "maximum": 9999},
}

Duration = Annotated[float, *_kind(duration, _pattern(_DURATION))]
"""A length of time above zero [s]: `90m`, `1h30m`."""
Deadline = Annotated[DeadlineWords, *_kind(deadline, _pattern(deadline_words.PATTERN))]
"""By when: a length of time, or a time of day on some day."""
Loss = Annotated[float, *_kind(loss, {"anyOf": [_POSITIVE, _pattern(_LOSS)]})]
"""A training loss above zero [1]; also `5e-2`, which YAML 1.1 reads as text."""
Money = Annotated[float, *_kind(money, {**_POSITIVE, "exclusiveMaximum": 1e12})]
"""Dollars above zero [USD]."""
Amount = Annotated[float, *_kind(_amount, {"anyOf": [_POSITIVE, _pattern(_AMOUNT)]})]
"""A number above zero; also `3e9`, which YAML 1.1 reads as text."""
Cpus = Annotated[float, *_kind(_least("", "4+ or 4"), {"anyOf": [_POSITIVE, _pattern(rf"{_LEAST}\+?")]})]
"""The least number of processors."""
Memory = Annotated[
    float,
    *_kind(_least(_MEMORY_UNIT, "16+ or 16GB"), {"anyOf": [_POSITIVE, _pattern(rf"{_LEAST}{_MEMORY_UNIT}\+?")]}),
]
"""The least amount of memory [GiB]."""
Accelerators = Annotated[
    tuple[Accelerator, ...],
    *_kind(
        _accelerators,
        {"anyOf": [_ONE_ACCELERATOR, {"type": "array", "minItems": 1, "items": _ONE_ACCELERATOR}, _COUNTS]},
    ),
]
"""One kind of accelerator, or several alternatives."""
Where = Annotated[Infra, *_kind(_infra, _pattern(rf"(\*|{'|'.join(provider_list.names())})(/[A-Za-z0-9*._-]+){{0,2}}"))]
"""Where to order machines."""
Insure = Annotated[str, *_kind(_insure, _pattern(*_INSURE, _DURATION, _STEPS))]
"""When to make insurance saves, as `policies.checkpointing` names it."""


def _named_schema(kind: PolicyKind) -> dict[str, Any]:
    """Return the schema of a policy's name, or a map from it to its settings."""
    names = {"anyOf": _policy_names(kind)}
    settings = {"additionalProperties": {"type": "object"}}
    return {
        "anyOf": [
            *_policy_names(kind),
            {"type": "object", "minProperties": 1, "maxProperties": 1, "propertyNames": names, **settings},
        ]
    }


Runtime = Annotated[RuntimeSpec, *_kind(_runtime, _named_schema(PolicyKind.RUNTIME))]
"""A runtime, and its settings."""
Fleet = Annotated[FleetChoice, *_kind(_fleet, _named_schema(PolicyKind.FLEET))]
"""A fleet policy, and its settings."""
Every = Annotated[str, *_kind(_every, _pattern(_DURATION, _STEPS))]
"""An interval in steps or time."""
_STORE = rf"(?![a-z0-9+]+://[^/@]*@)(({'|'.join(STORES)})://.*[^/].*|(?=.*[^ ])[^:]+)"
Store = Annotated[str, *_kind(_store, _pattern(_STORE))]
"""Where a run is stored."""
Webhook = Annotated[str, *_kind(_webhook, _pattern(_WEBHOOK))]
"""A web address that accepts JSON."""
Name = Annotated[str, *_kind(_name, {**_pattern(_NAME), "maxLength": job_checks.NAME_CHARACTERS_MAX})]
"""A job's name."""
_WORDS: dict[str, Any] = {"type": "string", "pattern": "[^ \\t\\n]"}
Words = Annotated[str, *_kind(_words, _WORDS)]
"""Text that is not empty."""
Names = Annotated[
    tuple[str, ...], *_kind(_names, {"anyOf": [_WORDS, {"type": "array", "minItems": 1, "items": _WORDS}]})
]
"""A name, or several."""
Envs = Annotated[
    dict[str, str],
    *_kind(
        _envs,
        {"type": "object", "propertyNames": _NAMED, "additionalProperties": {"type": ["string", "number", "boolean"]}},
    ),
]
"""Environment variables."""
Secrets = Annotated[
    tuple[str, ...],
    *_kind(
        _secrets,
        {
            "anyOf": [
                {"type": "array", "items": {"type": "string", **_NAMED}},
                {"type": "object", "propertyNames": _NAMED, "additionalProperties": {"type": "null"}},
            ]
        },
    ),
]
"""Names of secrets."""
ExitCodes = Annotated[tuple[int, ...], *_kind(_exit_codes, {"anyOf": [_CODE, {"type": "array", "items": _CODE}]})]
"""Exit codes of a process that failed."""
