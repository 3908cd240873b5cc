"""The life of a controller's process and how clients find it: started, found again, killed, idle, replaced."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.control.conftest import TOKENS, Api, log_of, until
from tests.control.fake import job
from tests.support.processes import alive
from windfall.cli.client import Client, connect
from windfall.cli.controller_process import local_user
from windfall.errors import ControllerError, ControllerUnreachable, Infeasible, Misuse
from windfall.fleet import JobPhase
from windfall.linux.clock import SystemClock
from windfall.storage.database import open_database
from windfall.structs import replace

IDLE_S = 600
ROOT = Path(__file__).parents[2]


def launch(idle_s: float = IDLE_S) -> tuple[str, ...]:
    return (sys.executable, "-m", "tests.control.fake", str(idle_s))


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A state folder; whatever controller still runs in it at the end is killed."""
    for name in ("WINDFALL_CONTROLLER", "WINDFALL_TOKEN", "WINDFALL_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    folder = tmp_path / "state"
    yield folder
    with contextlib.suppress(OSError, ValueError):
        kill(int((folder / "controller.lock").read_text()))


def kill(pid: int) -> None:
    """Kill -9, and reap if it is ours."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    until(lambda: ended(pid))


def ended(pid: int) -> bool:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    return not alive(pid)


def process_of(client: Client) -> int:
    assert client.address.process is not None
    return client.address.process


def test_the_first_command_starts_a_controller_and_the_next_one_finds_it(state: Path) -> None:
    """One process serves all commands; it leads a session of its own, and its files are this user's alone."""
    with connect(state, start=True, launch=launch()) as first, connect(state, start=False) as second:
        pid = process_of(first)

        assert process_of(second) == pid
        assert second.status().unfinished == 0
        assert os.getsid(pid) == pid != os.getsid(0)
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in [state, *state.iterdir()]}
        assert modes.pop("state") == 0o700
        assert set(modes.values()) == {0o600}
        assert {"controller.json", "token", "controller.db", "controller.log"} <= set(modes)


def test_no_controller_is_started_where_none_is_wanted(state: Path) -> None:
    """A verb that only looks says so, and leaves nothing behind."""
    with pytest.raises(ControllerUnreachable, match="no controller is running"):
        connect(state, start=False)

    assert not state.exists()


def test_commands_that_start_together_get_one_controller(state: Path) -> None:
    """Ten at once: one process is started, all of them reach it."""
    clients: list[Client] = []

    def start() -> None:
        clients.append(connect(state, start=True, launch=launch()))

    threads = [threading.Thread(target=start) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    processes = {process_of(client) for client in clients}
    terms = {client.status().term for client in clients}
    for client in clients:
        client.close()

    assert len(clients) == 10
    assert (len(processes), terms) == (1, {1})


def test_a_killed_controller_is_followed_by_another_that_knows_its_jobs(state: Path) -> None:
    """Kill -9: the same client's next request starts a new one with a higher term, and the job is still there."""
    with connect(state, start=True, launch=launch()) as client:
        client.submit(job(), {})
        before = process_of(client)
        kill(before)

        assert [view.job_id for view in client.jobs()] == ["gpt-1"]
        assert process_of(client) != before
        assert client.status().term == 2


def test_a_stale_address_is_not_trusted(state: Path) -> None:
    """A controller.json that is torn or left by a dead one is not used: a new one is started, with the old token."""
    state.mkdir()
    (state / "token").write_text("wu.old\n")
    for text in ("{", "[]", '{"url": "http://127.0.0.1:9", "pid": 1}'):
        (state / "controller.json").write_text(text)
        with pytest.raises(ControllerUnreachable, match="no controller is running"):
            connect(state, start=False)
    with connect(state, start=True, launch=launch()) as client:
        assert client.jobs() == []
        assert (state / "token").read_text() == "wu.old\n"


def test_an_idle_controller_leaves_and_a_busy_one_stays(state: Path) -> None:
    """With an unfinished job it stays however long nobody asks; without one it leaves, and takes its address with it."""
    state.mkdir()
    with contextlib.closing(open_database(str(state / "controller.db"), SystemClock())) as database:
        database.add_job(database.acquire("an earlier controller"), job(user=local_user()), {})
    with connect(state, start=True, launch=launch(0.3)) as client:
        pid = process_of(client)
        threading.Event().wait(1.0)  # several times the limit: staying is what cannot be waited for otherwise

        assert not ended(pid)
        client.stop("gpt-1")
        until(lambda: ended(pid))
    assert not (state / "controller.json").exists()
    assert log_of(state) == ""


def test_a_controller_that_was_replaced_ends_with_the_reason(state: Path) -> None:
    """Once its service says that another took over the installation, the process ends, and its log says why."""
    with connect(state, start=True, launch=launch()) as client:
        pid = process_of(client)
        client.plan(replace(job(), name="replaced"))
        until(lambda: ended(pid))

    assert "another controller took over the installation" in log_of(state)


def test_a_controller_that_cannot_start_says_why_to_the_user(state: Path) -> None:
    """The last line of its log is the sentence."""
    state.mkdir()
    (state / "refuse").write_text("market.yaml:3:1: unknown key")

    with pytest.raises(ControllerUnreachable, match=r"exit code 2\): market.yaml:3:1: unknown key"):
        connect(state, start=True, launch=launch())


def test_sigterm_ends_a_controller_in_good_order(state: Path) -> None:
    """It answers nobody any more, removes its address, and writes nothing odd into its log."""
    with connect(state, start=True, launch=launch()) as client:
        os.kill(process_of(client), signal.SIGTERM)
        until(lambda: ended(process_of(client)))

    assert not (state / "controller.json").exists()
    assert log_of(state) == ""


def test_a_controller_outlives_the_terminal(state: Path) -> None:
    """The process that started it, its process group and its terminal's hang-up leave it alone."""
    script = (
        # Whoever runs the tests behind nohup hands its deafness down.
        "import sys, os, signal\nsignal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
        "from pathlib import Path\nfrom windfall.cli.client import connect\n"
        f"client = connect(Path({str(state)!r}), start=True, launch={launch()!r})\n"
        "print(client.address.process, flush=True)\nos.killpg(0, signal.SIGHUP)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, start_new_session=True, check=False, cwd=ROOT
    )

    assert done.returncode == -signal.SIGHUP
    with connect(state, start=False) as client:
        assert process_of(client) == int(done.stdout)
        assert client.jobs() == []


# --------------------------------------------------------------------------------------------------- a team's controller


def team(api: Api, monkeypatch: pytest.MonkeyPatch, token: str | None) -> None:
    for name, value in (("WINDFALL_CONTROLLER", api.url + "/"), ("WINDFALL_TOKEN", token)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)


def test_a_teams_controller_is_found_by_its_variables(
    api: Api, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Address and token come from the environment, the token also from a file; nothing is started or written here."""
    team(api, monkeypatch, TOKENS["ada"])
    with connect(state, start=True) as client:
        client.submit(job(), {})
    team(api, monkeypatch, None)
    (tmp_path / "token").write_text(TOKENS["eve"] + "\n")
    monkeypatch.setenv("WINDFALL_TOKEN_FILE", str(tmp_path / "token"))
    with connect(state, start=True) as client:
        assert client.jobs() == []

    assert not state.exists()
    assert api.service.views["gpt-1"].user == "ada"


def test_every_call_brings_back_its_words(api: Api, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the service answers reaches the verb as the same typed values."""
    team(api, monkeypatch, TOKENS["root"])
    service = api.service
    with connect(state, start=False) as client:
        assert client.submit(job(secrets=("HF",)), {"HF": "hf_secret"}) == "gpt-1"
        service.journal["gpt-1"] = [f"row {number}" for number in range(1, 4501)]

        assert client.job("gpt-1") == service.job("gpt-1")
        assert client.jobs() == list(service.jobs(None))
        assert [row.line for row in client.rows("gpt-1")] == service.journal["gpt-1"]
        assert [row.sequence for row in client.rows("gpt-1", after=4498)] == [4499, 4500]
        assert client.plan(job()) == {"cost_usd": 1.25, "user": "root"}
        assert client.offers() == service.offers()
        assert client.status() == service.status()
        assert client.unneeded() == service.unneeded()
        assert [one.machine_id for one in client.collect(["stray-2"]).machines] == ["stray-2"]
        client.stop("gpt-1", now=True)
        client.resume("gpt-1")
        assert service.requests == [("stop", "gpt-1", "root", "now"), ("resume", "gpt-1", "root")]
        assert client.job("gpt-1").phase is JobPhase.STOPPED


def test_the_controllers_errors_are_the_users_errors(api: Api, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sentence and exit code arrive as they were told."""
    team(api, monkeypatch, TOKENS["ada"])
    with connect(state, start=False) as client:
        with pytest.raises(Infeasible, match="lives 60 s"):
            client.plan(replace(job(), nodes=2))
        with pytest.raises(Misuse, match=r"no job '\.\./x y'"):
            client.job("../x y")
        api.service.broken = RuntimeError("boom")
        with pytest.raises(ControllerError, match="its log has the details") as caught:
            client.plan(job())
    assert caught.value.exit_code == 1


def test_a_team_without_token_or_answer_gets_advice(
    api: Api, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No token, a wrong one, an unreadable file, no controller, no Windfall behind the address: a sentence each."""
    team(api, monkeypatch, None)
    with pytest.raises(Misuse, match="serve --add-user"):
        connect(state, start=True)
    monkeypatch.setenv("WINDFALL_TOKEN_FILE", str(tmp_path / "none"))
    with pytest.raises(Misuse, match="cannot read WINDFALL_TOKEN_FILE"):
        connect(state, start=True)
    team(api, monkeypatch, "wu.wrong")
    with connect(state, start=True) as client, pytest.raises(Misuse, match="does not know this token"):
        client.jobs()
    monkeypatch.setenv("WINDFALL_CONTROLLER", "http://127.0.0.1:9")
    with connect(state, start=True) as client, pytest.raises(ControllerUnreachable, match="check WINDFALL_CONTROLLER"):
        client.jobs()


def test_an_answer_from_another_server_is_reported(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy's page or another program's JSON is not taken for an answer."""
    monkeypatch.setenv("WINDFALL_CONTROLLER", "http://lab")
    monkeypatch.setenv("WINDFALL_TOKEN", "wu.x")
    for answer, word in (
        (httpx.Response(502, text="<html>"), "not a Windfall controller"),
        (httpx.Response(200, content=json.dumps({"jobs": 1})), "same version"),
    ):
        with connect(state, start=False) as client:
            client._http = httpx.Client(base_url="http://lab", transport=httpx.MockTransport(lambda _, a=answer: a))
            with pytest.raises(ControllerError, match=word):
                client.jobs()


def test_a_submission_whose_answer_was_lost_is_made_again(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection breaks after the job was taken in: the same job is told again, and is still one job."""
    monkeypatch.setenv("WINDFALL_CONTROLLER", "http://lab")
    monkeypatch.setenv("WINDFALL_TOKEN", "wu.x")
    taken: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        taken.append(json.loads(request.content)["job"]["job_id"])
        if len(taken) == 1:
            raise httpx.RemoteProtocolError("the connection broke")
        return httpx.Response(200, json={"job_id": taken[-1]})

    with connect(state, start=False) as client:
        client._http = httpx.Client(base_url="http://lab", transport=httpx.MockTransport(answer))
        assert client.submit(job(), {}) == "gpt-1"
    assert taken == ["gpt-1", "gpt-1"]
