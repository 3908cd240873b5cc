"""What a listing says that is not known."""

from __future__ import annotations

from windfall.core.machines import compare
from windfall.market import Machine, MachineLifecycle
from windfall.structs import replace
from windfall.terms import Reliability

ONE = Machine("m1", "o", "j", "j-1", "local", "large", "a", Reliability.TRANSIENT, 0.3, MachineLifecycle.RUNNING, 10.0)
TWO = replace(ONE, machine_id="m2")


def test_what_is_known_is_no_news() -> None:
    """The same listing again brings nothing."""
    difference = compare({"m1": ONE, "m2": TWO}, (ONE, TWO))
    assert (difference.seen, difference.missing) == ((), ())


def test_new_and_changed_machines_are_seen() -> None:
    """In the listing's order, each once, as listed last."""
    taken = replace(ONE, lifecycle=MachineLifecycle.GONE, ended=20.0)
    assert compare({"m1": ONE}, (TWO, ONE, taken)).seen == (TWO, taken)


def test_known_machines_that_are_not_listed_are_missing() -> None:
    """Also those known to be gone: their provider has forgotten them."""
    assert compare({"m2": TWO, "m1": replace(ONE, lifecycle=MachineLifecycle.GONE)}, ()).missing == ("m1", "m2")
