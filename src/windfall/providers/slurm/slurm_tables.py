"""Reads what `squeue`, `sacct`, `sinfo` and `scontrol` print, in columns chosen here: pure, and strict about what is ours."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from types import MappingProxyType
from urllib.parse import quote, unquote

from windfall.errors import ProviderUnreachable
from windfall.market import Order
from windfall.structs import Struct
from windfall.terms import Reliability, WallTime

SEPARATOR = "\x1f"
"""Between columns: no name of a job contains it."""
QUEUE_COLUMNS = (
    "ArrayJobID", "ArrayTaskID", "Name", "State", "Reason", "SubmitTime", "StartTime", "EndTime", "PreemptTime", "TimeLimit",
    "NodeList", "Partition", "RestartCnt", "Comment",
)  # fmt: skip
_SHOWN = ",".join(f"{one}:{SEPARATOR}" for one in QUEUE_COLUMNS)
QUEUE = ("squeue", "--me", "--array", "--states=all", "--noheader", "-O", _SHOWN)
"""All jobs of this user in one call, also those that ended within the site's MinJobAge (300 s by default)."""
ACCOUNT_COLUMNS = ("JobID", "JobName", "State", "Start", "End", "NNodes")
ACCOUNTS = ("sacct", "-D", "-X", "-P", "--noheader", f"--format={','.join(ACCOUNT_COLUMNS)}")
"""Every stretch of a job, also of one whose number was used again."""
TAG = "windfall"
_NO_LIMIT = frozenset({"UNLIMITED", "NOT_SET", "365-00:00:00", "Partition_Limit", "N/A", ""})
"""Slurm plans a job without limit for a year."""


class OrderTag(Struct, frozen=True):
    """What a job's comment says of its order.

    Attributes:
        gang: how many machines the job is, which end together; 0 for one by itself.  The queue's number of nodes falls while
            a job completes.
    """

    owner: str
    job_id: str
    machine_type: str
    reliability: Reliability
    price_usd_per_hour: float
    gang: int


class JobRow(Struct, frozen=True):
    """A job, or one task of an array, in the queue.

    Attributes:
        number: of the job that was submitted; of an array, that of the whole.
        task: index in an array; None for a job of its own.
        started, ended: None if that is not known; `ended` of a running job is when it will end.
        preempted_at: when its preemption began; None if it did not.
        limit_s: its time limit [s]; infinite for none.
        placed: whether nodes were given to it.
    """

    number: int
    task: int | None
    name: str
    state: str
    reason: str
    submitted: WallTime | None
    started: WallTime | None
    ended: WallTime | None
    preempted_at: WallTime | None
    limit_s: float
    placed: bool
    partition: str
    restarts: int
    tag: OrderTag | None


class AccountRow(Struct, frozen=True):
    """One stretch of a job by the accounts.

    Attributes:
        job: as `squeue` names it: `12`, `12_3`.
        state: without the `by UID` of a cancellation.
    """

    job: str
    name: str
    state: str
    started: WallTime | None
    ended: WallTime | None


def order_tag(order: Order) -> str:
    """Return the comment of an order's job: what a listing must know of it, without spaces."""
    offer = order.offer
    words = (
        order.owner, order.job_id, offer.machine_type, offer.reliability.value, f"{offer.price_usd_per_hour:.10g}",
        str(order.count_max if order.gang else 0),
    )  # fmt: skip
    return "/".join((TAG, *(quote(word, safe="") for word in words)))


def _tag(comment: str) -> OrderTag | None:
    words = [unquote(word) for word in comment.strip().split("/")]
    if words[0] != TAG or len(words) != 7:
        return None
    try:
        return OrderTag(words[1], words[2], words[3], Reliability(words[4]), float(words[5]), int(words[6]))
    except ValueError:
        return None


def read_queue(text: str) -> tuple[JobRow, ...]:
    """Return Windfall's jobs among the user's, oldest first.

    Raises:
        ProviderUnreachable: one of these rows cannot be read: a part of a listing is not the listing.
    """
    rows = [row for line in text.splitlines() if (row := _job_row(line)) is not None]
    return tuple(sorted(rows, key=lambda row: (row.number, row.task or 0)))


def _job_row(line: str) -> JobRow | None:
    cells = line.split(SEPARATOR)
    if len(cells) != len(QUEUE_COLUMNS) + 1:
        # Of another tool's job with a line break in its name; ours have none.
        if f"{TAG}/" in line:
            raise ProviderUnreachable("squeue printed half a row of a job of Windfall")
        return None
    values = dict(zip(QUEUE_COLUMNS, (cell.strip() for cell in cells), strict=False))
    tag = _tag(values["Comment"])
    if tag is None:
        return None
    try:
        return JobRow(
            number=int(values["ArrayJobID"]),
            task=int(values["ArrayTaskID"]) if values["ArrayTaskID"].isdigit() else None,
            name=values["Name"],
            state=values["State"].split()[0],
            reason=values["Reason"],
            submitted=_moment(values["SubmitTime"]),
            started=_moment(values["StartTime"]),
            ended=_moment(values["EndTime"]),
            preempted_at=_moment(values["PreemptTime"]),
            limit_s=read_duration_s(values["TimeLimit"]),
            placed=values["NodeList"] not in {"", "(null)", "None assigned"},
            partition=values["Partition"],
            restarts=int(values["RestartCnt"] or 0),
            tag=tag,
        )
    except (ValueError, IndexError) as error:
        raise ProviderUnreachable(f"squeue printed a row that cannot be read ({error})") from error


def _moment(text: str) -> WallTime | None:
    return WallTime(float(text)) if re.fullmatch(r"[0-9]+", text) else None


def read_accounts(text: str) -> tuple[AccountRow, ...]:
    """Return what `sacct -P -X -D --noheader` printed in `ACCOUNT_COLUMNS`; a row that the database half knows is left out."""
    rows = []
    for line in text.splitlines():
        cells = line.split("|")
        if len(cells) != len(ACCOUNT_COLUMNS) or cells[1] == "allocation":
            continue
        state = cells[2].split()[0] if cells[2] else ""
        rows.append(AccountRow(cells[0], cells[1], state, _moment(cells[3]), _moment(cells[4])))
    return tuple(rows)


def read_pairs(line: str) -> Mapping[str, str]:
    """Return one line of `scontrol -o show ...` as names and values; a value without a name belongs to the one before it."""
    found: dict[str, str] = {}
    name = ""
    for word in line.split():
        before, equals, after = word.partition("=")
        if equals and re.fullmatch(r"[A-Za-z/:]+", before):
            name = before
            found[name] = after
        elif name:
            found[name] += f" {word}"
    return MappingProxyType(found)


def read_config(text: str) -> Mapping[str, str]:
    """Return `scontrol show config` as names and values."""
    rows = (line.split(" = ", 1) for line in text.splitlines() if " = " in line)
    return MappingProxyType({name.strip(): value.strip() for name, value in rows})


def read_duration_s(text: str) -> float:
    """Return a length of time as Slurm prints it: `30 sec`, `10`, `10:00`, `1-00:00:00`; infinite for no limit [s].

    Raises:
        ValueError: it is none.
    """
    if text.strip() in _NO_LIMIT | {"INFINITE", "NONE"}:
        return math.inf
    if match := re.fullmatch(r"([0-9]+) (sec|min)", text.strip()):
        return float(match[1]) * (60.0 if match[2] == "min" else 1.0)
    days, _, clock = text.strip().rpartition("-")
    parts = [float(part) for part in clock.split(":")]
    if len(parts) > 3:
        raise ValueError(f"{text!r} is not a length of time")
    if days:
        hours, minutes, seconds = (*parts, 0.0, 0.0)[:3]
    elif len(parts) == 1:
        hours, minutes, seconds = 0.0, 0.0, parts[0]
    else:
        hours, minutes, seconds = (0.0, 0.0, *parts)[-3:]
    return float(days or 0) * 86400.0 + hours * 3600.0 + minutes * 60.0 + seconds
