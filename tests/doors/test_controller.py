"""A team's controller, met from outside: what strangers, users and its own disk do must not end it for the others."""

from __future__ import annotations

import contextlib
import os
import pwd
import socket
from pathlib import Path

import pytest

from tests.control.fake import job
from tests.doors.controllers import put_job, serving, tables, until, windfall
from windfall import codec

ME = pwd.getpwuid(os.getuid()).pw_name


@pytest.mark.trial("G2")
def test_a_row_that_cannot_be_read_is_set_aside_at_the_start_and_the_others_go_on(tmp_path: Path) -> None:
    """It is shown with what is wrong; the controller starts, lists, and says how it stands."""
    good, bad = (codec.encode(job(name, ME)) for name in ("good-1", "bad-1"))
    assert isinstance(good, dict)
    assert isinstance(bad, dict)
    put_job(tmp_path / "state", good)
    put_job(tmp_path / "state", bad | {"dead_man_s": {"type": "Work", "amount": 1.0, "unit": "step"}}, "buying", "{}")
    with serving(tmp_path / "state") as controller:
        assert controller.ask("/v1/status").status_code == 200
        shown = {view["job_id"]: view for view in controller.ps()}
        assert shown.keys() == {"good-1", "bad-1"}
        assert shown["good-1"]["phase"] == "done"
        assert "dead_man_s" in shown["bad-1"]["message"]
        assert controller.ask("/v1/jobs/bad-1").json()["message"] == shown["bad-1"]["message"], (
            "one may ask for it alone, too"
        )
        assert "bad-1" in controller.log.read_text()


@pytest.mark.trial("G2")
def test_a_job_whose_journal_cannot_be_read_is_set_aside(tmp_path: Path) -> None:
    """Nothing is decided for it any more, it is shown, its `stop` says so at once, and the controller stays."""
    state = tmp_path / "state"
    one = codec.encode(job("one-1", ME))
    assert isinstance(one, dict)
    put_job(state, one, "running", "{}")
    with contextlib.closing(tables(state)) as database:
        database.execute('INSERT INTO journal_rows VALUES (\'one-1\', 1, \'{"version":1,"row":{"type":"Job"}}\')')
    with serving(state) as controller:
        until(lambda: "set aside" in str(controller.ps()))
        (view,) = controller.ps()
        assert "row 1 of its journal" in view["message"]
        token = (state / "token").read_text().strip()
        done = windfall("stop", "one-1", "--no-wait", WINDFALL_CONTROLLER=controller.url, WINDFALL_TOKEN=token)
        assert "Traceback" not in done.stderr
        assert controller.ask("/v1/status").status_code == 200


@pytest.mark.trial("G9")
def test_half_open_connections_neither_freeze_the_controller_nor_flood_its_log(tmp_path: Path) -> None:
    """Three times as many as it has descriptors; who shows a token is answered meanwhile."""
    with serving(tmp_path / "state", descriptors=128) as controller, contextlib.ExitStack() as stack:
        host, port = controller.url.removeprefix("http://").split(":")
        for number in range(384):
            line = stack.enter_context(contextlib.closing(socket.socket()))
            line.settimeout(5)
            with contextlib.suppress(OSError):
                line.connect((host, int(port)))
                line.sendall(b"GET /v1/jobs HTTP/1.1\r\nHost: x\r\nX: " + b"y" * (number % 7))
        for _ in range(5):
            assert controller.ask("/v1/jobs").status_code == 200
        assert controller.process.poll() is None
        assert controller.log.stat().st_size < 20_000, controller.log.read_text()[:3000]


@pytest.mark.trial("G9")
def test_what_is_no_http_does_not_flood_the_log(tmp_path: Path) -> None:
    """A stranger's noise is told once, and counted."""
    with serving(tmp_path / "state") as controller:
        host, port = controller.url.removeprefix("http://").split(":")
        for _ in range(200):
            with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=5) as line:
                line.sendall(b"\x16\x03\x01 no HTTP at all\r\n\r\n")
                line.recv(100)
        assert controller.ask("/v1/jobs").status_code == 200
        assert len(controller.log.read_text().splitlines()) < 10


@pytest.mark.trial("G14")
@pytest.mark.parametrize(
    "url", ["foo", "ftp://x", "http://", "http://x:99999", "https://u:p@x/", "http://x y", "http://x/\x1b[31m"]
)
def test_an_address_that_no_machine_could_call_is_refused(tmp_path: Path, url: str) -> None:
    """Before anything is started; each machine would be bought in vain."""
    done = windfall("serve", "--state", str(tmp_path / "s"), "--port", "0", "--url", url, timeout_s=15)
    assert done.returncode == 2, done
    assert "\x1b" not in done.stderr
    assert not (tmp_path / "s").exists()


@pytest.mark.trial("G15")
@pytest.mark.parametrize("url", ["gopher://x", "http://127.0.0.1:99999", "169.254.169.254", "http://"])
def test_an_address_without_a_metadata_service_is_refused(tmp_path: Path, url: str) -> None:
    """Before the run is taken: a machine that hears no notice would save too late, and say nothing."""
    run = tmp_path / "run"
    words = ("exec", "--metadata-url", url, "--state", str(tmp_path / "s"), str(run), "--", "true")
    done = windfall(*words, timeout_s=20)
    assert done.returncode == 2, done
    assert not run.exists()


@pytest.mark.trial("G15")
@pytest.mark.parametrize("port", ["999999", "65536", "-1"])
def test_a_number_that_is_no_port_is_refused(tmp_path: Path, port: str) -> None:
    """It is not taken modulo 65536."""
    done = windfall("serve", "--state", str(tmp_path / "s"), f"--port={port}", timeout_s=15)
    assert done.returncode == 2, done


@pytest.mark.trial("G15")
def test_nobody_takes_their_own_admin_away(tmp_path: Path) -> None:
    """Whoever runs the controller is its admin and has a token already; an admin that gets another token stays one."""
    state = str(tmp_path / "s")
    assert windfall("serve", "--state", state, "--add-user", "ada", "--admin").returncode == 0
    assert windfall("serve", "--state", state, "--add-user", "ada").returncode == 0
    windfall("serve", "--state", state, "--add-user", ME)
    shown = windfall("serve", "--state", state, "--users").stdout.split("\n")
    assert "ada  admin" in shown
    assert f"{ME}" not in shown


@pytest.mark.trial("G15")
def test_a_replaced_controller_leaves_also_without_a_job(tmp_path: Path) -> None:
    """Who asks it would be told what no longer holds."""
    with serving(tmp_path / "state") as controller:
        with contextlib.closing(tables(tmp_path / "state")) as database:
            named = [row[1] for row in database.execute("PRAGMA table_info(installation)")]
            column = next(name for name in ("term", "epoch") if name in named)
            database.execute(f"UPDATE installation SET {column} = {column} + 1")
        until(lambda: controller.process.poll() is not None, 20)
        assert controller.process.returncode == 75
