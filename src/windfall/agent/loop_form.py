"""How a script's loop is written: whether it saves behind a step or ahead of its end, or never ends a step at all.

What lies between the end of a step and a hand-over that nobody asked for is a save where the next step's work comes
behind the hand-over, and that work itself where `step()` follows at once.  Which of the two it is shows at the step's end.
"""

from __future__ import annotations

from dataclasses import dataclass

from windfall.agent.messages import HandOver

AT_ONCE_SHARE = 4
"""A step that ends within this part of a step without a save has had no work behind the hand-over."""
AT_ONCE_SHARE_OF_SAVE = 10
"""The same of what came before the hand-over, as long as each step has one."""
FIRST_CALL_NS = 10_000_000
"""A script whose first call is a hand-over has made its page so shortly before [ns]."""


@dataclass(slots=True)
class LoopForm:
    """One rank's loop, as far as it is known.

    Attributes:
        saves_first: the last hand-over was followed by the end of its step at once.
        plain_ns: how long a step without a save took; 0 if there was none.
        first_ns, begun_ns: when the first hand-over came ahead of any step's end, and since when the script was at work.
        counted_ns: when a hand-over last counted as a step.
    """

    saves_first: bool = False
    plain_ns: int = 0
    first_ns: int = 0
    begun_ns: int = 0
    counted_ns: int = 0
    _page: tuple[int, int] = (0, 0)
    _waiting: tuple[int, int, int, int] | None = None
    _told: bool = False

    def look(self, step: int, step_end_ns: int) -> tuple[int, int] | None:
        """Take in where the rank is; return (step, [ns]) of what was taken for a save's standstill and was work."""
        self._page = step, step_end_ns
        if self._waiting is None or step <= self._waiting[0]:
            return None
        (at_step, at_ns, before_ns, stall_ns), self._waiting = self._waiting, None
        self._judge(at_step, at_ns, before_ns)
        return (at_step, stall_ns) if self.saves_first and stall_ns else None

    def handed_over(self, said: HandOver, started_ns: int) -> tuple[int, bool]:
        """Take in a hand-over of a checkpoint; return how long the script stood still for it [ns], and if it is its own."""
        before_ns = said.stall_ns
        if said.counted:
            self.counted_ns = said.at_ns
        if not self.begun_ns:
            self.begun_ns = started_ns
            before_ns = before_ns or said.at_ns - started_ns
            self.first_ns = said.at_ns if self._page[1] == 0 and not said.counted else 0
        if said.at_ns and not said.counted and self._page[0] == said.step + 1:
            self._judge(said.step, said.at_ns, before_ns)
            self._waiting = None
        elif said.at_ns and not said.counted:
            self._waiting = said.step, said.at_ns, before_ns, 0 if self.saves_first else said.stall_ns
        return (0 if self.saves_first else said.stall_ns), said.own or self.saves_first

    def _judge(self, at_step: int, at_ns: int, before_ns: int) -> None:
        step, end_ns = self._page
        if step != at_step + 1 or end_ns <= at_ns:
            return
        at_once_ns = self.plain_ns / AT_ONCE_SHARE if self.plain_ns else before_ns / AT_ONCE_SHARE_OF_SAVE
        self.saves_first = end_ns - at_ns < at_once_ns

    def since_ns(self, step_end_ns: int) -> int:
        """Return since when the script worked at a first step which a hand-over has ended; 0 if that is not known."""
        if not step_end_ns or step_end_ns != self.counted_ns:
            return 0
        return self.first_ns or self.begun_ns

    def untold_ns(self, *, ended: bool = False) -> int:
        """Return, once, how long a script that never ends a step worked for its first hand-over [ns].

        Args:
            ended: whether the script will not call any more.
        """
        stepless = self.counted_ns > self.first_ns or (ended and self._page[1] == 0)
        if self._told or not self.first_ns or not stepless:
            return 0
        self._told = True
        return self.first_ns - self.begun_ns
