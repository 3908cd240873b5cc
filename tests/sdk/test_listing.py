"""The thesis's own example, and what `import windfall` loads."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.fake_agent import FakeAgent, finish, start

LISTING = """
for i, inputs in enumerate(data_loader):
    ...
    with sp.step_context():
        output = model(inputs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    ...
    if i % save_interval == 0 or sp.check_save():
        save_checkpoint()
        sp.backup(checkpoint_path)
"""
AROUND = """
import sys
import windfall as sp

class Anything:
    def __call__(self, *_): return self
    def __getattr__(self, _): return self

saved = []
model = optimizer = loss = Anything()
data_loader, save_interval, checkpoint_path = range(12), 5, sys.argv[1]
def save_checkpoint(): saved.append(i)
if len(sys.argv) > 2:  # let the test publish its requests first
    sp.context()
    print("ready", flush=True)
    sys.stdin.readline()
"""

NAMES_ONLY = """
import sys
before = set(sys.modules)
import windfall
print(sorted(name for name in set(sys.modules) - before))
windfall.step()
print(sorted({name.split('.')[0] for name in set(sys.modules) - before} - sys.stdlib_module_names))
print(sorted({'asyncio', 'dataclasses', 'numpy', 'torch', 'pydantic', 'threading', 'logging'} & (set(sys.modules) - before)))
"""


@pytest.mark.real
def test_listing_runs_verbatim_and_obeys_a_request(agent: FakeAgent, tmp_path) -> None:
    """Listing 5.1 saves on its own schedule and once more where the agent asks for it."""
    script = AROUND + LISTING + "print(saved)"
    command = [sys.executable, "-c", script, str(tmp_path / "model.pt"), "ready"]
    import os

    process = subprocess.Popen(
        command, env=os.environ | agent.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    request = agent.request(8)
    out, _ = process.communicate("\n", timeout=60)
    assert (process.returncode, out) == (0, "[0, 5, 7, 10]\n")
    assert [(message["step"], message["request"]) for message in agent.backups()] == [
        (1, 0),
        (6, 0),
        (8, request),
        (11, 0),
    ]


@pytest.mark.real
def test_listing_runs_outside_windfall(tmp_path) -> None:
    """Without a session the same lines keep the user's own schedule and nothing else happens."""
    script = AROUND + LISTING + "print(saved)"
    process = start([sys.executable, "-c", script, str(tmp_path / "model.pt")], {"WINDFALL_SESSION": ""})
    assert finish(process) == "[0, 5, 10]\n"


@pytest.mark.real
def test_the_import_loads_itself_only() -> None:
    """`import windfall` loads one module; the first call loads nothing but the standard library, and that lightly."""
    out = finish(start([sys.executable, "-c", NAMES_ONLY], {"WINDFALL_SESSION": ""}))
    assert out.splitlines() == ["['windfall']", "['windfall']", "[]"]


@pytest.mark.real
def test_dir_and_help_serve_a_reader_outside_a_run() -> None:
    """`dir` lists the public names before and after the first call; the help says what a call does, and where."""
    script = (
        "import windfall as wf\n"
        "public = sorted([*wf.__all__, 'Executor', 'as_completed'])\n"
        "assert dir(wf) == public\n"
        "import inspect\n"
        "for name in wf.__all__:\n"
        "    text = inspect.getdoc(getattr(wf, name))\n"
        "    assert 'Do nothing' not in text and 'Outside a Windfall run' in text, name\n"
        "assert dir(wf) == public\n"
        "print(inspect.getdoc(wf.step).splitlines()[0])\n"
    )
    out = finish(start([sys.executable, "-c", script], {"WINDFALL_SESSION": ""}))
    assert out.startswith("End a training step; return True if the script must save a checkpoint now")


@pytest.mark.real
def test_every_name_exists_and_no_other() -> None:
    """All public names work outside a session, whichever comes first; a wrong one is an AttributeError."""
    script = (
        "import windfall as wf\n"
        "assert list(wf.steps([1, 2])) == [1, 2]\n"
        "wf.enter_step(); wf.exit_step(); wf.backup('x'); wf.report(loss=1)\n"
        "assert (wf.step(), wf.check_save(), wf.last(), wf.notice()) == (False, False, None, None)\n"
        "with wf.step_context(), wf.phase('evaluation'): pass\n"
        "assert wf.context().run is None\n"
        "try: wf.save\n"
        "except AttributeError as error: print(error)\n"
    )
    out = finish(start([sys.executable, "-c", script], {"WINDFALL_SESSION": ""}))
    assert out == "module 'windfall' has no attribute 'save'\n"
