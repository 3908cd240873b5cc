"""The contract of `ports.Channel`: what one side says last reaches the other, whatever is lost on the way."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from tests.support.simulated_store import ManualClock, MemoryStore
from windfall import codec
from windfall.agent.node_agent import sync_mailbox
from windfall.channels.direct import DirectChannel
from windfall.channels.mailbox import BackgroundChannel, MailboxChannel, MailboxPace
from windfall.errors import StoreUnreachable
from windfall.fleet import DesiredState, Directive, MachineStatus, Report
from windfall.linux.clock import SystemClock
from windfall.ports import Channel
from windfall.terms import Seconds, Term
from windfall.wire.run_layout import CONTROLLER, directive_key, report_key

RUN, WAIT, _, LEAVE = (Directive(Term(3), desired_state) for desired_state in DesiredState)


def report(machine_id: str, sequence: int, status: MachineStatus = MachineStatus.TRAINING) -> Report:
    return Report(machine_id, sequence, "life", status)


@dataclass
class Rig:
    """A channel, and a machine's end of it."""

    channel: Channel
    say: Callable[[Report], Directive | None]
    later: Callable[[], None] = lambda: None


@dataclass
class Post:
    """A mailbox with its store and clock."""

    store: MemoryStore = field(default_factory=MemoryStore)
    clock: ManualClock = field(default_factory=ManualClock)
    machines: list[str] = field(default_factory=lambda: ["m-1", "m-2"])

    def channel(self, controller: int = 3, pace: MailboxPace | None = None) -> MailboxChannel:
        return MailboxChannel(self.store, self.clock, Term(controller), lambda: self.machines, pace)

    def beat(self) -> tuple[int, int]:
        said = json.loads(self.store.objects[CONTROLLER])
        return said["term"], said["counter"]


@pytest.fixture
def post() -> Post:
    return Post()


@pytest.fixture(params=["direct", "mailbox"])
def rig(request: pytest.FixtureRequest, post: Post) -> Rig:
    if request.param == "direct":
        channel = DirectChannel(lambda: None)
        return Rig(channel, channel.deliver)
    return Rig(
        post.channel(), lambda said: sync_mailbox(post.store, said).directive, lambda: post.clock.sleep(Seconds(3.0))
    )


def test_the_newest_report_of_each_machine_is_received_once(rig: Rig) -> None:
    """What a machine said before its last word is not needed; what was heard is not heard again."""
    for said in (report("m-1", 1), report("m-1", 2, MachineStatus.FAILED), report("m-2", 1)):
        rig.say(said)

    heard = rig.channel.receive()
    rig.later()

    assert sorted(heard, key=lambda said: said.machine_id) == [report("m-1", 2, MachineStatus.FAILED), report("m-2", 1)]
    assert rig.channel.receive() == ()


def test_each_machine_gets_its_own_newest_directive(rig: Rig) -> None:
    """A directive stands until another takes its place."""
    assert rig.say(report("m-1", 1)) is None
    rig.channel.send({"m-1": RUN, "m-2": WAIT})
    assert (rig.say(report("m-1", 2)), rig.say(report("m-2", 1))) == (RUN, WAIT)
    rig.channel.send({"m-1": LEAVE, "m-2": WAIT})
    assert (rig.say(report("m-1", 3)), rig.say(report("m-1", 4)), rig.say(report("m-2", 2))) == (LEAVE, LEAVE, WAIT)


def test_the_heartbeat_changes_while_the_controller_lives(post: Post) -> None:
    """It is written at its pace, not with each turn, and says whose it is."""
    channel = post.channel()
    seen = []
    for _ in range(40):
        channel.send({})
        seen.append(post.beat())
        post.clock.sleep(Seconds(1.0))
    assert seen[0] == (3, 1)
    assert seen[-1] == (3, 4)


def test_a_directive_is_written_when_it_changes_and_again_now_and_then(post: Post) -> None:
    """A controller that was replaced may have written over it; otherwise a directive costs one write."""
    channel = post.channel()
    channel.send({"m-1": RUN})
    post.store.put(directive_key("m-1"), b"of a controller that was replaced")
    post.clock.sleep(Seconds(30.0))
    channel.send({"m-1": RUN})
    assert sync_mailbox(post.store, report("m-1", 1)).directive is None
    post.clock.sleep(Seconds(31.0))
    channel.send({"m-1": RUN})
    assert sync_mailbox(post.store, report("m-1", 1)).directive == RUN


def test_a_new_controller_writes_every_directive_anew(post: Post) -> None:
    """Its term is in them: machines obey no older one from then on."""
    post.channel(3).send({"m-1": RUN})
    newer = Directive(Term(4), DesiredState.RUN)
    post.channel(4).send({"m-1": newer})
    seen = sync_mailbox(post.store, report("m-1", 1))
    assert (seen.directive, seen.heartbeat) == (newer, (4, 1))


def test_a_damaged_report_is_passed_over(post: Post) -> None:
    """What cannot be read was not said; the others are heard."""
    sync_mailbox(post.store, report("m-2", 1))
    for damaged in (
        b"",
        b"{",
        b"[]",
        b'{"version": 1, "report": {"type": "Nothing"}}',
        b'{"version": 1, "report": null}',
    ):
        post.store.put(report_key("m-1"), damaged)
        post.clock.sleep(Seconds(3.0))
        assert all(said.machine_id == "m-2" for said in post.channel().receive())
    other = {"version": 1, "report": codec.encode(report("m-2", 9))}
    post.store.put(report_key("m-1"), json.dumps(other).encode())
    assert report("m-2", 9) not in post.channel().receive()


def test_a_call_is_bounded_and_everybody_gets_a_turn(post: Post) -> None:
    """Of many machines each call reads some, the longest unread first."""
    post.machines = [f"m-{number}" for number in range(10)]
    for name in post.machines:
        sync_mailbox(post.store, report(name, 1))
    channel = post.channel(pace=MailboxPace(batch_max=4))
    rounds = [{said.machine_id for said in channel.receive()} for _ in range(3)]
    assert [len(seen) for seen in rounds] == [4, 4, 2]
    assert set.union(*rounds) == set(post.machines)


def test_a_store_that_fails_raises_nothing_and_is_left_alone_for_a_while(post: Post) -> None:
    """The controller's loop goes on; what could not be said is said when the store answers again."""
    tries = []

    class Broken(MemoryStore):
        broken = True

        def _try(self) -> None:
            if self.broken:
                tries.append(post.clock.now())
                raise StoreUnreachable("no store")

        def get(self, key: str) -> bytes | None:
            self._try()
            return super().get(key)

        def put(self, key: str, data: bytes) -> None:
            self._try()
            super().put(key, data)

    post.store = store = Broken()
    channel = post.channel()
    for _ in range(100):
        assert channel.receive() == ()
        channel.send({"m-1": RUN, "m-2": RUN})
        post.clock.sleep(Seconds(0.5))
    assert len(tries) < 12
    store.broken = False
    post.clock.sleep(Seconds(30.0))
    channel.send({"m-1": RUN, "m-2": RUN})
    assert sync_mailbox(store, report("m-1", 1)).directive == RUN
    assert sync_mailbox(store, report("m-2", 1)).directive == RUN


def test_in_the_background_nothing_waits_for_a_slow_store(post: Post) -> None:
    """`receive` and `send` return at once while the store hangs, and nothing is lost."""
    hanging, go = threading.Event(), threading.Event()

    class Slow(MemoryStore):
        def get(self, key: str) -> bytes | None:
            hanging.set()
            go.wait(20)
            return super().get(key)

    post.store = store = Slow()
    store.put(report_key("m-1"), json.dumps({"version": 1, "report": codec.encode(report("m-1", 1))}).encode())
    channel = BackgroundChannel(post.channel(), SystemClock(), period_s=Seconds(0.01))
    try:
        assert hanging.wait(20)
        before = time.monotonic()
        channel.send({"m-1": RUN})
        assert channel.receive() == ()
        assert time.monotonic() - before < 1.0
        go.set()
        end = time.monotonic() + 20
        heard: tuple[Report, ...] = ()
        while not heard or directive_key("m-1") not in store.objects:
            heard = heard or channel.receive()
            assert time.monotonic() < end
            time.sleep(0.005)
        assert heard == (report("m-1", 1),)
    finally:
        go.set()
        channel.close()
