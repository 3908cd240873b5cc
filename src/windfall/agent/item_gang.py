"""Items that run on several machines of one allocation: its machines start together, and end together.

Machine 0 runs the items; a launcher of the user (mpirun, srun) starts their ranks on all nodes.  The others have the item's
folder ready, and end what is left of an item.  Each notices within `LOSS_S` that another one is gone, and then ends all
ranks on its own node: the kernels of two machines acknowledge what they send each other, however busy their programs are.

Ranks are found by a variable of their environment: a launcher starts them below a daemon of its own.
"""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from windfall import codec
from windfall.agent import item_files
from windfall.agent.peer_link import PeerIdentity, RendezvousServer, join
from windfall.agent.status_files import StatusFile
from windfall.bags import Bag
from windfall.core.item_runner import EndAnnounced, LeaveAsked, RunnerFact
from windfall.core.node_agent_state import RunStatus
from windfall.errors import EXIT_DONE, EXIT_RETRY, GenerationIncomplete, MachineUnfit, Misuse, StoreError, WindfallError
from windfall.linux import processes
from windfall.ports import Clock, ObjectStore
from windfall.structs import Struct
from windfall.terms import Outcome, Seconds, Step, Term
from windfall.wire import bag_layout, environment, peer_messages
from windfall.wire.gang_messages import VERSION, Allocation, GangMeeting, GangMessage, GangWord

BEAT_S = Seconds(0.25)
"""The time between two beats [s]: what is not acknowledged shows that a machine is gone."""
UNHEARD_S = 1.0
"""How long a machine's kernel may leave a beat without an answer [s]."""
LOSS_S = BEAT_S + UNHEARD_S + 0.3
"""The time within which a lost machine is noticed [s]."""
READY_S = 10.0
"""How long a machine may take to have an item's folder [s]."""
AGAIN_S = 60.0
"""How long machines of an allocation that has run items may take to be back [s]."""
FAREWELL_S = 2.0
"""How long a machine is waited for when it may leave [s]."""
LOOK_S = Seconds(0.25)
_LATER_S = (0.25, 0.5, 1.0, 2.0)
"""A launcher that is killed may have asked for ranks that start after that; they are looked for again [s]."""
_TRIES = 5


class GangPorts(Struct, frozen=True):
    """What the machines of an allocation depend on.

    Attributes:
        store: of the run.
        status: what the node agent reads.
        received: returns what signals and notices said since its last call.
        new_nonce: returns a random name.
        log: takes a message for the machine's output.
    """

    clock: Clock
    store: ObjectStore
    status: StatusFile
    received: Callable[[], tuple[RunnerFact, ...]]
    new_nonce: Callable[[], str]
    log: Callable[[str], None]


def end_ranks(variable: str, value: str, *, again: bool) -> None:
    """Kill all processes on this machine that have a variable; `again`: also those that start soon after."""
    processes.kill_marked(variable, value)

    def later() -> None:
        for pause_s in _LATER_S:
            threading.Event().wait(pause_s)
            processes.kill_marked(variable, value)

    if again:
        threading.Thread(target=later, name="ranks", daemon=True).start()


class GangLink:
    """A connection between two machines of an allocation, after the handshake."""

    def __init__(
        self, connection: socket.socket, deliver: Callable[[GangMessage], None], lost: Callable[[str], None]
    ) -> None:
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(UNHEARD_S * 1000))
        self._connection, self._deliver, self._lost = connection, deliver, lost
        self._outgoing: queue.SimpleQueue[GangMessage | None] = queue.SimpleQueue()
        self._over, self.over = threading.Lock(), threading.Event()
        for action in (self._read, self._write):
            threading.Thread(target=action, name=f"gang-{action.__name__}", daemon=True).start()

    def send(self, message: GangMessage) -> None:
        """Queue a message; it is lost if the link is."""
        self._outgoing.put(message)

    def close(self) -> None:
        """Send what is queued, then hang up."""
        self._outgoing.put(None)

    def _read(self) -> None:
        reason = "it hung up"
        try:
            lines = self._connection.makefile("rb")
            while line := lines.readline(peer_messages.LINE_BYTES_MAX):
                message: GangMessage = peer_messages.from_line(line, GangMessage)
                if message.word is not GangWord.BEAT:
                    self._deliver(message)
        except (OSError, ValueError) as error:
            reason = str(error) or type(error).__name__
        self._hang_up(reason)

    def _write(self) -> None:
        message: GangMessage | None = GangMessage(GangWord.BEAT)
        try:
            while message is not None:
                self._connection.sendall(peer_messages.to_line(message))
                try:
                    message = self._outgoing.get(timeout=BEAT_S)
                except queue.Empty:
                    message = GangMessage(GangWord.BEAT)
            self._connection.shutdown(socket.SHUT_WR)
        except OSError as error:
            self._hang_up(str(error))

    def _hang_up(self, reason: str) -> None:
        if self._over.acquire(blocking=False):
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)
            self._connection.close()
            self.over.set()
            self._lost(reason)


class ItemGang:
    """Machine 0 of an allocation, on which the runner is: it has the others prepare for items, and clean up after them."""

    def __init__(self, allocation: Allocation, bag: Bag, ports: GangPorts, lose: Callable[[], None]) -> None:
        """Create it; no machine can join yet.

        Args:
            allocation: with at least two nodes.
            bag: says how many ranks an item has.
            ports: what it depends on.
            lose: called once when a machine is gone.
        """
        self._allocation, self._ports, self._lose = allocation, ports, lose
        ranks, nodes = bag.ranks or bag.nodes, bag.nodes
        self._places = {"ranks": ranks, "ranks_each": ranks // nodes, "nodes": nodes}
        self._links: dict[int, GangLink] = {}
        self._ready: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._reason = ""
        self._leaves = False

    @property
    def lost(self) -> str:
        """Which machine is gone, and how that showed; empty if none is."""
        return self._reason

    def gather(self) -> bool:
        """Wait until all machines have joined; return False if this one is to leave before.

        Raises:
            StoreError: the store did not answer.
            MachineUnfit: the allocation is no whole one any more.
        """
        end_ranks(environment.ITEM_ALLOCATION, self._allocation.name, again=False)
        ports, key = self._ports, bag_layout.gang_key(self._allocation.name)
        again = ports.store.get(key) is not None
        server, meeting = self._listen()
        ports.store.put(key, codec.encode_document(VERSION, "meeting", meeting))
        deadline = ports.clock.now() + AGAIN_S
        try:
            while len(self._links) < len(self._allocation.hosts) - 1:
                if self._reason or (again and ports.clock.now() >= deadline):
                    raise MachineUnfit(f"the allocation is not whole: {self._reason or 'a machine did not come back'}")
                ports.status.show(_status(busy=False))
                if any(isinstance(fact, LeaveAsked | EndAnnounced) for fact in ports.received()):
                    return False
                with self._changed:
                    self._changed.wait(LOOK_S)
        finally:
            server.close()
        return True

    def _listen(self) -> tuple[RendezvousServer, GangMeeting]:
        token = self._ports.new_nonce()
        for left in reversed(range(_TRIES)):
            with socket.create_server((self._allocation.address or "127.0.0.1", 0)) as probe:
                address = f"{probe.getsockname()[0]}:{probe.getsockname()[1]}"
            meeting = GangMeeting(address, token)
            server = RendezvousServer(
                _identity(self._allocation, meeting),
                self._ports.clock,
                new_nonce=self._ports.new_nonce,
                admit=self._admit,
                log=self._ports.log,
            )
            try:
                server.open()
            except Misuse:
                if not left:
                    raise
            else:
                break
        return server, meeting

    def _admit(self, node: int, connection: socket.socket) -> None:
        host = self._allocation.hosts[node]

        def deliver(message: GangMessage) -> None:
            if message.word is GangWord.READY:
                self._ready.put((node, message.folder))

        link = GangLink(connection, deliver, lambda reason: self._is_gone(f"{host}: {reason}"))
        with self._changed:
            self._links[node] = link
            self._changed.notify_all()

    def _is_gone(self, reason: str) -> None:
        with self._changed:
            if self._leaves or self._reason:
                return
            self._reason = reason
            self._changed.notify_all()
        self._ports.log(f"a machine of this allocation is gone ({reason}): its items end on all others")
        self._lose()
        # Whether the launcher has noticed it or not, nothing of it stays.
        end_ranks(environment.ITEM_ALLOCATION, self._allocation.name, again=True)
        for link in self._links.values():
            link.close()

    def begin(self, folder: Path) -> None:
        """Have an item's folder on all machines; return when it is there, or a machine is lost."""
        self._send(GangMessage(GangWord.BEGIN, str(folder)))
        missing, deadline = set(self._links), self._ports.clock.now() + READY_S
        while missing and not self._reason:
            try:
                node, ready = self._ready.get(timeout=LOOK_S)
            except queue.Empty:
                if self._ports.clock.now() >= deadline:
                    self._is_gone(f"{self._allocation.hosts[min(missing)]}: no answer for {READY_S:g} s")
            else:
                missing -= {node} if ready == str(folder) else set()

    def end(self, folder: Path, *, failed: bool, killed: bool) -> None:
        """End what is left of an item on all machines.

        Args:
            folder: of the item.
            failed: it has ended by itself, without success: return when it is known whether that was a machine's loss.
            killed: it was cut off, or has failed.
        """
        self._send(GangMessage(GangWord.END, str(folder), killed=killed))
        end_ranks(environment.ITEM_FOLDER, str(folder), again=killed)
        if failed:
            with self._changed:
                self._changed.wait_for(lambda: self._reason, LOSS_S)

    def with_launch(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Return an item's variables with those by which a launcher starts its ranks on all nodes."""
        launch = self._allocation.launch
        made = {name: value for name, value in variables.items() if launch.get(name, "") is not None}
        made |= {name: value.format(**self._places) for name, value in launch.items() if value is not None}
        return made | {
            environment.ITEM_ALLOCATION: self._allocation.name,
            environment.ITEM_HOSTS: ",".join(self._allocation.hosts),
            environment.ITEM_RANKS: str(self._places["ranks"]),
        }

    def close(self, *, done: bool) -> None:
        """Let the others leave; `done`: the bag is over."""
        with self._changed:
            self._leaves = True
        self._send(GangMessage(GangWord.OVER, done=done))
        for link in self._links.values():
            link.close()
        for link in self._links.values():
            # This process ends next, and what it has not sent would end with it.
            link.over.wait(FAREWELL_S)

    def _send(self, message: GangMessage) -> None:
        for link in self._links.values():
            link.send(message)


class GangMember:
    """Another machine of an allocation."""

    def __init__(self, allocation: Allocation, work: Path, ports: GangPorts) -> None:
        """Create it; `work` is the folder with the code."""
        self._allocation, self._work, self._ports = allocation, work, ports
        self._messages: queue.SimpleQueue[GangMessage | str] = queue.SimpleQueue()
        self._folders: dict[str, bool] = {}

    def run(self) -> int:
        """Serve machine 0 until it leaves or is lost; return the exit code for the node agent."""
        end_ranks(environment.ITEM_ALLOCATION, self._allocation.name, again=False)
        connection = self._joined()
        if connection is None:
            return EXIT_RETRY
        link = GangLink(connection, self._messages.put, self._messages.put)
        try:
            return self._serve(link)
        finally:
            end_ranks(environment.ITEM_ALLOCATION, self._allocation.name, again=False)
            for folder in tuple(self._folders):
                self._remove(folder)

    def _joined(self) -> socket.socket | None:
        """Return a connection to machine 0; None if this machine is to leave before there is one."""
        ports = self._ports
        while not any(isinstance(fact, LeaveAsked) for fact in ports.received()):
            ports.status.show(_status(busy=False))
            with contextlib.suppress(StoreError, GenerationIncomplete, ValueError, WindfallError):
                data = ports.store.get(bag_layout.gang_key(self._allocation.name))
                if data is not None:
                    meeting: GangMeeting = codec.decode_document(
                        data, "meeting", GangMeeting, version=VERSION, what="where machine 0 listens"
                    )
                    return join(_identity(self._allocation, meeting), ports.new_nonce(), 0.0, ports.clock)
            ports.clock.sleep(LOOK_S)
        return None

    def _serve(self, link: GangLink) -> int:
        while True:
            try:
                message = self._messages.get(timeout=LOOK_S)
            except queue.Empty:
                self._ports.status.show(_status(busy=bool(self._folders)))
                if any(isinstance(fact, LeaveAsked) and fact.now for fact in self._ports.received()):
                    return EXIT_RETRY
                continue
            if isinstance(message, str):
                self._ports.log(f"machine 0 of this allocation is gone ({message}): its items end here")
                return EXIT_RETRY
            match message.word:
                case GangWord.BEGIN:
                    self._make(message.folder)
                    link.send(GangMessage(GangWord.READY, message.folder))
                case GangWord.END:
                    end_ranks(environment.ITEM_FOLDER, message.folder, again=message.killed)
                    self._remove(message.folder)
                case GangWord.OVER:
                    link.close()
                    if message.done:
                        self._ports.status.release(Outcome.DONE)
                    return EXIT_DONE if message.done else EXIT_RETRY

    def _make(self, folder: str) -> None:
        """Make an item's folder under the same name, unless machine 0 shares it with this one."""
        self._folders[folder] = not os.path.exists(folder)
        if self._folders[folder]:
            try:
                item_files.make(Path(folder), self._work)
            except OSError as error:
                raise MachineUnfit(f"cannot make the folder of an item: {error.strerror}") from error

    def _remove(self, folder: str) -> None:
        if self._folders.pop(folder, False):
            shutil.rmtree(folder, ignore_errors=True)
            with contextlib.suppress(OSError):
                os.removedirs(os.path.dirname(folder))


def _identity(allocation: Allocation, meeting: GangMeeting) -> PeerIdentity:
    return PeerIdentity(1, allocation.rank, (meeting.address,) * len(allocation.hosts), meeting.token)


def _status(*, busy: bool) -> RunStatus:
    return RunStatus(Term(1), Step(0), Step(0), 1, training=busy, body={"done": 0})
