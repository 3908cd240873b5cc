"""The program of the toy runtime `tickets` on a machine: `python -m tests.support.tickets_program REQUEST`.

A clerk serves the counter on its machine's address and writes it to the run's store before it answers.  A taker asks for
numbers, does each for `WORK_S` seconds, and appends to the file `TICKET_LOG` each one whose commit the clerk accepted.
SIGINT: finish the number in hand, then exit.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from tests.support import ticket_counter, tickets, tickets_live
from tests.support.ticket_counter import Grant, TicketCounter
from windfall.agent import status_files
from windfall.agent.exec_request import ExecRequest, load
from windfall.core.node_agent_state import RunStatus
from windfall.errors import EXIT_RETRY
from windfall.linux.clock import SystemClock
from windfall.ports import ObjectStore
from windfall.storage.object_stores import open_store
from windfall.terms import Step, Term

PAUSE_S = 0.05


class Machine:
    """What both roles know: their request, the newest assignment, and that they are to leave."""

    def __init__(self, request: ExecRequest) -> None:
        self.request = request
        self.leaving = threading.Event()
        self.done = 0
        self._status = status_files.StatusFile(request.status, SystemClock())
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: self.leaving.set())

    def clerk(self) -> str:
        """The clerk's address by the newest assignment; empty if there is none."""
        return str(self.told().get("clerk", ""))

    def told(self) -> dict[str, Any]:
        """The newest assignment."""
        assignment = dict(self.request.assignment)
        with contextlib.suppress(OSError, ValueError):
            with open(str(self.request.estimates)) as file:
                facts = json.load(file)["facts"]
            assignment |= next(fact["assignment"] for fact in facts if fact["type"] == "AssignmentChanged")
        return assignment

    def show(self, term: int) -> None:
        """Report that this machine works."""
        status = RunStatus(Term(term), Step(self.done), Step(self.done), 1, training=True, body={"done": self.done})
        self._status.show(status)


class Clerk:
    """Serves the counter."""

    def __init__(self, machine: Machine, store: ObjectStore, given: tickets.QueueSettings) -> None:
        self.machine, self.store = machine, store
        self.lock = threading.Lock()
        self.counter = tickets_live.read(store) or TicketCounter(
            given.numbers, loss_scale=given.loss_scale, loss_goal=given.loss_goal
        )

    def change(self, newer: TicketCounter) -> None:
        """Make a change durable, then visible."""
        if newer != self.counter:
            self.store.put(tickets_live.COUNTER, msgspec.json.encode(newer))
            self.counter = newer

    def answer(self, asked: dict[str, Any]) -> Any:
        """Answer one request of a taker."""
        with self.lock:
            now = time.time()
            if asked["ask"] == "take":
                newer, grant = ticket_counter.taken(self.counter, asked["machine"], asked["request"], now)
                self.change(newer)
                return msgspec.to_builtins(grant)
            grant = msgspec.convert(asked["grant"], Grant)
            newer, accepted = ticket_counter.committed(self.counter, grant)
            self.change(newer)
            return accepted

    def serve(self) -> None:
        """Take the place of a clerk that is gone, and serve until this machine leaves."""
        me = self.machine.request.machine
        until(lambda: self.machine.leaving.is_set() or bool(self.machine.clerk()))
        host, _, port = self.machine.clerk().rpartition(":")
        clerk = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                for line in self.rfile:
                    self.wfile.write(json.dumps(clerk.answer(json.loads(line))).encode() + b"\n")

        socketserver.ThreadingTCPServer.allow_reuse_address = True
        socketserver.ThreadingTCPServer.daemon_threads = True
        with socketserver.ThreadingTCPServer((host, int(port)), Handler) as server:
            self._look(me)
            until(lambda: self._look(me) or self.machine.leaving.is_set())
            threading.Thread(target=server.serve_forever, args=(PAUSE_S,), daemon=True).start()
            until(lambda: self.machine.leaving.is_set() or not self._look(me))
            server.shutdown()
        with self.lock:
            self.change(ticket_counter.closed(self.counter, self.counter.clerk_term))

    def _look(self, me: str) -> bool:
        """Take back what lost machines had; return whether this machine is the clerk."""
        with self.lock:
            newer = self.counter
            for key in self.store.list(tickets_live.GONE):
                name = key.removeprefix(tickets_live.GONE)
                if name not in newer.gone:
                    newer = ticket_counter.declared_gone(newer, name)
            if newer.clerk != me:
                newer = ticket_counter.opened(newer, me, time.time())
            self.change(newer)
            self.machine.show(newer.clerk_term)
            return newer.clerk == me


def take(machine: Machine) -> None:
    """Take numbers and do them until this machine leaves."""
    count = 0
    while not machine.leaving.is_set():
        host, _, port = machine.clerk().rpartition(":")
        try:
            with socket.create_connection((host, int(port or 0)), timeout=2.0) as line, line.makefile("rw") as file:
                while not machine.leaving.is_set():
                    count += 1
                    machine.show(0)
                    grant = _ask(file, {"ask": "take", "machine": machine.request.machine, "request": count})
                    if grant is None:
                        machine.leaving.wait(PAUSE_S)
                        continue
                    time.sleep(float(machine.told().get("work_s") or os.environ["WORK_S"]))
                    if _ask(file, {"ask": "commit", "grant": grant}):
                        machine.done += 1
                        _log(f"{grant['number']} {machine.request.machine}\n")
        except (OSError, ValueError):
            machine.leaving.wait(PAUSE_S)


def _ask(file: Any, asked: dict[str, Any]) -> Any:
    file.write(json.dumps(asked) + "\n")
    file.flush()
    return json.loads(file.readline())


def _log(line: str) -> None:
    with open(os.environ["TICKET_LOG"], "a") as file:
        file.write(line)


def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    while not holds():
        threading.Event().wait(PAUSE_S)


def main() -> None:
    """Run the program of this machine's role."""
    request = load(sys.argv[1])
    machine = Machine(request)
    if request.role == tickets.CLERK:
        settings = tickets.QueueSettings(**request.settings)
        Clerk(machine, open_store(request.url), settings).serve()
    else:
        take(machine)
    sys.exit(EXIT_RETRY)


if __name__ == "__main__":
    main()
