"""What a job may say: the checks of the job file, on the job itself, so that the controller's door repeats the very same.

`spec` takes its bounds and patterns from here, and says in addition where in the file something stands.  The functions
`wrong_*` return what is wrong with a value, None if nothing is; none of them repeats a value that may be a secret.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from windfall.errors import Misuse
from windfall.jobs import Checkpointing, Injection, Job, Want
from windfall.policies.saving.decide import parse_policy

STORES = ("file", "s3", "gs", "az")
"""Schemes of the stores a run can live in."""
DURATION_S_MAX = 1e9
"""The longest duration [s], about 30 years: more is a slip of the pen."""
MONEY_USD_MAX = 1e12
NODES_MAX = 10_000
KEEP_MAX = 1_000_000
RESTARTS_MAX = 1000
EXIT_CODE_MAX = 255
ACCELERATORS_MAX = 9999
NAME_CHARACTERS_MAX = 60
_ID_CHARACTERS_MAX = 120
_SEED_MAX = 10**18
_WISH_MAX = 1e9
"""Of processors and of GiB of memory."""
_PLACE_CHARACTERS_MAX = 1000

NAME = r"[A-Za-z0-9]+([._-]{1,2}[A-Za-z0-9]+)*"
VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
WEBHOOK = r"https?://[^\s/@]+(/[^\s]*)?"
_DIGEST = r"[A-Za-z0-9]+([:-][A-Za-z0-9]+)*"
_CREDENTIALS = re.compile(r"^[a-z0-9+]+://[^/@]*@")
_OURS = "WINDFALL_"

Wrongs = Iterator[tuple[str, str]]
"""Places (dotted, as the word has them) and what is wrong there."""


def check(job: Job) -> None:
    """Refuse a job that no job file could have described.

    Raises:
        Misuse: with the first place that is wrong.
    """
    for place, wrong in wrongs(job):
        raise Misuse(f"{place} {wrong}")


def wrongs(job: Job) -> Wrongs:
    """Yield everything that is wrong with a job."""
    yield from _named(job)
    yield from _run(job)
    yield from _numbers(job)
    for number, want in enumerate(job.wants):
        yield from _want(f"wants[{number}]", want)
    if not job.wants:
        yield "wants", "is empty: no machine would do"
    yield from _checkpointing(job.checkpointing)
    if job.injection is not None:
        yield from _injection(job.injection)
    if job.notify.webhook is not None and not re.fullmatch(WEBHOOK, job.notify.webhook):
        yield (
            "notify.webhook",
            "must be an address that begins with https:// or http://, without a name or password in it",
        )


def _named(job: Job) -> Wrongs:
    if wrong := wrong_name(job.name):
        yield "name", wrong
    if wrong := wrong_id(job.job_id):
        yield "job_id", wrong
    if not job.run_url or len(job.run_url) > _PLACE_CHARACTERS_MAX or not job.run_url.isprintable():
        yield "run_url", "must be a URL without control characters"
    elif wrong := wrong_store(job.run_url):
        yield "run_url", wrong
    if job.code is not None and not re.fullmatch(_DIGEST, job.code):
        yield "code", "is no digest"
    if job.bundle is not None:
        if not re.fullmatch(_DIGEST, job.bundle.digest) or job.bundle.size_bytes < 0:
            yield "bundle", "has no digest and size"
        if wrong_key(job.bundle.key):
            yield "bundle.key", "is no place inside the run"


def _run(job: Job) -> Wrongs:
    if not job.command or not all(_is_text(word) for word in job.command):
        yield "command", "is empty, or holds a NUL character"
    for place, text in (("setup", job.setup), ("notify.command", job.notify.command)):
        if text is not None and not _is_text(text):
            yield place, "holds a NUL character"
    names = [*(name for name, _ in job.envs), *(secret.name for secret in job.secrets)]
    for name in names:
        if wrong := wrong_variable(name):
            yield "envs or secrets", f"hold a name that {wrong}"
    if len(set(names)) < len(names):
        yield "envs and secrets", "name a variable twice"
    if not all(_is_text(value) for _, value in job.envs):
        yield "envs", "hold a NUL character"


def _numbers(job: Job) -> Wrongs:
    work, goal = job.work, job.objective
    for place, value, limit in (
        ("max_price_usd_per_hour", job.max_price_usd_per_hour, MONEY_USD_MAX),
        ("objective.budget_usd", goal.budget_usd, MONEY_USD_MAX),
        ("objective.deadline_s", goal.deadline_s, DURATION_S_MAX),
        ("max_duration_s", job.max_duration_s, DURATION_S_MAX),
        ("dead_man_s", job.dead_man_s, DURATION_S_MAX),
        ("checkpointing.save_timeout_s", job.checkpointing.save_timeout_s, DURATION_S_MAX),
        ("work.amount", None if work is None else work.amount, math.inf),
    ):
        if value is not None and not 0 < value <= limit:
            yield place, "must be a number above zero" + (f", at most {limit:g}" if limit < math.inf else "")
    for place, count, least, most in (
        ("nodes", job.nodes, 1, NODES_MAX),
        ("recovery.failures_max", job.recovery.failures_max, 1, RESTARTS_MAX + 1),
        ("recovery.barren_max", job.recovery.barren_max, 1, RESTARTS_MAX),
        ("checkpointing.keep", job.checkpointing.keep, 1, KEEP_MAX),
        *(("recovery.retry_codes", code, 1, EXIT_CODE_MAX) for code in job.recovery.retry_codes),
    ):
        if count is not None and not least <= count <= most:
            yield place, f"must be a whole number from {least} to {most}"


def _want(place: str, want: Want) -> Wrongs:
    for name in ("provider", "zone", "machine_type", "accelerator"):
        text = getattr(want, name)
        if text is not None and (not text.strip() or not text.isprintable() or len(text) > _PLACE_CHARACTERS_MAX):
            yield f"{place}.{name}", "must be a name without control characters"
    if not 0 <= want.accelerators <= ACCELERATORS_MAX:
        yield f"{place}.accelerators", f"must be a whole number from 0 to {ACCELERATORS_MAX}"
    if not (0 <= want.cpus_min <= _WISH_MAX and 0 <= want.memory_gib_min <= _WISH_MAX):
        yield place, "wishes for less than nothing, or for more than there is"


def _checkpointing(said: Checkpointing) -> Wrongs:
    try:
        parse_policy(said.policy)
    except Misuse:
        yield "checkpointing.policy", "is no saving policy"
    for place, text in (("store", said.store), ("source", said.source)):
        if text is not None and (wrong := wrong_store(text)):
            yield f"checkpointing.{place}", wrong
    if said.keep_every is not None and not said.keep_every.isprintable():
        yield "checkpointing.keep_every", "holds control characters"


def _injection(said: Injection) -> Wrongs:
    lengths = (*said.mttp_s, *(() if said.notice_s is None else (said.notice_s,)))
    if not said.mttp_s or not all(0 < length_s <= DURATION_S_MAX for length_s in lengths):
        yield "injection", "needs times above zero"
    if not 0 <= said.seed < _SEED_MAX:
        yield "injection.seed", "must be a whole number of at most 18 digits"


def wrong_id(text: str) -> str | None:
    """Say what is wrong with a job's id."""
    if re.fullmatch(NAME, text) and len(text) <= _ID_CHARACTERS_MAX:
        return None
    return f"must be at most {_ID_CHARACTERS_MAX} letters and digits, with . _ - between them"


def wrong_name(text: str) -> str | None:
    """Say what is wrong with a job's name."""
    if re.fullmatch(NAME, text) and len(text) <= NAME_CHARACTERS_MAX:
        return None
    return f"must be at most {NAME_CHARACTERS_MAX} letters and digits, with . _ - between them"


def wrong_variable(name: str) -> str | None:
    """Say what is wrong with a name for an environment variable."""
    if not re.fullmatch(VARIABLE, name):
        return "is no name for a variable; use letters, digits and _"
    if name.startswith(_OURS):
        return f"begins with {_OURS}, which is for Windfall's own variables"
    return None


def wrong_store(text: str) -> str | None:
    """Say what is wrong with the place of a store."""
    scheme, separator, rest = text.partition("://")
    if _CREDENTIALS.match(text):
        return "holds credentials; leave them out, they are read from the environment"
    if separator and scheme not in STORES:
        return f"must begin with one of {', '.join(f'{name}://' for name in STORES)}"
    if not text.strip() or not _is_text(text) or (separator and not rest.strip("/")) or (not separator and ":" in text):
        return "must be a folder or a URL such as s3://lab/runs"
    return None


def wrong_key(key: str) -> bool:
    """Say whether a key of an object leads out of its run."""
    return (
        not key
        or not key.isprintable()
        or key.startswith("/")
        or ".." in key.split("/")
        or len(key) > _PLACE_CHARACTERS_MAX
    )


def _is_text(text: str) -> bool:
    return "\0" not in text
