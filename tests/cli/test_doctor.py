"""`windfall doctor`: what it sees, what it says, and that it leaves nothing behind."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.servers import fake_bucket, google_environment, s3_server
from tests.support.live import contents
from windfall.cli import machine_checks
from windfall.cli.main import main
from windfall.providers import provider_list
from windfall.providers.provider_list import ProviderEntry
from windfall.wire.metadata_server import serve


def looked(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Run doctor; return its exit code and the checks by name."""
    code = main(["doctor", *arguments, "--json"])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return code, {line["check"]: line for line in lines}


def test_this_machine_can_run_and_each_check_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a place the machine alone is looked at; every line says ok, warn or FAIL and what was seen."""
    code = main(["doctor", "--provider", "local"])

    lines = capsys.readouterr().out.splitlines()
    names = ["python", "isolation", "pidfd", "shared memory", "state folder", "clock", "notices"]
    names += ["GPU", "network", "listening", "extras", "configuration"]
    heads = [line for line in lines if not line.startswith("     ")]
    assert [head[6:20].strip() for head in heads] == names
    assert {head.split()[0] for head in heads} <= {"ok", "warn"}
    assert code == 0


@pytest.mark.trial("F1")
@pytest.mark.parametrize(
    ("prints", "status", "verdict", "says"),
    [
        ("NVIDIA H200, 143771 MiB\nNVIDIA H200, 143771 MiB", 0, "ok", "2: NVIDIA H200, 143771 MiB"),
        ("Failed to initialize NVML: Driver/library version mismatch", 18, "warn", "version mismatch"),
    ],
)
def test_gpus_are_listed_by_their_driver(
    prints: str, status: int, verdict: str, says: str,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    """The GPUs of this machine are named; a driver that does not work is a warning with its own words."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\nprintf '{prints}\\n' | tee /dev/stderr\nexit {status}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    _, checks = looked(capsys, "--provider", "local")

    assert checks["GPU"]["verdict"] == verdict
    assert says in checks["GPU"]["says"]


@pytest.mark.trial("F1")
def test_a_missing_extra_is_named_with_its_use_and_one_line_that_installs_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who lacks what `run` needs reads what it is for, and gets one command for all of it."""
    there = {"torch", "transformers", "lightning", "psycopg"}
    monkeypatch.setattr(machine_checks, "_installed", lambda module: module in there)

    _, checks = looked(capsys, "--provider", "local")

    assert "control for `windfall run`" in checks["extras"]["says"]
    assert "[all]'" in checks["extras"]["do"]


def test_a_folder_is_measured_and_left_as_it_was(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A place that does not exist yet is measured, told to be of this machine only, and gone again afterwards."""
    (tmp_path / "here").mkdir()
    place = tmp_path / "here" / "lab" / "run"

    code, checks = looked(
        capsys, str(place), "--size", "4MB", "--provider", "local", "--state", str(tmp_path / "state")
    )

    assert code == 0
    assert list(checks)[12:] == [
        "store", "conditions", "reach", "small objects", "speed up", "emergency", "speed down", "leftovers",
    ]  # fmt: skip
    assert checks["reach"]["verdict"] == "warn"
    assert "only this machine reaches" in checks["reach"]["says"]
    rate = checks["speed up"]["numbers"]["bytes_per_s"]
    assert checks["emergency"]["numbers"]["fits_in_30_s_bytes"] == pytest.approx(0.8 * 30 * rate)
    assert list((tmp_path / "here").iterdir()) == []
    assert list((tmp_path / "state").iterdir()) == []


def test_a_place_that_has_things_in_it_keeps_them(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Objects of others stay, and are named as leftovers when nothing needs them."""
    (tmp_path / "probe").mkdir()
    (tmp_path / "probe" / "old").write_text("first old")
    before = contents(tmp_path)

    code, checks = looked(capsys, str(tmp_path), "--size", "1MB", "--provider", "local")

    assert (code, checks["leftovers"]["verdict"]) == (0, "warn")
    assert "probe/old" in checks["leftovers"]["says"]
    assert contents(tmp_path) == before


def test_a_store_without_conditions_fails(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A bucket that accepts a second creation is told with what to use instead, and cleaned up."""
    with fake_bucket() as (endpoint, bucket):
        bucket.honest = False
        for name, value in google_environment(endpoint).items():
            monkeypatch.setenv(name, value)

        code, checks = looked(capsys, "gs://lab/run", "--size", "1MB", "--provider", "local")

        assert (code, checks["conditions"]["verdict"]) == (1, "FAIL")
        assert "conditional writes" in checks["conditions"]["says"]
        assert bucket.objects == {}


@pytest.mark.real
def test_a_bucket_is_measured_and_left_empty(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On a real S3-protocol server every check is ok, and no object stays."""
    with s3_server(tmp_path) as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)

        code, checks = looked(capsys, "s3://lab/run", "--size", "4MB", "--provider", "local")

        assert code == 0
        assert {check["verdict"] for check in list(checks.values())[8:]} == {"ok"}
        from windfall.storage.object_stores import open_store

        assert open_store("s3://lab").list("") == []


@pytest.fixture(params=["aws", "google", "azure"])
def cloud(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """A metadata service of each cloud."""
    with serve((), request.param, now=time.time) as server:
        yield request.param, server.url


def test_a_clouds_metadata_service_is_asked(capsys: pytest.CaptureFixture[str], cloud: tuple[str, str]) -> None:
    """The notice path of the cloud is tried as the agent uses it."""
    provider, url = cloud

    _, checks = looked(capsys, "--provider", provider, "--metadata-url", url)

    assert checks["notices"]["verdict"] == "ok"
    assert f"provider {provider}: metadata answers" in checks["notices"]["says"]


def test_a_metadata_service_that_does_not_answer_is_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    """A run works without notices, so their absence warns and does not fail."""
    code, checks = looked(capsys, "--provider", "aws", "--metadata-url", "http://127.0.0.1:9")

    assert (code, checks["notices"]["verdict"]) == (0, "warn")
    assert "unannounced" in checks["notices"]["do"]


def test_a_place_that_cannot_be_used_fails_with_what_to_do(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A file where a folder should be, a place without rights, an endpoint where nobody answers: one FAIL line each."""
    (tmp_path / "file").write_text("mine")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret")
    for url, says in (
        (str(tmp_path / "file"), "check the path"),
        ("/sys/windfall", "permission"),
        ("s3://lab/run", "connection refused"),
    ):
        code, checks = looked(capsys, url, "--size", "1MB", "--provider", "local")

        failed = [check for check in checks.values() if check["verdict"] == "FAIL"]
        assert code == 1, url
        assert failed, url
        assert says in failed[0]["says"]
    assert (tmp_path / "file").read_text() == "mine"


def test_a_disk_that_is_too_small_for_the_measurement_is_told(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """More data than fits is refused in a line, not by a half-written file."""
    (tmp_path / "state").write_text("in the way")

    code, checks = looked(
        capsys, str(tmp_path / "run"), "--size", "1MB", "--provider", "local", "--state", str(tmp_path / "state")
    )

    assert code == 1
    assert checks["state folder"]["verdict"] == checks["speed up"]["verdict"] == "FAIL"
    assert "--state" in checks["speed up"]["do"]


def test_the_configuration_file_is_shown_without_secrets(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What the file says of a provider is a line; a mistake in it fails; without one nothing is made."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    file = tmp_path / "windfall" / "config.yaml"
    code, checks = looked(capsys, "--provider", "local")
    assert (code, checks["configuration"]["verdict"]) == (0, "ok")
    assert f"{file} does not exist" in checks["configuration"]["says"]
    assert list(tmp_path.iterdir()) == []

    file.parent.mkdir()
    file.write_text("providers: {local: {limits: {machines: 2, usd_per_hour: 1.5}}}")
    _, checks = looked(capsys, "--provider", "local")
    assert checks["local"]["says"] == "a market of processes on this host; at most 2 machines and 1.5 USD/h"

    file.write_text("providers: {local: {limits: {machnes: 2}}}")
    code, checks = looked(capsys, "--provider", "local")
    assert (code, checks["configuration"]["verdict"]) == (1, "FAIL")
    assert "did you mean machines?" in checks["configuration"]["says"]


def test_a_credential_that_others_can_read_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The reference is shown, the secret never; a missing client library is named with what installs it."""
    key = tmp_path / "key"
    key.write_text("hush")
    key.chmod(0o644)
    cloud = ProviderEntry("cloud", "providers.cloud:open_provider", "a cloud")
    monkeypatch.setattr(provider_list, "PROVIDERS", (*provider_list.PROVIDERS, cloud))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "windfall").mkdir()
    (tmp_path / "windfall" / "config.yaml").write_text(
        f"providers: {{cloud: {{credentials: {{file: {key}}}, region: eu, image: {{container: a/b}}}}}}"
    )

    code, checks = looked(capsys, "--provider", "local")
    assert (code, checks["cloud"]["verdict"]) == (1, "FAIL")
    assert checks["cloud"]["says"] == f"a cloud; credentials from file {key}, region eu, container a/b"
    assert "chmod 600" in checks["cloud"]["do"]
    key.chmod(0o600)
    code, checks = looked(capsys, "--provider", "local")
    assert (code, checks["cloud"]["verdict"]) == (0, "ok")
    assert "hush" not in str(checks)

    missing = ProviderEntry("cloud", "x:y", "a cloud", extra="cloud", client="no_such_client.of_a_cloud")
    monkeypatch.setattr(provider_list, "PROVIDERS", (*provider_list.PROVIDERS[:-1], missing))
    _, checks = looked(capsys, "--provider", "local")
    assert "its client library is missing" in checks["cloud"]["do"]
