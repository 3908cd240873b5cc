"""The list of verbs, and the help that shows them; it loads neither the verbs nor the parser, so that help comes at once."""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import windfall


class Verb(NamedTuple):
    """A verb of the command line.

    Attributes:
        path: module of this package and function.
        summary: the first sentence of the function's docstring.
    """

    path: str
    usage: str
    summary: str

    @property
    def words(self) -> tuple[str, ...]:
        """The words of the verb: those before its options and arguments."""
        return tuple(
            itertools.takewhile(lambda word: word.replace("-", "").isalpha() and word.islower(), self.usage.split())
        )


VERBS: Mapping[str, tuple[Verb, ...]] = {
    "Run": (
        Verb(
            "cli.run:run",
            "run [OPTIONS] JOB_FILE",
            "Run a job on machines that Windfall orders, and replaces when they are preempted.",
        ),
        Verb(
            "cli.exec:exec_",
            "exec [OPTIONS] URL [-- COMMAND ...]",
            "Run a command on this machine; run the same command again, on any machine, to resume.",
        ),
        Verb(
            "cli.run_verbs:stop",
            "stop [OPTIONS] JOB|URL",
            "Save and stop a job or a run, so that it can be resumed; a job's machines are released.",
        ),
        Verb(
            "cli.bag_verbs:retry_failed",
            "retry-failed [OPTIONS] BAG",
            "Run the items of a bag that have failed again, those that took too long included, and a reduce step that failed.",
        ),
        Verb("cli.run_verbs:resume", "resume [OPTIONS] JOB", "Resume a stopped or failed job, and follow it."),
    ),
    "Watch": (
        Verb(
            "cli.run_verbs:ps", "ps [OPTIONS] [JOB|URL ...]", "List all jobs, or show the status of some jobs or runs."
        ),
        Verb(
            "cli.run_verbs:logs",
            "logs [OPTIONS] JOB|URL|BAG/ITEM",
            "Print the script's output, from all machines as one stream.",
        ),
        Verb(
            "cli.cost:cost",
            "cost [OPTIONS] JOB|URL",
            "Show what a job or run cost, where its time went, and what was lost and why.",
        ),
        Verb("cli.run_verbs:events", "events [OPTIONS] JOB|URL", "Print the journal: facts, decisions, commands."),
        Verb(
            "cli.run_verbs:explain",
            "explain [OPTIONS] JOB|URL [NUMBER]",
            "Show why each decision was made, with the numbers it compared.",
        ),
        Verb(
            "cli.run_verbs:replay",
            "replay [OPTIONS] JOB|URL",
            "Replay the journal, and check that this version makes the same decisions.",
        ),
    ),
    "Recover": (
        Verb(
            "cli.bag_verbs:results",
            "results [OPTIONS] BAG",
            "Write the results of a bag as a table: a row for each item that is done.",
        ),
        Verb(
            "cli.run_verbs:checkpoints",
            "checkpoints [OPTIONS] JOB|URL",
            "List a run's checkpoints or results, newest first.",
        ),
        Verb("cli.run_verbs:get_", "get [OPTIONS] JOB|URL [FOLDER]", "Download the files of a checkpoint, or results."),
    ),
    "Plan and test": (
        Verb(
            "cli.run:plan",
            "plan [OPTIONS] JOB_FILE",
            "Show what a job would cost and when it would finish. Never buys anything.",
        ),
        Verb(
            "cli.simulate:simulate",
            "simulate [OPTIONS] JOB_FILE",
            "Simulate a job many times: its cost, finish and risk under several saving policies.",
        ),
        Verb(
            "drill.drill_verb:drill",
            "drill [OPTIONS] JOB_FILE | -- COMMAND ...",
            "Check that a script really resumes, and measure what step, save and restore cost.",
        ),
        Verb(
            "cli.run_verbs:inject",
            "inject JOB|URL --notice DURATION|none",
            "Preempt the machine that is training, as a rehearsal.",
        ),
        Verb(
            "lab.fit_verb:fit",
            "lab fit [OPTIONS] FILE",
            "Fit laws to a table of machine lifetimes, and choose the law that predicts best.",
        ),
        Verb(
            "lab.replicate_verb:replicate",
            "lab replicate [OPTIONS] thesis|scispot|proteus|spotdnn",
            "Compute the numbers of a paper and compare them with the published ones.",
        ),
        Verb(
            "lab.shapes_verb:shapes",
            "lab shapes [OPTIONS] PROFILE --machines N",
            "Show the shapes that a profiled model can train in, and what it trains while machines come and go.",
        ),
        Verb(
            "lab.market_verb:market",
            "lab market [OPTIONS]",
            "Show what can be bought: prices, risks, and how fresh each number is.",
        ),
        Verb(
            "lab.traces_verb:inspect",
            "lab traces inspect [OPTIONS] TRACE",
            "Describe a trace: its format, span, zones, counts, means and gaps.",
        ),
        Verb(
            "lab.traces_verb:convert",
            "lab traces convert [OPTIONS] TRACE OUT",
            "Write a trace, or a part of it, in Windfall's own format.",
        ),
    ),
    "Set up and clean up": (
        Verb("cli.doctor:doctor", "doctor [OPTIONS] [URL]", "Check that this machine, and a store, can run Windfall."),
        Verb(
            "cli.serve:serve", "serve [OPTIONS]", "Run a controller for a team in the foreground, or manage its users."
        ),
        Verb(
            "cli.rm:rm",
            "rm [OPTIONS] JOB|URL",
            "Delete a run that has ended, and all that it left: checkpoints, results, items, journal, output and code.",
        ),
        Verb("cli.gc:gc", "gc [OPTIONS]", "Release machines of this installation that no job needs."),
        Verb("cli.verbs:completion", "completion [bash|zsh|fish]", "Print the completion script of a shell."),
    ),
    "For other programs": (
        Verb(
            "cli.backup:backup",
            "backup [OPTIONS] PATH",
            "Store a checkpoint or a result, from a script in any language.",
        ),
        Verb(
            "cli.job_file_verbs:import_",
            "import [OPTIONS] FILE",
            "Convert a SkyPilot or dstack task file, or a bag of SciSpot's, to a job file.",
        ),
        Verb(
            "cli.job_file_verbs:schema",
            "schema [NAME]",
            "Print the JSON Schema of the job file, of --json output, or of stored objects.",
        ),
    ),
}
"""The verbs by group of the help."""
SUBCOMMANDS = {
    "lab": "Study machine lifetimes and price traces, and replicate published results.",
    "lab traces": "Inspect and convert traces of prices, availability and lifetimes.",
}
"""Help of the verbs that have subcommands."""
PEERS: Mapping[str, str] = {
    **dict.fromkeys(("status", "jobs", "queue", "list", "ls", "top", "describe"), "`windfall ps`"),
    **dict.fromkeys(("cancel", "down", "kill", "terminate"), "`windfall stop JOB`"),
    **dict.fromkeys(("launch", "submit", "up", "apply", "start"), "`windfall run JOB_FILE`"),
    **dict.fromkeys(("attach", "ssh", "tail", "log"), "`windfall logs -f JOB`"),
    **dict.fromkeys(("delete", "remove"), "`windfall rm JOB`"),
    **dict.fromkeys(("download", "restore"), "`windfall get JOB [FOLDER]`"),
    "validate": "`windfall plan JOB_FILE`",
    "check": "`windfall plan JOB_FILE` for a job file, `windfall doctor` for this machine",
    "help": "`windfall --help`",
    "version": "`windfall --version`",
}
"""What other tools call a verb, and what to type here."""
INTRODUCTION = (
    "Train models on machines that can be preempted.",
    "Run a job on spot machines that Windfall orders, and replaces when they are preempted:",
    "    windfall run job.yaml",
    "Or run a command on the machine you have.  Run the same command again, here or elsewhere, to resume:",
    "    windfall exec file:///data/runs/gpt -- python train.py",
)
EPILOGUE = "Run `windfall COMMAND --help` for the arguments and options of a command."
_OPTIONS = (("--help (-h)", "Show this help."), ("--version", "Show the version."))
_WIDTH_MAX = 100


def help_text(width: int, *, bold: bool = False) -> str:
    """Return the help of `windfall` itself.

    Args:
        width: of the terminal, in characters.
        bold: print the titles in bold, for a terminal.
    """
    lines = ["Usage: windfall COMMAND [OPTIONS]", ""]
    for paragraph in INTRODUCTION:
        lines += [*(textwrap.wrap(paragraph, width) if paragraph[0] != " " else [paragraph]), ""]
    for title, verbs in VERBS.items():
        lines += _panel(title, [*dict.fromkeys(_row(verb) for verb in verbs)], width, bold=bold)
    lines += _panel("Options", _OPTIONS, width, bold=bold)
    return "\n".join([*lines, *textwrap.wrap(EPILOGUE, width)])


def _row(verb: Verb) -> tuple[str, str]:
    name = verb.words[0]
    return name, SUBCOMMANDS.get(name, verb.summary)


def _panel(
    title: str, rows: list[tuple[str, str]] | tuple[tuple[str, str], ...], width: int, *, bold: bool
) -> list[str]:
    column = max(len(name) for name, _ in rows) + 4
    lines = [f"\x1b[1m{title}\x1b[0m" if bold else title]
    for name, summary in rows:
        lines += textwrap.wrap(summary, width, initial_indent=f"  {name}".ljust(column), subsequent_indent=" " * column)
    return [*lines, ""]


def print_about(words: Sequence[str]) -> None:
    """Print the help of `windfall` itself, or its version."""
    if "--version" in words[:1]:
        print(windfall.__version__)
        return
    width = min(shutil.get_terminal_size().columns, _WIDTH_MAX)
    print(help_text(width, bold=sys.stdout.isatty() and "NO_COLOR" not in os.environ))
