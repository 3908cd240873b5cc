"""What happens to a machine of the world: its loss, its notices, its agent's deaths, the user's stop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windfall import events as ev
from windfall.terms import Notice, NoticeLevel

if TYPE_CHECKING:
    from tests.support.world import Machine

KINDS = (
    "vanish",
    "announced",
    "announced",
    "announced",
    "withdrawn",
    "early",
    "hint",
    "stolen",
    "stop",
    "stop now",
    "none",
)


class Fate:
    """Drawn once per machine; nothing bad happens after the faults are over."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        world = machine.world
        self.kind = "none" if world.calm else world.rng.choice(KINDS)
        scene, rng = world.scene, world.rng
        run_s = scene.steps * scene.step_s
        self.when_s = rng.uniform(0.1, 0.9) * run_s
        self.lead_s = rng.choice([5.0, 15.0, 30.0, 120.0])
        self.late_s = rng.choice([0.0, 0.0, 5.0])
        if self.kind != "none":
            self._later(self.when_s, self._strike)
        if not world.calm and rng.random() < 0.3:
            self._later(rng.uniform(0.0, run_s), machine.agent_dies)
        if not world.calm and rng.random() < 0.5:
            self._later(rng.uniform(0.0, 0.6 * self.when_s), self._change_rate)

    def _later(self, delay_s: float, action: object) -> None:
        assert callable(action)
        self.machine.world.at(delay_s, lambda: action() if self.machine.alive and not self.machine.exited else None)

    def _change_rate(self) -> None:
        world = self.machine.world
        world.rate = world.scene.rate * world.rng.choice([0.1, 0.1, 1.0, 4.0])
        world.rate_changed_at = world.now
        world.count("rate changed")

    def _notice(self, level: NoticeLevel, lead_s: float | None = None) -> None:
        deadline = None if lead_s is None else self.machine.world.now + lead_s
        self.machine.lasting_fact(ev.NoticeReceived(Notice(level, "aws", "n1", deadline)))

    def _strike(self) -> None:
        world = self.machine.world
        world.count(f"fate {self.kind}")
        if self.kind == "vanish":
            self.machine.dies()
        elif self.kind in {"announced", "early"}:
            self.machine.checks.notice(world.now + self.lead_s, honest=self.kind == "announced")
            self._notice(NoticeLevel.ANNOUNCED, self.lead_s)
            share = 1.0 if self.kind == "announced" else world.rng.uniform(0.1, 0.9)
            self._later(self.lead_s * share + (self.late_s if share == 1.0 else 0.0), self.machine.dies)
        elif self.kind == "withdrawn":
            self.machine.checks.notice(world.now + self.lead_s, honest=False)
            self._notice(NoticeLevel.ANNOUNCED, self.lead_s)
            self._later(self.lead_s * world.rng.uniform(0.01, 0.9), lambda: self._notice(NoticeLevel.WITHDRAWN))
        elif self.kind == "hint":
            self._notice(NoticeLevel.HINT)
            self._later(world.rng.uniform(5.0, 60.0), self.machine.dies)
        elif self.kind == "stolen":
            world.next_machine(0.0)
        else:
            self.machine.lasting_fact(ev.RunStopRequested(self.kind == "stop now", "user"))
