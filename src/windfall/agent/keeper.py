"""The keeper: what a machine that was bought for a job runs from its first to its last moment.

A step object without a clock or a thread of its own: `turn` gathers facts, lets `core.keeping` decide, carries the
actions out through ports, and says when it wants the next turn.  It keeps nothing that must survive it.  Where it dies,
its machine ends: the provider ends a machine whose first process has ended, and the run's log knows what was saved.
"""

from __future__ import annotations

from windfall import codec, fleet
from windfall.agent.keeper_ports import Facts, KeeperPorts, Secrets
from windfall.core import keeping, keeping_facts
from windfall.core.keeping_facts import (
    Answered,
    AskStore,
    BoxFailed,
    BoxRead,
    Brief,
    Briefed,
    EndMachine,
    ExecEnded,
    Join,
    Joined,
    KeeperAction,
    KeeperFact,
    KillExec,
    NotAnswered,
    NotBriefed,
    NotPrepared,
    Prepare,
    Prepared,
    Say,
    StartExec,
    Stood,
    StopExec,
    TellExec,
    UseBox,
)
from windfall.errors import ControllerError, StoreError, WindfallError
from windfall.fleet import Directive, Report
from windfall.ports import ObjectStore
from windfall.terms import Seconds, Term
from windfall.wire.boot import GRACE_S, BootData, boot_from_json, missing_secrets
from windfall.wire.layout import CONTROLLER, JOB, directive_key, report_key

_ROUNDS_MAX = 16
"""How often one turn looks for the answers to its own actions: they come at once only where nothing blocks."""


class Keeper:
    """One machine's keeper."""

    def __init__(self, ports: KeeperPorts) -> None:
        self._ports = ports
        self._state = keeping_facts.begin(ports.who, ports.clock.now())
        self._boot: BootData | None = None
        self._secrets: Secrets = ()

    @property
    def over(self) -> bool:
        """Whether the machine was told to end."""
        return self._state.over

    @property
    def employed(self) -> bool:
        """Whether the machine knows its job."""
        return self._boot is not None

    @property
    def grace_s(self) -> Seconds:
        """How long this machine lives on after SIGTERM, as the job says."""
        return self._boot.grace_s if self._boot is not None else GRACE_S

    def turn(self) -> float:
        """Do what is due; return after how long the next turn is due at the latest [s]."""
        facts = (*self._ports.heard(), *self._look_at_exec(), *self._ports.calls.ended())
        for _ in range(_ROUNDS_MAX):
            self._state, actions = keeping.react(self._state, self._ports.clock.now(), facts)
            for action in actions:
                self._obey(action)
            facts = self._ports.calls.ended()
            if not facts and not actions:
                break
        return keeping.pause_s(self._state, self._ports.clock.now())

    def _look_at_exec(self) -> Facts:
        if self._state.running is None:
            return ()
        code = self._ports.exec_.poll()  # first: what was written before the end is read after it
        stood = Stood(self._ports.exec_.standing())
        return (stood,) if code is None else (stood, ExecEnded(code, self._ports.exec_.last_words()))

    # ---------------------------------------------------------------------------------------------------- the actions

    def _obey(self, action: KeeperAction) -> None:
        match action:
            case Join() | AskStore() | Prepare() | Say() | UseBox():
                self._call(action)
            case StartExec():
                assert self._boot is not None, "nothing is started before the job is known"
                self._ports.exec_.start(self._boot, self._secrets, action)
            case TellExec(facts):
                self._ports.exec_.tell(facts)
            case StopExec(now):
                self._ports.exec_.stop(now=now)
            case KillExec():
                self._ports.exec_.kill()
            case EndMachine(why):
                self._ports.power(why)

    def _call(self, action: Join | AskStore | Prepare | Say | UseBox) -> None:
        start = self._ports.calls.start
        match action:
            case Join():
                start("claim", self._join, (NotAnswered(),))
            case AskStore():
                start("job", self._ask_store, (NotBriefed("the job's data in the store cannot be read"),))
            case Prepare():
                start("setup", self._prepare, (NotPrepared("the setup could not be run", final=False),))
            case Say(report):
                start("report", lambda: self._say(report), (NotAnswered(),))
            case UseBox(report):
                start("mailbox", lambda: self._use_box(report), (BoxFailed(),))

    def _join(self) -> Facts:
        assert self._ports.direct is not None
        try:
            claimed = self._ports.direct.claim()
        except WindfallError as error:
            return (NotAnswered(str(error)),)
        self._take(claimed.boot, claimed.secrets)
        return Joined(), *_briefed(claimed.boot, claimed.secrets)

    def _ask_store(self) -> Facts:
        """Take the job from the store, if it needs no secret: those the controller alone gives."""
        try:
            data = self._ports.store.get(JOB)
            if data is None:
                return (NotBriefed("the controller does not answer and the store has no job yet"),)
            boot = boot_from_json(codec.parse(data))
        except (WindfallError, ValueError) as error:
            return (NotBriefed(f"the job's data are not to be had: {error}"),)
        facts = _briefed(boot, ())
        if any(isinstance(fact, Briefed) for fact in facts):
            self._take(boot, ())
        return facts

    def _take(self, boot: BootData, secrets: Secrets) -> None:
        if self._boot is None:
            self._boot, self._secrets = boot, secrets

    def _prepare(self) -> Facts:
        assert self._boot is not None
        try:
            self._ports.prepare(self._boot, self._secrets)
        except StoreError as error:
            return (NotPrepared(f"the job's code is not to be had: {error}", final=False),)
        except WindfallError as error:
            return (NotPrepared(str(error), final=True),)
        return (Prepared(),)

    def _say(self, report: Report) -> Facts:
        assert self._ports.direct is not None
        try:
            return (Answered(self._ports.direct.report(report)),)
        except ControllerError as error:
            return (NotAnswered(str(error)),)

    def _use_box(self, report: Report) -> Facts:
        try:
            return (visit(self._ports.store, report),)
        except StoreError:
            return (BoxFailed(),)


def visit(store: ObjectStore, report: Report) -> BoxRead:
    """Leave a report in the mailbox and return what the controller left there; what cannot be read was not said.

    Raises:
        StoreError: the store did not answer, or refused.
    """
    store.put(report_key(report.machine_id), codec.sealed(fleet.VERSION, "report", report))
    return BoxRead(
        _directive(store.get(directive_key(report.machine_id))),
        _beat(store.get(CONTROLLER)),
    )


def _directive(data: bytes | None) -> Directive | None:
    try:
        told: Directive | None = (
            None
            if data is None
            else codec.opened(data, "directive", Directive, version=fleet.VERSION, what="a directive")
        )
    except (ValueError, WindfallError):
        return None
    return told


def _beat(data: bytes | None) -> tuple[Term, int] | None:
    try:
        said = codec.parse(data or b"{}")
        return Term(codec.decode(said["term"], int)), codec.decode(said["counter"], int)
    except (ValueError, KeyError, TypeError):
        return None


def _briefed(boot: BootData, secrets: Secrets) -> tuple[KeeperFact, ...]:
    missing = missing_secrets(boot, secrets)
    if missing:
        return (NotBriefed(f"waiting for the controller, which alone has the secret {', '.join(missing)}"),)
    return (Briefed(Brief(boot.nodes, boot.dead_man_s, boot.save_timeout_s)),)
