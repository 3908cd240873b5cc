"""Train through four machines, three of which are taken away, and compare with a run that nobody disturbed.

This script plays the cloud: it starts `windfall exec` on one "machine" (an empty folder) after the other and takes it
away at a step.  Everything else is what a user would do.  Run it with `make demo`.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console

HERE = Path(__file__).parent
WINDFALL = str(Path(sys.executable).with_name("windfall"))
# A slow line to the store, so that a checkpoint of 1.5 MB takes three seconds and a short notice cannot do.
UPLINK, MTTP, LEASE = "500KB/s", "60s", "4s"


@dataclass(frozen=True)
class Machine:
    """One machine's fate: it is taken at a step, with a notice or without; None lets it finish."""

    taken_at: int | None
    notice: str | None
    words: str


def fates(steps: int) -> list[Machine]:
    return [
        Machine(steps * 30 // 100, "10s", "10 s of notice: enough to save"),
        Machine(steps * 55 // 100, "2s", "2 s of notice: too short to save"),
        Machine(steps * 80 // 100, "none", "no notice at all"),
        Machine(None, None, "nobody takes it"),
    ]


def run_machine(number: int, machine: Machine, run: Path, out: Path, steps: int, console: Console) -> int:
    """Start the line of every machine in an empty folder; take the machine away when its hour has come."""
    folder = out / f"machine-{number}"
    folder.mkdir()
    line = [WINDFALL, "exec", "--bundle", "--policy", "adaptive", "--mttp", MTTP, "--lease", LEASE, "--uplink", UPLINK]
    if number == 1:
        for name in ("train.py",):
            shutil.copy(HERE / name, folder)
        command = ["--", sys.executable, "train.py", "--steps", str(steps), "--print-every", "20"]
    else:
        # The later machines have nothing but the run's URL: code and state arrive through the store.
        line.remove("--bundle")
        command = []
    console.rule(f"machine {number}: {machine.words}", style="dim")
    console.print("$ windfall exec " + ("--bundle run -- python train.py" if number == 1 else "run"), highlight=False)
    environment = os.environ | {"XDG_STATE_HOME": str(folder / "state")}
    process = subprocess.Popen(
        [*line, str(run), *command],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    taken = False
    for printed in process.stdout:
        step = int(printed.split()[1]) if printed.startswith("step") else None
        if step is None or step % 100 == 0:
            console.print("  " + printed.rstrip(), highlight=False, markup=False)
        if step is not None and machine.taken_at is not None and step >= machine.taken_at and not taken:
            taken = True
            subprocess.run(
                [WINDFALL, "inject", str(run), "--notice", str(machine.notice)], check=True, capture_output=True
            )
            console.print(f"  ** the cloud takes machine {number} away: {machine.words}", style="bold red")
    code = process.wait()
    words = {0: "done", 75: "start the same line again", -9: "killed"}.get(code, "failed")
    console.print(
        f"  machine {number} ended with exit code {code if code >= 0 else 128 - code} ({words})", style="bold"
    )
    return code


def digest(model: dict[str, torch.Tensor]) -> str:
    """Return the SHA-256 of every weight's bits."""
    sha = hashlib.sha256()
    for name in sorted(model):
        sha.update(name.encode() + model[name].numpy().tobytes())
    return sha.hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=Path("out/demo"))
    options = parser.parse_args()
    console = Console(width=min(Console().width, 100))
    out = options.out.absolute()
    shutil.rmtree(out, ignore_errors=True)
    (out / "undisturbed").mkdir(parents=True)
    run = out / "run"
    began = time.monotonic()
    undisturbed = out / "undisturbed" / "final.pt"
    reference = subprocess.Popen(
        [sys.executable, str(HERE / "train.py"), "--steps", str(options.steps)],
        cwd=undisturbed.parent,
        env=os.environ | {"FINAL": str(undisturbed)},
        stdout=subprocess.DEVNULL,
    )
    console.print("A small GPT learns Python's standard library, once undisturbed in the background, and here:")
    for number, machine in enumerate(fates(options.steps), start=1):
        code = run_machine(number, machine, run, out, options.steps, console)
    if code != 0:
        console.print("[bold red]the run did not finish")
        return 1
    reference.wait()
    console.rule("where the time went: windfall cost run --plot timeline.png", style="dim")
    picture = out / "timeline.png"
    subprocess.run([WINDFALL, "cost", str(run), "--plot", str(picture)], check=True)
    console.rule("the same decisions again: windfall replay run", style="dim")
    subprocess.run([WINDFALL, "replay", str(run)], check=True)
    console.rule("the proof", style="dim")
    subprocess.run([WINDFALL, "get", str(run), str(out / "result")], check=True, stdout=subprocess.DEVNULL)
    (checkpoint,) = (out / "result").iterdir()
    ours, theirs = digest(torch.load(checkpoint)["model"]), digest(torch.load(undisturbed))
    console.print(
        f"weights after three losses  sha256 {ours[:32]}...\nweights of the undisturbed  sha256 {theirs[:32]}..."
    )
    same = ours == theirs
    verdict = "[bold green]bit for bit the same" if same else "[bold red]NOT the same"
    console.print(f"{verdict}[/] after {time.monotonic() - began:.0f} s; everything is under {options.out}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
