"""One command from a job file to a finished, accounted run, on machines of which three are preempted.

`windfall run` orders machines from the local market.  `windfall inject` preempts them: with enough notice, with too little,
and with none.  Then come the bill, the timeline, the replay, and the proof: the weights equal those of an undisturbed run,
bit for bit.  All commands are what a user would type.  Run it with `make demo`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import torch
from rich.console import Console

HERE = Path(__file__).parent
WINDFALL = str(Path(sys.executable).with_name("windfall"))
# The market of this demo: the machines have a slow uplink, so that a checkpoint of 1.5 MB takes three seconds.
MARKET = """
types:
  small: {on_demand: 0.10, cpus: 1, memory_gib: 2, uplink: 500KB/s}
zones: [zone-a]
prices: {low: 0.2, high: 0.3}
allocation_delay: 1s
billing: {lag: 1s}
idle_exit: 10s
"""
JOB = """
name: gpt
workdir: .
run: |
  {python} train.py --steps {steps} --print-every 20
work: {{steps: {steps}}}
checkpoint: {{insure: 10s}}
"""
# When a machine is preempted (share of the steps), and with which notice.
PREEMPTIONS = (
    (0.30, "10s", "10 s of notice: enough to save, and to start the next machine"),
    (0.55, "2s", "2 s of notice: too short for a save of three seconds"),
    (0.80, "none", "no notice at all"),
)


class Cloud:
    """Runs the job, and preempts its machines."""

    def __init__(self, out: Path, steps: int, console: Console) -> None:
        self.environment = os.environ | {"XDG_STATE_HOME": str(out / "state"), "COLUMNS": str(console.width)}
        self.preemptions = [(round(share * steps), notice, comment) for share, notice, comment in PREEMPTIONS]
        self.console = console
        self.cwd = out / "code"

    def follow(self) -> int:
        """Run the job, print its output, and preempt its machine at the planned steps; return the exit code."""
        process = subprocess.Popen(
            [WINDFALL, "run", "-y", "job.yaml"],
            cwd=self.cwd,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert process.stdout is not None
        for printed in process.stdout:
            found = re.match(r"step +(\d+) ", printed)
            step = int(found[1]) if found else None
            if step is None or step % 100 == 0:
                self.console.print("  " + printed.rstrip(), highlight=False, markup=False, soft_wrap=True)
            if step is not None and self.preemptions and step >= self.preemptions[0][0]:
                _, notice, comment = self.preemptions.pop(0)
                self.run("inject", "gpt", "--notice", notice, quiet=True)
                self.console.print(
                    f"  ** $ windfall inject gpt --notice {notice}     ({comment})", style="bold red", soft_wrap=True
                )
        return process.wait()

    def run(self, *arguments: str, quiet: bool = False) -> str:
        """Run another command of Windfall, and return its output if it is not printed."""
        out = subprocess.PIPE if quiet else None
        done = subprocess.run(
            [WINDFALL, *arguments], cwd=self.cwd, env=self.environment, check=True, stdout=out, text=True
        )
        return done.stdout or ""

    def close(self) -> None:
        """End the controller of this demo, which would otherwise exit after five idle minutes."""
        with suppress(OSError, ValueError, KeyError):
            address = Path(self.environment["XDG_STATE_HOME"]) / "windfall" / "controller.json"
            os.kill(json.loads(address.read_text())["pid"], signal.SIGTERM)


def prepare(out: Path, steps: int) -> None:
    """Write the market's configuration, the job file and the script to an empty folder."""
    shutil.rmtree(out, ignore_errors=True)
    for folder in ("code", "undisturbed", "state/windfall/market"):
        (out / folder).mkdir(parents=True)
    (out / "state" / "windfall").chmod(0o700)
    (out / "state" / "windfall" / "market" / "market.yaml").write_text(MARKET)
    (out / "code" / "job.yaml").write_text(JOB.format(python=shlex.quote(sys.executable), steps=steps))
    shutil.copy(HERE / "train.py", out / "code")


def digest(model: dict[str, torch.Tensor]) -> str:
    """Return the SHA-256 of every weight's bits."""
    sha = hashlib.sha256()
    for name in sorted(model):
        sha.update(name.encode() + model[name].numpy().tobytes())
    return sha.hexdigest()


def proof(cloud: Cloud, out: Path, reference: subprocess.Popen[bytes], console: Console) -> bool:
    """Return whether the weights equal those of the undisturbed run."""
    reference.wait()
    cloud.run("get", "gpt", str(out / "result"), quiet=True)
    (checkpoint,) = (out / "result").iterdir()
    ours, theirs = digest(torch.load(checkpoint)["model"]), digest(torch.load(out / "undisturbed" / "final.pt"))
    console.print(
        f"weights after three losses  sha256 {ours[:32]}...\nweights without losses      sha256 {theirs[:32]}..."
    )
    return ours == theirs


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--out", type=Path, default=Path("out/demo"))
    options = parser.parse_args()
    console = Console(width=min(Console().width, 100))
    out = options.out.absolute()
    prepare(out, options.steps)
    started = time.monotonic()
    console.print(
        "A small GPT learns Python's standard library: undisturbed in the background, and on spot machines here."
    )
    reference = subprocess.Popen(
        [sys.executable, str(HERE / "train.py"), "--steps", str(options.steps)],
        cwd=out / "undisturbed",
        env=os.environ | {"FINAL": str(out / "undisturbed" / "final.pt")},
        stdout=subprocess.DEVNULL,
    )
    cloud = Cloud(out, options.steps, console)
    try:
        console.rule("windfall run -y job.yaml", style="dim")
        if cloud.follow() != 0:
            console.print("[bold red]The job did not finish.")
            return 1
        console.rule("the bill: windfall cost gpt --plot timeline.png", style="dim")
        cloud.run("cost", "gpt", "--plot", str(out / "timeline.png"))
        console.rule("the same decisions again: windfall replay gpt", style="dim")
        cloud.run("replay", "gpt")
        console.rule("the proof", style="dim")
        same = proof(cloud, out, reference, console)
    finally:
        cloud.close()
        reference.kill()
        reference.wait()
    verdict = "[bold green]The weights are equal, bit for bit," if same else "[bold red]The weights are NOT equal"
    console.print(f"{verdict}[/] after {time.monotonic() - started:.0f} s.  All files are in {options.out}.")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
