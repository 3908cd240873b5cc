"""`windfall import`: other tools' files become ours, and what is lost is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from windfall.cli.job_file_verbs import import_
from windfall.errors import InvalidFile, Misuse
from windfall.jobs import Job, Resources, SecretRef, Use
from windfall.report.json_schema import schema
from windfall.spec.job_file import to_job
from windfall.spec.job_loader import load

jsonschema = pytest.importorskip("jsonschema")

SKY = """\
name: llama
workdir: .
num_nodes: 2
resources:
  infra: aws/us-east-1
  instance_type: p4d.24xlarge
  accelerators: {A100: 8}
  cpus: 8+
  disk_size: 256
  use_spot: true
  job_recovery:
    strategy: EAGER_NEXT_REGION
    max_restarts_on_errors: 3
envs:
  VERSION: 1.10
  HF_TOKEN:
secrets:
  WANDB_API_KEY: hunter2
file_mounts:
  /data: s3://bucket
setup: pip install -r requirements.txt
run: |
  head=$(echo "$SKYPILOT_NODE_IPS" | head -n1)
  torchrun --node_rank ${SKYPILOT_NODE_RANK} --nproc $SKYPILOT_NUM_GPUS_PER_NODE train.py
"""
DSTACK = """\
type: task
name: train
nodes: 2
python: "3.12"
repos: [.]
env:
  - HF_TOKEN
  - LR=1e-4
  - KEY=${{ secrets.other }}
working_dir: src
commands:
  - pip install x
  - python train.py --rank $DSTACK_NODE_RANK
resources:
  gpu: nvidia:A100:80GB:2..8
  cpu: 8..
  memory: 16GB..64GB
  shm_size: 8GB
spot_policy: auto
max_price: 2
retry: {on_events: [no-capacity, interruption], duration: 4h}
max_duration: 14400
stop_duration: 5m
backends: [aws]
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


class Converted:
    """What the verb printed, and the job that the loader makes of it."""

    def __init__(self, text: str, capsys: pytest.CaptureFixture[str], name: str = "theirs.yaml") -> None:
        Path(name).write_text(text)
        import_(name)
        printed = capsys.readouterr()
        self.text = printed.out
        self.lost = printed.err.splitlines()
        Path("ours.yaml").write_text(printed.out)
        self.warned: list[str] = []
        self.file = load("ours.yaml", warn=self.warned.append)

    @property
    def job(self) -> Job:
        return to_job(self.file, job_id="j", user="u", run_url="file:///r")

    @property
    def keys(self) -> list[str]:
        """The keys that were lost, in the order of the file."""
        return [line.split(" ")[1] for line in self.lost]


def test_a_skypilot_task_means_the_same_here(capsys: pytest.CaptureFixture[str]) -> None:
    """What both tools know carries over, our loader reads it, and the shell text finds its values under our names."""
    job = Converted(SKY, capsys).job

    assert (job.name, job.nodes, job.use) == ("llama", 2, Use.SPOT)
    assert job.resources == (Resources(accelerator="A100", accelerators=8, cpus_min=8.0),)
    assert job.options.failures_max == 4
    assert job.envs == (("VERSION", "1.10"), ("SKYPILOT_NUM_GPUS_PER_NODE", "8"))
    assert job.secrets == (SecretRef("WANDB_API_KEY"), SecretRef("HF_TOKEN"))
    assert "--node_rank ${WINDFALL_NODE_RANK}" in job.command[-1]


def test_what_skypilot_says_alone_is_listed_key_by_key(capsys: pytest.CaptureFixture[str]) -> None:
    """Each key that is left behind is told with place and reason; the value of a secret is repeated nowhere."""
    told = Converted(SKY, capsys)

    assert told.keys == [
        "resources.infra", "resources.instance_type", "resources.disk_size", "resources.job_recovery.strategy",
        "envs.HF_TOKEN", "secrets.WANDB_API_KEY", "file_mounts",
    ]  # fmt: skip
    assert told.lost[2] == "theirs.yaml:9:3: resources.disk_size is not supported yet: the machine type decides"
    assert "hunter2" not in told.text + "".join(told.lost)


def test_what_is_not_said_keeps_its_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    """Both tools buy machines that stay unless told otherwise; so does the imported file."""
    assert Converted("run: x", capsys).job.use == Use.ON_DEMAND
    assert Converted("type: task\ncommands: [x]", capsys).job.use == Use.ON_DEMAND


def test_alternatives_that_differ_only_in_the_cloud_become_one(capsys: pytest.CaptureFixture[str]) -> None:
    """Without the names of clouds, equal alternatives are one, and an alternative that asks for nothing is none."""
    same = Converted("run: x\nresources: {cpus: 4, any_of: [{infra: aws}, {infra: gcp/us}]}", capsys)
    kept = Converted("run: x\nresources: {any_of: [{infra: aws, cpus: 4}, {cloud: local, zone: b}]}", capsys)

    assert same.job.resources == (Resources(cpus_min=4.0),)
    assert kept.job.resources == (Resources(cpus_min=4.0), Resources("local", "b"))


@pytest.mark.parametrize("variable", ["SKYPILOT_NODE_IPS", "DSTACK_NODES_IPS", "DSTACK_MASTER_NODE_IP"])
def test_a_variable_in_another_form_is_made_of_ours(variable: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Lists of addresses, which ours has in another form, are set from ours at the head of the shell text."""
    told = Converted(f"run: echo ${variable}\n", capsys)

    assert told.lost == []
    assert told.job.command[-1].startswith(f"{variable}=")
    assert "${WINDFALL_" in told.job.command[-1]


@pytest.mark.trial("B6")
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("resources: {accelerators: A100:8}\nrun: x $SKYPILOT_NUM_GPUS_PER_NODE", "8"),
        ("setup: y ${SKYPILOT_NUM_GPUS_PER_NODE}\nresources: {accelerators: [A100:4, H100:4]}\nrun: x", "4"),
        ("resources: {any_of: [{accelerators: L4}, {accelerators: T4}]}\nrun: x $SKYPILOT_NUM_GPUS_PER_NODE", "1"),
        ("resources: {cpus: 4}\nrun: x $SKYPILOT_NUM_GPUS_PER_NODE", "0"),
        ("type: task\ncommands: [x $DSTACK_GPUS_PER_NODE]\nresources: {gpu: H100:2}\nnodes: 3", "2"),
        ("type: task\ncommands: [x $DSTACK_GPUS_NUM]\nresources: {gpu: H100:2}\nnodes: 3", "6"),
    ],
)
def test_counts_of_accelerators_are_filled_in(text: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What the other tool's file says reaches the script under the other tool's name, and nothing is lost."""
    told = Converted(text, capsys)

    assert [count for name, count in told.job.envs if "GPUS" in name] == [value]
    assert told.lost == []


@pytest.mark.trial("B6")
@pytest.mark.parametrize(
    "text",
    [
        "resources: {accelerators: [A100:4, H100:8]}\nrun: x $SKYPILOT_NUM_GPUS_PER_NODE",
        "resources: {instance_type: p4d.24xlarge}\nrun: x $SKYPILOT_NUM_GPUS_PER_NODE",
        "run: x $SKYPILOT_USER",
        "type: task\ncommands: [x $DSTACK_GPUS_NUM]\nresources: {gpu: 24GB}",
    ],
)
def test_what_nobody_knows_is_refused_until_it_is_filled_in(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty value would be a wrong one: the importer counts such places, and the loader refuses them by line."""
    Path("theirs.yaml").write_text(text)
    import_("theirs.yaml")
    printed = capsys.readouterr()
    Path("ours.yaml").write_text(printed.out)
    lines = [number for number, one in enumerate(printed.out.splitlines(), 1) if "<fill in>" in one]

    assert len(lines) == 1, printed.out
    assert "1 value to fill in before it runs: envs." in printed.err
    with pytest.raises(InvalidFile, match=rf"^ours\.yaml:{lines[0]}:.* is not filled in"):
        load("ours.yaml")

    Path("ours.yaml").write_text(printed.out.replace("<fill in>", "3"))
    assert "3" in load("ours.yaml").envs.values()


def test_a_dstack_task_means_the_same_here(capsys: pytest.CaptureFixture[str]) -> None:
    """Commands become one shell text in their folder, ranges their least, durations ours, named secrets secrets."""
    told = Converted(DSTACK, capsys, "task.dstack.yml")
    job = told.job

    assert (job.name, job.nodes, job.use) == ("train", 2, Use.AUTO)
    assert job.command[-1] == "cd src\npip install x\npython train.py --rank $WINDFALL_NODE_RANK"
    assert job.resources == (Resources(accelerator="A100", accelerators=2, cpus_min=8.0, memory_gib_min=16.0),)
    assert (job.envs, job.secrets) == ((("LR", "1e-4"),), (SecretRef("HF_TOKEN"),))
    assert (job.max_price_usd_per_hour, job.max_duration_s) == (2.0, 14400.0)
    assert job.checkpointing.save_timeout_s == 300.0
    assert job.options.failures_max == 1
    assert told.file.workdir is not None


def test_what_dstack_says_alone_is_listed_key_by_key(capsys: pytest.CaptureFixture[str]) -> None:
    """Each key that is left behind is told in the words of the dstack file."""
    told = Converted(DSTACK, capsys)

    assert told.keys == [
        "python", "env[2]", "resources.gpu", "resources.shm_size", "retry.duration", "backends",
    ]  # fmt: skip
    assert told.lost[0].startswith("theirs.yaml:4:1: python is not supported yet")


@pytest.mark.parametrize(
    ("gpu", "want"),
    [
        ("H100", Resources(accelerator="H100", accelerators=1)),
        ("H100:4", Resources(accelerator="H100", accelerators=4)),
        ("{name: H100, count: 2}", Resources(accelerator="H100", accelerators=2)),
        ("24GB", Resources()),
        ("2", Resources()),
    ],
)
def test_accelerators_of_dstack(gpu: str, want: Resources, capsys: pytest.CaptureFixture[str]) -> None:
    """Accelerators carry over by name and count; what names none is told."""
    told = Converted(f"type: task\ncommands: [x]\nresources: {{gpu: {gpu}}}", capsys)

    assert told.job.resources == (want,)
    assert (want == Resources()) == ("resources.gpu" in told.keys)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("type: service\ncommands: [x]\n", ":1:1: type is 'service'"),
        ("type: dev-environment\nide: vscode\n", ":1:1: type is 'dev-environment'"),
        ("type: task\n", "no commands"),
        ("type: task\ncommands: [[x]]\n", ":2:12: commands[0] must be text"),
        ("type: task\ncommands: [x]\nnodes: 0\n", ":3:8: num_nodes must be at least 1"),
        ("type: task\ncommands: [x]\nmax_duration: soon\n", ":3:15: max_duration must be a duration"),
        ("type: task\ncommands: [x]\nenv: 3\n", ":3:1: env must be a list"),
        ("type: task\ncommands: [x]\nresources: 3\n", "resources must be a map"),
        ("service: {}\nrun: x\n", ":1:1: service is not supported"),
        ("name: x\n", "run is missing"),
        ("run: x\nnum_nodes: many\n", ":2:12: num_nodes must be a whole number"),
        ("run: x\nresources: 3\n", ":2:12: resources must be a map"),
        ("- a\n", "not a task"),
        ("", "not a task"),
        ("run: 'x", "ends inside a quoted text"),
    ],
)
def test_what_is_no_task_is_refused(text: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Services, development environments and files that are wrong in themselves are refused with the place."""
    Path("theirs.yaml").write_text(text)

    with pytest.raises(InvalidFile, match=r"^theirs\.yaml:") as caught:
        import_("theirs.yaml")

    assert says in str(caught.value)
    assert capsys.readouterr().out == ""


def test_a_file_that_is_not_there_is_told() -> None:
    """The importer reads files as the loader does."""
    with pytest.raises(Misuse, match=r"nowhere\.yaml does not exist"):
        import_("nowhere.yaml")


def test_json_holds_the_file_and_the_losses(capsys: pytest.CaptureFixture[str]) -> None:
    """`--json` prints one object that fits its schema, and nothing on stderr."""
    Path("theirs.yaml").write_text(SKY)

    import_("theirs.yaml", json_=True)

    printed = capsys.readouterr()
    made = json.loads(printed.out)
    jsonschema.Draft202012Validator(schema("import")).validate(made)
    assert made["yaml"].startswith("# yaml-language-server: $schema=")
    assert "file_mounts" in [one["key"] for one in made["dropped"]]
    assert printed.err == ""


SPACE = '{"Z": {"type": "range", "values": [3.0, 4.0]}, "p": {"type": "set", "values": [1, 2, 3]}}'


def test_a_parameter_space_of_scispot_s_is_a_bag(capsys: pytest.CaptureFixture[str]) -> None:
    """As its generator spreads it: of 100 jobs, each of three sets has 33 points of a range; the program is to be filled in."""
    Path("space.json").write_text(SPACE)
    import_("space.json", json_=True)

    made = json.loads(capsys.readouterr().out)

    assert made["unfilled"] == ["envs.PROGRAM"]
    assert [one["key"] for one in made["dropped"]] == ["run", "Z"]
    Path("bag.yaml").write_text(made["yaml"].replace("<fill in>", "./md"))
    file = load("bag.yaml")
    assert file.run == '"$PROGRAM" -Z {{Z}} -p {{p}}'
    assert file.bag is not None
    assert file.bag.finish == 0.9
    assert [(one.name, len(one.values)) for one in file.bag.listed] == [("Z", 33), ("p", 3)]
    assert file.bag.listed[0].values[::32] == (3.0, 4.0)


def test_settings_of_scispot_s_name_space_and_script(capsys: pytest.CaptureFixture[str]) -> None:
    """The space is beside the folder of the settings, where SciSpot runs; what only its cluster needs is listed."""
    Path("config").mkdir()
    Path("config/space.json").write_text(SPACE)
    settings = {
        "zone": "us-east1-b",
        "username": "u",
        "runfile": "/x/job.sh",
        "param_exporation_file": "config/space.json",
    }

    told = Converted(json.dumps(settings), capsys, "config/config.json")

    assert told.file.run == "bash /x/job.sh -Z {{Z}} -p {{p}}"
    assert sorted(told.keys) == ["Z", "username", "zone"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"Z": {"type": "list", "values": [1]}}', "Z must be"),
        ('{"Z": {"type": "range", "values": [1]}}', "Z is a range, and must have its two ends"),
        ('{"runfile": "x", "param_exporation_file": "none.json"}', "there is no file none.json"),
        ('{"seed": {"type": "set", "values": [1]}}', "has a name that Windfall sets itself"),
    ],
)
def test_a_bag_of_scispot_s_that_cannot_be_read_is_refused(text: str, expected: str) -> None:
    """With the place in its own file."""
    Path("theirs.json").write_text(text)

    with pytest.raises(Misuse, match=r"theirs\.json:1") as refused:
        import_("theirs.json")

    assert expected in str(refused.value)
