"""The controller's API, over real HTTP: who may ask what, and what comes back."""

from __future__ import annotations

import threading

import httpx
import pytest

from tests.control.conftest import Api, until
from tests.control.fake import KEY, job
from windfall import codec
from windfall.control import auth
from windfall.control.http_server import BODY_BYTES_MAX
from windfall.errors import DatabaseUnreachable
from windfall.fleet import DesiredState, Directive, MachineStatus, Report
from windfall.jobs import Forecast, ForecastBasis, Notify
from windfall.structs import replace
from windfall.terms import Seconds, Usd, WallTime

SECRET = "hf_very_secret_value"


def submit(client: httpx.Client, job_id: str = "gpt-1", **fields: object) -> httpx.Response:
    return client.post("/v1/jobs", json={"job": codec.encode(job(job_id)), **fields})


def error_of(answer: httpx.Response, status: int, exit_code: int) -> str:
    """The sentence of an answer that must be an error of this kind and nothing else."""
    body = answer.json()
    assert (answer.status_code, body["exit_code"], set(body)) == (status, exit_code, {"error", "exit_code"})
    return body["error"]


# ------------------------------------------------------------------------------------------------------------ tokens


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/jobs"),
        ("POST", "/v1/jobs"),
        ("GET", "/v1/jobs/gpt-1"),
        ("POST", "/v1/jobs/gpt-1/stop"),
        ("POST", "/v1/jobs/gpt-1/preempt"),
        ("POST", "/v1/plan"),
        ("POST", "/v1/plan-inputs"),
        ("GET", "/v1/offers"),
        ("GET", "/v1/status"),
        ("GET", "/v1/gc"),
        ("POST", "/v1/machines/m1/report"),
        ("GET", "/v1/openapi.json"),
        ("GET", "/openapi.json"),
        ("GET", "/docs"),
        ("GET", "/redoc"),
        ("GET", "/v1/ping/"),
        ("POST", "/v1/machines/claim/report"),
    ],
)
def test_nothing_is_answered_without_a_token(nobody: httpx.Client, method: str, path: str) -> None:
    """No route, no documentation: 401 and one message without a valid token."""
    for value in (None, "Bearer", "Bearer wu.wrong", "Bearer wm.x.y", "Bearer wu.token-of-ada ü", "Basic YWRhOmFkYQ=="):
        headers = {} if value is None else {"authorization": value.encode()}
        assert "WINDFALL_TOKEN" in error_of(nobody.request(method, path, headers=headers), 401, 2)


def test_a_removed_user_is_out_at_once(api: Api, ada: httpx.Client) -> None:
    """The next request after a user's removal is refused, also on a connection that is open."""
    assert ada.get("/v1/jobs").status_code == 200
    api.users[:] = [user for user in api.users if user.name != "ada"]

    assert ada.get("/v1/jobs").status_code == 401


def test_the_description_of_the_api_is_for_users(ada: httpx.Client) -> None:
    """With a token the OpenAPI description is there."""
    assert "/v1/jobs/{job_id}/stop" in ada.get("/v1/openapi.json").json()["paths"]


def test_a_database_that_fails_is_not_a_wrong_token(api: Api, ada: httpx.Client) -> None:
    """While the users cannot be looked up the answer is 503 with the reason."""
    api.trouble = DatabaseUnreachable("the controller's database does not answer")
    answer = ada.get("/v1/jobs")

    assert "database does not answer" in error_of(answer, 503, 1)


# -------------------------------------------------------------------------------------------------------------- jobs


def test_a_job_belongs_to_who_submits_it(api: Api, ada: httpx.Client) -> None:
    """The token says whose job it is, whatever the job itself says."""
    wanted = codec.encode(replace(job(), user="root"))

    assert ada.post("/v1/jobs", json={"job": wanted}).json() == {"job_id": "gpt-1"}
    assert api.service.views["gpt-1"].user == "ada"


def test_users_see_and_stop_only_their_own_jobs(
    api: Api, ada: httpx.Client, eve: httpx.Client, root: httpx.Client
) -> None:
    """To others a job looks as if it did not exist; an admin sees and stops all."""
    submit(ada)
    for answer in (
        eve.get("/v1/jobs/gpt-1"),
        eve.get("/v1/jobs/gpt-1/rows"),
        eve.post("/v1/jobs/gpt-1/stop", json={"now": True}),
        eve.post("/v1/jobs/gpt-1/resume", json={}),
        eve.post("/v1/jobs/gpt-1/preempt", json={"machine_id": "m1", "notice_s": 5}),
    ):
        theirs = error_of(answer, 404, 2)
        assert theirs == error_of(eve.get("/v1/jobs/none"), 404, 2).replace("'none'", "'gpt-1'")

    assert eve.get("/v1/jobs").json() == []
    assert api.service.requests == []
    assert [view["job_id"] for view in root.get("/v1/jobs").json()] == ["gpt-1"]
    assert root.post("/v1/jobs/gpt-1/stop", json={}).status_code == 200
    assert ada.post("/v1/jobs/gpt-1/stop", json={"now": True}).status_code == 200
    assert api.service.requests == [("stop", "gpt-1", "root", "saved"), ("stop", "gpt-1", "ada", "now")]


def test_rows_come_in_pages(api: Api, ada: httpx.Client) -> None:
    """A reader continues after its last row."""
    submit(ada)
    api.service.journal["gpt-1"] = ["a", "b", "c"]

    assert ada.get("/v1/jobs/gpt-1/rows", params={"after": 1}).json() == [
        {"sequence": 2, "line": "b"},
        {"sequence": 3, "line": "c"},
    ]
    assert len(ada.get("/v1/jobs/gpt-1/rows", params={"limit": 1}).json()) == 1
    error_of(ada.get("/v1/jobs/gpt-1/rows", params={"after": -1}), 400, 2)


def test_an_infeasible_plan_is_its_arithmetic_and_exit_code_3(ada: httpx.Client) -> None:
    """The service's message reaches the user unchanged."""
    answer = ada.post("/v1/plan", json={"job": codec.encode(replace(job(), nodes=2))})

    assert "lives 60 s" in error_of(answer, 422, 3)


def test_what_a_plan_rests_on_can_be_asked_for(ada: httpx.Client) -> None:
    """Measurements and lifetimes, so that a client can simulate with them."""
    answer = ada.post("/v1/plan-inputs", json={"job": codec.encode(job())})

    assert answer.json() == {"now": 0.0, "poll_s": 5.0, "measured": [], "lifetimes": []}


def test_a_slow_plan_blocks_no_other_request(api: Api, ada: httpx.Client, eve: httpx.Client) -> None:
    """While a plan asks slow providers, other requests are answered."""
    api.service.hold = threading.Event()
    answers: list[httpx.Response] = []
    planner = threading.Thread(target=lambda: answers.append(eve.post("/v1/plan", json={"job": codec.encode(job())})))
    planner.start()
    assert api.service.planning.wait(30)

    assert ada.get("/v1/jobs").status_code == 200
    assert answers == []
    api.service.hold.set()
    planner.join(timeout=30)
    assert answers[0].json() == {"cost_usd": 1.25, "user": "eve"}


def test_unneeded_machines_are_for_admins(api: Api, ada: httpx.Client, root: httpx.Client) -> None:
    """Listing and releasing them is refused to users, since they may belong to any user."""
    error_of(ada.get("/v1/gc"), 403, 2)
    error_of(ada.post("/v1/gc", json={"machine_ids": ["stray-1"]}), 403, 2)

    assert [one["machine_id"] for one in root.get("/v1/gc").json()["machines"]] == ["stray-1", "stray-2"]
    root.post("/v1/gc", json={"machine_ids": ["stray-1", "unknown"]})
    assert api.service.strays == ["stray-2"]


# ------------------------------------------------------------------------------------------------------------ secrets


def test_no_answer_repeats_a_secret(api: Api, ada: httpx.Client, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever is wrong with a request, neither answer nor log holds the secret that was in it."""
    whole = codec.encode(job(secrets=("HF",)))
    for body in (
        {"job": whole, "secrets": {"HF": [SECRET]}},
        {"job": whole, "secrets": SECRET},
        {"job": whole, "secrets": {"HF": SECRET}, SECRET: 1},
        {"job": {"type": "Job", "envs": SECRET}},
        {"job": {"type": SECRET}},
        {"job": whole, "secrets": {"OTHER": SECRET}},
        {"job": {**whole, "nodes": SECRET}},
    ):
        answer = ada.post("/v1/jobs", json=body)
        assert SECRET not in error_of(answer, 400, 2)
    api.service.broken = RuntimeError(f"failed with {SECRET}")
    crashed = ada.post("/v1/plan", json={"job": whole})

    assert "RuntimeError" in error_of(crashed, 500, 1)
    assert "in plan" in caplog.text
    assert SECRET not in crashed.text + caplog.text
    ada.post("/v1/jobs", json={"job": whole, "secrets": {"HF": SECRET}})
    assert api.service.secrets == {"gpt-1": {"HF": SECRET}}
    assert SECRET not in ada.get("/v1/jobs/gpt-1").text + ada.get("/v1/jobs").text


def test_a_secret_that_was_not_sent_is_named(ada: httpx.Client) -> None:
    """A job that needs a secret is not taken in without it."""
    answer = ada.post("/v1/jobs", json={"job": codec.encode(job(secrets=("HF",)))})

    assert "secret HF" in error_of(answer, 400, 2)


# ------------------------------------------------------------------------------------------------------------- limits


def test_large_requests_are_refused_before_they_are_read(ada: httpx.Client) -> None:
    """A body over the limit is refused, by its announced length or as it comes."""
    whole = b'{"job": "' + b"x" * BODY_BYTES_MAX + b'"}'

    def in_chunks() -> object:
        yield from (whole[at : at + 65536] for at in range(0, len(whole), 65536))

    error_of(ada.post("/v1/jobs", content=in_chunks(), headers={"content-type": "application/json"}), 413, 2)
    error_of(ada.post("/v1/jobs", content=whole, headers={"content-type": "application/json"}), 413, 2)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b'{"job": 1}', b'{"job": {"type": "Report"}}', b"\xff\xfe"]
)
def test_a_malformed_request_is_one_sentence(ada: httpx.Client, body: bytes) -> None:
    """A body that is not a job is refused without a traceback."""
    error_of(ada.post("/v1/jobs", content=body, headers={"content-type": "application/json"}), 400, 2)


@pytest.mark.parametrize(("method", "path"), [("GET", "/v2/jobs"), ("DELETE", "/v1/jobs"), ("GET", "/v1/jobs/a/b")])
def test_an_unknown_request_is_one_sentence(ada: httpx.Client, method: str, path: str) -> None:
    """A newer client's request is answered with a hint at the version."""
    answer = ada.request(method, path)

    assert "same version" in error_of(answer, answer.status_code, 2)
    assert answer.status_code in (404, 405)


# ----------------------------------------------------------------------------------------------------------- machines


def claim(client: httpx.Client, boot_id: str, credential: str | None = None, machine_id: str = "m1") -> httpx.Response:
    given = auth.credential(KEY, "gpt-1", "gpt-1-1") if credential is None else credential
    return client.post("/v1/machines/claim", json={"machine_id": machine_id, "credential": given, "boot_id": boot_id})


def report(machine_id: str = "m1", sequence: int = 1) -> object:
    return codec.encode(Report(machine_id, sequence, "life", MachineStatus.WAITING))


def test_a_credential_is_used_up_by_the_first_boot(nobody: httpx.Client) -> None:
    """The same boot may claim again after a lost answer; from another boot the credential is worth nothing."""
    first = claim(nobody, "boot a")

    assert first.status_code == 200
    assert claim(nobody, "boot a").json() == first.json()
    error_of(claim(nobody, "boot b"), 403, 2)


def test_only_this_installations_credentials_count(nobody: httpx.Client) -> None:
    """Another key's, a machine's token, one that was changed, nonsense: all refused alike."""
    mine = auth.credential(KEY, "gpt-1", "gpt-1-1")
    for wrong in (
        auth.credential(b"x" * 32, "gpt-1", "gpt-1-1"),
        auth.machine_token(KEY, "gpt-1", "m1"),
        mine[:-1] + ("0" if mine[-1] != "0" else "1"),
        "wc..",
        "",
        "ü",
    ):
        assert "not valid" in error_of(claim(nobody, "boot a", wrong), 403, 2)


def test_a_machine_reports_and_gets_its_directive(api: Api, nobody: httpx.Client) -> None:
    """With its token a machine's report goes to its own job; the answer is its directive, 204 while there is none."""
    headers = {"authorization": f"Bearer {claim(nobody, 'boot a').json()['token']}"}
    first = nobody.post("/v1/machines/m1/report", json=report(), headers=headers)
    second = nobody.post("/v1/machines/m1/report", json=report(sequence=2), headers=headers)

    assert (first.status_code, first.content) == (204, b"")
    assert codec.decode(second.json(), Directive) == Directive(3, DesiredState.RUN)
    assert [job_id for job_id, _ in api.service.reports] == ["gpt-1", "gpt-1"]


def test_a_machines_name_may_be_a_path(api: Api) -> None:
    """Clouds name machines `projects/x/zones/y/instances/z`."""
    name = "projects/x/zones/y z/instances/1"
    with api.client(auth.machine_token(KEY, "gpt-1", name)) as client:
        assert client.post(f"/v1/machines/{name}/report", json=report(name)).status_code == 204


def test_a_machine_reports_only_for_itself(api: Api, ada: httpx.Client) -> None:
    """Its token opens no user's route and no other machine's; a user's token reports for no machine."""
    submit(ada)
    with api.client(auth.machine_token(KEY, "gpt-1", "m1")) as machine:
        for answer in (
            machine.get("/v1/jobs"),
            machine.get("/v1/jobs/gpt-1"),
            machine.post("/v1/jobs/gpt-1/stop", json={}),
            machine.post("/v1/jobs/gpt-1/preempt", json={"machine_id": "m1"}),
            machine.post("/v1/gc", json={"machine_ids": []}),
            machine.get("/v1/openapi.json"),
            machine.post("/v1/machines/m2/report", json=report("m2")),
            machine.post("/v1/machines/m1/report", json=report("m2")),
            ada.post("/v1/machines/m1/report", json=report()),
        ):
            error_of(answer, 403, 2)
    assert api.service.reports == []


def test_no_request_is_admitted_once_the_controller_shuts_down(api: Api, ada: httpx.Client) -> None:
    """A controller that has decided to leave takes no more jobs, and its answer invites a retry."""
    assert not api.presence.close_if_idle(0.0, lambda: 1)
    assert ada.get("/v1/jobs").status_code == 200
    until(lambda: api.presence.close_if_idle(0.0, lambda: 0))  # the answer is here before the request has left
    answer = submit(ada)

    assert "shutting down" in error_of(answer, 503, 1)
    assert answer.headers["retry-after"] == "1"
    assert api.service.views == {}


def test_only_admins_have_commands_run_on_the_controller(api: Api, ada: httpx.Client, root: httpx.Client) -> None:
    """A job file must not be a way into the machine that holds all users' secrets."""
    job_with_command = replace(job("gpt-1"), notify=Notify(command="mail ada"))
    refused = ada.post("/v1/jobs", json={"job": codec.encode(job_with_command)})
    assert error_of(refused, 400, 2).startswith("notify.command runs on the controller, where ada is not an admin")
    assert api.service.views == {}
    assert root.post("/v1/jobs", json={"job": codec.encode(job_with_command)}).status_code == 200


# --------------------------------------------------------------------------------------------------------- forecasts


FORECAST = Forecast(
    WallTime(5.0), "local", "m4", "a", True, 1, "fixed", ForecastBasis.EXACT, 0, Usd(1.0), Seconds(10.0)
)  # fmt: skip


def test_a_forecast_is_sent_with_the_job(api: Api, ada: httpx.Client) -> None:
    """As the client computed it; a client without one sends none."""
    assert submit(ada, forecast=codec.encode(FORECAST)).status_code == 200
    assert submit(ada, "gpt-2").status_code == 200
    assert api.service.forecasts == [FORECAST, None]


def test_a_forecast_that_cannot_be_read_is_refused(api: Api, ada: httpx.Client) -> None:
    """One sentence, and no job."""
    for wrong in ({**codec.encode(FORECAST), "machines": "many"}, {"type": "Forecast"}, {}):
        assert "cannot read a forecast" in error_of(submit(ada, forecast=wrong), 400, 2)
    assert api.service.views == {}
