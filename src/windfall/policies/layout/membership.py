"""Which of a job's ready machines form a generation, that is, train together; a runtime names its rule.

A generation is fenced: machines of an older one cannot commit.  So a rule says only which sets may train; whether a
set is worth a change is decided by the fleet policy.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence

from windfall.fleet import Slot
from windfall.structs import Struct
from windfall.terms import Layout, Member, RankLayout


class MembershipKind(enum.StrEnum):
    """Which sets of machines may train together."""

    NONE = "none"
    """Generations do not exist: each machine works by itself."""
    COMPLETE = "complete"
    """One machine for every slot."""
    ANY = "any"
    """Any number of machines within bounds."""


class Membership(Struct, frozen=True):
    """A runtime's rule for one job.

    Attributes:
        machines_min, machines_max: bounds of `ANY`; None for no upper bound.
    """

    kind: MembershipKind
    machines_min: int = 1
    machines_max: int | None = None

    @property
    def together(self) -> bool:
        """Whether the loss of one machine stops the others."""
        return self.kind is not MembershipKind.NONE


ALONE = Membership(MembershipKind.NONE)
COMPLETE = Membership(MembershipKind.COMPLETE)


def members(rule: Membership, slots: Sequence[Slot], candidates: Mapping[str, str]) -> tuple[Member, ...] | None:
    """Return the members of the generation that can form now, by rank; None if none can.

    Args:
        rule: of the job's runtime.
        slots: the job's needs, in the order in which they arose.
        candidates: the machine that would take part, by slot; a slot without one is absent.
    """
    filled = [slot for slot in slots if slot.id in candidates]
    match rule.kind:
        case MembershipKind.NONE:
            return None
        case MembershipKind.COMPLETE:
            if not slots or len(filled) < len(slots):
                return None
        case MembershipKind.ANY:
            if len(filled) < rule.machines_min:
                return None
            filled = filled[: rule.machines_max]
    return tuple(Member(candidates[slot.id], slot.role, rank) for rank, slot in enumerate(filled))


def layout(members: Sequence[Member]) -> Layout:
    """Return the layout of a generation whose members all do the same."""
    return RankLayout(len(members))
