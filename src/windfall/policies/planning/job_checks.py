"""Checks of a job's values: the same for a job file and for a job submitted through the API.

`spec` takes its bounds and patterns from here and adds the position in the file.  The functions `*_problem` return what
is wrong with a value, None if it is valid; none of them repeats a value that may be a secret.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from windfall.errors import Misuse
from windfall.jobs import Checkpointing, Injection, Job, Resources
from windfall.policies.acquisition import fleet_policy_list
from windfall.policies.checkpointing.decision import parse_policy
from windfall.policies.layout import runtime_list
from windfall.terms import RunOptions

STORES = ("file", "s3", "gs", "az")
"""Schemes of the stores a run can live in."""
DURATION_S_MAX = 1e9
"""The longest duration [s], about 30 years; a longer one is a typing error."""
LEASE_S_MIN = 1.0
MONEY_USD_MAX = 1e12
NODES_MAX = 10_000
KEEP_MAX = 1_000_000
RESTARTS_MAX = 1000
EXIT_CODE_MAX = 255
ACCELERATORS_MAX = 9999
NAME_CHARACTERS_MAX = 60
_ID_CHARACTERS_MAX = 120
_SEED_MAX = 10**18
_RESOURCE_MAX = 1e9
"""The largest request, in processors or in GiB of memory."""
_TEXT_CHARACTERS_MAX = 1000

NAME = r"[A-Za-z0-9]+([._-]{1,2}[A-Za-z0-9]+)*"
VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
WEBHOOK = r"https?://[^\s/@]+(/[^\s]*)?"
_DIGEST = r"[A-Za-z0-9]+([:-][A-Za-z0-9]+)*"
_CREDENTIALS = re.compile(r"^[a-z0-9+]+://[^/@]*@")
_RESERVED_PREFIX = "WINDFALL_"

Problems = Iterator[tuple[str, str]]
"""Fields (dotted paths) and what is wrong with each."""


def check(job: Job) -> None:
    """Refuse a job that no job file could describe.

    Raises:
        Misuse: with the first invalid field.
    """
    for path, problem in problems(job):
        raise Misuse(f"{path} {problem}")


def problems(job: Job) -> Problems:
    """Yield each invalid field of a job with what is wrong."""
    yield from _names(job)
    yield from _script(job)
    yield from _numbers(job)
    for number, resources in enumerate(job.resources):
        yield from _resources(f"resources[{number}]", resources)
    for name in ("zones_excluded", "machine_types_excluded"):
        if not all(_is_name(text) for text in getattr(job.limits, name)):
            yield f"limits.{name}", "must be names without control characters"
    if not job.resources:
        yield "resources", "must list at least one kind of machine"
    yield from _options(job.options)
    yield from _checkpointing(job.checkpointing)
    yield from _policies(job)
    if job.injection is not None:
        yield from _injection(job.injection)
    if job.notify.webhook is not None and not re.fullmatch(WEBHOOK, job.notify.webhook):
        yield (
            "notify.webhook",
            "must be a URL that starts with https:// or http:// and contains no user name or password",
        )


def _names(job: Job) -> Problems:
    if problem := name_problem(job.name):
        yield "name", problem
    if problem := id_problem(job.job_id):
        yield "job_id", problem
    if not job.run_url or len(job.run_url) > _TEXT_CHARACTERS_MAX or not job.run_url.isprintable():
        yield "run_url", "must be a URL without control characters"
    elif problem := store_problem(job.run_url):
        yield "run_url", problem
    if job.code is not None and not re.fullmatch(_DIGEST, job.code):
        yield "code", "must be a digest"
    if job.bundle is not None:
        if not re.fullmatch(_DIGEST, job.bundle.digest) or job.bundle.size_bytes < 0:
            yield "bundle", "must have a digest and a size"
        if is_bad_key(job.bundle.key):
            yield "bundle.key", "must be a relative key inside the run"


def _script(job: Job) -> Problems:
    if not job.command or not all(_is_text(word) for word in job.command):
        yield "command", "must not be empty or contain a NUL character"
    for path, text in (("setup", job.setup), ("notify.command", job.notify.command)):
        if text is not None and not _is_text(text):
            yield path, "must not contain a NUL character"
    names = [*(name for name, _ in job.envs), *(secret.name for secret in job.secrets)]
    for name in names:
        if problem := variable_problem(name):
            yield "envs or secrets", f"contain a name that {problem}"
    if len(set(names)) < len(names):
        yield "envs and secrets", "set the same variable twice"
    if not all(_is_text(value) for _, value in job.envs):
        yield "envs", "must not contain a NUL character"


def _numbers(job: Job) -> Problems:
    work, goal = job.work, job.objective
    for path, value, limit in (
        ("max_price_usd_per_hour", job.max_price_usd_per_hour, MONEY_USD_MAX),
        ("objective.budget_usd", goal.budget_usd, MONEY_USD_MAX),
        ("objective.deadline_s", goal.deadline_s, DURATION_S_MAX),
        ("objective.loss", goal.loss, math.inf),
        ("max_duration_s", job.max_duration_s, DURATION_S_MAX),
        ("dead_man_s", job.dead_man_s, DURATION_S_MAX),
        ("options.mttp_s", job.options.mttp_s, DURATION_S_MAX),
        ("checkpointing.save_timeout_s", job.checkpointing.save_timeout_s, DURATION_S_MAX),
        ("work.amount", None if work is None else work.amount, math.inf),
    ):
        if value is not None and not 0 < value <= limit:
            yield path, "must be a number above zero" + (f", at most {limit:g}" if limit < math.inf else "")
    for path, count, least, most in (
        ("nodes", job.nodes, 1, NODES_MAX),
        ("options.failures_max", job.options.failures_max, 1, RESTARTS_MAX + 1),
        ("recovery.unproductive_machines_max", job.recovery.unproductive_machines_max, 1, RESTARTS_MAX),
        ("options.keep", job.options.keep, 1, KEEP_MAX),
        ("limits.pool_machines_max", job.limits.pool_machines_max, 1, NODES_MAX),
        *(("options.retry_codes", code, 1, EXIT_CODE_MAX) for code in job.options.retry_codes),
    ):
        if count is not None and not least <= count <= most:
            yield path, f"must be a whole number from {least} to {most}"


def _resources(path: str, resources: Resources) -> Problems:
    for name in ("provider", "zone", "machine_type", "accelerator"):
        text = getattr(resources, name)
        if text is not None and not _is_name(text):
            yield f"{path}.{name}", "must be a name without control characters"
    if not 0 <= resources.accelerators <= ACCELERATORS_MAX:
        yield f"{path}.accelerators", f"must be a whole number from 0 to {ACCELERATORS_MAX}"
    if not (0 <= resources.cpus_min <= _RESOURCE_MAX and 0 <= resources.memory_gib_min <= _RESOURCE_MAX):
        yield path, f"must request from 0 to {_RESOURCE_MAX:g} processors and GiB of memory"


def _options(options: RunOptions) -> Problems:
    if not LEASE_S_MIN <= options.lease_s <= DURATION_S_MAX:
        yield "options.lease_s", f"must be at least {LEASE_S_MIN:g} s, because a store needs time to answer"
    if options.grace_s is not None and not 0 <= options.grace_s <= DURATION_S_MAX:
        yield "options.grace_s", f"must be a number from 0 to {DURATION_S_MAX:g}"
    try:
        parse_policy(options.policy)
    except Misuse:
        yield "options.policy", "must be a saving policy such as adaptive"


def _checkpointing(checkpointing: Checkpointing) -> Problems:
    for name, text in (("store", checkpointing.store), ("source", checkpointing.source)):
        if text is not None and (problem := store_problem(text)):
            yield f"checkpointing.{name}", problem
    if checkpointing.keep_every is not None and not checkpointing.keep_every.isprintable():
        yield "checkpointing.keep_every", "must not contain control characters"


def _policies(job: Job) -> Problems:
    try:
        problem = runtime_list.settings_problem(job.runtime)
    except Misuse as error:
        yield "runtime", f"cannot be used: {error}"
    else:
        if problem:
            yield f"runtime.{job.runtime.name}", problem
        if job.objective.loss is not None and (problem := runtime_list.loss_problem(job.runtime.name)):
            yield "objective.loss", problem
    try:
        problem = fleet_policy_list.job_problem(job)
    except Misuse as error:
        yield "fleet", f"cannot be used: {error}"
    else:
        if problem:
            yield f"fleet.{job.fleet}", problem


def _injection(injection: Injection) -> Problems:
    durations = (*injection.mttp_s, *(() if injection.notice_s is None else (injection.notice_s,)))
    if not injection.mttp_s or not all(0 < duration_s <= DURATION_S_MAX for duration_s in durations):
        yield "injection", f"must have durations above 0 s, at most {DURATION_S_MAX:g} s"
    if not 0 <= injection.seed < _SEED_MAX:
        yield "injection.seed", "must be a whole number of at most 18 digits"


def id_problem(text: str) -> str | None:
    """Return what is wrong with a job's id; None if it is valid."""
    if re.fullmatch(NAME, text) and len(text) <= _ID_CHARACTERS_MAX:
        return None
    return f"must be at most {_ID_CHARACTERS_MAX} letters and digits, with . _ - between them"


def name_problem(text: str) -> str | None:
    """Return what is wrong with a job's name; None if it is valid."""
    if re.fullmatch(NAME, text) and len(text) <= NAME_CHARACTERS_MAX:
        return None
    return f"must be at most {NAME_CHARACTERS_MAX} letters and digits, with . _ - between them"


def variable_problem(name: str) -> str | None:
    """Return what is wrong with an environment variable's name; None if it is valid."""
    if not re.fullmatch(VARIABLE, name):
        return "is not a valid variable name; use letters, digits and _"
    if name.startswith(_RESERVED_PREFIX):
        return f"starts with {_RESERVED_PREFIX}, which is reserved for Windfall's own variables"
    return None


def store_problem(text: str) -> str | None:
    """Return what is wrong with the URL or folder of a store; None if it is valid."""
    scheme, separator, rest = text.partition("://")
    if _CREDENTIALS.match(text):
        return "contains credentials; leave them out, Windfall reads them from the environment"
    if separator and scheme not in STORES:
        return f"must start with one of {', '.join(f'{name}://' for name in STORES)}"
    if not text.strip() or not _is_text(text) or (separator and not rest.strip("/")) or (not separator and ":" in text):
        return "must be a folder or a URL such as s3://lab/runs"
    return None


def is_bad_key(key: str) -> bool:
    """Return whether an object's key is invalid or points outside its run."""
    return (
        not key
        or not key.isprintable()
        or key.startswith("/")
        or ".." in key.split("/")
        or len(key) > _TEXT_CHARACTERS_MAX
    )


def _is_name(text: str) -> bool:
    return bool(text.strip()) and text.isprintable() and len(text) <= _TEXT_CHARACTERS_MAX


def _is_text(text: str) -> bool:
    return "\0" not in text
