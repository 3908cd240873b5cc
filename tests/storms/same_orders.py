"""What a job buys, releases and forms in a thousand storms, as digests: `python -m tests.storms.same_orders --write`.

A change of the driver that is meant to change nothing gives the same digests.  One that is meant to change something
writes them again and says in its commit what changed.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.storms.fleet import storm
from windfall import codec
from windfall.events import Command, Row
from windfall.fleet import CancelOrder, FormGeneration, PlaceOrder, PreemptMachine, ReleaseMachine, SettleJob, StopRun

SEEDS = range(1000)
RECORDED = Path(__file__).with_name("same_orders.txt")


def recorded() -> dict[int, str]:
    """Return the digests that were written."""
    lines = (line.split() for line in RECORDED.read_text().splitlines())
    return {int(seed): digest for seed, digest in lines}


def digest(seed: int) -> str:
    """Return the digest of a storm: each command that the market or a machine sees, with its time."""
    rows = (codec.row_from_line(line) for line in storm(seed).rows)
    text = "\n".join(line for row in rows for line in _lines(row))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _lines(row: Row) -> Iterator[str]:
    for command in row.commands:
        said = _said(command)
        if said is not None:
            yield f"{row.at:.3f} {type(command).__name__} {said}"


def _said(command: Command) -> str | None:
    match command:
        case PlaceOrder(order=order):
            return f"{order.token} {order.offer.key} {order.count_min} {order.count_max} {order.bid_usd_per_hour}"
        case CancelOrder(token=token):
            return token
        case ReleaseMachine(machine_id=machine_id, reason=reason):
            return f"{machine_id} {reason}"
        case FormGeneration(generation=generation):
            return f"{generation.number} {' '.join(generation.machine_ids)}"
        case PreemptMachine(machine_id=machine_id, notice_s=notice_s):
            return f"{machine_id} {notice_s}"
        case StopRun(now=now, reason=reason):
            return f"{now} {reason}"
        case SettleJob(phase=phase, exit_code=exit_code, message=message):
            return f"{phase} {exit_code} {message}"
        case _:
            return None


def different(seeds: Iterable[int]) -> list[int]:
    """Return the seeds whose storm gives another digest than the one that was written."""
    before = recorded()
    return [seed for seed in seeds if digest(seed) != before[seed]]


def main() -> None:
    """Write the digests, or print which differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--seeds", type=int, default=len(SEEDS))
    asked = parser.parse_args()
    with ProcessPoolExecutor() as pool:
        digests = dict(zip(range(asked.seeds), pool.map(digest, range(asked.seeds), chunksize=10), strict=True))
    if asked.write:
        RECORDED.write_text("".join(f"{seed} {text}\n" for seed, text in digests.items()))
        return
    before = recorded()
    differ = [seed for seed, text in digests.items() if before[seed] != text]
    print(f"{len(digests) - len(differ)} of {len(digests)} storms as before; different: {differ[:20]}")
    raise SystemExit(bool(differ))


if __name__ == "__main__":
    main()
