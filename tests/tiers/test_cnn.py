"""The network of the parameter server that tells pictures apart: what it learns, its batches, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tiers.in_threads import DATA, played
from tests.tiers.test_applications import Alone, all_transient_are_lost, computed_alone
from windfall import wiring_tiers
from windfall.errors import Misuse
from windfall.policies.layout.tier_rules import job_of
from windfall.runtimes.tier_program import ProgramMachine

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'windfall[torch]'")

from windfall.apps import cnn, cnn_memory, pictures  # noqa: E402 - torch may be missing
from windfall.apps.cnn import CnnStep, PictureClasses  # noqa: E402 - as above
from windfall.apps.cnn_memory import MemoryLine  # noqa: E402 - as above

CLOCKS = 16
FEW = pictures.generated(96, 8, 3)
STEP = CnnStep(channels=4, batch=16, rate=0.05)


def test_it_learns_and_loses_no_bit_with_its_machines() -> None:
    """Momentum is in the table, and batches are of the data partition and the clock, so all is as one process finds it."""
    program = PictureClasses(FEW, DATA, STEP)

    cluster = played(["r1", "t1", "t2"], program, all_transient_are_lost, clocks=CLOCKS)

    assert cluster.layouts[-1].term > 0
    assert np.array_equal(cluster.values(), computed_alone(PictureClasses(FEW, DATA, STEP), CLOCKS))
    assert program.evaluate(cluster.values()) < 0.8 * program.evaluate(program.first(np.arange(program.rows)))


def test_the_product_is_a_state_that_torch_loads_into_the_network(tmp_path: Path) -> None:
    """It tells apart what it was trained on; where the pictures were from is beside it."""
    program = cnn.program({"pictures": 300, "side": 8, "classes": 3}, DATA)
    values = computed_alone(program, 100)

    program.write(values, tmp_path)

    product = torch.load(tmp_path / "model.pt", weights_only=True)
    network = cnn.network(*product["form"])
    network.load_state_dict(product["state"])
    data = pictures.generated(300, 8, 3)
    found = network(torch.from_numpy(data.pictures)).argmax(1).numpy()
    assert np.mean(found == data.classes) > 0.9
    assert product["classes"] == ["0", "1", "2"]
    assert json.loads((tmp_path / "data.json").read_text())["source"] == "generated"


def test_real_letters_are_learnt_and_their_digest_is_stored(tmp_path: Path) -> None:
    """A short training lowers the loss; other pictures than those of the digest are refused."""
    program = cnn.program({"source": "letters", "channels": 4}, DATA)
    start = program.first(np.arange(program.rows))

    values = computed_alone(program, 12)
    program.write(values, tmp_path)

    origin = json.loads((tmp_path / "data.json").read_text())
    assert program.evaluate(values) < 0.9 * program.evaluate(start)
    assert origin["source"] == "letters"
    assert origin["pictures"] == 22 * 4 * 52
    assert origin["same pictures"] == (origin["digest"] == pictures.STORED_DIGESTS.get(origin["matplotlib"]))
    with pytest.raises(Misuse, match=rf"have the digest {origin['digest']}, not abc"):
        cnn.program({"source": "letters", "digest": "abc"}, DATA)


def test_turns_of_whole_data_partitions_push_the_gradient_over_all_pictures() -> None:
    """Whatever their batches weigh: the mean of the data partitions' means is that over all pictures."""
    step = CnnStep(channels=4, batch=1000, rate=0.5, momentum=0.0)
    program = PictureClasses(FEW, DATA, step)
    before = program.first(np.arange(program.rows))

    after = computed_alone(program, 1)

    network, _, wrapped = program._first
    wrapped.take_table(before, 0)
    torch.nn.functional.cross_entropy(network(torch.from_numpy(FEW.pictures)), torch.from_numpy(FEW.classes)).backward()
    gradient = torch.cat([one.grad.reshape(-1) for one in network.parameters()]).numpy()
    pushed = (after - before)[1:].reshape(-1)[: len(gradient)]
    assert pushed == pytest.approx(-0.5 * gradient, abs=2e-6)
    assert np.abs(gradient).max() > 1e-2


def test_a_step_is_as_long_whatever_the_batch() -> None:
    """Of a data partition whose pictures are all the same, a turn with 2 and one with 32 push the same change."""
    same = pictures.Pictures(np.repeat(FEW.pictures[:1], 128, 0), np.zeros(128, np.int64), ("a", "b"), {})

    small, large = (
        computed_alone(PictureClasses(same, DATA, CnnStep(channels=4, batch=batch, momentum=0.0)), 1)
        for batch in (2, 32)
    )

    assert small == pytest.approx(large, abs=1e-6)
    assert not np.array_equal(small, PictureClasses(same, DATA, CnnStep(channels=4)).first(np.arange(len(small))))


def test_auto_takes_the_largest_power_of_two_that_the_memory_of_the_machine_allows() -> None:
    """Of equation 10; a data partition's pictures are the most, and the machine's size changes nothing else."""
    settings: dict[str, object] = {"batch": "auto", "alpha2": 10.0, "beta2": -5.0, "pictures": 200}
    batches = {}
    for memory_gib in (1.0, 2.0, 4.0, 64.0):
        program: Any = cnn.program(settings, DATA, ProgramMachine(memory_gib, 1))
        batches[memory_gib] = program.batch(50)

    assert batches == {1.0: 4, 2.0: 16, 4.0: 32, 64.0: 50}
    with pytest.raises(Misuse, match="memory for"):
        cnn.program(settings, DATA, ProgramMachine(0.1, None)).compute(
            program.load(0), 1, Alone(program.first(np.arange(program.rows)))
        )


def test_a_turn_trains_on_as_many_pictures_as_its_machine_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    """And returns the loss of that batch."""
    seen = []
    real = torch.nn.functional.cross_entropy
    monkeypatch.setattr(
        torch.nn.functional, "cross_entropy", lambda out, kinds: (seen.append(len(kinds)), real(out, kinds))[1]
    )
    line = MemoryLine(10.0, -5.0)
    program = PictureClasses(FEW, DATA, CnnStep(channels=4, batch=None), ProgramMachine(1.0, None), line)

    loss = program.compute(program.load(1), 1, Alone(program.first(np.arange(program.rows))))

    assert seen == [4]
    assert 0.5 < loss < 3.0


def test_memory_by_batch_is_turned_round_as_in_equation_10() -> None:
    """Of points on a line; where memory does not grow, it is refused."""
    line = cnn_memory.line_through([(100, 0.4), (200, 0.5), (400, 0.7)])

    assert line.alpha2 == pytest.approx(1000.0)
    assert line.beta2 == pytest.approx(-300.0)
    for level in ([(100, 0.4), (200, 0.4)], [(100, 0.7), (200, 0.7), (300, 0.7), (400, 0.7)]):
        with pytest.raises(Misuse, match="did not grow"):
            cnn_memory.line_through(level)


@pytest.mark.real
def test_memory_by_batch_is_measured_in_a_process_of_its_own() -> None:
    """A picture takes at least its layers' results; without one there is no less than Python and torch themselves."""
    line = cnn_memory.measured_line((1, 12, 12), 16, 5)

    kept_bytes = 4 * 12 * 12 * 16 * 2
    assert 0.0 < line.alpha2 < 1e9 / kept_bytes
    assert -line.beta2 / line.alpha2 > 0.05


def test_auto_is_refused_where_results_must_not_depend_on_the_machine() -> None:
    """With staleness 0, and where no one knows the memory; a bound above 0, and none, are allowed."""
    with pytest.raises(Misuse, match=r"settings\.batch: auto .* staleness 0 .*; write a number, or another staleness"):
        cnn.program({"batch": "auto"}, DATA, ProgramMachine(4.0, 0))
    with pytest.raises(Misuse, match=r"does not say how much memory"):
        cnn.program({"batch": "auto"}, DATA)
    for staleness in (1, None):
        assert cnn.program({"batch": "auto"}, DATA, ProgramMachine(4.0, staleness)).rows


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"batch": "Auto"},
            r"settings\.batch must be a whole number from 1 to 2147483647, or auto, such as 64, not 'Auto'",
        ),
        ({"batch": 0}, "not 0"),
        ({"batch": "32"}, "not the text '32'; write 32"),
        ({"batch": 32, "alpha2": 5}, r"settings\.alpha2 does not exist"),
        ({"channels": 6}, r"settings\.channels must be a multiple of 4, such as 8, not 6"),
        ({"rate": -1}, r"settings\.rate must be"),
        ({"momentum": 2}, r"settings\.momentum must be a number from 0 to 1"),
        ({"source": "digits"}, r"settings\.source must be generated or letters, not 'digits'"),
        ({"source": "letters", "pictures": 9}, r"settings\.pictures does not exist"),
        ({"side": 3}, r"settings\.side must be a whole number from 4"),
        ({"pictures": 3}, "3 pictures are too few for 4 data partitions"),
    ],
)
def test_settings_are_checked_one_by_one(settings: dict[str, object], words: str) -> None:
    """One sentence names the wrong one."""
    with pytest.raises(Misuse, match=words):
        cnn.program(settings, DATA)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"pictures": np.zeros((6, 8, 8))}, "classes"),
        ({"pictures": np.zeros((6, 8)), "classes": np.arange(6)}, r"pictures of shape \(6, 8\)"),
        ({"pictures": np.zeros((6, 8, 8)), "classes": np.arange(5)}, r"a class for each picture"),
        ({"pictures": np.full((6, 8, 8), np.nan), "classes": np.arange(6)}, "not finite"),
        ({"pictures": np.zeros((6, 8, 8)), "classes": np.zeros(6)}, "one class only"),
        ({"pictures": np.zeros((6, 3, 8)), "classes": np.arange(6)}, "pictures of 8 x 3 are too small"),
    ],
)
def test_files_of_pictures_are_checked(arrays: dict[str, Any], words: str, tmp_path: Path) -> None:
    """And one that is no such file is none."""
    np.savez(tmp_path / "data.npz", **arrays)
    (tmp_path / "text").write_text("no arrays")

    with pytest.raises(Misuse, match=words):
        cnn.program({"file": str(tmp_path / "data.npz")}, DATA)
    with pytest.raises(Misuse, match="cannot read"):
        cnn.program({"file": str(tmp_path / "text")}, DATA)


def test_a_file_of_colour_pictures_trains(tmp_path: Path) -> None:
    """Shades of 0 to 255 become 0 to 1; classes keep their names."""
    rng = np.random.default_rng(1)
    kinds = np.array(["cat", "dog"])[np.arange(40) % 2]
    shades = np.where((kinds == "cat")[:, None, None, None], 200, 60) + rng.integers(0, 50, (40, 3, 8, 8))
    np.savez(tmp_path / "data.npz", pictures=shades.astype(np.uint8), classes=kinds)

    program: Any = cnn.program({"file": str(tmp_path / "data.npz"), "channels": 4}, DATA)

    program.write(computed_alone(program, 30), tmp_path)
    product = torch.load(tmp_path / "model.pt", weights_only=True)
    assert product["classes"] == ["cat", "dog"]
    assert product["form"] == ((3, 8, 8), 4, 2)
    assert program._seen.pictures.max() <= 1.0


def test_a_training_that_diverges_is_a_sentence() -> None:
    """It names what is not finite any more."""
    program = PictureClasses(FEW, 1, CnnStep(channels=4, rate=1e38))
    alone = Alone(program.first(np.arange(program.rows)))

    program.compute(program.load(0), 1, alone)
    alone.end_clock()

    with pytest.raises(Misuse, match=r"is not finite after clock 2 of data partition 0: lower the learning rate"):
        program.compute(program.load(0), 2, alone)


def test_a_program_is_told_of_its_machine_if_it_asks_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its memory is shared by the turns that compute at once; a program with two arguments gets two."""
    (tmp_path / "asks.py").write_text(
        "def program(settings, partitions, machine): return settings, partitions, machine"
    )
    (tmp_path / "plain.py").write_text("def program(settings, partitions): return settings, partitions")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    jobs = [job_of({"clocks": 5, "workers": 3, "staleness": "none", "app": app}) for app in ("asks", "plain")]

    made: list[Any] = [
        wiring_tiers.open_application(job, str(tmp_path), wiring_tiers.turn_gib(10.0, 2)) for job in jobs
    ]

    assert made == [({}, 3, ProgramMachine(4.0, None)), ({}, 3)]
