"""A small language for scenarios of one job's machines: facts, and the commands that answer them."""

from __future__ import annotations

from typing import TypeVar

from tests.support.progress import observed
from windfall import events as ev
from windfall import fleet
from windfall.core import driver
from windfall.fleet import MachineReported, MachinesObserved, MachineStatus, OffersObserved, Report
from windfall.jobs import Job, Resources, Use
from windfall.market import Machine, MachineEndCause, MachineLifecycle, Offer, Order, Refusal
from windfall.structs import replace
from windfall.terms import NoticeLevel, Outcome, Reliability

C = TypeVar("C", bound=ev.Command)
OWNER = "home"
START = 1_000_000.0

LARGE = Offer("local", "large", "zone-a", 0.36, 1.2, Reliability.TRANSIENT, 120.0, START, startup_s=20.0)
LARGE_B = replace(LARGE, zone="zone-b", price_usd_per_hour=0.4)
FIRM = replace(LARGE, price_usd_per_hour=1.2, reliability=Reliability.RELIABLE, notice_s=0.0)


class Fleet:
    """One job; `happens` moves time and gives facts, `said` and `decided` hold the answer to the last batch."""

    def __init__(self, *offers: Offer, nodes: int = 1, use: Use = Use.SPOT, known: bool = True, **job: object) -> None:
        given: dict[str, object] = {"resources": (Resources(),), **job}
        self.job = Job("j", "job", "ada", "file:///r", ("train",), nodes=nodes, use=use, **given)  # type: ignore[arg-type]
        self.offers = offers or (LARGE,)
        self.state = driver.initial_state()
        self.now = START
        self.rows: list[ev.Row] = []
        self.said: tuple[ev.Command, ...] = ()
        self.decided: tuple[ev.Decision, ...] = ()
        self.machines: dict[str, Machine] = {}
        self.sequences: dict[str, int] = {}
        self.made = 0
        facts: list[ev.Fact] = [fleet.JobSubmitted(self.job, OWNER), fleet.ControllerStarted(1)]
        if known:
            facts += [OffersObserved(self.offers), *self.listings()]
        self.happens(*facts)

    def listings(self) -> list[ev.Fact]:
        """The complete listing of each provider was compared."""
        return [fleet.ListingCompleted(name) for name in self.providers]

    @property
    def providers(self) -> list[str]:
        return sorted({offer.provider for offer in self.offers})

    def happens(self, *facts: ev.Fact, after: float = 0.0) -> Fleet:
        """Facts that come together, `after` seconds later."""
        self.now += after
        self.state, self.decided, self.said = driver.react(self.state, self.now, facts)
        number = len(self.rows) + 1
        self.rows.append(ev.Row(1, number, self.now, self.now, facts, self.decided, self.said))
        return self

    def passes(self, seconds: float) -> Fleet:
        """Let time pass; the driver's timer fires when it is due."""
        end = self.now + seconds
        said: list[ev.Command] = []
        while self.state.timer_at is not None and self.state.timer_at <= end:
            self.now = max(self.state.timer_at, self.now)
            self.happens(ev.TimerFired(driver.TIMER))
            said += self.said
        self.now = end
        self.happens()
        self.said = (*said, *self.said)
        return self

    def of(self, kind: type[C]) -> list[C]:
        """The last answer's commands of a kind."""
        return [command for command in self.said if isinstance(command, kind)]

    @property
    def orders(self) -> list[Order]:
        """Orders placed by the last answer."""
        return [command.order for command in self.of(fleet.PlaceOrder)]

    @property
    def released(self) -> list[str]:
        """Machines released by the last answer."""
        return [command.machine_id for command in self.of(fleet.ReleaseMachine)]

    @property
    def message(self) -> str:
        return driver.summary(self.state, self.now).message

    @property
    def phase(self) -> fleet.JobPhase:
        return self.state.phase

    # -------------------------------------------------------------------------------------------------------- the market

    def machine(self, order: Order, life: MachineLifecycle = MachineLifecycle.PENDING) -> Machine:
        """A new machine of an order, as the market makes it."""
        self.made += 1
        offer = order.offer
        machine = Machine(
            f"m{self.made}", OWNER, "j", order.token, offer.provider, offer.machine_type, offer.zone, offer.reliability,
            offer.price_usd_per_hour, life, self.now if life is MachineLifecycle.RUNNING else None,
        )  # fmt: skip
        self.machines[machine.machine_id] = machine
        return machine

    def answers(
        self, order: Order, count: int | None = None, refusal: Refusal | None = None, message: str = ""
    ) -> Fleet:
        """The market answers an order."""
        made = [self.machine(order) for _ in range(order.count_max if count is None else count)]
        names = tuple(machine.machine_id for machine in made)
        return self.happens(fleet.OrderAnswered(order.token, names, refusal, message))

    def refuses(self, refusal: Refusal, message: str = "") -> Fleet:
        """The market refuses the last order."""
        (order,) = self.orders
        return self.answers(order, 0, refusal, message)

    def lists(self, *names: str, after: float = 0.0, **changes: object) -> Fleet:
        """The listing changes."""
        self.now += after
        for name in names:
            self.machines[name] = replace(self.machines[name], **changes)  # type: ignore[arg-type]
        return self.happens(MachinesObserved(tuple(self.machines[name] for name in names)))

    def runs(self, *names: str, after: float = 0.0) -> Fleet:
        """Machines start."""
        return self.lists(*names, after=after, lifecycle=MachineLifecycle.RUNNING, started=self.now + after)

    def ends(self, *names: str, cause: MachineEndCause = MachineEndCause.PREEMPTED, after: float = 0.0) -> Fleet:
        """Machines end."""
        return self.lists(*names, after=after, lifecycle=MachineLifecycle.GONE, ended=self.now + after, cause=cause)

    # ------------------------------------------------------------------------------------------------------ the machines

    def report(
        self, name: str, status: MachineStatus = MachineStatus.TRAINING, left: float | None = None, **more: object
    ) -> MachineReported:
        """A report of a machine; `left` seconds until its end, if that is announced."""
        self.sequences[name] = self.sequences.get(name, 0) + 1
        if left is not None:
            more.setdefault("level", NoticeLevel.ANNOUNCED)
        more.setdefault("address", f"{name}:1")
        report = Report(name, self.sequences[name], "a", status, preemption_in_s=left, **more)  # type: ignore[arg-type]
        return MachineReported(report, "direct", None if left is None else self.now + left)

    def says(
        self, name: str, status: MachineStatus = MachineStatus.TRAINING, left: float | None = None, **more: object
    ) -> Fleet:
        """A machine reports."""
        return self.happens(self.report(name, status, left, **more))

    def run(self, outcome: Outcome = Outcome.RUNNING, holder: str | None = None, step: int = 0, **more: int) -> Fleet:
        """The run's log changes."""
        term = more.pop("term", 1)
        return self.happens(observed(outcome, term, holder, step, more.pop("failures", 0)))

    def trains(self) -> Fleet:
        """All ordered machines come and train."""
        (order,) = self.orders
        before = set(self.machines)
        self.answers(order)
        names = [name for name in self.machines if name not in before]
        self.runs(*names, after=20.0)
        return self.happens(*(self.report(name) for name in names), after=10.0)
