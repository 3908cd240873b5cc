"""The job file: what a good one means."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.house.source import ROOT
from windfall.errors import EXIT_MISUSE, InvalidFile, Misuse
from windfall.jobs import (
    BuyingLimits,
    Injection,
    Job,
    Minimize,
    Notify,
    Objective,
    Resources,
    RuntimeSpec,
    SecretRef,
    Use,
    Work,
)
from windfall.policies import policy_registry
from windfall.policies.checkpointing.decision import parse_policy
from windfall.policies.layout.checkpoint_rules import RULES
from windfall.policies.policy_registry import PolicyKind
from windfall.spec.job_file import SHELL, parse_injection, to_job
from windfall.spec.job_loader import load
from windfall.structs import replace
from windfall.terms import RunOptions, Seconds, Unit, Usd


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def job_of(text: str, **overrides: str) -> Job:
    """The job that a file describes; `__` in the name of an override stands for a dot."""
    Path("gpt small.yaml").write_text(text)
    set_here = {key.replace("__", "."): value for key, value in overrides.items()}
    read = load("gpt small.yaml", overrides=set_here)
    return to_job(read, job_id="gpt-1", user="ann", run_url="file:///runs/gpt-1", code="c0de")


def test_the_least_file_is_a_whole_job() -> None:
    """A file with `run` alone asks for one spot machine of any kind, and takes its name from the file."""
    job = job_of("run: python train.py")

    assert job == Job(
        job_id="gpt-1",
        name="gpt-small",
        user="ann",
        run_url="file:///runs/gpt-1",
        command=("sh", "-c", SHELL, "python train.py"),
        resources=(Resources(),),
        code="c0de",
    )


def test_every_word_reaches_the_job() -> None:
    """What a file says is in the job, in seconds, dollars and the saving policy's own words."""
    job = job_of("""
        name: gpt
        num_nodes: 2
        resources: {infra: local/zone-a, instance_type: small, accelerators: A100:8, cpus: 4+, memory: 16+}
        spot_policy: auto
        max_price: 2
        max_duration: 1h30m
        envs: {LR: 1e-4}
        secrets: [HF_TOKEN]
        setup: pip install x
        run: python train.py
        work: {tokens: 3e9}
        objective: {deadline: 12h, budget_usd: 20.5, minimize: time}
        checkpoint: {store: s3://lab/runs, from: s3://lab/old, keep_every: 1000 steps, insure: 10m, keep: 3,
                     save_timeout: 90s}
        job_recovery: {max_restarts_on_errors: 4, recover_on_exit_codes: [42, 43]}
        notify: {command: say done, webhook: "https://example.org/x"}
        controller: {dead_man: 30m}
        """)

    assert (job.name, job.nodes, job.use, job.setup) == ("gpt", 2, Use.AUTO, "pip install x")
    assert job.resources == (Resources("local", "zone-a", "small", "A100", 8, 4.0, 16.0),)
    assert (job.max_price_usd_per_hour, job.max_duration_s, job.dead_man_s) == (2.0, 5400.0, 1800.0)
    assert (job.envs, job.secrets) == ((("LR", "1e-4"),), (SecretRef("HF_TOKEN"),))
    assert job.work == Work(3e9, Unit.TOKEN)
    assert job.objective == Objective(Seconds(43200.0), Usd(20.5), Minimize.TIME)
    assert (job.checkpointing.store, job.checkpointing.source) == ("s3://lab/runs", "s3://lab/old")
    assert (job.options.policy, job.checkpointing.keep_every) == ("every:600s", "1000 steps")
    assert (job.options.keep, job.checkpointing.save_timeout_s) == (3, 90.0)
    assert job.options == RunOptions("every:600s", 3, failures_max=5, retry_codes=(42, 43))
    assert job.notify == Notify("say done", "https://example.org/x")


@pytest.mark.parametrize(
    ("written", "policy"),
    [("auto", "adaptive"), ("optimal", "optimal"), ("never", "never"), ("10m", "every:600s"), ("200 steps", "every:200steps"),
     ("1d", "every:86400s"), ("500ms", "every:0.5s"), ("1h30m", "every:5400s")],
)  # fmt: skip
def test_insure_becomes_a_policy_that_exists(written: str, policy: str) -> None:
    """Each way to write `insure` gives a name that the saving policies know."""
    assert job_of(f"run: x\ncheckpoint: {{insure: {written}}}").options.policy == policy
    assert parse_policy(policy) == policy


@pytest.mark.parametrize(
    ("resources", "use"),
    [
        ("{use_spot: true}", Use.SPOT),
        ("{use_spot: false}", Use.ON_DEMAND),
        ("{cpus: 1}", Use.SPOT),
        ("{any_of: [{use_spot: true}, {use_spot: false}]}", Use.AUTO),
        ("{use_spot: false, any_of: [{cpus: 1}, {cpus: 2}]}", Use.ON_DEMAND),
    ],
)
def test_spot_is_said_as_skypilot_says_it(resources: str, use: Use) -> None:
    """`use_spot` works above and inside `any_of`; both values for the same machines mean spot first."""
    assert job_of(f"run: x\nresources: {resources}").use == use


def test_alternatives_share_what_stands_beside_them() -> None:
    """Each alternative has what stands beside `any_of`, unless it says otherwise; the order is kept."""
    job = job_of("run: x\nresources: {cpus: 4+, memory: 8GB, any_of: [{infra: local/b}, {infra: '*', cpus: 2}]}")

    assert job.resources == (
        Resources("local", "b", cpus_min=4.0, memory_gib_min=8.0),
        Resources(cpus_min=2.0, memory_gib_min=8.0),
    )


def test_several_zones_and_types_are_alternatives() -> None:
    """As several accelerators are: each zone with each type, in the order in which they are written."""
    job = job_of("run: x\nresources: {infra: local, zone: [zone-a, zone-b], instance_type: [small, large]}")
    assert job.resources == tuple(
        Resources("local", zone, kind) for zone in ("zone-a", "zone-b") for kind in ("small", "large")
    )
    assert job_of("run: x\nresources: {zone: zone-a}").resources == (Resources(zone="zone-a"),)


def test_what_is_excluded_and_how_much_of_a_pool_reaches_the_job() -> None:
    """One name or a list; nothing is excluded or limited by default."""
    job = job_of("run: x\nresources: {exclude: {zone: zone-b, instance_type: [t3.micro, t4.micro]}, pool_max: 2}")
    assert job.limits == BuyingLimits(("zone-b",), ("t3.micro", "t4.micro"), 2)
    assert job_of("run: x").limits == BuyingLimits()
    assert job_of("run: x", resources__exclude__zone="[a, b, a]").limits == BuyingLimits(("a", "b"))


@pytest.mark.parametrize("written", ["[A100:8, H100:4]", "{A100: 8, H100: 4}"])
def test_several_accelerators_are_alternatives(written: str) -> None:
    """A list or a map of accelerators means that any of them will do."""
    resources = job_of(f"run: x\nresources: {{accelerators: {written}}}").resources

    assert [(want.accelerator, want.accelerators) for want in resources] == [("A100", 8), ("H100", 4)]


def test_environment_values_stay_as_they_are_written() -> None:
    """A version, a switch and a number with zeros are text to a shell; YAML's opinion of them does not count."""
    job = job_of("run: x\nenvs: {A: 1.10, B: no, C: 007, D: 1_000, E: 2024-01-01, F: 'x y', G: 0x10}")

    assert dict(job.envs) == {
        "A": "1.10", "B": "no", "C": "007", "D": "1_000", "E": "2024-01-01", "F": "x y", "G": "0x10",
    }  # fmt: skip


def test_the_command_line_wins_over_the_file() -> None:
    """An override sets a value that is there, one that is not, and one under a block that is not there."""
    text = "run: x\nnum_nodes: 2\nresources: {use_spot: true, cpus: 4}"

    job = job_of(text, num_nodes="3", resources__use_spot="false", objective__deadline="2h", envs__LR="1.10")

    assert (job.nodes, job.use, job.objective.deadline_s) == (3, Use.ON_DEMAND, 7200.0)
    assert job.envs == (("LR", "1.10"),)
    assert job.resources == (Resources(cpus_min=4.0),)


def test_aliases_and_merges_are_read() -> None:
    """YAML's own means against repetition work, and an own key wins over one taken in."""
    job = job_of("run: x\nresources: {any_of: [&one {cpus: 2, memory: 8}, {<<: *one, cpus: 4}, {<<: *one}]}")

    two = Resources(cpus_min=2.0, memory_gib_min=8.0)
    assert job.resources == (two, Resources(cpus_min=4.0, memory_gib_min=8.0), two)


def test_what_looks_like_a_secret_is_warned_of() -> None:
    """A token among the plain variables gives a warning with its place and without its value; a path or a count none."""
    token = "hf_" + "a" * 30
    text = (
        "run: x\nenvs:\n"
        f"  HF_TOKEN: {token}\n"
        f"  PLAIN: {token}\n"
        "  DB: postgres://ann:pass@host/db\n"
        "  MAX_TOKEN: 512\n"
        "  AWS_SECRET_KEY: /run/secrets/key\n"
        "  TOKENIZERS_PARALLELISM: false\n"
    )
    Path("job.yaml").write_text(text)
    said: list[str] = []

    load("job.yaml", warn=said.append)

    assert [line.split(" looks")[0] for line in said] == [
        "job.yaml:3:13: envs.HF_TOKEN",
        "job.yaml:4:10: envs.PLAIN",
        "job.yaml:5:7: envs.DB",
    ]
    assert token not in "".join(said)


def test_a_foreign_variable_that_the_file_provides_is_fine() -> None:
    """A variable of another tool is no mistake where the file sets it or has a default for it."""
    job_of("run: echo $SKYPILOT_TASK_ID\nenvs: {SKYPILOT_TASK_ID: 7}")
    job_of("run: echo ${SKYPILOT_NODE_RANK:-0}")
    job_of("run: |\n  DSTACK_NODE_RANK=0\n  echo $DSTACK_NODE_RANK")


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    at=st.integers(0, 1100),
    cut=st.integers(0, 12),
    put=st.text(st.sampled_from("\t\n :-[]{}&*!<>|'\"#%@,?~0.1eEx\x85\ufeffé"), max_size=4)
    | st.sampled_from(
        ["<<: *a", "!!int x", "!!binary x", "0x_", "1:30", "\n---\n", "&a", "%YAML 9.9", "!!set {a}", ".e5"]
    ),
)
@example(at=0, cut=0, put="!!omap [a: 1]\n")
@example(at=0, cut=0, put="x: 0b1\n")
def test_no_edit_of_a_file_ends_in_anything_but_a_job_or_a_sentence(at: int, cut: int, put: str) -> None:
    """However a file is damaged, it is read, or refused in one sentence."""
    text = (ROOT / "examples" / "jobs" / "training.yaml").read_text()
    Path("job.yaml").write_text(text[:at] + put + text[at + cut :], "utf-8")

    said = ""
    try:
        load("job.yaml", overrides={"workdir": "."})
    except Misuse as error:
        said = str(error)

    assert "\n" not in said


@pytest.mark.real
@pytest.mark.parametrize(
    ("run", "code"),
    [("true", 0), ("false\ntrue", 1), ("echo $NOT_SET_ANYWHERE\ntrue", 1), ("exit 42", 42)],
)
def test_a_command_ends_at_its_first_failure(run: str, code: int) -> None:
    """`run` stops at a command that fails or a variable that is not set, and its exit code is the job's."""
    command = job_of(f"run: {json.dumps(run)}").command

    ended = subprocess.run(command, capture_output=True, check=False, timeout=20).returncode

    assert (ended == code) if code in (0, 42) else ended != 0


@pytest.mark.real
@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_with_bash_a_failure_inside_a_pipe_counts() -> None:
    """Where there is bash, a failing command at the head of a pipe ends the run."""
    command = job_of("run: 'false | cat'").command

    assert subprocess.run(command, capture_output=True, check=False, timeout=20).returncode == 1


def test_the_injection_is_read() -> None:
    """The injector's list of means, its seed and its notice; the last two may be left out."""
    assert parse_injection("mttp=90s+300s,seed=7") == Injection((Seconds(90.0), Seconds(300.0)), 7)
    assert parse_injection("mttp=2m,notice=30s") == Injection((Seconds(120.0),), 0, Seconds(30.0))
    assert parse_injection("mttp=1h,notice=none,seed=3") == Injection((Seconds(3600.0),), 3)


def test_runtime_and_fleet_policy_are_named() -> None:
    """A runtime is a name, or a name with its settings; without one the job has the usual ones."""
    assert job_of("run: a").runtime == RuntimeSpec()
    assert job_of("run: a\nruntime: checkpoint\nfleet: fixed") == job_of("run: a\nruntime: {checkpoint: {}}")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "runtime: chekpoint",
            "2:10: runtime names 'chekpoint', which is not installed; did you mean checkpoint? installed: ",
        ),
        ("fleet: greedy", "2:8: fleet names 'greedy', which is not installed; installed: fixed"),
        ("runtime: {checkpoint: {nodes: 2}}", "2:23: runtime.checkpoint has no settings; write `runtime: checkpoint`"),
        ("runtime: {checkpoint: 2}", "2:23: runtime.checkpoint must be a map of the runtime's settings, not 2"),
        ("runtime: {a: {}, b: {}}", "2:10: runtime must be a runtime's name, or one name with its settings"),
        ("runtime: [checkpoint]", "2:10: runtime must be a runtime's name, or one name with its settings"),
        ("fleet: {fixed: {size: 2}}", "2:16: fleet.fixed has no settings; write `fleet: fixed`"),
        ("fleet: {fixed: 2}", "2:16: fleet.fixed must be a map of the policy's settings, not 2"),
        ("fleet: [fixed]", "2:8: fleet must be a fleet policy's name, or one name with its settings"),
        (
            "fleet: {bidbrain: {machine_max: 2}}",
            "2:19: fleet.bidbrain has no setting 'machine_max'; it has machines_max, ",
        ),
    ],
)
def test_a_wrong_runtime_or_fleet_policy_is_refused_where_it_stands(line: str, message: str) -> None:
    """The message has the place, what is wrong, and what is installed; the exit code is that of misuse."""
    with pytest.raises(InvalidFile) as error:
        job_of(f"run: a\n{line}")

    assert message in str(error.value)
    assert error.value.exit_code == EXIT_MISUSE


def test_settings_and_fleet_policy_reach_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a runtime without a check is told, it gets as it is written."""
    fixed, usual = policy_registry.own(PolicyKind.FLEET)[0], policy_registry.own(PolicyKind.RUNTIME)[0]
    rules = "tests.spec.test_job_file:LOOSE"
    more = (replace(fixed, name="lean", word="lean"), replace(usual, name="loose", word="loose", place=rules))
    monkeypatch.setattr(policy_registry, "ENTRIES", (*policy_registry.ENTRIES, *more))
    policy_registry.entries.cache_clear()
    try:
        job = job_of("run: a\nfleet: lean\nruntime: {loose: {retries: 3, seeds: [1, 2]}}")
    finally:
        policy_registry.entries.cache_clear()
        policy_registry.load.cache_clear()

    assert (job.fleet, job.runtime) == ("lean", RuntimeSpec("loose", {"retries": 3, "seeds": [1, 2]}))


LOOSE = replace(RULES, check=None)
