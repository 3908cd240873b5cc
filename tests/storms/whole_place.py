"""Where a machine of the whole storm is: the world, which stands still for it while the machine is stopped."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.storms import whole_scene

if TYPE_CHECKING:
    from tests.storms.whole import Whole


class Place:
    """The world as one machine has it: while the machine is stopped nothing happens on it."""

    def __init__(self, world: Whole) -> None:
        self.real = world
        self.stopped_until = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def at(self, delay_s: float, action: Callable[[], None]) -> None:
        self.real.at(delay_s, lambda: self._happen(action))

    def _happen(self, action: Callable[[], None]) -> None:
        rest_s = self.stopped_until - self.real.time
        if rest_s > 0:
            self.real.at(rest_s, lambda: self._happen(action))
        else:
            action()

    def next_machine(self, delay_s: float) -> None:
        """Stop this machine for longer than its lease, while another contends for the run."""
        self.stopped_until = self.real.time + self.real.rng.uniform(0.5, 5) * whole_scene.LEASE_S
        self.real.count("stopped")
        self.real.next_machine(delay_s)
