"""How the verbs reach a controller: this user's embedded one, started on demand, or a team's.

The embedded controller runs in its own session and logs to the state folder; it outlives the terminal, and exits after
some time without work.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import httpx

from windfall import codec
from windfall.cli.locations import ADDRESS, DATABASE, LOG, TOKEN, lock_file, prepare
from windfall.control.controller_views import GcView, JobView, Json, OffersView, RowView, StatusView
from windfall.control.planner import Planner
from windfall.errors import (
    EXIT_INFEASIBLE,
    EXIT_MISUSE,
    EXIT_RETRY,
    ControllerError,
    ControllerReplaced,
    ControllerUnreachable,
    Infeasible,
    Misuse,
    WindfallError,
)
from windfall.jobs import Forecast, Job, Measurement
from windfall.linux.clock import SystemClock
from windfall.policies.planning.estimates import PlanInputs
from windfall.structs import Struct
from windfall.terms import Seconds
from windfall.wire.python_programs import program, program_environment

V = TypeVar("V")
EMBEDDED = program("windfall.cli.controller_process")
"""The embedded controller's command; the state folder follows."""
_START_LOCK = "start.lock"
_START_TIMEOUT_S = 40.0
"""How long a controller may take from its start to its first answer [s]."""
_PING_S = 3.0
_POLL_S = Seconds(0.05)
_REQUEST_TIMEOUT = httpx.Timeout(120.0, connect=10.0)
"""Plans and listings query providers, which can be slow."""
_IDLE_LIMITS = httpx.Limits(keepalive_expiry=2.0)
"""Idle connections close well before the controller closes them (5 s), so that none is closed while it is used."""
_SUBMIT_TRIES = 3
_LOG_TAIL_CHARACTERS = 600
_BY_EXIT_CODE: tuple[tuple[int, type[WindfallError]], ...] = (
    (EXIT_MISUSE, Misuse),
    (EXIT_INFEASIBLE, Infeasible),
    (EXIT_RETRY, ControllerReplaced),
)


class ControllerAddress(Struct, frozen=True):
    """Where a controller answers.

    Attributes:
        hint: what a user can do if it does not answer.
        process: id of the embedded controller's process on this machine; None for a team's.
    """

    url: str
    token: str
    hint: str
    process: int | None = None


def uses_team_controller() -> bool:
    """Return whether a team's controller is configured, instead of this user's own."""
    return bool(os.environ.get("WINDFALL_CONTROLLER"))


def connect(state: Path, *, start: bool, launch: Sequence[str] = EMBEDDED) -> Client:
    """Find the controller: `WINDFALL_CONTROLLER` with `WINDFALL_TOKEN` (or `WINDFALL_TOKEN_FILE`), else this user's own.

    Args:
        state: the state folder of this user.
        start: start the embedded controller if it is not running.
        launch: its command.

    Raises:
        ControllerUnreachable: nothing answers, and none was started.
        Misuse: a token is missing.
    """
    url = os.environ.get("WINDFALL_CONTROLLER")
    if url:
        hint = "check WINDFALL_CONTROLLER, and that the controller is running"
        return Client(lambda: ControllerAddress(url.rstrip("/"), _team_token(), hint))
    return Client(lambda: _embedded(state, start=start, launch=launch))


@contextlib.contextmanager
def planner(state: Path) -> Iterator[Client | Planner]:
    """Return what answers questions about plans: the controller if one runs, otherwise this process.

    No process is started for them.
    """
    if uses_team_controller():
        with connect(state, start=False) as controller:
            yield controller
    elif (address := _find_running(state)) is not None:
        with Client(lambda: address) as controller:
            yield controller
    else:
        from windfall.wiring_control import open_planner  # noqa: PLC0415 - it imports everything

        with open_planner(state, state / DATABASE) as local:
            yield local


def _team_token() -> str:
    if token := os.environ.get("WINDFALL_TOKEN"):
        return token.strip()
    path = os.environ.get("WINDFALL_TOKEN_FILE")
    if not path:
        raise Misuse(
            "WINDFALL_CONTROLLER is set, but no token: set WINDFALL_TOKEN, or WINDFALL_TOKEN_FILE to a file with it; the "
            "controller's admin creates one with `windfall serve --add-user NAME`"
        )
    try:
        return Path(path).read_text().strip()
    except OSError as error:
        raise Misuse(f"cannot read WINDFALL_TOKEN_FILE {path}: {error.strerror}") from error


class Client:
    """A controller as typed calls; each may raise `ControllerUnreachable`, or the error that the controller returns."""

    def __init__(self, find: Callable[[], ControllerAddress]) -> None:
        self._find = find
        self.address = find()
        self._http = self._open()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the controller keeps running."""
        self._http.close()

    def submit(self, job: Job, secrets: Mapping[str, str], forecast: Forecast | None = None) -> str:
        """Submit a job with the values of its secrets and what its plan promised; return its id.

        If the answer is lost, the call is repeated: submitting the same job twice is one submission, but a user who
        repeated it by hand would have two jobs.
        """
        body: Json = {"job": codec.encode(job), "secrets": dict(secrets)}
        if forecast is not None:
            body["forecast"] = codec.encode(forecast)
        for _ in range(_SUBMIT_TRIES - 1):
            with contextlib.suppress(ControllerUnreachable):
                return str(self._post("/v1/jobs", body)["job_id"])
        return str(self._post("/v1/jobs", body)["job_id"])

    def jobs(self) -> list[JobView]:
        """Return the jobs that this user may see, oldest first."""
        return _read(list[JobView], self._get("/v1/jobs"))

    def job(self, job_id: str) -> JobView:
        """Return the status of a job."""
        return _read(JobView, self._get(f"/v1/jobs/{_path_segment(job_id)}"))

    def rows(self, job_id: str, after: int = 0) -> Iterator[RowView]:
        """Yield the rows of a job's journal after row `after`, up to the newest."""
        while True:
            page = _read(list[RowView], self._get(f"/v1/jobs/{_path_segment(job_id)}/rows", {"after": after}))
            yield from page
            if not page:
                return
            after = page[-1].sequence

    def stop(self, job_id: str, *, now: bool = False) -> None:
        """Stop a job after a save, or now."""
        self._post(f"/v1/jobs/{_path_segment(job_id)}/stop", {"now": now})

    def resume(self, job_id: str, *, more: bool = False) -> None:
        """Resume a stopped or failed job; with `more`, its run was given more to do, so one that is done resumes too."""
        self._post(f"/v1/jobs/{_path_segment(job_id)}/resume", {"more": more})

    def preempt(self, job_id: str, machine_id: str, notice_s: float | None) -> None:
        """Preempt a machine of a job with `notice_s` of notice [s]; None for none."""
        self._post(f"/v1/jobs/{_path_segment(job_id)}/preempt", {"machine_id": machine_id, "notice_s": notice_s})

    def plan(self, job: Job) -> Json:
        """Return what a job would cost; nothing is ordered."""
        answer: Json = self._post("/v1/plan", {"job": codec.encode(job)})
        return answer

    def learn(self, job: Job, measured: Measurement) -> None:
        """Store the measurements of a job's drill, for later plans."""
        self._post("/v1/measured", {"job": codec.encode(job), "measured": codec.encode(measured)})

    def plan_inputs(self, job: Job) -> PlanInputs:
        """Return the data that a plan of a job is based on."""
        return _read(PlanInputs, self._post("/v1/plan-inputs", {"job": codec.encode(job)}))

    def offers(self) -> OffersView:
        """Return the present offers."""
        return _read(OffersView, self._get("/v1/offers"))

    def status(self) -> StatusView:
        """Return the controller's status."""
        return _read(StatusView, self._get("/v1/status"))

    def unneeded(self) -> GcView:
        """Return the machines of this installation that no job needs."""
        return _read(GcView, self._get("/v1/gc"))

    def collect(self, machine_ids: Sequence[str]) -> GcView:
        """Release machines that no job needs; return those that were released."""
        return _read(GcView, self._post("/v1/gc", {"machine_ids": list(machine_ids)}))

    def _open(self) -> httpx.Client:
        # There is no proxy between this user and their own controller.
        return httpx.Client(
            base_url=self.address.url,
            headers={"authorization": f"Bearer {self.address.token}"},
            timeout=_REQUEST_TIMEOUT,
            limits=_IDLE_LIMITS,
            # Reading the certificates takes 20 ms, and without TLS none is used; redirects are not followed.
            verify=self.address.url.startswith("https:"),
            trust_env=self.address.process is None,
        )

    def _get(self, path: str, query: Mapping[str, int] | None = None) -> Any:
        return self._ask("GET", path, params=query)

    def _post(self, path: str, body: Json) -> Any:
        return self._ask("POST", path, json=body)

    def _ask(self, method: str, path: str, **options: Any) -> Any:
        try:
            answer = self._http.request(method, path, **options)
            away = answer.status_code == 503 and "retry-after" in answer.headers
        except httpx.ConnectError:
            away = True
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        if not away:
            return self._decode(answer)
        # The request was not executed: the embedded controller was exiting or was killed, and another one replaces it.
        # Found first: if there is none yet, the next call asks where it was, and looks again.
        address = self._find()
        self.close()
        self.address = address
        self._http = self._open()
        try:
            return self._decode(self._http.request(method, path, **options))
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> ControllerUnreachable:
        return ControllerUnreachable(
            f"the controller at {self.address.url} does not answer ({error}): {self.address.hint}"
        )

    def _decode(self, answer: httpx.Response) -> Any:
        try:
            data = answer.json()
        except ValueError as error:
            raise ControllerError(
                f"{self.address.url} is not a Windfall controller (HTTP {answer.status_code}): {self.address.hint}"
            ) from error
        if answer.is_success:
            return data
        return _raise(data, answer.status_code)


def _raise(data: Any, status: int) -> None:
    fields = data if isinstance(data, dict) else {}
    code = fields.get("exit_code", 1)
    kind = next((kind for number, kind in _BY_EXIT_CODE if number == code), ControllerError)
    error = kind(str(fields.get("error", f"the controller answered with HTTP {status}")))
    error.exit_code = code
    raise error


def _read(kind: type[V], data: Any) -> V:
    try:
        view: V = codec.decode(data, kind)
    except ValueError as error:
        raise ControllerError(
            "cannot read the controller's answer: use the same version of Windfall here and for the controller"
        ) from error
    return view


def _path_segment(name: str) -> str:
    if not name or "/" in name:
        raise Misuse(f"no job {name!r}: list jobs with `windfall ps`")
    return quote(name, safe="")


# --------------------------------------------------------------------------------------------- the embedded controller


def _embedded(state: Path, *, start: bool, launch: Sequence[str]) -> ControllerAddress:
    address = _find_running(state)
    if address is not None:
        return address
    if not start:
        raise ControllerUnreachable(
            f"no controller is running (state folder {state}): `windfall run` starts one; for a team's, set "
            "WINDFALL_CONTROLLER"
        )
    prepare(state)
    with _start_lock(state):
        # The process that held the lock before may have started it.
        return _find_running(state) or _start(state, launch)


@contextlib.contextmanager
def _start_lock(state: Path) -> Iterator[None]:
    handle = os.open(state / _START_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        lock_file(handle, state, wait=True)
        yield
    finally:
        os.close(handle)


def _find_running(state: Path) -> ControllerAddress | None:
    """Return the address of this folder's controller; None if none answers."""
    try:
        written = json.loads((state / ADDRESS).read_text())
        address = ControllerAddress(
            written["url"], (state / TOKEN).read_text().strip(), _hint(state), int(written["pid"])
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    try:
        answer = httpx.get(f"{address.url}/v1/ping", timeout=_PING_S, trust_env=False)
    except httpx.HTTPError:
        return None
    return address if answer.status_code == 200 and "windfall" in answer.text else None


def _hint(state: Path) -> str:
    return f"see its log {state / LOG}; running the same command again starts another"


def _start(state: Path, launch: Sequence[str]) -> ControllerAddress:
    clock = SystemClock()
    pid = _spawn(state, launch)
    deadline = clock.now() + _START_TIMEOUT_S
    while clock.now() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        address = _find_running(state)
        if address is not None:
            return address
        if ended:
            raise ControllerUnreachable(
                f"the controller failed to start (exit code {os.waitstatus_to_exitcode(status)}): {_last_log_line(state)}"
            )
        clock.sleep(_POLL_S)
    raise ControllerUnreachable(
        f"the controller (process {pid}) did not answer within {_START_TIMEOUT_S:.0f} s of its start: {_last_log_line(state)}"
    )


def _spawn(state: Path, launch: Sequence[str]) -> int:
    """Start the controller in its own session, so that closing the terminal does not end it; return its process id."""
    log = os.open(state / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        return os.posix_spawn(
            launch[0],
            [*launch, str(state.absolute())],
            program_environment(os.environ),
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, log, 1),
                (os.POSIX_SPAWN_DUP2, log, 2),
            ],
            setsid=True,
        )
    finally:
        os.close(log)


def _last_log_line(state: Path) -> str:
    with contextlib.suppress(OSError):
        lines = (state / LOG).read_bytes()[-_LOG_TAIL_CHARACTERS:].decode(errors="replace").strip().splitlines()
        if lines:
            return lines[-1].removeprefix("windfall: ")
    return f"its log {state / LOG} is empty"
