"""Stored forms: everything that is written once and read by later releases, and how an older version becomes the present.

A form has a version, and for each older version that is still read one pure function, which turns a document of version
n into one of version n + 1.  A reader applies those that are missing, in order, to parsed JSON, and only then checks the
result against the types of today.  Nothing stored is rewritten: a journal may hold rows of several versions.

To change a form: add a function here.  The version that is written follows from their number.  A version is raised at most
once per release: until it is released, change its newest function.

The tables of the controller's database have functions of their own, on a connection: `storage.database_schema.UPGRADES`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from windfall.structs import Struct

Document = dict[str, Any]
"""The JSON object of one row, record, manifest, marker or boot data, without its version."""
Upgrade = Callable[[Document], Document]

OLDEST = 4
"""The version of the first release; older documents are refused."""


class StoredForm(Struct, frozen=True):
    """The versions of one kind of document.

    Attributes:
        upgrades: from version `oldest` to the next, and so on; they may change the document that they are given.
        oldest: the oldest version that is read.
    """

    upgrades: tuple[Upgrade, ...] = ()
    oldest: int = OLDEST

    @property
    def version(self) -> int:
        """The version that is written."""
        return self.oldest + len(self.upgrades)

    def upgraded(self, document: Document, found: int) -> Document:
        """Return a document of version `found` as the present version.

        Raises:
            ValueError: it is not a document of that version.
        """
        assert self.oldest <= found <= self.version, "a newer or a forgotten version was refused before"
        try:
            for upgrade in self.upgrades[found - self.oldest :]:
                document = upgrade(document)
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise ValueError(f"it is not what version {found} wrote") from error
        return document


def row_4_to_5(row: Document) -> Document:
    """Version 5 has one more fact, `OffersChanged`; progress may have several holders, and members have roles."""
    row["facts"] = [_progress(fact) if fact["type"] == "RunObserved" else fact for fact in row.get("facts", ())]
    for command in row.get("commands", ()):
        if command["type"] == "FormGeneration":
            _give_roles(command["generation"])
    return row


def _progress(fact: Document) -> Document:
    """In version 4 one machine at most held the run, and its log counted steps."""
    safe = {"type": "WorkDone", "amount": float(fact["saved_step"]), "unit": "step"}
    progress = {
        "type": "JobProgress",
        "done": safe,
        "safe": safe,
        "failures": fact["failures"],
        "outcome": fact["outcome"],
        "holders": [] if fact["holder"] is None else [fact["holder"]],
    }
    return {"type": "ProgressObserved", "term": fact["term"], "progress": progress}


def _give_roles(generation: Document) -> None:
    """In version 4 the members of a generation were names, all of one role."""
    names = generation["members"]
    generation["members"] = [
        {"type": "Member", "machine_id": name, "role": "node", "rank": rank} for rank, name in enumerate(names)
    ]
    generation["layout"] = {"type": "RankLayout", "machines": len(names)}


ROW = StoredForm((row_4_to_5,))
"""A row of a journal, of a job at its controller and of a run's machines."""
RECORD = StoredForm()
"""A record of a run's log."""
MANIFEST = StoredForm()
"""The manifest of a checkpoint."""
MARKER = StoredForm()
"""The marker of a run, `windfall.json`."""
BOOT_DATA = StoredForm()
"""What a machine of a job needs to start, `job.json`."""
