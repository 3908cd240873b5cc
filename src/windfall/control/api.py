"""The controller's HTTP API: routes under /v1, JSON in and out, errors as `{"error": sentence, "exit_code": n}`.

A job of somebody else is answered like one that does not exist.  Nothing that was sent is repeated in an error: secrets
may be in it.  Routes are plain functions, which the server runs in threads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Annotated, Any, TypeVar

from fastapi import Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field, SecretStr
from starlette.exceptions import HTTPException

from windfall import codec
from windfall.control.auth import Caller, MachineCaller, User, open_credential
from windfall.control.connections import Connections
from windfall.control.gate import Gate, Presence
from windfall.control.service import Claimed, GcView, JobView, Json, KnownView, OffersView, RowView, Service, StatusView
from windfall.errors import (
    EXIT_MISUSE,
    ControllerError,
    ControllerReplaced,
    DatabaseUnreachable,
    Infeasible,
    Misuse,
    ProviderError,
    StoreError,
    WindfallError,
)
from windfall.fleet import Report
from windfall.jobs import DRILL, Job, Measured
from windfall.policies import admitting
from windfall.terms import Seconds

Word = TypeVar("Word")
ROWS_MAX = 2000
"""Journal rows in one answer."""
_NUMBER_MAX = 2**53
MACHINES_MAX = 10_000
"""Machines in one request to release them."""
_STATUS: tuple[tuple[type[WindfallError], int], ...] = (
    (Infeasible, 422),
    (Misuse, 400),
    (ControllerReplaced, 503),
    (DatabaseUnreachable, 503),
    (ProviderError, 502),
    (StoreError, 502),
    (ControllerError, 409),
    (WindfallError, 500),
)
"""The first that fits."""


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class SubmitBody(_Body):
    """A job as `codec.encode` writes it, and the values of its secrets."""

    job: Json
    secrets: dict[str, SecretStr] = Field(default_factory=dict)


class PlanBody(_Body):
    """A job as `codec.encode` writes it."""

    job: Json


class MeasuredBody(PlanBody):
    """What a drill of a job showed, as `codec.encode` writes it."""

    measured: Json


class StopBody(_Body):
    """Whether to stop without a save."""

    now: bool = False


class PreemptBody(_Body):
    """Which machine to take, and with how much notice [s]; null for none."""

    machine_id: Annotated[str, Field(min_length=1, max_length=512)]
    notice_s: Annotated[float, Field(ge=0, le=86400)] | None = None


class GcBody(_Body):
    """Which machines to release."""

    machine_ids: Annotated[list[str], Field(max_length=MACHINES_MAX)]


class ClaimBody(_Body):
    """What a machine was born with.

    `boot_id` names this boot of it: the same one may claim again after a lost answer, no other.
    """

    machine_id: Annotated[str, Field(min_length=1, max_length=512)]
    credential: SecretStr
    boot_id: Annotated[str, Field(min_length=1, max_length=128)]


class _Request(Request):
    """A request whose JSON is read as all other input is."""

    async def json(self) -> Any:
        try:
            return codec.parse(await self.body())
        except ValueError as error:
            raise HTTPException(400, f"the request's body is no JSON: {error}") from None


class _Route(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def with_our_json(request: Request) -> Response:
            return await handle(_Request(request.scope, request.receive))

        return with_our_json


def build(
    service: Service,
    *,
    key: bytes,
    caller: Callable[[str], Caller | None],
    presence: Presence,
    connections: Connections | None = None,
) -> FastAPI:
    """Make the application.

    Args:
        service: does the work.
        key: the installation's, for credentials.
        caller: tells who a bearer token belongs to (`auth.Doorkeeper.caller`); may block.
        presence: is told of each request.
        connections: is told who showed a token.
    """
    app = FastAPI(title="Windfall", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    app.state.service, app.state.key = service, key
    app.router.route_class = _Route
    app.add_middleware(Gate, caller=caller, presence=presence, connections=connections)
    app.add_exception_handler(WindfallError, _told)
    app.add_exception_handler(RequestValidationError, _malformed)
    app.add_exception_handler(HTTPException, _refused)
    gets: tuple[tuple[str, Callable[..., Any]], ...] = (
        ("/v1/ping", ping),
        ("/v1/openapi.json", openapi),
        ("/v1/jobs", list_jobs),
        ("/v1/jobs/{job_id}", get_job),
        ("/v1/jobs/{job_id}/rows", get_rows),
        ("/v1/offers", get_offers),
        ("/v1/status", get_status),
        ("/v1/gc", get_gc),
    )
    posts: tuple[tuple[str, Callable[..., Any]], ...] = (
        ("/v1/jobs", submit),
        ("/v1/jobs/{job_id}/stop", stop),
        ("/v1/jobs/{job_id}/resume", resume),
        ("/v1/jobs/{job_id}/preempt", preempt),
        ("/v1/plan", plan),
        ("/v1/known", known),
        ("/v1/measured", learn),
        ("/v1/gc", collect),
        ("/v1/machines/claim", claim),
        ("/v1/machines/{machine_id:path}/report", report),
    )
    for path, route in gets:
        app.get(path)(route)
    for path, route in posts:
        app.post(path)(route)
    return app


# --------------------------------------------------------------------------------------------------------- who asks


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


def _user(request: Request) -> User:
    who = request.scope["windfall"]
    if not isinstance(who, User):
        raise HTTPException(403, "a machine may only report for itself")
    return who


def _admin(request: Request) -> User:
    user = _user(request)
    if not user.admin:
        raise HTTPException(403, f"{user.name} is no admin: machines that nobody needs may be anybody's")
    return user


def _own_job(request: Request, job_id: str) -> str:
    user = _user(request)
    owner = None if admitting.wrong_id(job_id) else _service(request).owner_of(job_id)
    if owner is None or not (user.admin or owner == user.name):
        raise HTTPException(404, f"there is no job {job_id!r} of {user.name}: see `windfall ps`")
    return job_id


_Service = Annotated[Service, Depends(_service)]
_User = Annotated[User, Depends(_user)]
_Admin = Annotated[User, Depends(_admin)]
_OwnJob = Annotated[str, Depends(_own_job)]


# ------------------------------------------------------------------------------------------------------------- jobs


def ping() -> Json:
    """Say that a controller is here."""
    return {"windfall": 1}


def openapi(request: Request, user: _User) -> Json:  # noqa: ARG001 - only users may see it
    """Return the description of this API."""
    description: Json = request.app.openapi()
    return description


def submit(body: SubmitBody, service: _Service, user: _User) -> Json:
    """Take a job in."""
    job = _job(body.job, user)
    if job.notify.command is not None and not user.admin:
        raise Misuse(
            f"notify.command runs on the controller, and {user.name} is no admin there: use notify.webhook, or ask an admin"
        )
    secrets = {name: value.get_secret_value() for name, value in body.secrets.items()}
    missing = sorted({secret.name for secret in job.secrets} - secrets.keys())
    if missing:
        raise Misuse(f"the job needs the secret {missing[0]}, which was not sent with it: set it in your environment")
    return {"job_id": service.submit(job, secrets)}


def list_jobs(service: _Service, user: _User) -> list[JobView]:
    """Return the user's jobs, or everybody's for an admin."""
    return list(service.jobs(None if user.admin else user.name))


def get_job(job_id: _OwnJob, service: _Service) -> JobView:
    """Return how a job stands."""
    return service.job(job_id)


def get_rows(
    job_id: _OwnJob,
    service: _Service,
    after: Annotated[int, Query(ge=0, le=_NUMBER_MAX)] = 0,
    limit: Annotated[int, Query(ge=1, le=ROWS_MAX)] = ROWS_MAX,
) -> list[RowView]:
    """Return rows of a job's journal."""
    return list(service.rows(job_id, after, limit))


def stop(job_id: _OwnJob, body: StopBody, service: _Service, user: _User) -> Json:
    """Stop a job."""
    service.stop(job_id, user.name, now=body.now)
    return {}


def resume(job_id: _OwnJob, service: _Service, user: _User) -> Json:
    """Let a stopped job go on."""
    service.resume(job_id, user.name)
    return {}


def preempt(job_id: _OwnJob, body: PreemptBody, service: _Service, user: _User) -> Json:
    """Let a machine be taken."""
    notice_s = None if body.notice_s is None else Seconds(body.notice_s)
    service.preempt(job_id, body.machine_id, user.name, notice_s=notice_s)
    return {}


def plan(body: PlanBody, service: _Service, user: _User) -> Json:
    """Say what a job would cost."""
    return service.plan(_job(body.job, user))


def known(body: PlanBody, service: _Service, user: _User) -> KnownView:
    """Return what a plan of a job rests on."""
    return service.known(_job(body.job, user))


def learn(body: MeasuredBody, service: _Service, user: _User) -> Json:
    """Keep what a drill of a job showed, for its plans."""
    measured = _understood(body.measured, Measured, "these are no measurements")
    service.learn(_job(body.job, user), dataclasses.replace(measured, provider=DRILL))
    return {}


def get_offers(service: _Service, user: _User) -> OffersView:  # noqa: ARG001 - any user may ask
    """Return what can be bought."""
    return service.offers()


def get_status(service: _Service, user: _User) -> StatusView:  # noqa: ARG001 - any user may ask
    """Return how the controller stands."""
    return service.status()


def get_gc(service: _Service, user: _Admin) -> GcView:  # noqa: ARG001 - any admin may ask
    """Return machines that no job needs."""
    return service.unneeded()


def collect(body: GcBody, service: _Service, user: _Admin) -> GcView:  # noqa: ARG001 - any admin may
    """Release machines that no job needs."""
    return service.collect(body.machine_ids)


def _job(data: Json, user: User) -> Job:
    """Decode a job by its type, and repeat the checks of the job file: whoever sends it may have made none."""
    job = _understood(data, Job, "this is no job")
    admitting.check(job)
    return dataclasses.replace(job, user=user.name)


def _understood(data: Json, kind: type[Word], sentence: str) -> Word:
    try:
        word: Word = codec.decode(data, kind)
    except ValueError as error:
        raise Misuse(
            f"{sentence} that this controller understands ({error}): are both Windfalls of one version?"
        ) from error
    return word


# --------------------------------------------------------------------------------------------------------- machines


def claim(body: ClaimBody, request: Request, service: _Service) -> Claimed:
    """Exchange a machine's credential for its token and what its job needs."""
    opened = open_credential(request.app.state.key, body.credential.get_secret_value())
    claimed = None if opened is None else service.claim(*opened, body.machine_id, body.boot_id)
    if claimed is None:
        raise HTTPException(403, "this credential is not valid for this machine, or another boot has used it")
    return claimed


def report(machine_id: str, body: Json, request: Request, service: _Service) -> Response:
    """Take a machine's report; answer with its directive, 204 if there is none yet."""
    who = request.scope["windfall"]
    if not isinstance(who, MachineCaller) or who.machine_id != machine_id:
        raise HTTPException(403, "a machine may only report for itself")
    said = _understood(body, Report, "this is no report")
    if said.machine_id != machine_id:
        raise HTTPException(403, "a machine may only report for itself")
    directive = service.report(who.job_id, said)
    return Response(status_code=204) if directive is None else JSONResponse(codec.encode(directive))


# ----------------------------------------------------------------------------------------------------------- errors


def _error(status: int, sentence: str, exit_code: int) -> JSONResponse:
    return JSONResponse({"error": sentence, "exit_code": exit_code}, status)


async def _told(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, WindfallError)
    status = next(status for kind, status in _STATUS if isinstance(error, kind))
    return _error(status, str(error), error.exit_code)


async def _malformed(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    # A field that nobody knows may be named by anything, also by what should have been its value.
    known = first["loc"][:-1] if first["type"] == "extra_forbidden" else first["loc"]
    place = ".".join(str(part) for part in known)
    return _error(400, f"the request is wrong at {place}: {first['type'].replace('_', ' ')}", EXIT_MISUSE)


async def _refused(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    sentence = error.detail
    if error.status_code in (404, 405) and sentence == HTTPStatus(error.status_code).phrase:
        sentence = "the controller has no such request: are both Windfalls of one version?"
    return _error(error.status_code, sentence, EXIT_MISUSE)
