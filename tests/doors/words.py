"""Valid messages for the generator: what the product itself writes, as plain values."""

from __future__ import annotations

import json
from typing import Any

from tests.control.fake import job
from tests.core.story import Story
from windfall import codec, fleet
from windfall.events import Row
from windfall.fleet import DesiredState, Directive, MachineStatus, Report
from windfall.market import BootSpec, Offer, Order
from windfall.storage import manifest, run_state
from windfall.terms import (
    Bytes,
    Checkpoint,
    CheckpointRef,
    Chunk,
    FileEntry,
    Holder,
    Outcome,
    Record,
    RecordKind,
    Reliability,
    RunState,
    SaveCosts,
    SaveKind,
    Seconds,
    Shard,
    Step,
    Term,
    WallTime,
)


def rows() -> list[Row]:
    """Rows of an agent's journal with facts, decisions and commands of many kinds."""
    told = Story(policy="adaptive").starts().measures()
    told.stores(20, request=told.state.requests).ranks(22).notice(30.0)
    return list(told.stores(23, request=told.state.requests).rows)


def row_messages() -> list[Any]:
    """The same as they are written."""
    return [json.loads(codec.row_to_line(row)) for row in rows()]


def record() -> Record:
    """A record of a run's log."""
    ref = CheckpointRef(
        "20-1-ab",
        Step(20),
        SaveKind.INSURANCE,
        Term(1),
        1,
        4,
        "checkpoints/20-1-ab/manifest.json",
        "xxh3-128:00",
        WallTime(9.0),
    )
    holder = Holder("host", "boot", 1, 2, 3, "nonce")
    costs = SaveCosts(Seconds(0.1), Bytes(4), Seconds(0.2), Seconds(0.01))
    held = RunState("run", Term(1), Outcome.RUNNING, holder, WallTime(1.5), Seconds(30.0), (ref,), 1, costs=costs)
    return Record(2, "nonce", RecordKind.COMMIT, WallTime(2.5), held)


def checkpoint() -> Checkpoint:
    """A manifest."""
    entry = FileEntry("a/b.pt", 0o644, (Chunk("shards/1/a", 4, "xxh3-128:00"),))
    return Checkpoint("20-1-ab", Step(20), SaveKind.PERIODIC, Term(1), 1, (Shard(0, "ck", (entry,)),), WallTime(3.0))


def report() -> Report:
    """What a machine says."""
    costs = SaveCosts(Seconds(0.1), Bytes(4), Seconds(0.2), Seconds(0.01))
    return Report(
        "m-1", 3, "life", MachineStatus.TRAINING, Term(1), Step(20), Step(10), preemption_in_s=Seconds(9.0), costs=costs
    )


def directive() -> Directive:
    """What it is told."""
    return Directive(Term(3), DesiredState.RUN)


def store_messages() -> dict[str, Any]:
    """What lies in a run's store, by what reads it."""
    return {
        "record": json.loads(run_state.to_bytes(record())),
        "manifest": json.loads(manifest.to_bytes(checkpoint())),
        "report": json.loads(codec.encode_document(fleet.VERSION, "report", report())),
        "directive": json.loads(codec.encode_document(fleet.VERSION, "directive", directive())),
    }


def job_message() -> Any:
    """A job as a client sends it."""
    return codec.encode(job(secrets=("HF",)))


def order(token: str, offer: Offer) -> Order:
    """An order of one machine."""
    return Order(token, "owner", "gpt-1", offer, 1, 1)


def boot() -> BootSpec:
    """What a machine runs."""
    return BootSpec(("true",), (("A", "b"),))


def order_messages() -> list[Any]:
    """The arguments of an order at the local market."""
    offer = Offer("local", "m4", "a", 0.25, 1.0, Reliability.TRANSIENT, Seconds(30.0), WallTime(2.0))
    return [[codec.encode(order("token-1", offer)), codec.encode(boot())]]
