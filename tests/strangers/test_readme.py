"""Every verb of README's table, typed as it stands there by a user with a long home, in a folder with spaces."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator

import pytest

from tests.strangers import pages
from tests.strangers.reader import Reader, a_reader, until_it_works

README = pages.ROOT / "README.md"
SKYPILOT = "resources:\n  accelerators: A100:1\n  use_spot: true\nrun: |\n  python train.py\n"
STEPS = 400


@pytest.fixture
def reader() -> Iterator[Reader]:
    """A reader in a folder that others may enter."""
    with a_reader() as made:
        text = (pages.ROOT / "docs" / "tutorial.md").read_text("utf-8")
        for name, language in (("train.py", "python"), ("job.yaml", "yaml")):
            block = re.search(rf"```{language}\n(.*?)```", text, re.DOTALL)
            assert block is not None
            (made.folder / name).write_text(block[1])
        (made.folder / "task.yaml").write_text(SKYPILOT)
        (made.folder / ".windfallignore").write_text("line-*.json\n")
        yield made


def verbs() -> set[str]:
    """Each `windfall VERB` of the table."""
    rows = [line for line in README.read_text("utf-8").splitlines() if line.startswith("| `windfall ")]
    return {found for row in rows for found in re.findall(r"`windfall ([a-z]+)", row.split("|")[1])}


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_verb_of_the_readme_does_what_it_says(reader: Reader) -> None:
    """One job and one run, from the plan to their deletion; the steps and the outcome are those that the script names."""
    typed: set[str] = set()

    def types(line: str, code: int = 0) -> str:
        typed.add(line.split()[1])
        return reader.types(line, code)

    plain = reader.types("python train.py").splitlines()[-1]
    types("windfall doctor")
    types("windfall import task.yaml")
    types("windfall schema")
    types("windfall completion bash")
    (reader.folder / "lifetimes.csv").write_text("duration_h,event\n" + "1.5,1\n2.5,1\n9,0\n" * 4)
    types("windfall lab fit lifetimes.csv")
    types("windfall plan job.yaml")
    types("windfall simulate job.yaml --trials 200 --step 50ms --save 10ms --upload 10ms --mttp 5m")
    types("windfall drill job.yaml")

    reader.terminal = reader.start("windfall run -y job.yaml")
    typed.add("run")
    until_it_works(reader, "windfall inject line --notice 10s")
    typed.add("inject")
    assert "line-" in types("windfall ps line")
    types("windfall stop line")
    assert reader.ends() == 6
    types("windfall resume line")
    reader.terminal = reader.start("windfall logs -f line")
    typed.add("logs")
    assert reader.ends() == 0
    assert plain in types("windfall logs line")

    told = json.loads(types("windfall cost line --json"))
    assert told["run"]["steps"] == STEPS
    assert len(told["machines"]) >= 2
    types("windfall cost line --plot lives.png")
    assert (reader.folder / "lives.png").stat().st_size > 0
    assert 0 < json.loads(types("windfall checkpoints line --json").splitlines()[0])["step"] <= STEPS
    types("windfall get line back")
    assert list((reader.folder / "back").rglob("*"))
    types("windfall events line")
    types("windfall explain line")
    types("windfall explain line 1")
    types("windfall replay line")
    assert "done" in types("windfall ps")
    types("windfall gc")
    types("windfall rm line -y")

    assert plain in types("windfall exec 'runs/by hand' -- python train.py")
    (reader.folder / "hand.sh").write_text("echo one > made.txt\nwindfall backup made.txt --result made\n")
    types("windfall exec runs/shell -- sh hand.sh")
    typed.add("backup")
    types("windfall get runs/shell out --result made")
    assert (reader.folder / "out" / "made").read_text() == "one\n"

    reader.terminal = reader.start("windfall serve --state team --port 0")
    typed.add("serve")
    wait_for_port(reader)
    reader.open.send_signal(signal.SIGINT)
    assert reader.ends() in (0, 130, -signal.SIGINT)
    assert verbs() - typed == set()


def wait_for_port(reader: Reader) -> None:
    """Wait until the controller of a team says where it listens."""
    assert reader.open.stdout is not None
    for line in reader.open.stdout:
        if re.search(r"http://127\.0\.0\.1:\d+", line):
            return
    raise AssertionError("the controller ended")
