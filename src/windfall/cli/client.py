"""How the verbs reach a controller: the embedded one of this user, started when it is needed, or a team's.

The embedded controller is a process of its own session with its log in the state folder; it outlives the terminal, and
leaves when it has had nothing to do for a while.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
import pydantic

from windfall import codec
from windfall.cli.places import ADDRESS, LOG, TOKEN, prepare
from windfall.control.service import GcView, JobView, Json, KnownView, OffersView, RowView, StatusView
from windfall.errors import (
    EXIT_AGAIN,
    EXIT_INFEASIBLE,
    EXIT_MISUSE,
    ControllerError,
    ControllerReplaced,
    ControllerUnreachable,
    Infeasible,
    Misuse,
    WindfallError,
)
from windfall.jobs import Job, Measured
from windfall.market import Offer
from windfall.storage.clocks import SystemClock
from windfall.terms import Seconds
from windfall.wire.programs import our_environment, program

V = TypeVar("V")
EMBEDDED = program("windfall.cli.controller")
"""The embedded controller's command; the state folder follows."""
_START_LOCK = "start.lock"
_START_S = 40.0
"""How long a controller may take from its start to its first answer."""
_PING_S = 3.0
_LOOK_S = Seconds(0.05)
_REQUEST_TIMEOUT = httpx.Timeout(120.0, connect=10.0)
"""Plans and listings ask providers, which may take their time."""
_IDLE_LIMITS = httpx.Limits(keepalive_expiry=2.0)
"""A connection is given up well before the controller does that (5 s): none is closed in the moment it is used."""
_SUBMIT_TRIES = 3
_LOG_TAIL_CHARACTERS = 600
_BY_EXIT_CODE: tuple[tuple[int, type[WindfallError]], ...] = (
    (EXIT_MISUSE, Misuse),
    (EXIT_INFEASIBLE, Infeasible),
    (EXIT_AGAIN, ControllerReplaced),
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a controller answers.

    Attributes:
        hint: what a user can do when it does not.
        process: of the embedded controller on this machine; None for a team's.
    """

    url: str
    token: str
    hint: str
    process: int | None = None


def is_teams() -> bool:
    """Say whether a team's controller is meant, not this user's own."""
    return bool(os.environ.get("WINDFALL_CONTROLLER"))


def connect(state: Path, *, start: bool, launch: Sequence[str] = EMBEDDED) -> Client:
    """Find the controller: `WINDFALL_CONTROLLER` with `WINDFALL_TOKEN` (or `WINDFALL_TOKEN_FILE`), else this user's own.

    Args:
        state: the state folder of this user.
        start: start the embedded controller if it does not run.
        launch: its command.

    Raises:
        ControllerUnreachable: nothing answers, and nothing was, or could be, started.
        Misuse: a token is missing.
    """
    url = os.environ.get("WINDFALL_CONTROLLER")
    if url:
        return Client(lambda: Place(url.rstrip("/"), _team_token(), "check WINDFALL_CONTROLLER and whether it runs"))
    return Client(lambda: _embedded(state, start=start, launch=launch))


def _team_token() -> str:
    if token := os.environ.get("WINDFALL_TOKEN"):
        return token.strip()
    path = os.environ.get("WINDFALL_TOKEN_FILE")
    if not path:
        raise Misuse(
            "WINDFALL_CONTROLLER names a controller but no token: set WINDFALL_TOKEN, or WINDFALL_TOKEN_FILE to a file "
            "with it; whoever runs the controller makes one with `windfall serve --add-user NAME`"
        )
    try:
        return Path(path).read_text().strip()
    except OSError as error:
        raise Misuse(f"WINDFALL_TOKEN_FILE {path} cannot be read: {error.strerror}") from error


class Client:
    """A controller, as typed calls; each may raise `ControllerUnreachable` or the error that the controller tells."""

    def __init__(self, find: Callable[[], Place]) -> None:
        self._find = find
        self.place = find()
        self._http = self._open()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the controller goes on."""
        self._http.close()

    def submit(self, job: Job, secrets: Mapping[str, str]) -> str:
        """Submit a job with the values of its secrets; return its id.

        A lost answer is asked for again: the same job is the same submission, and a user who started it once more by
        hand would have two.
        """
        body: Json = {"job": codec.encode(job), "secrets": dict(secrets)}
        for _ in range(_SUBMIT_TRIES - 1):
            with contextlib.suppress(ControllerUnreachable):
                return str(self._post("/v1/jobs", body)["job_id"])
        return str(self._post("/v1/jobs", body)["job_id"])

    def jobs(self) -> list[JobView]:
        """Return the jobs that this user may see, oldest first."""
        return _read(list[JobView], self._get("/v1/jobs"))

    def job(self, job_id: str) -> JobView:
        """Return how a job stands."""
        return _read(JobView, self._get(f"/v1/jobs/{_part(job_id)}"))

    def rows(self, job_id: str, after: int = 0) -> Iterator[RowView]:
        """Yield the rows of a job's journal behind row `after`, up to the newest."""
        while True:
            page = _read(list[RowView], self._get(f"/v1/jobs/{_part(job_id)}/rows", {"after": after}))
            yield from page
            if not page:
                return
            after = page[-1].sequence

    def stop(self, job_id: str, *, now: bool = False) -> None:
        """Stop a job after a save, or now."""
        self._post(f"/v1/jobs/{_part(job_id)}/stop", {"now": now})

    def resume(self, job_id: str) -> None:
        """Let a stopped job go on."""
        self._post(f"/v1/jobs/{_part(job_id)}/resume", {})

    def preempt(self, job_id: str, machine_id: str, notice_s: float | None) -> None:
        """Let a machine of a job be taken, with so much notice, None for none."""
        self._post(f"/v1/jobs/{_part(job_id)}/preempt", {"machine_id": machine_id, "notice_s": notice_s})

    def plan(self, job: Job) -> Json:
        """Ask what a job would cost; nothing is bought."""
        answer: Json = self._post("/v1/plan", {"job": codec.encode(job)})
        return answer

    def learn(self, job: Job, measured: Measured) -> None:
        """Keep what a drill of a job showed, for later plans."""
        self._post("/v1/measured", {"job": codec.encode(job), "measured": codec.encode(measured)})

    def known(self, job: Job) -> KnownView:
        """Ask what a plan of a job rests on."""
        return _read(KnownView, self._post("/v1/known", {"job": codec.encode(job)}))

    def offers(self) -> OffersView:
        """Ask what can be bought now."""
        return _read(OffersView, self._get("/v1/offers"))

    def status(self) -> StatusView:
        """Ask how the controller stands."""
        return _read(StatusView, self._get("/v1/status"))

    def unneeded(self) -> GcView:
        """Ask for machines of this installation that no job needs."""
        return _read(GcView, self._get("/v1/gc"))

    def collect(self, machine_ids: Sequence[str]) -> GcView:
        """Release machines that no job needs; returns those that were."""
        return _read(GcView, self._post("/v1/gc", {"machine_ids": list(machine_ids)}))

    def _open(self) -> httpx.Client:
        # No proxy stands between this user and their own controller.
        return httpx.Client(
            base_url=self.place.url,
            headers={"authorization": f"Bearer {self.place.token}"},
            timeout=_REQUEST_TIMEOUT,
            limits=_IDLE_LIMITS,
            trust_env=self.place.process is None,
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
            return self._understand(answer)
        # It was not carried out: an embedded controller that was leaving, or has been killed, is followed by another.
        self.close()
        self.place = self._find()
        self._http = self._open()
        try:
            return self._understand(self._http.request(method, path, **options))
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> ControllerUnreachable:
        return ControllerUnreachable(f"the controller at {self.place.url} does not answer ({error}): {self.place.hint}")

    def _understand(self, answer: httpx.Response) -> Any:
        try:
            data = answer.json()
        except ValueError as error:
            raise ControllerError(
                f"what answers at {self.place.url} is no Windfall controller (HTTP {answer.status_code}): {self.place.hint}"
            ) from error
        if answer.is_success:
            return data
        return _raise(data, answer.status_code)


def offer_of(plan: Json) -> Offer:
    """Return the offer that a plan has chosen."""
    return _read(Offer, plan["chosen"]["offer"])


def _raise(data: Any, status: int) -> None:
    told = data if isinstance(data, dict) else {}
    code = told.get("exit_code", 1)
    kind = next((kind for number, kind in _BY_EXIT_CODE if number == code), ControllerError)
    error = kind(str(told.get("error", f"the controller answered with HTTP {status}")))
    error.exit_code = code
    raise error


def _read(kind: type[V], data: Any) -> V:
    try:
        view: V = pydantic.TypeAdapter(kind).validate_python(data)
    except pydantic.ValidationError as error:
        raise ControllerError(
            "the controller's answer cannot be understood: are both Windfalls of one version?"
        ) from error
    return view


def _part(name: str) -> str:
    if not name or "/" in name:
        raise Misuse(f"there is no job {name!r}: see `windfall ps`")
    return quote(name, safe="")


# --------------------------------------------------------------------------------------------- the embedded controller


def _embedded(state: Path, *, start: bool, launch: Sequence[str]) -> Place:
    place = _alive(state)
    if place is not None:
        return place
    if not start:
        raise ControllerUnreachable(
            f"no controller runs here (state folder {state}): `windfall run` starts one, WINDFALL_CONTROLLER names a team's"
        )
    prepare(state)
    with _starting(state):
        # Whoever held the lock before us may have started it.
        return _alive(state) or _start(state, launch)


@contextlib.contextmanager
def _starting(state: Path) -> Iterator[None]:
    handle = os.open(state / _START_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _alive(state: Path) -> Place | None:
    """Return where the controller of this folder answers, None if it does not."""
    try:
        address = json.loads((state / ADDRESS).read_text())
        place = Place(address["url"], (state / TOKEN).read_text().strip(), _hint(state), int(address["pid"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    try:
        answer = httpx.get(f"{place.url}/v1/ping", timeout=_PING_S, trust_env=False)
    except httpx.HTTPError:
        return None
    return place if answer.status_code == 200 and "windfall" in answer.text else None


def _hint(state: Path) -> str:
    return f"its log is {state / LOG}; the same command again starts another"


def _start(state: Path, launch: Sequence[str]) -> Place:
    clock = SystemClock()
    pid = _spawn(state, launch)
    deadline = clock.now() + _START_S
    while clock.now() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        place = _alive(state)
        if place is not None:
            return place
        if ended:
            raise ControllerUnreachable(
                f"the controller ended at its start (exit code {os.waitstatus_to_exitcode(status)}): {_last_words(state)}"
            )
        clock.sleep(_LOOK_S)
    raise ControllerUnreachable(
        f"the controller (process {pid}) did not answer within {_START_S:.0f} s of its start: {_last_words(state)}"
    )


def _spawn(state: Path, launch: Sequence[str]) -> int:
    """Start the controller in a session of its own, so that no terminal's end reaches it; return its process."""
    log = os.open(state / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        return os.posix_spawn(
            launch[0],
            [*launch, str(state.absolute())],
            our_environment(os.environ),
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, log, 1),
                (os.POSIX_SPAWN_DUP2, log, 2),
            ],
            setsid=True,
        )
    finally:
        os.close(log)


def _last_words(state: Path) -> str:
    with contextlib.suppress(OSError):
        lines = (state / LOG).read_bytes()[-_LOG_TAIL_CHARACTERS:].decode(errors="replace").strip().splitlines()
        if lines:
            return lines[-1].removeprefix("windfall: ")
    return f"its log {state / LOG} says nothing"
