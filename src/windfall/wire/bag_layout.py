"""Keys of all objects of a bag, relative to the URL of its run, and their documents.

items/rows/<digest>/00000000 ...        the rows of the parameter space, a list of lists each; written before the job
items/log/00000001 ...                  the create-only sequence of the dispatcher's records
items/state/00000256 ...                what the records up to this number come to; may be missing, the log says the same
items/runners/<runner>/report.json      a runner's newest report
items/runners/<runner>/grant.json       the dispatcher's newest grant to it
items/requests/<nonce>                  a user's request to run the failed items again; the record that takes it in names it
items/added/00000001 ...                of a bag that grows: the create-only sequence of what its client asks for
items/gangs/<allocation>                where machine 0 of an allocation of several nodes listens
items/client.json                       its client's heartbeat: other content each time
items/functions/<digest>                a function that items call, pickled
items/calls/00000001 ...                arguments of calls, pickled, one after the other
items/output/<runner>/00000001 ...      what items printed, one after the other
bags/<name>/<fingerprint>-<code>/<job>  beside the runs: a bag that was submitted, for later runs of the same bag
items/files/<runner>/<item>-<number>/.. files that are kept of an item; they count if the item's record names them
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from windfall import codec
from windfall.bags import (
    VERSION,
    AddedItems,
    Bag,
    ItemGrant,
    ItemRecord,
    RetryRequest,
    RunnerReport,
    TableState,
    Value,
)
from windfall.terms import WallTime
from windfall.wire.run_layout import ITEMS

RUNNERS = "items/runners/"
STATES = "items/state/"
CLIENT = "items/client.json"
SUBMITTED = "bags/"
"""Beside the runs."""
REQUESTS = "items/requests/"
_REPORT, _GRANT = "report.json", "grant.json"


def rows_key(digest: str, part: int) -> str:
    """Return the key of a part of the rows."""
    return f"items/rows/{digest}/{part:08d}"


def item_record_key(number: int) -> str:
    """Return the key of the dispatcher's record `number` (from 1)."""
    return f"items/log/{number:08d}"


def state_key(number: int) -> str:
    """Return the key of the state after record `number`."""
    return f"{STATES}{number:08d}"


def runner_report_key(runner: str) -> str:
    """Return the key of a runner's report."""
    return f"{RUNNERS}{runner}/{_REPORT}"


def grant_key(runner: str) -> str:
    """Return the key of the grant to a runner."""
    return f"{RUNNERS}{runner}/{_GRANT}"


def runners_in(keys: Sequence[str]) -> list[str]:
    """Return the runners that have written a report, from the keys under `RUNNERS`."""
    return [key[len(RUNNERS) : -len(_REPORT) - 1] for key in keys if key.endswith(f"/{_REPORT}")]


def gang_key(allocation: str) -> str:
    """Return the key of where machine 0 of an allocation listens."""
    return f"{ITEMS}gangs/{allocation}"


def retry_request_key(nonce: str) -> str:
    """Return the key of a request to run the failed items again."""
    return f"{REQUESTS}{nonce}"


def requests_in(keys: Sequence[str]) -> list[str]:
    """Return the requests, from the keys under `REQUESTS`."""
    return [key.removeprefix(REQUESTS) for key in keys]


def added_items_key(number: int) -> str:
    """Return the key of the `number`-th object (from 1) with what the client of a bag asks for."""
    return f"items/added/{number:08d}"


def function_key(digest: str) -> str:
    """Return the key of a pickled function."""
    return f"items/functions/{digest}"


def calls_key(number: int) -> str:
    """Return the key of the `number`-th object (from 1) with arguments of calls."""
    return f"items/calls/{number:08d}"


def item_output_key(runner: str, segment: int) -> str:
    """Return the key of a segment (from 1) of what a runner's items printed."""
    return f"items/output/{runner}/{segment:08d}"


def item_file_key(runner: str, item: int, number: int, place: int) -> str:
    """Return the key of a file that is kept of an item: the `place`-th one of this lease."""
    return f"items/files/{runner}/{item}-{number}/{place:04d}"


def submitted_prefix(name: str, fingerprint: str) -> str:
    """Return the start of the keys, beside the runs, of bags of a fingerprint; the code's digest and the run follow."""
    return f"{SUBMITTED}{name}/{fingerprint}-"


def submitted_to_bytes(bag: Bag, at: WallTime) -> bytes:
    """Write that a bag was submitted."""
    return codec.encode_document(VERSION, "submitted", [codec.encode(bag), at])


def submitted_from_bytes(data: bytes) -> tuple[Bag, WallTime]:
    """Read a bag that was submitted, and when; raises as `codec.decode_document`."""
    found: tuple[Bag, WallTime] = codec.decode_document(
        data, "submitted", tuple[Bag, WallTime], version=VERSION, what="a bag that was submitted"
    )
    return found


def rows_to_bytes(rows: Sequence[Sequence[Value]]) -> bytes:
    """Write a part of the rows."""
    return codec.encode_document(VERSION, "rows", [list(row) for row in rows])


def rows_from_bytes(data: bytes) -> tuple[tuple[Value, ...], ...]:
    """Read a part of the rows; raises as `codec.decode_document`."""
    rows: tuple[tuple[Value, ...], ...] = codec.decode_document(
        data, "rows", tuple[tuple[Value, ...], ...], version=VERSION, what="the rows of the bag"
    )
    return rows


def record_to_bytes(record: ItemRecord) -> bytes:
    """Write a record of the dispatcher."""
    return codec.encode_document(VERSION, "record", record)


def record_from_bytes(data: bytes) -> ItemRecord:
    """Read a record of the dispatcher; raises as `codec.decode_document`."""
    record: ItemRecord = codec.decode_document(data, "record", ItemRecord, version=VERSION, what="the bag's log")
    return record


def report_to_bytes(report: RunnerReport) -> bytes:
    """Write a runner's report."""
    return codec.encode_document(VERSION, "report", report)


def report_from_bytes(data: bytes) -> RunnerReport:
    """Read a runner's report; raises as `codec.decode_document`."""
    report: RunnerReport = codec.decode_document(
        data, "report", RunnerReport, version=VERSION, what="a runner's report"
    )
    return report


def grant_to_bytes(grant: ItemGrant) -> bytes:
    """Write a grant."""
    return codec.encode_document(VERSION, "grant", grant)


def grant_from_bytes(data: bytes) -> ItemGrant:
    """Read a grant; raises as `codec.decode_document`."""
    grant: ItemGrant = codec.decode_document(data, "grant", ItemGrant, version=VERSION, what="a grant")
    return grant


def retry_to_bytes(request: RetryRequest) -> bytes:
    """Write a request to run the failed items again."""
    return codec.encode_document(VERSION, "request", request)


def state_to_bytes(state: TableState) -> bytes:
    """Write a state, with its digest before it."""
    data = codec.encode_document(VERSION, "state", state)
    return _digest(data) + b"\n" + data


def state_from_bytes(data: bytes) -> TableState:
    """Read a state; raises ValueError if it is damaged, and as `codec.decode_document`."""
    digest, _, document = data.partition(b"\n")
    if digest != _digest(document):
        raise ValueError("its digest is another one")
    state: TableState = codec.decode_document(
        document, "state", TableState, version=VERSION, what="the state of the bag"
    )
    return state


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).hexdigest().encode()


def added_to_bytes(added: AddedItems) -> bytes:
    """Write what a client asks for."""
    return codec.encode_document(VERSION, "added", added)


def added_from_bytes(data: bytes) -> AddedItems:
    """Read what a client asks for; raises as `codec.decode_document`."""
    added: AddedItems = codec.decode_document(data, "added", AddedItems, version=VERSION, what="what a client added")
    return added
