"""The block `bag` of a job file: what it means, and one sentence with the place for each mistake."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from windfall.bags import Bag, StopWhen
from windfall.core import item_commands
from windfall.errors import Misuse
from windfall.linux import machine_memory
from windfall.policies.layout import bag_rules
from windfall.spec import bag_rows
from windfall.spec.bag_rows import BagRows
from windfall.spec.job_file import to_job
from windfall.spec.job_loader import load
from windfall.wiring_items import room_of


class Written:
    """A bag that was read: its rows, the bag of its job, and what was said on the way."""

    def __init__(self, folder: Path, block: str, *, run: str = "echo {{T}}", rows: str | bytes | None = None) -> None:
        if rows is not None:
            (folder / "rows.csv").write_bytes(rows if isinstance(rows, bytes) else rows.encode())
        text = "".join(f"  {line}\n" for line in block.splitlines())
        (folder / "bag.yaml").write_text(f"run: {run}\nbag:\n{text}")
        self.said: list[str] = []
        self.file = load(str(folder / "bag.yaml"), warn=self.said.append)
        assert self.file.bag is not None
        self.rows: BagRows = bag_rows.rows_of(self.file.bag, self.said.append)
        self.bag: Bag = bag_rows.to_bag(self.file.bag, self.rows)


def test_all_combinations_of_rows_and_parameters_run(tmp_path: Path) -> None:
    """The columns of the file come first, then the parameters; 1e-3 is a number; repeats are told apart."""
    made = Written(tmp_path, "rows: rows.csv\nparameters: {a: [1e-3, x]}\nrepeats: 2", rows="T, b\n1,2.5\n7,007\n")

    assert made.rows.names == ("T", "b", "a", "repeat")
    assert made.rows.rows[:4] == ((1, 2.5, 0.001, 0), (1, 2.5, 0.001, 1), (1, 2.5, "x", 0), (1, 2.5, "x", 1))
    assert made.rows.rows[-1] == (7, "007", "x", 1)
    assert made.bag.items == 8


SLURM = "\nresources: {infra: slurm}"
BAD_ALLOCATIONS = {
    "no provider": (
        "ranks: 4",
        "",
        "bag.nodes_per_item: 2 needs a provider that has allocations of several nodes, and resources",
    ),
    "local": (
        "ranks: 4",
        "\nresources: {infra: local}",
        "and local has none: write resources: {infra: slurm}, or nodes_per_item: 1 for an item whose ranks are all on one",
    ),
    "no ranks": (
        "seed: 1",
        SLURM,
        "bag.ranks is missing: with nodes_per_item: 2 it must be a multiple of that, for example",
    ),
    "odd ranks": (
        "ranks: 5",
        SLURM,
        "bag.ranks is 5: with nodes_per_item: 2 it must be a multiple of that, for example",
    ),
    "odd machines": (
        "ranks: 4",
        f"{SLURM}\nnum_nodes: 3",
        "num_nodes must be a multiple of bag.nodes_per_item, 2, not 3",
    ),
    "sizes": (
        "ranks: 4, cpus_per_item: [4, 2]",
        SLURM,
        "bag.cpus_per_item lists 4, 2; an item on several nodes has one number: write 4",
    ),
    "explore": ("ranks: 4", f"{SLURM}\nfleet: explore", "fleet.explore orders machines one by one"),
}


@pytest.mark.parametrize("name", BAD_ALLOCATIONS)
def test_items_on_several_nodes_need_allocations(name: str, tmp_path: Path) -> None:
    """One sentence with the place says what cannot be, before anything is ordered."""
    key, below, said = BAD_ALLOCATIONS[name]
    path = tmp_path / "bag.yaml"
    path.write_text(f"run: mpirun x {{{{T}}}}\nbag: {{parameters: {{T: [1]}}, nodes_per_item: 2, {key}}}{below}\n")
    with pytest.raises(Misuse, match=re.escape(said)) as caught:
        load(str(path))

    assert str(caught.value).startswith(f"{path}:")


def test_an_item_on_several_nodes_asks_for_a_gang_of_equal_machines(tmp_path: Path) -> None:
    """Each machine has its share of the cores and the memory, and machines are ordered two by two."""
    path = tmp_path / "bag.yaml"
    block = "{parameters: {T: [1]}, nodes_per_item: 2, ranks: 6, memory_per_item: 8GB}"
    path.write_text(f"run: mpirun x {{{{T}}}}\nnum_nodes: 4\nresources: {{infra: slurm}}\nbag: {block}\n")
    file = load(str(path))
    assert file.bag is not None
    job = to_job(file, job_id="j", user="u", run_url="file:///r", rows=bag_rows.rows_of(file.bag, print))
    (wanted,) = job.resources

    assert [slot.gang for slot in bag_rules.slots(job)] == ["runners-0", "runners-0", "runners-1", "runners-1"]
    assert (job.fleet, wanted.cpus_min) == ("fixed", 3.0)
    assert bag_rules.items_at_once(bag_rules.bag_of(job.runtime.settings), 6.0, 100.0) == 2
    assert bag_rules.items_at_once(bag_rules.bag_of(job.runtime.settings), 6.0, 5.0) == 1


BAD_BLOCKS = {
    "no item": ("parameters: {T: []}", "bag.yaml:3:19: bag.parameters.T is an empty list: no item would run"),
    "no parameter": ("parameters: {}", "bag.yaml:3:15: bag.parameters must be a map of names and values"),
    "twice": ("parameters: {T: [1, 1]}", "bag.yaml:3:19: bag.parameters.T has the value 1 twice"),
    "the same": (
        "parameters: {T: [1, 1.0]}",
        "bag.yaml:3:19: bag.parameters.T has the value 1.0 and 1, which is the same",
    ),
    "one point": ("parameters: {T: {linspace: [2, 2, 3]}}", "bag.parameters.T has the value 2 twice"),
    "no step": ("parameters: {T: {range: [0, 5]}}", "must be range: [0, 10, 2], for 0, 2, 4, 6, 8, not [0, 5]"),
    "half": ("parameters: {T: {integers: [0.5, 3]}}\nsamples: 2", "must have whole numbers at both ends"),
    "log of 0": ("parameters: {T: {logspace: [0, 1, 3]}}", "must be above zero at both ends of its logspace"),
    "huge": ("parameters: {T: [99999999999999999999]}", "a whole number that is too large to be exact"),
    "own name": ("parameters: {seed: [1]}", "bag.parameters.seed has a name that Windfall sets itself"),
    "metric unknown": (
        "parameters: {T: [1]}\nresults: {energy: {regex: x}}\nstop_when: {metric: enrgy, below: 0}",
        "bag.yaml:5:23: bag.stop_when.metric names enrgy, which is none of bag.results; did you mean energy",
    ),
    "metric without results": (
        "parameters: {T: [1]}\nstop_when: {metric: e, below: 0}",
        "bag.stop_when needs bag.results, for example results:",
    ),
    "two rules": (
        "parameters: {T: [1]}\nresults: {e: {regex: x}}\nstop_when: {metric: e, below: 0, above: 9}",
        "bag.stop_when has above and below; keep one, for example {metric: e, below: -5}",
    ),
    "no rule": (
        "parameters: {T: [1]}\nresults: {e: {regex: x}}\nstop_when: {metric: e}",
        "bag.stop_when needs one of above, below, no_gain, standard_error",
    ),
    "goal alone": (
        "parameters: {T: [1]}\nresults: {e: {regex: x}}\nstop_when: {metric: e, below: 1, goal: max}",
        "bag.stop_when.goal needs no_gain",
    ),
    "uneven sample": (
        "parameters: {T: [1]}\norder: given\nresults: {e: {regex: x}}\nstop_when: {metric: e, standard_error: 1}",
        "bag.stop_when.standard_error needs order: random",
    ),
    "unknown rule": (
        "parameters: {T: [1]}\nresults: {e: {regex: x}}\nstop_when: {metric: e, belo: 1}",
        "bag.stop_when.belo is an unknown key; did you mean below",
    ),
    "no samples": ("parameters: {T: {uniform: [0, 1]}}", "bag.samples is missing"),
    "repeat": ("parameters: {T: 1, repeat: 1}\nrepeats: 2", "bag.parameters.repeat is also what bag.repeats counts"),
    "no cpus": ("parameters: {T: 1}\ncpus_per_item: 0", "bag.yaml:4:18: bag.cpus_per_item must be a number above zero"),
    "sizes that grow": (
        "parameters: {T: 1}\ncpus_per_item: [1, 2]",
        "bag.yaml:4:18: bag.cpus_per_item must be a number, or the wanted number and then smaller ones, such as",
    ),
    "no sizes": ("parameters: {T: 1}\ncpus_per_item: []", "such as [4, 2, 1], not []"),
    "size of zero": ("parameters: {T: 1}\ncpus_per_item: [2, 0]", "bag.cpus_per_item must be a number above zero"),
    "sizes of ranks": (
        "parameters: {T: 1}\nranks: 3\ncpus_per_item: [6, 2, 1]",
        "bag.yaml:5:18: bag.cpus_per_item: 3 ranks on 6 CPUs are 0.5 on 1; write numbers on which the ranks are whole",
    ),
    "sizes and a parameter": (
        "parameters: {T: 1, cpus: 2}\ncpus_per_item: [2, 1]",
        "bag.cpus_per_item is {{cpus}} in run, which is also a parameter",
    ),
    "memory": (
        "parameters: {T: 1}\nmemory_per_item: 0GB",
        "bag.memory_per_item must be an amount of memory above zero",
    ),
    "ranks": ("parameters: {T: 1, ranks: 2}\nranks: 2", "bag.ranks is also a parameter"),
    "weights": ("parameters: {T: 1}\nweights: w", "bag.weights names w, which is no parameter"),
    "regex": (
        "parameters: {T: 1}\nresults: {e: {regex: '('}}",
        "bag.yaml:4:16: bag.results.e has a regex that is none",
    ),
    "groups": ("parameters: {T: 1}\nresults: {e: {regex: '(a)(b)'}}", "bag.results.e has a regex with 2 groups"),
    "result": ("parameters: {T: 1}\nresults: {T: {regex: a}}", "bag.results.T is also a parameter"),
    "share": ("parameters: {T: 1}\nfinish: 110%", "bag.yaml:4:11: bag.finish must be a share of the items above 0"),
    "reduce": (
        "parameters: {T: 1}\nreduce: echo {{T}}",
        "bag.yaml:4:11: bag.reduce uses {{T}}, but runs once for all items",
    ),
    "no such parameter": ("parameters: {S: 1}", "bag.yaml:1:6: run uses {{T}}, which is no parameter; choose one of S"),
    "unknown": ("parameters: {T: 1}\nretry: 3", "bag.yaml:4:3: bag.retry is an unknown key"),
}


@pytest.mark.parametrize("name", BAD_BLOCKS)
def test_a_mistake_in_the_block_is_one_sentence_with_its_place(name: str, tmp_path: Path) -> None:
    """File, line, column and key, and what to write instead."""
    block, expected = BAD_BLOCKS[name]

    with pytest.raises(Misuse) as refused:
        Written(tmp_path, block)

    assert expected in str(refused.value)
    assert "\n" not in str(refused.value)
    assert refused.value.exit_code == 2


BAD_ROWS: dict[str, tuple[str | bytes, str]] = {
    "duplicate": ("T\n1\n2\n1\n", "rows.csv:4: the row is that of line 2"),
    "duplicate after a long cell": ('T\n"a\nb"\n1\n1\n', "rows.csv:5: the row is that of line 4"),
    "ragged": ("T,b\n1,2\n3\n", "rows.csv:3: the row has 1 values, but the first line has 2 names"),
    "no header": ("0.1,0.2\n1,2\n", "bag.yaml:3:9: bag.rows: {folder}/rows.csv:1: column 1: '0.1' cannot be the name"),
    "no name": ("T,b c\n1,2\n", "rows.csv:1: column 2: 'b c' cannot be the name of a parameter"),
    "name twice": ("T,b,T\n1,2,3\n", "rows.csv:1: column 3: the name T is there twice"),
    "own name": ("T,item\n1,2\n", "rows.csv:1: column 2: Windfall sets {{{{item}}}} itself"),
    "semicolons": ("T;b\n1;2\n", "separate values by commas, not semicolons"),
    "empty": ("", "bag.yaml:3:9: bag.rows: {folder}/rows.csv is empty"),
    "no rows": ("T\n", "rows.csv has no rows"),
    "not text": (b"T\n\xff\n", "rows.csv: it is not text in UTF-8"),
    "nul": ("T\n1\0\n", "rows.csv:2: T has a character that no command can be given"),
    "other name": ("b\n1\n", "bag.yaml:1:6: run uses {{{{T}}}}, which is no parameter"),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_a_mistake_in_the_file_with_rows_is_one_sentence_with_its_line(name: str, tmp_path: Path) -> None:
    """Its own line and column; what concerns the whole file has the place of the key."""
    rows, expected = BAD_ROWS[name]

    with pytest.raises(Misuse) as refused:
        Written(tmp_path, "rows: rows.csv", rows=rows)

    assert expected.format(folder=tmp_path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_from_a_spreadsheet_is_read(tmp_path: Path) -> None:
    """With a byte order mark, the line ends of Windows, spaces behind commas, quotes, and empty lines."""
    rows = b'\xef\xbb\xbfT,b\r\n1, 2\r\n\r\n3,"x, y"\r\n'
    made = Written(tmp_path, "rows: rows.csv", rows=rows)

    assert (made.rows.names, made.rows.rows) == (("T", "b"), ((1, 2), (3, "x, y")))


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """With the place of the key."""
    with pytest.raises(Misuse, match=r"bag\.yaml:3:9: bag\.rows: cannot read .*none\.csv: No such file"):
        Written(tmp_path, "rows: none.csv")


def test_too_many_combinations_are_refused_before_they_are_made(tmp_path: Path) -> None:
    """10^12 rows would not fit into memory."""
    axes = ", ".join(f"{name}: {{range: [0, 10000, 1]}}" for name in "Tbc")

    with pytest.raises(Misuse, match="1,000,000,000,000 combinations, more than 10,000,000"):
        Written(tmp_path, f"parameters: {{{axes}}}")


def test_samples_that_are_drawn_twice_run_once(tmp_path: Path) -> None:
    """Eight samples of three whole numbers are three items, and the user is warned."""
    made = Written(tmp_path, "parameters: {T: {integers: [1, 3]}}\nsamples: 8\nsampling: random")

    assert sorted(made.rows.rows) == [(1,), (2,), (3,)]
    assert "5 of 8 points were drawn twice" in made.said[0]


@pytest.mark.parametrize("rows", ["T,w\n1,2\n2,x\n", "T,w\n1,-1\n2,3\n", "T,w\n1,0\n2,0\n"])
def test_weights_are_numbers_of_which_one_counts(rows: str, tmp_path: Path) -> None:
    """A text, a negative number, or nothing but zeros is refused."""
    with pytest.raises(Misuse, match=r"bag\.weights: "):
        Written(tmp_path, "rows: rows.csv\nweights: w", rows=rows)


def test_an_item_s_seed_follows_from_its_row(tmp_path: Path) -> None:
    """The same row has the same seed in a longer file, and its neighbours have others."""
    short = Written(tmp_path, "parameters: {T: [1, 2]}")
    long = Written(tmp_path, "parameters: {T: [0, 1, 2, 3]}")

    def seeds(made: Written) -> dict[object, int]:
        return {row[0]: item_commands.item_seed(made.bag.seed, row) for row in made.rows.rows}

    assert seeds(short).items() <= seeds(long).items()
    assert len(set(seeds(long).values())) == 4


def test_ranks_reach_the_command_and_take_as_many_processors(tmp_path: Path) -> None:
    """`mpirun -n {{ranks}}` on a machine of 8 processors runs two items of 4 ranks at once."""
    made = Written(tmp_path, "parameters: {T: [1]}\nranks: 4", run="mpirun -n {{ranks}} x {{T}}")

    assert item_commands.filled([made.file.run], made.bag, (1,), item=0) == ["mpirun -n 4 x 1"]
    assert room_of(made.bag, 8, 1.0).slots == 2


def test_machines_on_which_no_item_fits_are_never_ordered(tmp_path: Path) -> None:
    """What one item needs is what a machine must have at least."""
    made = Written(tmp_path, "parameters: {T: [1]}\ncpus_per_item: 6\nmemory_per_item: 512MB")

    job = to_job(made.file, job_id="a", user="u", run_url="file:///r", rows=made.rows)

    assert (job.resources[0].cpus_min, job.resources[0].memory_gib_min) == (6.0, 0.5)


@pytest.mark.parametrize(
    ("cores", "memory_gib", "slots"), [(1.0, None, 4), (0.1, None, 40), (3.0, None, 1), (1.0, 0.7, 3), (1.0, 2.1, 1)]
)
def test_a_machine_runs_what_fits(cores: float, memory_gib: float | None, slots: int) -> None:
    """By processors and by memory, whichever is less: here 4 and 2.1 GiB."""
    assert room_of(Bag(1, ("T",), ("k",), 1, cores=cores, memory_gib=memory_gib), 4, 2.1).slots == slots


@pytest.mark.parametrize(("cores", "memory_gib"), [(5.0, None), (1.0, 3.0)])
def test_a_machine_on_which_no_item_fits_says_so(cores: float, memory_gib: float | None) -> None:
    """Rather than to run one that has not what it needs."""
    with pytest.raises(Misuse, match=r"an item needs .*, and this machine has"):
        room_of(Bag(1, ("T",), ("k",), 1, cores=cores, memory_gib=memory_gib), 4, 2.0)


@pytest.mark.parametrize(
    ("run", "expected"),
    [("x {{T}}", ("b",)), ("x {{T}} {{b}}", ()), ("x $WINDFALL_PARAMETERS", ()), ("x {{item}}", ()), ("x", ("T", "b"))],
)
def test_a_parameter_that_the_command_never_uses_is_found(run: str, expected: tuple[str, ...]) -> None:
    """The item's number or all parameters as JSON stand for each of them."""
    assert item_commands.unused(Bag(1, ("T", "b", "w"), ("k",), 1, weight="w"), run) == expected


def test_a_share_is_rounded_up_to_whole_items() -> None:
    """7 % of 100 are 7, though 0.07 x 100 is 7.000000000000001; 7 % of 101 are 8."""
    assert [Bag(items, (), (), 1, finish=0.07).must_finish for items in (100, 101, 1)] == [7, 8, 1]


def test_memory_is_the_least_limit_of_the_cgroups_above(tmp_path: Path) -> None:
    """A group without a limit has that of the group above it; without any, it is the machine's memory."""
    group = tmp_path / "slurm" / "step"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("max\n")
    whole_gib = machine_memory.usable_gib(group)
    (tmp_path / "slurm" / "memory.max").write_text(f"{1 << 29}\n")

    assert machine_memory.usable_gib(group) == 0.5
    assert whole_gib * (1 << 30) == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_stop_when_is_part_of_the_bag(tmp_path: Path) -> None:
    """Its rule, its goal, and how many items it waits for."""
    results = "parameters: {T: [1]}\nresults: {e: {regex: x}}\n"
    made = Written(tmp_path, f"{results}stop_when: {{metric: e, no_gain: 20, goal: max, min_items: 30}}")

    assert made.bag.stop_when == StopWhen("e", 30, no_gain=20, goal="max")
