"""A process that appends rows to a job's journal until it is killed, and says after each that it is durable."""

from __future__ import annotations

import sys

from windfall.linux.clock import SystemClock
from windfall.storage.database import open_database
from windfall.terms import Term


def main(url: str, job_id: str, term: int) -> None:
    journal = open_database(url, SystemClock()).journal(job_id, Term(term))
    number = sum(1 for _ in journal.rows())
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        number += 1
        journal.append(f"row {number}")
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
