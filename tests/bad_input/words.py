"""Bad words on the command line."""

from __future__ import annotations

from tests.bad_input.box import Box, Case


def _line(*words: str) -> object:
    return lambda _: list(words)


def _exec(*options: str) -> object:
    return lambda box: box.exec(box.store, *options)


def _not_executable(box: Box) -> list[str]:
    (box.here / "train.sh").write_text("#!/bin/sh\n")
    return ["exec", str(box.store), "--", "./train.sh"]


def _nothing_there(*verb: str) -> object:
    return lambda box: [verb[0], str(box.store), *verb[1:]]


def _no_matplotlib(box: Box) -> list[str]:
    (box.here / "matplotlib.py").write_text("raise ImportError('not installed')")
    box.environment["PYTHONPATH"] = str(box.here)
    return ["cost", box.waiting(), "--plot", "line.png"]


CASES = [
    Case("matplotlib-missing", _no_matplotlib, 2, ("matplotlib", "pip install"), process=True),
    Case("verb-unknown", _line("exce", "run"), 2, ("'exce'", "did you mean `windfall exec`?")),
    Case("verb-like-nothing", _line("xyzzy"), 2, ("unknown command 'xyzzy'", "windfall --help")),
    Case("option-unknown", _exec("--polcy", "never"), 2, ("--polcy", "--policy", "windfall exec --help")),
    Case("policy-unknown", _exec("--policy", "adaptve"), 2, ("'adaptve'", "did you mean 'adaptive'?")),
    Case("policy-without-number", _exec("--policy", "every so often"), 2, ("'every so often'", "every 10m")),
    Case("policy-of-no-steps", _exec("--policy", "every 0 steps"), 2, ("'every 0 steps'", "every 100 steps")),
    Case("provider-unknown", _exec("--provider", "amazon"), 2, ("--provider", "'amazon'", "azure")),
    Case("isolation-unknown", _exec("--isolation", "namspace"), 2, ("--isolation", "did you mean namespace?")),
    Case("keep-negative", _exec("--keep", "-1"), 2, ("--keep", "-1", "at least 1")),
    Case("keep-no-number", _exec("--keep", "all"), 2, ("--keep", "all")),
    Case("failures-none", _exec("--max-failures", "0"), 2, ("--max-failures", "0", "at least 1")),
    Case("lease-too-short", _exec("--lease", "200ms"), 2, ("--lease", "'200ms'", "at least 1s")),
    Case("lease-without-unit", _exec("--lease", "30"), 2, ("--lease", "'30'", "30s")),
    Case("grace-negative", _exec("--grace", "-5s"), 2, ("--grace", "windfall exec --help")),
    Case("mttp-in-prose", _exec("--mttp", "3 hours"), 2, ("--mttp", "'3 hours'", "1h30m")),
    Case("mttp-zero", _exec("--mttp", "0s"), 2, ("--mttp", "'0s'", "more than 0")),
    Case("uplink-no-rate", _exec("--uplink", "20MB"), 2, ("--uplink", "'20MB'", "20MB/s")),
    Case("uplink-zero", _exec("--uplink", "0MB/s"), 2, ("--uplink", "'0MB/s'")),
    Case("url-missing", _line("exec"), 2, ("URL is missing", "windfall exec --help")),
    Case("url-empty", _line("exec", "", "--", "true"), 2, ("empty", "s3://BUCKET/PATH")),
    Case("url-scheme", _line("exec", "ftp://host/run", "--", "true"), 2, ("ftp://", "s3://BUCKET/PATH")),
    Case("url-scheme-of-ps", _line("ps", "s4://lab/run"), 2, ("s4://", "s3://BUCKET/PATH")),
    Case("url-without-bucket", _line("exec", "s3:///run", "--", "true"), 2, ("s3:///run", "no bucket")),
    Case("url-with-host", _line("ps", "file://nas/run"), 2, ("file://nas/run", "three slashes")),
    Case(
        "url-with-credentials",
        _line("exec", "s3://key:hunter2@lab/run", "--", "true"),
        2,
        ("s3://lab/run", "credentials are read from the environment"),
    ),
    Case("command-not-found", lambda box: ["exec", str(box.store), "--", "trian"], 2, ("trian", "no such command")),
    Case("command-not-executable", _not_executable, 2, ("./train.sh", "chmod +x")),
    Case("command-is-a-folder", lambda box: ["exec", str(box.store), "--", "/tmp"], 2, ("/tmp", "is a folder")),
    Case("no-command-and-no-run", lambda box: ["exec", str(box.store)], 2, ("no run at", "after `--`"), process=True),
    Case("ps-of-no-job", _line("ps", "gpt"), 2, ("no jobs here", "windfall run job.yaml")),
    Case("ps-without-run", _nothing_there("ps"), 2, ("no run at", "windfall exec")),
    Case("logs-without-run", _nothing_there("logs"), 2, ("no run at", "windfall exec")),
    Case("events-without-run", _nothing_there("events"), 2, ("no run at",)),
    Case("cost-without-run", _nothing_there("cost"), 2, ("no run at",)),
    Case("points-without-run", _nothing_there("checkpoints"), 2, ("no run at",)),
    Case("replay-without-run", _nothing_there("replay"), 2, ("no run at",)),
    Case("stop-without-run", _nothing_there("stop"), 2, ("no run at",)),
    Case("inject-without-run", _nothing_there("inject", "--notice", "30s"), 2, ("no run at",)),
    Case("get-without-run", _nothing_there("get"), 2, ("no run at",)),
    Case("inject-without-notice", lambda box: ["inject", box.waiting()], 2, ("--notice", "windfall inject --help")),
    Case(
        "inject-for-nobody", lambda box: ["inject", box.waiting(), "--notice", "30s"], 2, ("no machine holds the run",)
    ),
    Case(
        "inject-in-prose",
        lambda box: ["inject", box.prepared.held.url, "--notice", "soon"],
        2,
        ("--notice", "'soon'", "30s"),
    ),
    Case(
        "explain-beyond-the-last", lambda box: ["explain", box.waiting(), "99999"], 2, ("no decision 99999", "decision")
    ),
    Case("explain-of-zero", lambda box: ["explain", box.waiting(), "0"], 2, ("no decision 0", "decision")),
    Case("explain-of-a-word", lambda box: ["explain", box.waiting(), "last"], 2, ("last",)),
    Case("plot-as-pdf", lambda box: ["cost", box.waiting(), "--plot", "line.pdf"], 2, ("line.pdf", ".png or .svg")),
    Case("plot-nowhere", lambda box: ["cost", box.waiting(), "--plot", "no/line.png"], 2, ("no/line.png", "folder")),
    Case("schema-unknown", _line("schema", "jornal"), 2, ("'jornal'", "did you mean journal?")),
    Case("doctor-of-a-size", _line("doctor", "--size", "lots"), 2, ("--size", "'lots'", "64MB")),
    Case("doctor-of-a-provider", _line("doctor", "--provider", "gogle"), 2, ("'gogle'", "did you mean google?")),
    Case("backup-of-nothing", _line("backup", "state-7"), 2, ("state-7", "does not exist")),
    Case("backup-of-a-word", lambda box: ["backup", str(box.here), "--step", "seven"], 2, ("--step", "seven")),
]
