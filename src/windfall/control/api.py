"""The controller's HTTP API: routes under /v1, JSON in and out, errors as `{"error": sentence, "exit_code": n}`.

Another user's job looks like one that does not exist.  An error repeats nothing of the request, which may hold secrets.
Routes are plain functions, which the server runs in threads.  What they depend on blocks for nothing, so it is async: each
change of thread waits for a busy machine's processors.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Annotated, Any, TypeVar, get_type_hints

import msgspec
from fastapi import Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field, SecretStr
from starlette.exceptions import HTTPException

from windfall import codec
from windfall.control.auth import Caller, MachineCaller, User, open_credential
from windfall.control.controller_views import (
    ClaimView,
    GcView,
    JobView,
    Json,
    OffersView,
    RowView,
    Service,
    StatusView,
)
from windfall.control.http_server import Connections, Gate, Presence
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
from windfall.jobs import DRILL, Forecast, Job, Measurement
from windfall.policies.planning import job_checks
from windfall.policies.planning.estimates import PlanInputs
from windfall.structs import replace
from windfall.terms import Seconds

Decoded = TypeVar("Decoded")
ROWS_MAX = 2000
"""Most journal rows in one answer."""
_NUMBER_MAX = 2**53
MACHINES_MAX = 10_000
"""Most machines in one request to release them."""
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
"""HTTP status by error type; the first match counts."""


class _ApiBody(BaseModel):
    model_config = ConfigDict(extra="forbid")


class SubmitBody(_ApiBody):
    """A job as `codec.encode` writes it, the values of its secrets, and what its plan promised."""

    job: Json
    forecast: Json | None = None
    secrets: dict[str, SecretStr] = Field(default_factory=dict)


class PlanBody(_ApiBody):
    """A job as `codec.encode` writes it."""

    job: Json


class MeasuredBody(PlanBody):
    """A job and the measurements of its drill, as `codec.encode` writes them."""

    measured: Json


class StopBody(_ApiBody):
    """Whether to stop without a save."""

    now: bool = False


class ResumeBody(_ApiBody):
    """Whether the job's run was given more to do, so that it resumes though it is done."""

    more: bool = False


class PreemptBody(_ApiBody):
    """Which machine to preempt, and with how much notice [s]; null for none."""

    machine_id: Annotated[str, Field(min_length=1, max_length=512)]
    notice_s: Annotated[float, Field(ge=0, le=86400)] | None = None


class GcBody(_ApiBody):
    """Which machines to release."""

    machine_ids: Annotated[list[str], Field(max_length=MACHINES_MAX)]


class ClaimBody(_ApiBody):
    """A machine's id and the credential from its order.

    `boot_id` names this boot of the machine: after a lost answer the same boot may claim again, another may not.
    """

    machine_id: Annotated[str, Field(min_length=1, max_length=512)]
    credential: SecretStr
    boot_id: Annotated[str, Field(min_length=1, max_length=128)]


_COMPONENT = "#/components/schemas/{name}"
_VIEWS = (JobView, RowView, PlanInputs, OffersView, StatusView, GcView, ClaimView)


class _JsonRequest(Request):
    """A request whose JSON is parsed by `codec`, as all other input is."""

    async def json(self) -> Any:
        try:
            return codec.parse(await self.body())
        except ValueError as error:
            raise HTTPException(400, f"the request body is not JSON: {error}") from None


class _Route(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def with_codec_json(request: Request) -> Response:
            return await handle(_JsonRequest(request.scope, request.receive))

        return with_codec_json


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
        caller: returns who a bearer token belongs to (`auth.Authenticator.caller`); may block.
        presence: counts the requests in progress.
        connections: tracks which connections have shown a token.
    """
    app = FastAPI(title="Windfall", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    app.state.service, app.state.key = service, key
    app.router.route_class = _Route
    app.add_middleware(Gate, caller=caller, presence=presence, connections=connections)
    app.add_exception_handler(WindfallError, _windfall_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)
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
        ("/v1/plan-inputs", plan_inputs),
        ("/v1/measured", add_measurement),
        ("/v1/gc", collect),
        ("/v1/machines/claim", claim),
        ("/v1/machines/{machine_id:path}/report", report),
    )
    for path, route in gets:
        app.get(path, response_model=None, responses=_described(route))(_as_json(route))
    for path, route in posts:
        app.post(path, response_model=None, responses=_described(route))(_as_json(route))
    return app


def _as_json(route: Callable[..., Any]) -> Callable[..., Response]:
    """Let `codec` write what a route returns, as it writes all other JSON."""

    @functools.wraps(route)
    def with_codec_json(*args: Any, **kwargs: Any) -> Response:
        found = route(*args, **kwargs)
        return found if isinstance(found, Response) else JSONResponse(codec.encode(found))

    return with_codec_json


def _described(route: Callable[..., Any]) -> dict[int | str, dict[str, Any]]:
    """Return what the API's description says of a route's answer."""
    view = get_type_hints(route)["return"]
    if view is Response:
        return {}
    (schema,), _ = msgspec.json.schema_components([view], ref_template=_COMPONENT)
    return {200: {"content": {"application/json": {"schema": schema}}}}


# ------------------------------------------------------------------------------------------------------- the caller


class _PathJob:
    """The job in a request's path, whose id a route gets by `own` alone."""

    def __init__(self, service: Service, user: User, job_id: str) -> None:
        self._service, self._user, self._job_id = service, user, job_id

    def own(self) -> str:
        """Return its id; blocks.

        Raises:
            HTTPException: the user has no such job.
        """
        user, job_id = self._user, self._job_id
        owner = None if job_checks.id_problem(job_id) else self._service.owner_of(job_id)
        if owner is None or not (user.admin or owner == user.name):
            raise HTTPException(404, f"{user.name} has no job {job_id!r}: `windfall ps` lists your jobs")
        return job_id


async def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


async def _user(request: Request) -> User:
    who = request.scope["windfall"]
    if not isinstance(who, User):
        raise HTTPException(403, "a machine may only report for itself")
    return who


_Service = Annotated[Service, Depends(_service)]
_User = Annotated[User, Depends(_user)]


async def _admin(user: _User) -> User:
    if not user.admin:
        raise HTTPException(403, f"{user.name} is not an admin: only admins may list and release unneeded machines")
    return user


async def _path_job(job_id: str, service: _Service, user: _User) -> _PathJob:
    return _PathJob(service, user, job_id)


_Admin = Annotated[User, Depends(_admin)]
_Job = Annotated[_PathJob, Depends(_path_job)]


# ------------------------------------------------------------------------------------------------------------- jobs


def ping() -> Json:
    """Answer that a controller runs here."""
    return {"windfall": 1}


def openapi(request: Request, user: _User) -> Json:  # noqa: ARG001 - only users may see it
    """Return the description of this API."""
    description: Json = request.app.openapi()
    _, components = msgspec.json.schema_components(_VIEWS, ref_template=_COMPONENT)
    description["components"]["schemas"].update(components)
    return description


def submit(body: SubmitBody, service: _Service, user: _User) -> Json:
    """Submit a job."""
    job = _job(body.job, user)
    if job.notify.command is not None and not user.admin:
        raise Misuse(
            f"notify.command runs on the controller, where {user.name} is not an admin: use notify.webhook, or ask an admin"
        )
    secrets = {name: value.get_secret_value() for name, value in body.secrets.items()}
    missing = sorted({secret.name for secret in job.secrets} - secrets.keys())
    if missing:
        raise Misuse(f"the job needs the secret {missing[0]}, which was not sent: set it in your environment")
    forecast = None if body.forecast is None else _decode(body.forecast, Forecast, "a forecast")
    return {"job_id": service.submit(job, secrets, forecast)}


def list_jobs(service: _Service, user: _User) -> list[JobView]:
    """Return the user's jobs, or all users' jobs for an admin."""
    return list(service.jobs(None if user.admin else user.name))


def get_job(job: _Job, service: _Service) -> JobView:
    """Return a job's status."""
    return service.job(job.own())


def get_rows(
    job: _Job,
    service: _Service,
    after: Annotated[int, Query(ge=0, le=_NUMBER_MAX)] = 0,
    limit: Annotated[int, Query(ge=1, le=ROWS_MAX)] = ROWS_MAX,
) -> list[RowView]:
    """Return rows of a job's journal."""
    return list(service.rows(job.own(), after, limit))


def stop(job: _Job, body: StopBody, service: _Service, user: _User) -> Json:
    """Stop a job."""
    service.stop(job.own(), user.name, now=body.now)
    return {}


def resume(job: _Job, body: ResumeBody, service: _Service, user: _User) -> Json:
    """Resume a stopped or failed job."""
    service.resume(job.own(), user.name, more=body.more)
    return {}


def preempt(job: _Job, body: PreemptBody, service: _Service, user: _User) -> Json:
    """Preempt a machine, as a rehearsal."""
    notice_s = None if body.notice_s is None else Seconds(body.notice_s)
    service.preempt(job.own(), body.machine_id, user.name, notice_s=notice_s)
    return {}


def plan(body: PlanBody, service: _Service, user: _User) -> Json:
    """Return what a job would cost."""
    return service.plan(_job(body.job, user))


def plan_inputs(body: PlanBody, service: _Service, user: _User) -> PlanInputs:
    """Return what a job's plan is calculated from."""
    return service.plan_inputs(_job(body.job, user))


def add_measurement(body: MeasuredBody, service: _Service, user: _User) -> Json:
    """Store the measurements of a job's drill for its plans."""
    measured = _decode(body.measured, Measurement, "measurements")
    service.add_measurement(_job(body.job, user), replace(measured, provider=DRILL))
    return {}


def get_offers(service: _Service, user: _User) -> OffersView:  # noqa: ARG001 - any user may ask
    """Return the offers of all providers."""
    return service.offers()


def get_status(service: _Service, user: _User) -> StatusView:  # noqa: ARG001 - any user may ask
    """Return the controller's status."""
    return service.status()


def get_gc(service: _Service, user: _Admin) -> GcView:  # noqa: ARG001 - any admin may ask
    """Return the machines that no job needs."""
    return service.unneeded()


def collect(body: GcBody, service: _Service, user: _Admin) -> GcView:  # noqa: ARG001 - any admin may
    """Release machines that no job needs."""
    return service.collect(body.machine_ids)


def _job(data: Json, user: User) -> Job:
    """Decode a job and repeat the job file's checks, since the client may have skipped them."""
    job = _decode(data, Job, "a job")
    job_checks.check(job)
    return replace(job, user=user.name)


def _decode(data: Json, kind: type[Decoded], name: str) -> Decoded:
    try:
        decoded: Decoded = codec.decode(data, kind)
    except ValueError as error:
        raise Misuse(
            f"the controller cannot read {name} in this request ({error}): use the same version of Windfall on both sides"
        ) from error
    return decoded


# --------------------------------------------------------------------------------------------------------- machines


def claim(body: ClaimBody, request: Request, service: _Service) -> ClaimView:
    """Exchange a machine's credential for its token and what its job needs."""
    opened = open_credential(request.app.state.key, body.credential.get_secret_value())
    claimed = None if opened is None else service.claim(*opened, body.machine_id, body.boot_id)
    if claimed is None:
        raise HTTPException(403, "this credential is not valid for this machine, or another boot has already used it")
    return claimed


def report(machine_id: str, body: Json, request: Request, service: _Service) -> Response:
    """Receive a machine's report; answer with its directive, 204 if there is none yet."""
    who = request.scope["windfall"]
    if not isinstance(who, MachineCaller) or who.machine_id != machine_id:
        raise HTTPException(403, "a machine may only report for itself")
    received = _decode(body, Report, "a report")
    if received.machine_id != machine_id:
        raise HTTPException(403, "a machine may only report for itself")
    directive = service.report(who.job_id, received)
    return Response(status_code=204) if directive is None else JSONResponse(codec.encode(directive))


# ----------------------------------------------------------------------------------------------------------- errors


def _error(status: int, message: str, exit_code: int) -> JSONResponse:
    return JSONResponse({"error": message, "exit_code": exit_code}, status)


async def _windfall_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, WindfallError)
    status = next(status for kind, status in _STATUS if isinstance(error, kind))
    return _error(status, str(error), error.exit_code)


async def _validation_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    # An unknown field may have any name, even what should have been its value, so its name is not repeated.
    known = first["loc"][:-1] if first["type"] == "extra_forbidden" else first["loc"]
    place = ".".join(str(part) for part in known)
    return _error(400, f"invalid request at {place}: {first['type'].replace('_', ' ')}", EXIT_MISUSE)


async def _http_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    message = error.detail
    if error.status_code in (404, 405) and message == HTTPStatus(error.status_code).phrase:
        message = "the controller does not know this request: use the same version of Windfall on both sides"
    return _error(error.status_code, message, EXIT_MISUSE)
