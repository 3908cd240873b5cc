"""Nothing that a driver's facts or state hold grows with the steps or items of its job: only with its machines."""

from __future__ import annotations

import msgspec

from windfall import fleet
from windfall.core import driver
from windfall.core.fleet_state import FleetState
from windfall.events import Fact, TimerFired

# A fact of the driver -> what its tuples count.  Whoever adds one says here what it grows with; steps, items, samples or
# shards are no answer: such facts belong into the run's own log, of which the driver sees the sums (`ProgressObserved`).
GROWS_WITH: dict[str, str] = {
    "JobSubmitted": "the job file",
    "ControllerStarted": "nothing",
    "OffersObserved": "what is for sale, once",
    "OffersChanged": "what changed of it",
    "EstimatesPooled": "kinds of machines",
    "ScheduleComputed": "the save schedule of one machine, of bounded length",
    "AgeWeighed": "nothing",
    "OrderAnswered": "machines of one order",
    "OrderUnanswered": "nothing",
    "ListingCompleted": "open orders",
    "MachinesObserved": "machines that changed",
    "MachinesMissing": "machines that are gone",
    "MachineReported": "nothing",
    "MachineSilent": "nothing",
    "ProgressObserved": "machines that hold work",
    "ChargesObserved": "new lines of a bill",
    "JobStopRequested": "nothing",
    "JobResumeRequested": "nothing",
    "PreemptionRequested": "nothing",
    "TimerFired": "nothing",
}
# Tables and lists of the driver's state -> what they count.
HELD: dict[str, str] = {
    "measured": "kinds of machines",
    "needs": "machines of the job",
    "policy_memory": "a bounded number",
    "units": "machines",
    "gone": "machines that are still listed, and a bounded number more",
    "unknown_machines": "a bounded number",
    "slots": "machines of the job",
    "orders": "open orders, and a bounded number more",
    "listed": "providers",
    "offers": "what is for sale",
    "quotas": "what is for sale",
    "provider_errors": "providers",
    "rates": "kinds of machines",
    "blocks": "what is for sale",
    "refused": "what is for sale",
    "forgiven": "a pair",
    "schedules": "machines",
    "weighed": "machines",
}
_MANY = ("tuple[", "Mapping[", "frozenset[", "list[", "dict[", "set[", "Rates")


def test_each_fact_of_the_driver_grows_with_nothing_but_machines() -> None:
    """The facts that the driver handles, and those of its module, are exactly those of the list."""
    handled = {kind.__name__ for kind in driver._HANDLERS}
    kinds = [kind for kind in vars(fleet).values() if isinstance(kind, type) and kind.__module__ == fleet.__name__]
    words = {kind.__name__ for kind in kinds if issubclass(kind, Fact)}

    assert handled == set(GROWS_WITH)
    assert words <= handled
    assert TimerFired.__name__ in handled


def test_a_fact_without_size_has_no_list() -> None:
    """What "nothing" says of a fact is true: none of its own fields is a tuple."""
    kinds = {kind.__name__: kind for kind in driver._HANDLERS}
    lists = {
        f"{name}.{field.name}"
        for name, what in GROWS_WITH.items()
        if what == "nothing"
        for field in msgspec.structs.fields(kinds[name])
        if isinstance(msgspec.inspect.type_info(field.type), msgspec.inspect.VarTupleType | msgspec.inspect.DictType)
    }

    assert lists == set()


def test_each_table_of_the_drivers_state_grows_with_nothing_but_machines() -> None:
    """Whatever in the state can grow is in the list; the ledger keeps sums for what is closed (`core.ledger`)."""
    tables = {name for name, kind in FleetState.__annotations__.items() if str(kind).startswith(_MANY)}

    assert tables == set(HELD)
