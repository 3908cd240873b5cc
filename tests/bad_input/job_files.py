"""Job files with one mistake each, where it stands, and what must be said of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BadFile:
    """A job file that must be refused.

    Attributes:
        name: what is wrong, as a test id.
        text: the file.
        at: line and column of the mistake.
        says: fragments of the sentence.
        schema: whether the JSON Schema refuses it too; False where no schema can say it.
    """

    name: str
    text: str
    at: str
    says: tuple[str, ...]
    schema: bool = True


def _bad(name: str, text: str, at: str, *says: str, schema: bool = True) -> BadFile:
    return BadFile(name, text, at, says, schema)


RUN = "run: python train.py\n"
SYNTAX = (
    _bad("empty", "", "1:1", "empty", "run: python train.py"),
    _bad("only-a-comment", "# nothing\n", "1:1", "empty"),
    _bad("a-list", "- run: x\n", "1:1", "map of keys and values", "not a list"),
    _bad("a-word", "python train.py\n", "1:1", "map", "'python train.py'"),
    _bad("tab", "resources:\n\tuse_spot: true\n", "2:1", "tab", "spaces", schema=False),
    _bad("unclosed-quote", "run: 'python train.py\n", "2:1", "ends inside a quoted text", schema=False),
    _bad("second-colon", "run: echo step: 1\n", "1:15", "second colon", "quotes", schema=False),
    _bad("no-colon", f"{RUN}name\n", "3:1", "key without a colon", schema=False),
    _bad("misaligned", f"{RUN}resources:\n    cpus: 4\n  memory: 8\n", "4:3", "not aligned", schema=False),
    _bad("at-sign", "run: @train\n", "1:6", "quotes", schema=False),
    _bad("stands-twice", f"{RUN}name: a\nname: b\n", "3:1", "name is a duplicate key", "line 2", schema=False),
    _bad("two-jobs", f"{RUN}---\n{RUN}", "2:1", "a file holds one job", schema=False),
    _bad("a-tag", f"{RUN}name: !!python/name:os.system x\n", "2:7", "tag", "plain", schema=False),
    _bad("a-map-as-key", f"{RUN}? {{a: 1}}\n: b\n", "2:3", "key must be text", schema=False),
    _bad("alias-of-nothing", f"{RUN}name: *job\n", "2:7", "alias", schema=False),
    _bad("alias-in-a-ring", "run: &a [*a]\n", "1:6", "circular", schema=False),
    _bad("merge-of-a-word", f"{RUN}resources:\n  <<: spot\n", "3:7", "<<", "alias", schema=False),
    _bad("control-character", "run: a\x07b\n", "1:7", "0x07", schema=False),
    _bad("null-character", 'run: "a\\0b"\n', "1:6", "null character", schema=False),
    _bad("too-deep", "run: " + "[" * 1000, "1:1", "too deep", schema=False),
    _bad(
        "aliases-that-multiply",
        "a: &a [1,1,1,1,1,1,1,1,1]\n"
        + "".join(
            f"{chr(98 + n)}: &{chr(98 + n)} [{','.join(f'*{chr(97 + n)}' for _ in range(9))}]\n" for n in range(6)
        ),
        "1:4",
        "aliases counted",
        schema=False,
    ),
)
KEYS = (
    _bad("misspelt-key", f"{RUN}resources:\n  use_spt: true\n", "3:3", "resources.use_spt", "did you mean use_spot?"),
    _bad("misspelt-top", f"{RUN}num_node: 2\n", "2:1", "num_node is an unknown key", "num_nodes"),
    _bad("unlike-anything", f"{RUN}work: {{qqq: 1}}\n", "2:8", "work.qqq", "choose one of steps, samples"),
    _bad("in-an-alternative", f"{RUN}resources: {{any_of: [{{zones: a}}]}}\n", "2:23", "any_of[0].zones", "zone?"),
    _bad("in-the-wrong-place", f"{RUN}deadline: 3h\n", "2:1", "belongs under objective"),
    _bad("misspelt-run", "name: gpt\nrn: python train.py\n", "2:1", "rn is an unknown key", "did you mean run?"),
    _bad("run-missing", "name: gpt\n", "1:1", "run is missing", "run: python train.py"),
    _bad(
        "elastic",
        f"{RUN}elastic: {{min: 1}}\n",
        "2:1",
        "elastic is the name of a runtime",
        "runtime: {elastic: {nodes: 2..8}}",
    ),
    _bad("bag", f"{RUN}bag: [1, 2]\n", "2:6", "bag must be a map of keys and values, not a list"),
    _bad("file-mounts", f"{RUN}file_mounts: {{/data: ./data}}\n", "2:1", "file_mounts is not supported yet", "workdir"),
    _bad("disk-size", f"{RUN}resources: {{disk_size: 256}}\n", "2:13", "resources.disk_size is not supported yet"),
    _bad("strategy", f"{RUN}resources: {{job_recovery: {{strategy: X}}}}\n", "2:28", "strategy is not supported"),
    _bad("a-dstack-file", "type: task\ncommands: [x]\n", "1:1", "windfall import"),
)
VALUES = (
    _bad("run-empty", 'run: "  "\n', "1:6", "run is empty"),
    _bad("run-nothing", "run:\n", "1:5", "run has no value"),
    _bad("run-a-list", "run: [python, train.py]\n", "1:6", "run must be text, not a list"),
    _bad("budget-nothing", f"{RUN}objective:\n  budget_usd:\n", "3:14", "objective.budget_usd has no value"),
    _bad("no-machines", f"{RUN}num_nodes: 0\n", "2:12", "num_nodes must be at least 1, not 0"),
    _bad("machines-as-word", f"{RUN}num_nodes: two\n", "2:12", "num_nodes must be a whole number, not 'two'"),
    _bad("half-a-machine", f"{RUN}num_nodes: 1.5\n", "2:12", "whole number", "1.5"),
    _bad("endless-machines", f"{RUN}num_nodes: 99999999999999999999999\n", "2:12", "at most 10000"),
    _bad("truth-as-word", f"{RUN}resources: {{use_spot: maybe}}\n", "2:23", "true or false", "'maybe'"),
    _bad("list-for-map", f"{RUN}resources:\n- cpus: 4\n", "3:1", "resources must be a map", "not a list"),
    _bad("map-for-list", f"{RUN}resources: {{any_of: {{cpus: 4}}}}\n", "2:21", "must be a list, not a map"),
    _bad("no-alternatives", f"{RUN}resources: {{any_of: []}}\n", "2:21", "empty list"),
    _bad("name-a-number", f"{RUN}name: 7\n", "2:7", "name must be text, not 7", "quotes"),
    _bad("name-with-blanks", f"{RUN}name: my job\n", "2:7", "letters and digits", "'my job'"),
    _bad("duration-without-unit", f"{RUN}max_duration: 90\n", "2:15", "90s? 90m? 90h?"),
    _bad("duration-in-words", f"{RUN}objective: {{deadline: 4 hours}}\n", "2:23", "12h, 2d 6h", "'4 hours'"),
    _bad("duration-zero", f"{RUN}controller: {{dead_man: 0s}}\n", "2:24", "above zero"),
    _bad("duration-forever", f"{RUN}max_duration: 99999999h\n", "2:15", "more than 30 years", schema=False),
    _bad("deadline-a-date", f"{RUN}objective: {{deadline: 2030-01-01}}\n", "2:23", "time of day", "2030-01-01 18:00"),
    _bad("deadline-a-number", f"{RUN}objective: {{deadline: 12}}\n", "2:23", "must be a duration (12h", "12m? 12h?"),
    _bad("deadline-a-list", f"{RUN}objective: {{deadline: [12h]}}\n", "2:23", "must be a duration (12h", "not a list"),
    _bad("deadline-a-truth", f"{RUN}objective: {{deadline: on}}\n", "2:23", "must be a duration (12h", "not true"),
    _bad("deadline-a-day", f"{RUN}objective: {{deadline: Friday}}\n", "2:23", "time of day", "write Friday 18:00"),
    _bad("deadline-next", f"{RUN}objective: {{deadline: next fri 9:00}}\n", "2:23", "two days", "write fri 9:00"),
    _bad("deadline-slashes", f"{RUN}objective: {{deadline: 01/02/2027 9:00}}\n", "2:23", "2027-01-31 18:00"),
    _bad("deadline-zero", f"{RUN}objective: {{deadline: 0d 0h}}\n", "2:23", "must be a duration (12h"),
    _bad("deadline-far", f"{RUN}objective: {{deadline: 9999d 9999999h}}\n", "2:23", "30 years", schema=False),
    _bad("deadline-25", f"{RUN}objective: {{deadline: 25:00}}\n", "2:23", "0:00 to 23:59", "'25:00'", schema=False),
    _bad("deadline-noon", f"{RUN}objective: {{deadline: fri 12pm}}\n", "2:23", "noon or midnight", schema=False),
    _bad("deadline-31", f"{RUN}objective: {{deadline: 2027-06-31 9:00}}\n", "2:23", "does not exist", schema=False),
    _bad("deadline-zone", f"{RUN}objective: {{deadline: 9:00 Europe/Berln}}\n", "2:23", "Europe/Berlin?", schema=False),
    _bad("deadline-cst", f"{RUN}objective: {{deadline: 9:00 CST}}\n", "2:23", "as a place", "not CST", schema=False),
    _bad("deadline-place", f"{RUN}objective: {{deadline: 9:00 berlin}}\n", "2:23", "Europe/Berlin?", schema=False),
    _bad("deadline-offset", f"{RUN}objective: {{deadline: 9:00+19:00}}\n", "2:23", "-12:00 to +14:00", schema=False),
    _bad("loss-zero", f"{RUN}objective: {{loss: 0}}\n", "2:19", "above zero such as 0.8, not 0"),
    _bad("loss-word", f"{RUN}objective: {{loss: low}}\n", "2:19", "above zero such as 0.8", "'low'"),
    _bad("loss-endless", f"{RUN}objective: {{loss: .inf}}\n", "2:19", "above zero such as 0.8", schema=False),
    _bad("price-zero", f"{RUN}max_price: 0\n", "2:12", "dollars above zero"),
    _bad("price-negative", f"{RUN}max_price: -1.5\n", "2:12", "-1.5"),
    _bad("price-with-sign", f"{RUN}max_price: $2\n", "2:12", "'$2'"),
    _bad("price-endless", f"{RUN}max_price: .inf\n", "2:12", "dollars", "inf"),
    _bad("price-no-number", f"{RUN}max_price: .nan\n", "2:12", "dollars", "nan", schema=False),
    _bad("accelerator-count", f"{RUN}resources: {{accelerators: A100:some}}\n", "2:27", "A100:8", "'A100:some'"),
    _bad("accelerators-none", f"{RUN}resources: {{accelerators: A100:0}}\n", "2:27", "whole number"),
    _bad("pool-of-none", f"{RUN}resources: {{pool_max: 0}}\n", "2:23", "resources.pool_max must be at least 1, not 0"),
    _bad("pool-of-words", f"{RUN}resources: {{pool_max: two}}\n", "2:23", "whole number", "'two'"),
    _bad(
        "zone-number", f"{RUN}resources: {{zone: [a, 1]}}\n", "2:19", "a list of names such as [zone-a, zone-b], not 1"
    ),
    _bad("no-zones", f"{RUN}resources: {{exclude: {{zone: []}}}}\n", "2:29", "exclude.zone is an empty list"),
    _bad("exclude-word", f"{RUN}resources: {{exclude: zone-a}}\n", "2:22", "must be a map", "'zone-a'"),
    _bad(
        "exclude-plural", f"{RUN}resources: {{exclude: {{zones: a}}}}\n", "2:23", "exclude.zones", "did you mean zone?"
    ),
    _bad("cpus-word", f"{RUN}resources: {{cpus: many}}\n", "2:19", "4+"),
    _bad("memory-unit", f"{RUN}resources: {{memory: 16MB}}\n", "2:21", "16GB", "'16MB'"),
    _bad("provider-later", f"{RUN}resources: {{infra: aws/us-east-1}}\n", "2:20", "aws", "not supported yet", "local"),
    _bad("provider-unknown", f"{RUN}resources: {{infra: locl/a}}\n", "2:20", "locl", "did you mean local?"),
    _bad("runtime-unknown", f"{RUN}runtime: bagg\n", "2:10", "'bagg'", "not installed", "checkpoint", schema=False),
    _bad("runtime-settings", f"{RUN}runtime: {{checkpoint: {{n: 2}}}}\n", "2:23", "no settings", schema=False),
    _bad("runtime-number", f"{RUN}runtime: {{checkpoint: 2}}\n", "2:23", "must be a map", "not 2"),
    _bad("runtime-two", f"{RUN}runtime: {{a: {{}}, b: {{}}}}\n", "2:10", "one name with its settings"),
    _bad("fleet-unknown", f"{RUN}fleet: fixd\n", "2:8", "'fixd'", "did you mean fixed?", schema=False),
    _bad("fleet-list", f"{RUN}fleet: [fixed]\n", "2:8", "must be a fleet policy's name", "not a list"),
    _bad(
        "insure-word", f"{RUN}checkpoint: {{insure: often}}\n", "2:22", "auto, optimal, thesis", "200 steps", "'often'"
    ),
    _bad("keep-every-number", f"{RUN}checkpoint: {{keep_every: 1000}}\n", "2:26", "1000 steps"),
    _bad("keep-none", f"{RUN}checkpoint: {{keep: 0}}\n", "2:20", "at least 1"),
    _bad("store-scheme", f"{RUN}checkpoint: {{store: s4://lab}}\n", "2:21", "s4://", "choose one of file, s3"),
    _bad("store-one-slash", f"{RUN}checkpoint: {{store: 's3:/lab'}}\n", "2:21", "s3://lab/runs"),
    _bad("store-with-password", f"{RUN}checkpoint: {{store: 's3://key:hunter2@lab'}}\n", "2:21", "credentials"),
    _bad("spot-policy", f"{RUN}spot_policy: ondemand\n", "2:14", "did you mean on-demand?"),
    _bad("minimize", f"{RUN}objective: {{minimize: money}}\n", "2:23", "cost or time", "'money'"),
    _bad("work-zero", f"{RUN}work: {{steps: 0}}\n", "2:15", "above zero"),
    _bad("work-twice", f"{RUN}work: {{steps: 5, tokens: 7}}\n", "2:7", "one of steps", schema=False),
    _bad("exit-code", f"{RUN}job_recovery: {{recover_on_exit_codes: [256]}}\n", "2:39", "1 to 255", "256"),
    _bad("restarts", f"{RUN}job_recovery: {{max_restarts_on_errors: -1}}\n", "2:40", "at least 0"),
    _bad("webhook", f"{RUN}notify: {{webhook: 'ftp://hunter2'}}\n", "2:19", "https://"),
)
TOGETHER = (
    _bad("env-nothing", f"{RUN}envs:\n  LR:\n", "3:6", "envs.LR has no value", "--set envs.LR"),
    _bad("env-a-list", f"{RUN}envs: {{LR: [1]}}\n", "2:12", "envs.LR must be text"),
    _bad("env-name", f"{RUN}envs: {{my-rate: 1}}\n", "2:17", "envs.my-rate is not a valid variable name"),
    _bad("env-ours", f"{RUN}envs: {{WINDFALL_RUN: x}}\n", "2:22", "starts with WINDFALL_"),
    _bad("secret-with-value", f"{RUN}secrets: {{TOKEN: hunter2}}\n", "2:18", "secrets.TOKEN has a value"),
    _bad("secret-a-word", f"{RUN}secrets: TOKEN\n", "2:10", "list of names"),
    _bad("secret-in-envs", f"{RUN}secrets: [A]\nenvs: {{A: 1}}\n", "3:8", "also listed under secrets", schema=False),
    _bad("workdir-absent", f"{RUN}workdir: no/such\n", "2:10", "no/such does not exist", schema=False),
    _bad("workdir-a-file", f"{RUN}workdir: job.yaml\n", "2:10", "job.yaml is a file", schema=False),
    _bad(
        "price-twice",
        f"{RUN}max_price: 1\nresources: {{max_hourly_cost: 1}}\n",
        "2:1",
        "mean the same",
        schema=False,
    ),
    _bad(
        "spot-twice",
        f"{RUN}spot_policy: auto\nresources: {{use_spot: true}}\n",
        "2:1",
        "keep one of them",
        schema=False,
    ),
    _bad(
        "zone-wanted-and-excluded",
        f"{RUN}resources: {{infra: local/a, exclude: {{zone: [b, a]}}}}\n",
        "2:45",
        "resources.exclude.zone excludes a, which resources also asks for; keep one of them",
        schema=False,
    ),
    _bad(
        "type-wanted-and-excluded",
        f"{RUN}resources: {{any_of: [{{instance_type: [t, u]}}], exclude: {{instance_type: u}}}}\n",
        "2:73",
        "resources.exclude.instance_type excludes u",
        schema=False,
    ),
    _bad(
        "zone-twice", f"{RUN}resources: {{infra: local/a, zone: b}}\n", "2:35", "already has the zone a", schema=False
    ),
    _bad(
        "spot-here-not-there",
        f"{RUN}resources: {{any_of: [{{infra: local/a, use_spot: true}}, {{infra: local/b, use_spot: false}}]}}\n",
        "2:21",
        "spot_policy: auto",
        schema=False,
    ),
    _bad(
        "loss-without-model",
        f"{RUN}objective: {{loss: 2.1}}\n",
        "2:13",
        "objective.loss needs a runtime that predicts the training loss, and checkpoint does not",
        "work: {steps: 20000}",
        schema=False,
    ),
    _bad("foreign-variable", "run: echo $SKYPILOT_NODE_RANK\n", "1:6", "write WINDFALL_NODE_RANK", schema=False),
)


def _tiers(
    name: str, column: int, setting: str, *says: str, others: str = "clocks: 5\n    app: windfall.apps.mf"
) -> BadFile:
    """Settings of a parameter server; the wrong one is the last."""
    text = f"runtime:\n  paramserver:\n    {others}\n    {setting}\n"
    at = f"{text.count(chr(10))}:{column}"
    return _bad(f"tiers-{name}", text, at, "runtime.paramserver ", *says, schema=False)


MF = "runtime: {paramserver: {clocks: 5, app: windfall.apps.mf}}\n"
NO_APP, NO_CLOCKS = "clocks: 5", "workers: 1\n    app: windfall.apps.mf"
PARAMSERVER = (
    _tiers("unknown", 15, "stalenes: 1", "has no setting stalenes; there are workers, reliable, staleness, clocks"),
    _tiers("no-reliable-machine", 15, "reliable: 0", "has reliable 0", "at least 1", "when all workers are lost"),
    _tiers("reliable-a-word", 15, "reliable: one", "has reliable 'one': write a whole number, at least 1"),
    _tiers("staleness-negative", 16, "staleness: -1", "has staleness -1", "at least 0; write none for no bound"),
    _tiers("staleness-half", 16, "staleness: 0.5", "has staleness 0.5: write a whole number"),
    _tiers("workers-turned-round", 14, "workers: 8..2", "has workers '8..2'", "a range such as 2..8, from 1 to 1000"),
    _tiers("workers-none", 14, "workers: 0", "has workers 0: write a number, or a range"),
    _tiers("workers-too-many", 14, "workers: 2..1001", "has workers '2..1001'", "from 1 to 1000"),
    _tiers("workers-true", 14, "workers: true", "has workers True: write a number, or a range"),
    _tiers("partitions-none", 17, "partitions: 0", "has partitions 0: write a whole number, at least 1"),
    _tiers("saved-never", 17, "save_every: 0", "has save_every 0: write a whole number, at least 1"),
    _tiers("settings-a-list", 15, "settings: [16]", "has settings [16]: write a map", "settings: {rank: 16}"),
    _tiers("clocks-none", 13, "clocks: 0", "has clocks 0: write a whole number, at least 1", others=NO_CLOCKS),
    _tiers("clocks-a-float", 13, "clocks: 5.0", "has clocks 5.0: write a whole number", others=NO_CLOCKS),
    _tiers("app-a-number", 10, "app: 3", "has app 3: write the name of a module", others=NO_APP),
    _tiers("app-a-list", 10, "app: [mf]", "has app ['mf']", "app: windfall.apps.mf", others=NO_APP),
    _tiers("app-a-file", 10, "app: train.py", "has app 'train.py': write the name of a module", others=NO_APP),
    _tiers("app-a-command", 10, "app: mf; date", "has app 'mf; date'", others=NO_APP),
    _tiers("ray-without-port", 10, "ray: head.lab", "has ray 'head.lab': write host:port", "10.0.0.5:6379"),
    _tiers("ray-a-url", 10, "ray: ray://head.lab:10001", "has ray 'ray://head.lab:10001': write host:port"),
    _tiers("ray-port-too-large", 10, "ray: head.lab:65536", "has ray 'head.lab:65536': write host:port"),
    _tiers("app-empty", 10, "app: ''", "has app '': write the name of a module", others=NO_APP),
    _bad(
        "tiers-without-clocks",
        f"{RUN}runtime: {{paramserver: {{workers: 2}}}}\n",
        "2:24",
        "runtime.paramserver needs clocks, a whole number",
        "{paramserver: {workers: 2..8, clocks: 500, app: windfall.apps.mf}}",
        schema=False,
    ),
    _bad(
        "tiers-settings-of-a-script",
        f"{RUN}runtime: {{paramserver: {{clocks: 5, settings: {{rank: 3}}}}}}\n",
        "2:46",
        "has settings and no app that reads them: give a script its arguments in run",
        schema=False,
    ),
    _bad(
        "tiers-without-program",
        "runtime: {paramserver: {clocks: 5}}\n",
        "1:1",
        "run is missing",
        "run: python train.py",
        schema=False,
    ),
    _bad("tiers-two-programs", f"{RUN}{MF}", "1:1", "run and the settings of paramserver both", schema=False),
    _bad(
        "tiers-work", f"{MF}work: {{steps: 5}}\n", "2:1", "work follows from the settings of paramserver", schema=False
    ),
    _bad(
        "tiers-nodes",
        f"{MF}num_nodes: 3\n",
        "2:1",
        "paramserver say how many machines",
        "remove num_nodes",
        schema=False,
    ),
    *(
        _bad(
            f"tiers-checkpoint-{key}",
            f"{MF}checkpoint:\n  save_timeout: 5m\n  {key}: {value}\n",
            "4:3",
            f"checkpoint.{key} has no effect on runtime paramserver: ",
            instead,
            schema=False,
        )
        for key, value, instead in (
            ("insure", "10m", "write runtime: {paramserver: {save_every: 100}}"),
            ("keep_every", "1000 steps", "write runtime: {paramserver: {save_every: 100}}"),
            ("keep", "3", "the two newest checkpoints are kept; leave it out"),
            ("from", "runs/old", "training begins with the first values of its program"),
        )
    ),
    *(
        _bad(
            f"bag-checkpoint-{key}",
            f"{RUN}bag: {{parameters: {{T: [1, 2]}}}}\ncheckpoint: {{{key}: {value}}}\n",
            "3:14",
            f"checkpoint.{key} has no effect on runtime bag: ",
            instead,
            schema=False,
        )
        for key, value, instead in (
            ("insure", "10m", "if bag.restart names them"),
            ("keep_every", "1000 steps", "if bag.restart names them"),
            ("keep", "3", "leave it out"),
            ("from", "runs/old", "leave it out"),
        )
    ),
    _bad(
        "tiers-profile",
        "runtime: {paramserver: {clocks: 5, app: windfall.apps.mf, profile: {workload: {}}}}\n",
        "1:68",
        "runtime.paramserver has a profile that needs platform: the how-to of the parameter server shows a whole profile",
        schema=False,
    ),
)
CASES = (*SYNTAX, *KEYS, *VALUES, *TOGETHER, *PARAMSERVER)
