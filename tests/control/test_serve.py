"""`windfall serve`: what it refuses, what it says, users, TLS, and two controllers in one place."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from tests.control.conftest import until
from tests.storage.databases import no_postgres, postgres_server
from windfall.cli import controller_process
from windfall.cli.controller_process import RunningController
from windfall.cli.serve import must_stay_on, serve
from windfall.control.controller_views import StatusView
from windfall.control.http_server import ApiServer, Presence, Tls, check_exposure, listen
from windfall.errors import DatabaseUnreachable, Misuse
from windfall.linux.clock import SystemClock
from windfall.structs import replace
from windfall.terms import Seconds, Term, WallTime

ROOT = Path(__file__).parents[2]
SERVE = (
    "import sys\nfrom windfall.cli import controller_process, serve\nfrom tests.control.fake import build_service\n"
    "import cyclopts\ncontroller_process.default_builder = lambda: build_service\n"
    "from windfall.errors import WindfallError\n"
    "try:\n    sys.exit(cyclopts.App(default_command=serve.serve, result_action='return_value')(sys.argv[1:]))\n"
    "except WindfallError as error:\n    sys.exit(f'windfall: {error}')\n"
)


@contextlib.contextmanager
def serving(*options: str) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """`windfall serve` on the fake, with what it said first and its URL; it is told to end afterwards."""
    command = [sys.executable, "-c", SERVE, "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        try:
            output = [process.stdout.readline() for _ in range(3)]
            assert "add a user" in output[-1], process.stderr.read()
            found = re.search(r"listens at (\S+)", output[0])
            assert found is not None
            yield process, "".join(output), found[1]
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=15)
            process.kill()


def added(capsys: pytest.CaptureFixture[str], *, name: str, state: Path, **options: object) -> str:
    """The token of a user who was added."""
    assert serve(add_user=name, state=state, **options) == 0
    found = re.search(r"wu\.\S+", capsys.readouterr().out)
    assert found is not None
    return found[0]


def get(url: str, token: str, **options: object) -> httpx.Response:
    headers = {"authorization": f"Bearer {token}"}
    with httpx.Client(trust_env=False, **options) as client:
        return client.get(f"{url}/v1/jobs", headers=headers)


def test_a_user_is_added_and_removed_while_it_serves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The token is printed once, works at once, is nowhere in the folder, and is worth nothing after the removal."""
    with serving("--state", str(tmp_path)) as (_, output, url):
        token = added(capsys, name="ada", state=tmp_path)

        assert get(url, token).json() == []
        assert all(token.encode() not in path.read_bytes() for path in tmp_path.iterdir())
        serve(users=True, state=tmp_path)
        assert "ada\n" in capsys.readouterr().out
        serve(remove_user="ada", state=tmp_path)
        assert get(url, token).status_code == 401
    assert "must stay on while jobs are unfinished" in output
    assert url.startswith("http://127.0.0.1:")


def test_tls_is_served_with_the_users_certificate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With certificate and key it listens on all addresses and speaks TLS only."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    certificate, key, state = tmp_path / "lab.pem", tmp_path / "lab.key", tmp_path / "state"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    made += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(made, check=True, capture_output=True)
    token = added(capsys, name="ada", state=state)
    options = ("--tls-cert", str(certificate), "--tls-key", str(key), "--url", "https://lab:1")
    with serving("--host", "0.0.0.0", *options, "--state", str(state)) as (process, _, url):
        port = _port_of(process.pid)

        assert url == "https://lab:1"
        trusting = ssl.create_default_context(cafile=str(certificate))
        assert get(f"https://localhost:{port}", token, verify=trusting).json() == []
        with pytest.raises(httpx.HTTPError):
            get(f"http://localhost:{port}", token)


def _port_of(pid: int) -> int:
    """The TCP port on which a process listens."""
    inodes = {os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir() if path.is_symlink()}
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return next(int(line[1].split(":")[1], 16) for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in inodes)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"host": "0.0.0.0"}, "--tls-cert and --tls-key, or --insecure"),
        ({"host": "lab.example"}, "--insecure"),
        ({"tls_cert": Path("/none.pem")}, "must be given together"),
        ({"tls_cert": Path("/none.pem"), "tls_key": Path("/none.key")}, "/none.pem"),
        ({"add_user": "a b"}, "not 'a b'"),
        ({"add_user": "a", "users": True}, "cannot be combined"),
        ({"admin": True}, "--admin needs --add-user"),
        ({"remove_user": "nobody"}, "no such user"),
        ({"database": "mysql://lab/x", "users": True}, "mysql is not a supported database"),
    ],
)
def test_bad_options_are_refused_in_a_sentence(tmp_path: Path, options: dict[str, object], word: str) -> None:
    """Nothing listens before every option is right."""
    with pytest.raises(Misuse, match=word):
        serve(state=tmp_path, **options)


def test_a_port_that_is_taken_is_named() -> None:
    """Two controllers cannot listen in one place."""
    with contextlib.closing(listen("127.0.0.1", 0)) as first:
        port = first.getsockname()[1]
        with pytest.raises(Misuse, match=f"cannot listen on --host 127.0.0.1 --port {port}"):
            listen("127.0.0.1", port)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_the_loopback_needs_no_tls(host: str) -> None:
    """Whoever listens to the loopback is on this machine already."""
    check_exposure(host, None, insecure=False)


def test_insecure_serving_needs_the_option() -> None:
    """With --insecure every address is served."""
    check_exposure("0.0.0.0", None, insecure=True)
    with pytest.raises(Misuse):
        check_exposure("0.0.0.0", Tls(Path("/none"), Path("/none")), insecure=True)


def test_one_folder_has_one_controller(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second one in the same folder waits for the first to end, then says which process is in its way."""
    monkeypatch.setattr(controller_process, "_LOCK_WAIT_S", Seconds(0.2))
    with serving("--state", str(tmp_path)) as (process, _, _), pytest.raises(Misuse, match=f"kill {process.pid}"):
        controller_process.run(controller_process.Settings(tmp_path), None, lambda _: None)  # type: ignore[arg-type]


def test_it_ends_at_ctrl_c_without_a_traceback(tmp_path: Path) -> None:
    """Ctrl-C is how it is meant to be ended: exit code 0, no address left behind."""
    with serving("--state", str(tmp_path)) as (process, _, _):
        process.send_signal(signal.SIGINT)
        code = process.wait(timeout=20)
        assert process.stderr is not None
        assert (code, process.stderr.read()) == (0, "")
    assert not (tmp_path / "controller.json").exists()


def test_it_answers_again_after_its_database_was_killed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """While a team's PostgreSQL is away requests are refused with the reason; once it is back they are answered."""
    if reason := no_postgres():
        pytest.skip(reason)
    with postgres_server() as server:
        database = server.make("controller")
        token = added(capsys, name="ada", state=tmp_path, database=database)
        with serving("--state", str(tmp_path), "--database", database) as (_, _, url):
            assert get(url, token).json() == []
            server.kill()
            away = get(url, token)
            server.start()
            until(lambda: get(url, token).status_code == 200)
        server.kill()
        with pytest.raises(DatabaseUnreachable):
            serve(users=True, state=tmp_path, database=database)

    assert away.status_code == 503
    assert "database" in away.json()["error"]


def test_it_says_which_machine_must_stay_on_and_until_when() -> None:
    """With unfinished jobs: the host, how many, the expected end if it is known, and the machines' own limit."""
    idle = StatusView("1", "lab7", 1, Term(1), 0, "sqlite:///x")
    busy = replace(idle, unfinished=2, dead_man_s=Seconds(7200.0))
    known = replace(busy, unfinished=1, finish_at=WallTime(1_800_000_000.0))

    assert (
        must_stay_on(RunningController("", idle)) == "lab7 must stay on while jobs are unfinished; there are none now"
    )
    assert must_stay_on(RunningController("", busy)) == (
        "lab7 must stay on for 2 unfinished jobs until they are done (no estimate yet); "
        "without it, machines keep training for 2 h, then save and stop"
    )
    assert "for 1 unfinished job until about 2027-01-15 08:00 UTC" in must_stay_on(RunningController("", known))


def test_a_database_that_is_away_keeps_an_idle_controller() -> None:
    """Nobody can say whether jobs are unfinished: it stays, and leaves once it is known that none is."""
    answers = [DatabaseUnreachable("no answer"), DatabaseUnreachable("no answer")]

    def unfinished() -> int:
        if answers:
            raise answers.pop()
        return 0

    server = ApiServer(FastAPI(), None)
    server.leave_when_idle(Presence(SystemClock()), Seconds(0.05), unfinished)
    until(lambda: server._server.should_exit)
    assert answers == []
