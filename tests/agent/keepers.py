"""Real node agents (`python -m windfall.cli.node_agent_process`), and a controller that speaks the two routes machines use."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.real.machines import marked
from tests.support.live import PATIENCE_S, TRAINER, Run, eventually, plain_environment
from windfall import codec
from windfall.fleet import DesiredState, Directive, MachineStatus, Report
from windfall.terms import RunOptions, Seconds, Term
from windfall.wire import boot_data as names
from windfall.wire.boot_data import BootData, ClaimResponse, boot_to_json, claimed_to_json
from windfall.wire.run_layout import JOB

MARK = "NODE_AGENT_OF_TEST"
CREDENTIAL = "one-time-credential-5c1e"
RUN, WAIT, _, LEAVE = (Directive(Term(3), desired_state) for desired_state in DesiredState)


@dataclass
class Controller:
    """What a controller says to its machines; `up` false: connections are closed without an answer."""

    boot: BootData
    secrets: tuple[tuple[str, str], ...] = ()
    directives: dict[str, Directive] = field(default_factory=dict)
    up: bool = True
    reports: list[Report] = field(default_factory=list)
    claims: list[dict[str, str]] = field(default_factory=list)
    url: str = ""

    def claim(self, request: dict[str, str]) -> tuple[int, Any]:
        self.claims.append(request)
        if request["credential"] != CREDENTIAL:
            return 403, {"error": "this credential is not valid for this machine"}
        return 200, claimed_to_json(ClaimResponse(f"token-of-{request['machine_id']}", self.boot, self.secrets))

    def report(self, machine_id: str, said: object, token: str | None) -> tuple[int, Any]:
        if token != f"Bearer token-of-{machine_id}":
            return 401, {"error": "who are you?"}
        self.reports.append(codec.decode(said, Report))
        told = self.directives.get(machine_id)
        return (204, None) if told is None else (200, codec.encode(told))

    def newest(self, machine_id: str = "m-1") -> Report | None:
        """The last report of a machine."""
        return next((said for said in reversed(self.reports) if said.machine_id == machine_id), None)

    def hears(self, status: MachineStatus, machine_id: str = "m-1") -> Report:
        """Wait until a machine says that it is doing something."""
        eventually(
            lambda: (said := self.newest(machine_id)) and said.status is status,
            f"{machine_id} {status}, not {self.newest(machine_id)}",
        )
        return next(said for said in reversed(self.reports) if said.machine_id == machine_id and said.status is status)


def _handler(controller: Controller) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            said = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if not controller.up:
                self.close_connection = True
                return
            *_, machine_id, route = self.path.split("/")
            if route == "claim":
                status, answer = controller.claim(said)
            else:
                status, answer = controller.report(machine_id, said, self.headers["Authorization"])
            body = b"" if answer is None else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


@contextlib.contextmanager
def serving(controller: Controller) -> Iterator[Controller]:
    """Answer machines on a port of this computer."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _handler(controller)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        controller.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield controller
        finally:
            server.shutdown()
            thread.join()


@dataclass
class Machine:
    """A node agent in its own empty folder."""

    process: subprocess.Popen[bytes]
    folder: Path

    @property
    def text(self) -> str:
        return (self.folder / "printed").read_text(errors="replace")

    @property
    def run_status(self) -> dict[str, Any]:
        path = self.folder / ".windfall" / "status.json"
        return json.loads(path.read_text()) if path.exists() else {"step": 0}

    def until_step(self, step: int) -> None:
        eventually(lambda: self.run_status["step"] >= step, f"step {step} in:\n{self.text}")

    def ends(self) -> int:
        """Wait for its end, and return the node agent's exit code."""
        try:
            return self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end:\n{self.text}") from None

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)


@dataclass
class RunSite:
    """A folder with a run's store, and the machines bought for it."""

    folder: Path
    run: Run
    machines: list[Machine] = field(default_factory=list)

    @property
    def mark(self) -> str:
        return str(self.folder)

    def job(self, **changes: Any) -> BootData:
        """The trainer as a job."""
        script = self.folder / "train.py"
        script.write_text(TRAINER)
        envs = {"STEPS": "4000", "STEP_S": "0.01", **changes.pop("envs", {})}
        usual: dict[str, Any] = {
            "save_timeout_s": Seconds(20.0),
        }
        own = {name: changes.pop(name) for name in RunOptions.__struct_fields__ if name in changes}
        options = RunOptions(**{"policy": "every:20steps", "grace_s": Seconds(10.0)} | own)
        return BootData(
            "job-1", (sys.executable, str(script)), envs=tuple(envs.items()), options=options, **usual | changes
        )

    def put_job(self, boot: BootData) -> None:
        """Leave the job in the store, as the controller does before it buys."""
        path = self.folder / "run" / JOB
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(boot_to_json(boot)))

    def machine(self, controller: Controller | None, name: str = "m-1") -> Machine:
        """Boot a machine."""
        here = self.folder / name
        here.mkdir()
        env = {
            MARK: self.mark,
            names.RUN_URL: self.run.url,
            names.MACHINE_ID: name,
            names.PROVIDER: "local",
            names.CREDENTIAL: CREDENTIAL,
            names.CONTROLLER: controller.url if controller is not None else "",
        }
        with (here / "printed").open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "windfall.cli.node_agent_process"],
                cwd=here,
                env=plain_environment() | env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        self.machines.append(Machine(process, here))
        return self.machines[-1]

    def processes(self) -> set[int]:
        """Every living process of these machines."""
        return marked(MARK, self.mark)

    def clear(self) -> None:
        """Leave no process behind."""
        while left := self.processes():
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for machine in self.machines:
                machine.process.poll()
        for machine in self.machines:
            machine.process.wait(PATIENCE_S)
