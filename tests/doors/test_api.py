"""The controller's API: what users, machines and strangers send."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.control.conftest import TOKENS, serving
from tests.control.fake import KEY, FakeService
from tests.doors import words
from tests.doors.support import inputs
from windfall import codec
from windfall.control import auth
from windfall.errors import InvalidFile
from windfall.jobs import Job
from windfall.policies.planning import job_checks
from windfall.spec.job_file import to_job
from windfall.spec.job_loader import load

MEASURED = {
    "type": "Measurement", "provider": "local", "machine_type": "m4", "unit": "step", "work_per_s": 3.0, "prepare_s": 2.0,
    "allocate_s": 1.0, "runs": 1,
}  # fmt: skip
STATUSES = {200, 204, 400, 403, 404, 405, 408, 413, 422}


def posts() -> dict[str, list[Any]]:
    """Valid bodies, by path."""
    job = words.job_message()
    claim = {"machine_id": "m-1", "credential": auth.credential(KEY, "gpt-1", "t"), "boot_id": "b"}
    return {
        "/v1/jobs": [{"job": job, "secrets": {"HF": "x"}}],
        "/v1/plan": [{"job": job}],
        "/v1/plan-inputs": [{"job": job}],
        "/v1/measured": [{"job": job, "measured": MEASURED}],
        "/v1/jobs/gpt-1/stop": [{"now": True}],
        "/v1/jobs/gpt-1/preempt": [{"machine_id": "m-1", "notice_s": 3.0}],
        "/v1/gc": [{"machine_ids": ["a", "b"]}],
        "/v1/machines/claim": [claim],
        "/v1/machines/m-1/report": [codec.encode(words.report())],
    }


def test_whatever_is_posted_is_answered_and_the_next_one_is_served(count: int) -> None:
    """With the status of a user's mistake, in JSON; what came through is a job that a job file could have described."""
    service = FakeService()
    with serving(service) as api:
        machine = auth.machine_token(KEY, "gpt-1", "m-1")
        for number, (path, valid) in enumerate(posts().items()):
            with api.client(machine if path.endswith("report") else TOKENS["root"]) as client:
                client.post("/v1/jobs", json={"job": words.job_message(), "secrets": {"HF": "x"}})
                for one in inputs(valid, count // 9 + 1, seed=number):
                    answer = client.post(path, content=one.data, headers={"content-type": "application/json"})
                    assert answer.status_code in STATUSES, (path, one, answer.text)
                    assert not answer.content or isinstance(answer.json(), dict), (path, one)
        with api.client(TOKENS["root"]) as client:
            shown = client.get("/v1/jobs").json()
            assert all(view["job_id"].isprintable() and view["name"].isprintable() for view in shown)


def test_whatever_path_is_asked_for_is_answered(count: int) -> None:
    """Ids, numbers, queries, escapes in them."""
    paths = [
        b"/v1/jobs/gpt-1", b"/v1/jobs/gpt-1/rows?after=3&limit=5", b"/v1/machines/m-1/report", b"/v1/jobs/%2e%2e/x",
    ]  # fmt: skip
    with serving(FakeService()) as api, api.client(TOKENS["root"]) as client:
        for one in inputs(paths, count):
            text = "/" + "".join(
                chr(byte) if 32 < byte < 127 and byte != 35 else f"%{byte:02x}" for byte in one.data[1:]
            )
            answer = client.get(httpx.URL(api.url).copy_with(raw_path=text.encode()))
            assert answer.status_code in STATUSES, one


BAD_OPTIONS = (("lease_s", 0.5), ("lease_s", 1e300), ("mttp_s", 0.0), ("mttp_s", -5.0), ("grace_s", -1.0), ("keep", 0))


@pytest.mark.parametrize(
    "change",
    [
        {"dead_man_s": {"type": "Work", "amount": 1.0, "unit": "step"}},
        {"dead_man_s": -1.0},
        {"dead_man_s": 0.0},
        {"nodes": 0},
        {"nodes": 10**6},
        {"resources": []},
        {"command": []},
        {"name": "a\x1b[31mb"},
        {"name": "[/x]"},
        {"job_id": "a\nb"},
        {"job_id": "../x"},
        {"run_url": "file:///x\x1b[2J"},
        {"run_url": "gopher://x"},
        {"run_url": "s3://user:key@bucket/x"},
        {"max_price_usd_per_hour": 0.0},
        {"max_duration_s": 1e30},
        {"envs": [["WINDFALL_SESSION", "x"]]},
        {"envs": [["A B", "x"]]},
        {"envs": [["A", "x\0y"]]},
        {"secrets": [{"type": "SecretRef", "name": "A-B"}]},
        {"work": {"type": "Work", "amount": -1.0, "unit": "step"}},
        {"resources": [{"type": "Resources", "accelerators": -1}]},
        {"resources": [{"type": "Resources", "zone": "a\nb"}]},
        {"options": {"type": "RunOptions", "failures_max": 0}},
        {"options": {"type": "RunOptions", "retry_codes": [0]}},
        {"options": {"type": "RunOptions", "policy": "sometimes"}},
        {"options": {"type": "RunOptions", "keep": 0}},
        {"notify": {"type": "Notify", "webhook": "file:///etc/passwd"}},
        {"injection": {"type": "Injection", "mttp_s": [], "seed": 1}},
        *({"options": {"type": "RunOptions", name: value}} for name, value in BAD_OPTIONS),
        {"bundle": {"type": "Bundle", "digest": "00", "key": "../../x", "size_bytes": 1}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_job_that_no_job_file_describes_is_refused_at_the_door(change: dict[str, Any]) -> None:
    """The server repeats the checks of the job file: whoever calls it may have made none."""
    with serving(FakeService()) as api, api.client(TOKENS["ada"]) as ada:
        told = json.dumps({"job": words.job_message() | change, "secrets": {"HF": "x", "A-B": "x"}})
        answer = ada.post("/v1/jobs", content=told, headers={"content-type": "application/json"})
        assert answer.status_code == 400, answer.text
        assert answer.json()["exit_code"] == 2
        assert api.service.views == {}
        place = next(iter(change))
        assert place.split("_")[0] in answer.json()["error"]


def test_a_job_from_a_job_file_passes_the_door() -> None:
    """Nothing that the file allows is refused by the server."""
    files = sorted(Path(__file__).parents[2].glob("examples/**/*.y*ml"))
    assert files
    for path in files:
        try:
            found = load(str(path))
        except InvalidFile:  # a market's file
            continue
        made: Job = to_job(found, job_id=f"{found.name}-3f9a2c", user="ada", run_url="s3://lab/runs/x")
        assert list(job_checks.problems(made)) == [], path
