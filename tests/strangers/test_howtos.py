"""Every command of the how-tos, typed in the order of its page by a user with a long home, in a folder with spaces."""

from __future__ import annotations

import json
import random
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.contracts.servers import free_port, s3_server
from tests.simulation.shared_data import DATA
from tests.storage.databases import no_postgres, postgres_server
from tests.strangers import pages
from tests.strangers.reader import Reader, a_reader, until_it_works
from tests.strangers.support import wait_until
from windfall.errors import EXIT_FAILED, EXIT_RETRY, EXIT_STOPPED

HOWTOS = {page.stem: page for page in pages.PAGES if page.parent.name == "howto" and pages.commands(page)}
WITH_A_STORE = {"emergency-saves", "s3-gcs-azure", "several-machines", "slurm"}
"""Pages whose runs lie in `s3://lab`."""
NOT_HERE = {
    "srun ": "needs Slurm; what it starts is typed without it",
    "python train.py --steps": "a line of a job file",
    "echo ": "a line of a script, which is run whole",
    "windfall backup": "a line of a script, which is run whole",
    "windfall serve --host": "is started first, and serves while the others are typed",
    "windfall serve --database": "is started on a database of this machine",
    "export WINDFALL_CONTROLLER": "leads to the controller that was started",
    "export WINDFALL_TOKEN": "has the token that was printed",
}
"""Beginnings of lines that are not typed as they are, with the reason."""
PUBLIC_DATA = ("aws_spot_prices", "skypilot_spot_traces")
"""What papers are replayed on; lines with one of them are typed where it lies beside this checkout."""
EXAMPLE_JOB = ("sweep-3f9a2c", "sweep")
"""A job's identity on a page, and the name under which the job is found here."""
REPLAY_S = 1200.0
"""How long a replay of months may take at load [s]."""


@pytest.fixture
def reader(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Reader]:
    """A reader with the tutorial's script and job, and a store if the page needs one."""
    with a_reader() as made:
        text = (pages.ROOT / "docs" / "tutorial.md").read_text("utf-8")
        for name, language in (("train.py", "python"), ("job.yaml", "yaml")):
            block = re.search(rf"```{language}\n(.*?)```", text, re.DOTALL)
            assert block is not None
            (made.folder / name).write_text(block[1])
        if request.node.callspec.params["page"] not in WITH_A_STORE:
            yield made
            return
        with s3_server(tmp_path) as environment:
            made.exported |= environment
            yield made


# --------------------------------------------------------------------------------------------- what a page takes for given


def bags(reader: Reader) -> None:
    """The page's bag, each combination twice, of which two items fail the first time; and settings of SciSpot."""
    text = next(block for block in pages.blocks(HOWTOS["bags"].read_text("utf-8")) if block.startswith("name: sweep"))
    text += "  repeats: 2\n  retries: 0\n  collect: [out.txt]\n"
    (reader.folder / "sweep.yaml").write_text(text)
    (reader.folder / "code").mkdir()
    (reader.folder / "code" / "simulate.py").write_text(SIMULATE.format(folder=str(reader.folder)))
    (reader.folder / "config.json").write_text('{"p": {"type": "set", "values": [1, 2, 3]}}')
    reader.own(reader.folder)
    reader.types("windfall run -y sweep.yaml", EXIT_FAILED)


SIMULATE = """\
import os, pathlib, sys, time

first = pathlib.Path("{folder}") / ("failed-" + os.environ["WINDFALL_ITEM"])
if os.environ["WINDFALL_ITEM"] in ("3", "5"):
    if not first.exists():
        first.touch()
        sys.exit("no energy is found")
time.sleep(0.5)
pathlib.Path("out.txt").write_text("done\\n")
print("energy =", float(sys.argv[1]) * float(sys.argv[2]))
"""
"""Items 3 and 5 fail once; each takes long enough for a bag to be stopped in between."""


def bill(reader: Reader) -> None:
    """A job `gpt` that has run."""
    job = (reader.folder / "job.yaml").read_text()
    (reader.folder / "job.yaml").write_text(job.replace("name: line", "name: gpt"))
    reader.types("windfall run -y job.yaml")


def drill(reader: Reader) -> None:
    """A folder of data."""
    (reader.folder / "data").mkdir()


def emergency_saves(reader: Reader) -> None:
    """A run that trains."""
    reader.terminal = reader.start("windfall exec s3://lab/run42 -- python train.py")


def job_file(reader: Reader) -> None:
    """Files of other tools."""
    text = "resources:\n  accelerators: A100:1\n  use_spot: true\nrun: python train.py\n"
    (reader.folder / "sky.yaml").write_text(text)
    dstack = "type: task\nname: gpt\ncommands: [python train.py]\nspot_policy: auto\nmax_price: 2.5\n"
    (reader.folder / ".dstack.yml").write_text(dstack)


def parameter_server(reader: Reader) -> None:
    """The page's job."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'windfall[paramserver]'")
    page = pages.blocks(HOWTOS["parameter-server"].read_text("utf-8"))
    (reader.folder / "words.yaml").write_text(next(block for block in page if block.startswith("name: words")))
    reader.own(reader.folder)


def papers(reader: Reader) -> None:
    """A table of lives, and the public data that lie beside this checkout."""
    lives(reader)
    for name in PUBLIC_DATA:
        if (DATA / name).is_dir():
            (reader.folder / name).symlink_to(DATA / name)


def lives(reader: Reader) -> None:
    """A table of four hundred lives in two zones, a third of them stopped."""
    dice = random.Random(1)
    rows = ["machine_type,zone,batch,lifetime_s,preempted"]
    for number in range(400):
        row = ("n1", f"zone-{number % 2}", number // 4, dice.weibullvariate(30_000, 0.8), int(dice.random() < 0.66))
        rows.append(",".join(str(value) for value in row))
    (reader.folder / "lifetimes.csv").write_text("\n".join(rows) + "\n")


def simulate(reader: Reader) -> None:
    """A job of which a drill has measured steps and saves."""
    reader.types("windfall drill job.yaml")


def traces(reader: Reader) -> None:
    """One trace of each kind: prices, counts, machines."""
    dice = random.Random(1)
    rows = ["timestamp_utc,availability_zone,instance_type,product,price_usd_per_hour"]
    rows += [f"2016-05-{6 + n // 24:02}T{n % 24:02}:00:00Z,us-east-1a,m4.xlarge,Linux/UNIX,{dice.uniform(0.03, 0.04):.4f}"
             for n in range(72)]  # fmt: skip
    (reader.folder / "prices.csv").write_text("\n".join(rows) + "\n")
    reader.types("gzip prices.csv")
    counts = {"metadata": {"gap_seconds": 600}, "data": [int(dice.random() < 0.8) for _ in range(240)]}
    (reader.folder / "us-west-2a_v100_1.json").write_text(json.dumps(counts))
    events, at_ms = [f"0,add,node{n}" for n in range(8)], 0
    for number in range(50):
        at_ms += int(dice.expovariate(1 / 800_000))
        events += [f"{at_ms},remove,node{number}", f"{at_ms + 200_000},add,node{number + 8}"]
        at_ms += 200_000
    (reader.folder / "p3trace.csv").write_text("\n".join(events) + "\n")


def other_languages(reader: Reader) -> None:
    """The page's own script, with something to simulate."""
    block = re.search(r"```sh\n(.*?)```", HOWTOS["other-languages"].read_text("utf-8"), re.DOTALL)
    assert block is not None
    (reader.folder / "loop.sh").write_text(block[1])
    (reader.folder / "simulate").write_text("#!/bin/sh\nexit 0\n")
    (reader.folder / "simulate").chmod(0o755)
    reader.types("windfall exec runs/loop -- sh loop.sh")
    assert "1000" in reader.types("windfall checkpoints runs/loop")


STAGES: dict[str, Callable[[Reader], None]] = {
    "bags": bags, "bill": bill, "drill": drill, "emergency-saves": emergency_saves, "job-file": job_file, "lifetimes": lives,
    "other-languages": other_languages, "papers": papers, "parameter-server": parameter_server,
    "simulate": simulate, "traces": traces,
}  # fmt: skip


# ------------------------------------------------------------------------------------------------------------- the pages


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("page", sorted(HOWTOS.keys() - {"serve", "several-machines"}))
def test_a_page_can_be_typed_from_its_first_line_to_its_last(page: str, reader: Reader) -> None:
    """Each line ends with 0; one that stays (`&`, or a run that is taken away meanwhile) ends as the page says."""
    STAGES.get(page, lambda _: None)(reader)
    lines = [line for line in pages.commands(HOWTOS[page]) if not line.startswith(tuple(NOT_HERE))]
    for line in (line.replace(*EXAMPLE_JOB) for line in lines):
        print(f"$ {line}", flush=True)
        public = [name for name in PUBLIC_DATA if f" {name} " in f"{line} "]
        if line.startswith("export"):
            store = reader.exported["AWS_ENDPOINT_URL"]
            reader.exports(line.replace("http://127.0.0.1:9000", store))
        elif line.startswith("windfall inject"):
            until_it_works(reader, line)
            assert reader.ends() in (EXIT_RETRY, 128 + signal.SIGKILL, -signal.SIGKILL)
        elif line == "windfall stop sweep":
            reader.types("windfall run -y -d --again sweep.yaml")
            reader.types(line)
        elif public:
            if (reader.folder / public[0]).exists():
                reader.types(line, patience_s=REPLAY_S)
        else:
            reader.types(line.removesuffix("&"))
    if page == "emergency-saves":
        assert "emergency save" in reader.types("windfall explain s3://lab/run42")
    made = re.findall(r"(?:--plot|>) (\S+)|convert \S+ (\S+)", "\n".join(lines))
    assert [name for pair in made for name in pair if name and not (reader.folder / name).exists()] == []


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", ["several-machines"])
def test_two_lines_are_one_run_of_two_machines(page: str, reader: Reader) -> None:
    """Typed at the same time, in a folder each, for want of a second machine: both end with 0, and so does the run."""
    (reader.folder / "token").write_text("a-secret-of-both\n")
    addresses = f"127.0.0.1:{free_port()},127.0.0.1:{free_port()}"
    terminals = []
    for line in pages.commands(HOWTOS[page]):
        if line.startswith("export"):
            reader.exports(line)
            continue
        mine = reader.folder / f"machine {len(terminals)}"
        shutil.copytree(reader.folder, mine, ignore=shutil.ignore_patterns("machine *"))
        reader.own(mine)
        reader.exported["XDG_STATE_HOME"] = str(mine / "state")
        terminals.append(reader.start(line.replace("10.0.0.4:7070,10.0.0.5:7070", addresses), mine))
    said = [terminal.communicate(timeout=300)[0] for terminal in terminals]
    assert [terminal.returncode for terminal in terminals] == [0, 0], "\n".join(said)
    assert json.loads(reader.types("windfall ps --json s3://lab/run42"))["state"]["outcome"] == "done"


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", ["serve"])
def test_a_team_s_controller_is_served_as_its_page_says(page: str, reader: Reader) -> None:
    """Over TLS; a user is added while it serves, sees the controller with the printed token, and is gone once removed."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    made += ["-addext", "subjectAltName=DNS:localhost", "-keyout", "lab.key", "-out", "lab.pem"]
    subprocess.run(made, cwd=reader.folder, check=True, capture_output=True)
    for name in ("lab.key", "lab.pem"):
        reader.own(reader.folder / name)
    lines = pages.commands(HOWTOS[page])
    port = free_port()
    (serve,) = (line for line in lines if line.startswith("windfall serve --host"))
    reader.terminal = reader.start(serve.replace("0.0.0.0", f"127.0.0.1 --url https://localhost:{port} --port {port}"))
    token = ""
    for line in [line for line in lines if not line.startswith(tuple(NOT_HERE))]:
        if "--remove-user" in line:
            reader.exported |= {"WINDFALL_CONTROLLER": f"https://localhost:{port}", "WINDFALL_TOKEN": token}
            reader.exported |= {"SSL_CERT_FILE": "lab.pem"}
            wait_until(lambda: reader.tries("windfall ps") == 0, lambda: "ada sees her jobs")
            assert reader.types(line)
            assert "401" in reader.types("windfall ps", 2) or "token" in reader.types("windfall ps", 2)
            continue
        said = reader.types(line)
        token = next(iter(re.findall(r"\bwu\.\S+", said)), token)
        assert "--users" not in line or "ada" in said
    reader.open.send_signal(signal.SIGINT)
    assert reader.ends() in (0, EXIT_STOPPED, 130, -signal.SIGINT)


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("page", ["serve"])
def test_a_second_controller_on_the_same_database_takes_over(page: str, reader: Reader) -> None:
    """The first one ends with 75."""
    if reason := no_postgres():
        pytest.skip(reason)
    (line,) = (line for line in pages.commands(HOWTOS[page]) if "--database" in line)
    with postgres_server() as server:
        server.folder.chmod(0o755)
        line = line.replace("postgresql://windfall@db.lab/windfall", f"'{server.make('windfall')}'")
        first = reader.terminal = reader.start(f"{line} --port 0 --state one")
        assert first.stdout is not None
        assert any("http://127.0.0.1:" in said for said in first.stdout)
        second = reader.terminal = reader.start(f"{line} --port 0 --state two")
        first.communicate(timeout=120)
        assert first.returncode == EXIT_RETRY
        second.send_signal(signal.SIGINT)
        reader.ends()
