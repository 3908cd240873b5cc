"""Bugs that the Slurm provider must not have, planted one at a time to see that the storm catches them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING
from unittest.mock import patch

from windfall.errors import ProviderUnreachable
from windfall.market import Answer, Machine, MachineLifecycle, Order, Refusal
from windfall.providers.slurm import slurm_listing, slurm_previews, slurm_provider, slurm_states, slurm_submission
from windfall.providers.slurm.slurm_commands import CommandResult, Commands
from windfall.providers.slurm.slurm_provider import SlurmProvider
from windfall.providers.slurm.slurm_records import KnownMachine, SlurmRecords
from windfall.providers.slurm.slurm_submission import Submission
from windfall.providers.slurm.slurm_tables import AccountRow, JobRow
from windfall.structs import replace
from windfall.terms import WallTime

if TYPE_CHECKING:
    from tests.storms.slurm_fleet import SlurmFleet

Patch = tuple[object, str, object]


# ------------------------------------------------------------------------------------------------------------- the orders


def _second_kept() -> tuple[Patch, ...]:
    """Of two jobs of one name the younger is left in the queue."""
    real = slurm_listing.first_of_each_token

    def first(rows: Sequence[JobRow]) -> tuple[tuple[JobRow, ...], tuple[JobRow, ...]]:
        return real(rows)[0], ()

    def oldest(rows: Sequence[JobRow]) -> tuple[tuple[JobRow, ...], tuple[JobRow, ...]]:
        number = min((row.number for row in rows), default=0)
        return tuple(row for row in rows if row.number == number), ()

    return (slurm_listing, "first_of_each_token", first), (slurm_listing, "oldest_of", oldest)


def _no_singleton() -> tuple[Patch, ...]:
    """A second job of a name runs beside the first."""
    real = Submission._identity

    def identity(self: Submission) -> tuple[str, ...]:
        return tuple(word for word in real(self) if word != "--dependency=singleton")

    return ((Submission, "_identity", identity),)


def _order_repeated() -> tuple[Patch, ...]:
    """After an answer that was lost the order is sent again, without a look at the queue."""

    def look_up(self: SlurmProvider, order: Order) -> tuple[JobRow, ...]:
        if self._records.sent_at(order.token) is None or order.token in self.__dict__.setdefault("_asked", set()):
            return _LOOK_UP(self, order)
        self.__dict__["_asked"].add(order.token)
        return ()

    return ((SlurmProvider, "_look_up", look_up),)


_LOOK_UP = SlurmProvider._look_up


def _nodes_unasked() -> tuple[Patch, ...]:
    """What a slurmctld refuses before its nodes have reported is refused for ever."""

    def try_out(commands: Commands, job: Submission, partition: str) -> tuple[CommandResult, Refusal | None]:
        del partition
        return slurm_previews._trial(commands, job)

    return ((slurm_previews, "try_out", try_out),)


def _new_name_on_retry() -> tuple[Patch, ...]:
    """What `sbatch` does not answer is submitted once more at once, under another name."""

    def ordered(self: SlurmProvider, order: Order, boot: object) -> Answer:
        try:
            return _ORDER(self, order, boot)
        except ProviderUnreachable:
            return _ORDER(self, replace(order, token=f"{order.token}x"), boot)

    return ((SlurmProvider, "order", ordered),)


_ORDER = SlurmProvider.order


# ------------------------------------------------------------------------------------------------------------ the listing


def _unseen_end_alive() -> tuple[Patch, ...]:
    """A machine that the queue has forgotten counts as alive."""

    def unseen(known: KnownMachine, accounts: Mapping[str, AccountRow]) -> KnownMachine:
        del accounts
        return known

    return ((slurm_listing, "ended_unseen", unseen),)


def _unseen_end_now() -> tuple[Patch, ...]:
    """A machine whose end nobody saw is billed until it was found missing."""
    real = SlurmProvider._ends_of

    def ends_of(self: SlurmProvider, missing: Sequence[KnownMachine]) -> Sequence[KnownMachine]:
        now = self._clock.wall_time()
        return [replace(one, machine=replace(one.machine, ended=now)) for one in real(self, missing)]

    return ((SlurmProvider, "_ends_of", ends_of),)


def _accounts_unread() -> tuple[Patch, ...]:
    """Nobody asks `sacct`."""

    def ends_of(self: SlurmProvider, missing: Sequence[KnownMachine]) -> Sequence[KnownMachine]:
        return [slurm_listing.ended_unseen(one, {}) for one in missing]

    return ((SlurmProvider, "_ends_of", ends_of),)


def _hopeless_kept() -> tuple[Patch, ...]:
    """What can never start waits for ever."""
    return ((slurm_listing, "is_hopeless", lambda row: False),)


def _silence_is_empty() -> tuple[Patch, ...]:
    """A `squeue` that failed counts as an empty queue."""
    real = slurm_provider.answer_of

    def answer(commands: object, argv: Sequence[str]) -> str:
        try:
            return real(commands, argv)  # type: ignore[arg-type]
        except ProviderUnreachable:
            if argv[0] == "squeue":
                return ""
            raise

    return ((slurm_provider, "answer_of", answer),)


def _completing_is_gone() -> tuple[Patch, ...]:
    """A job whose processes still save counts as gone."""
    real = slurm_states.lifecycle_of

    def lifecycle(state: str) -> MachineLifecycle:
        return MachineLifecycle.GONE if state == "COMPLETING" else real(state)

    ends = {**slurm_states.ENDS, "COMPLETING": slurm_states.ENDS["COMPLETED"]}
    return (slurm_states, "lifecycle_of", lifecycle), (slurm_states, "ENDS", ends)


# --------------------------------------------------------------------------------------------------------------- the ends


def _not_fenced() -> tuple[Patch, ...]:
    """A node that Slurm has given up is not told, though its processes may live."""
    real = SlurmProvider._reconcile

    def reconcile(self: SlurmProvider, *arguments: object) -> None:
        with patch.object(slurm_submission, "write_request", lambda *words, **request: None):
            real(self, *arguments)  # type: ignore[arg-type]

    return ((SlurmProvider, "_reconcile", reconcile),)


def _release_only_asked() -> tuple[Patch, ...]:
    """A release is recorded, and nothing more."""

    def end(self: SlurmProvider, machine_id: str, what: str) -> None:
        known = self._records.find(machine_id)
        if known is not None:
            self._records.ask(machine_id, what)

    return ((SlurmProvider, "_end", end),)


def _ends_late() -> tuple[Patch, ...]:
    """What has ended is billed five seconds more."""
    real = SlurmRecords.put

    def put(self: SlurmRecords, machines: Iterable[KnownMachine]) -> None:
        def longer(known: KnownMachine) -> KnownMachine:
            one: Machine = known.machine
            ended = None if one.ended is None else WallTime(one.ended + 5.0)
            return replace(known, machine=replace(one, ended=ended))

        real(self, [longer(known) for known in machines])

    return ((SlurmRecords, "put", put),)


BUGS: dict[str, Callable[[], tuple[Patch, ...]]] = {
    "second of a name kept": _second_kept,
    "no singleton": _no_singleton,
    "order repeated without a look": _order_repeated,
    "nodes that have not reported taken for missing": _nodes_unasked,
    "another name on retry": _new_name_on_retry,
    "unseen end taken for alive": _unseen_end_alive,
    "unseen end billed until found": _unseen_end_now,
    "accounts not asked": _accounts_unread,
    "hopeless job kept": _hopeless_kept,
    "failed listing taken for empty": _silence_is_empty,
    "completing taken for gone": _completing_is_gone,
    "lost node not fenced": _not_fenced,
    "release not carried out": _release_only_asked,
    "ends billed late": _ends_late,
}


@contextmanager
def bug(name: str, world: SlurmFleet) -> Iterator[None]:
    """Plant one bug."""
    del world
    with ExitStack() as stack:
        for target, attribute, wrong in BUGS[name]():
            stack.enter_context(patch.object(target, attribute, wrong))
        yield
