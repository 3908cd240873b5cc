"""Programs of the parameter server: what they learn, and that machines which vanish change nothing of it."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tiers.in_threads import DATA, ThreadCluster, played
from windfall.apps import data_files, lda, mf, mlr
from windfall.apps.lda import TopicModel, documents_of
from windfall.apps.mf import MatrixFactorization, generated, with_negatives
from windfall.apps.mlr import LabelledData, LogisticRegression
from windfall.errors import Misuse
from windfall.runtimes.parameter_partition import Rows, Values
from windfall.runtimes.tier_program import TierProgram

CLOCKS = 40


class Alone:
    """`Table` of one process: reads see the last clock, what is pushed is added at its end."""

    def __init__(self, values: Values) -> None:
        self.values = values
        self._next = values.copy()

    def pull(self, rows: Rows) -> Values:
        """Return values of the last clock."""
        return self.values[rows]

    def push(self, rows: Rows, changes: Values) -> None:
        """Add to the next one."""
        self._next[rows] += changes

    def end_clock(self) -> None:
        """Begin the next clock."""
        self.values = self._next.copy()


def computed_alone(program: TierProgram, clocks: int = CLOCKS) -> Values:
    """Return the table that one process ends with."""
    alone = Alone(program.first(np.arange(program.rows)))
    for clock in range(1, clocks + 1):
        for data in range(DATA):
            program.compute(program.load(data), clock, alone)
        alone.end_clock()
    return alone.values


async def all_transient_are_lost(cluster: ThreadCluster) -> None:
    """After a few clocks."""
    await cluster.until(5)
    cluster.lose("t1", "t2")


def test_matrix_factorisation_learns_and_loses_no_bit_with_its_machines() -> None:
    """Its error falls to that of the noise's order, and is what one process finds though all transient machines vanish."""
    program = MatrixFactorization(generated(60, 40, 1200), 8, DATA, step_size=0.03)

    cluster = played(["r1", "t1", "t2"], program, all_transient_are_lost, clocks=CLOCKS)

    assert cluster.layouts[-1].term > 0
    assert np.array_equal(cluster.values(), computed_alone(program))
    assert program.evaluate(cluster.values()) < 0.5 * program.evaluate(program.first(np.arange(program.rows)))


def test_first_factors_do_not_depend_on_how_rows_are_dealt() -> None:
    """Those of a row are the same whichever others are asked for."""
    program = MatrixFactorization(generated(1500, 40, 3000), 4, DATA)
    rows = np.arange(program.rows)

    assert np.array_equal(program.first(rows)[3::7], program.first(rows[3::7]))


def test_topics_are_found_and_counts_equal_a_recount_after_a_roll_back() -> None:
    """Documents of two kinds with words of their own; each topic has the words of one kind."""
    rng = np.random.default_rng(2)
    kinds = [["sun", "rain", "wind", "snow"], ["bread", "salt", "oil", "wine"]]
    texts = [list(rng.choice(kinds[number % 2], 30)) for number in range(24)]
    documents = documents_of(texts, 8, {})
    words = documents.vocabulary
    program = TopicModel(documents, 2, DATA, clocks_per_sweep=2)

    cluster = played(["r1", "t1", "t2"], program, all_transient_are_lost, clocks=CLOCKS)

    values = cluster.values()
    assert cluster.layouts[-1].term > 0
    assert np.array_equal(values[: len(words) + 1], program.recount(values))
    assert values[len(words)].sum() == 24 * 30
    assert np.array_equal(values, computed_alone(program))
    topic_of = dict(zip(words, values[:8].argmax(axis=1), strict=True))
    assert len({topic_of[word] for word in kinds[0]}) == len({topic_of[word] for word in kinds[1]}) == 1
    assert topic_of["sun"] != topic_of["bread"]
    assert program.evaluate(values) < program.evaluate(computed_alone(program, 2))


def test_each_topic_is_drawn_by_equation_5() -> None:
    """As numpy computes it token by token, each from the counts without its own topic; some have none yet."""
    rng = np.random.default_rng(6)
    topics_all, words_all, alpha, beta = 19, 7, 0.3, 0.02
    documents, words = np.repeat(np.arange(4), 25), rng.integers(0, words_all, 100)
    topics, drawn = rng.integers(0, topics_all + 1, 100), rng.random(100)
    counts = np.zeros((words_all + 1, topics_all))
    np.add.at(counts, (words[topics > 0], topics[topics > 0] - 1), 1.0)
    counts[-1] = counts[:-1].sum(axis=0)
    found, found_counts = topics.copy(), counts.copy()

    lda.draw_topics(found_counts, found, documents, words, drawn, np.array([alpha, beta, beta * words_all]))

    for token in range(100):
        if topics[token]:
            counts[[words[token], -1], topics[token] - 1] -= 1
        others = (documents == documents[token]) & (np.arange(100) != token)
        in_document = np.bincount(topics[others], minlength=topics_all + 1)[1:]
        weights = (in_document + alpha) * (counts[words[token]] + beta) / (counts[-1] + beta * words_all)
        topics[token] = 1 + np.searchsorted(np.cumsum(weights), drawn[token] * weights.sum(), "right")
        counts[[words[token], -1], topics[token] - 1] += 1
    assert np.array_equal(found, topics)
    assert np.array_equal(found_counts, counts)


def test_steps_of_the_factorisation_are_those_of_the_gradient() -> None:
    """As numpy computes them, rating by rating."""
    rng = np.random.default_rng(7)
    factors = rng.standard_normal((9, 5)).astype(np.float32)
    users, items = rng.integers(0, 4, 40).astype(np.int32), rng.integers(4, 9, 40).astype(np.int32)
    values, found = rng.standard_normal(40).astype(np.float32), factors.copy()

    mf.descend(found, users, items, values, np.float32(0.1), np.float32(0.3))

    for user, item, value in zip(users, items, values, strict=True):
        before, other = factors[user].copy(), factors[item].copy()
        error = value - before @ other
        factors[user] += np.float32(0.1) * (error * other - np.float32(0.3) * before)
        factors[item] += np.float32(0.1) * (error * before - np.float32(0.3) * other)
    assert found == pytest.approx(factors, abs=1e-5)


def test_logistic_regression_learns_classes_and_loses_no_bit_with_its_machines() -> None:
    """Three clouds of points: nearly all are told apart."""
    rng = np.random.default_rng(3)
    classes = rng.integers(0, 3, 600)
    features = rng.standard_normal((3, 5))[classes] * 3.0 + rng.standard_normal((600, 5))
    program = LogisticRegression(LabelledData(features, classes, ("a", "b", "c"), {}), DATA, batch=50)

    cluster = played(["r1", "t1", "t2"], program, all_transient_are_lost, clocks=CLOCKS)

    weights = cluster.values()
    assert np.array_equal(weights, computed_alone(program))
    assert program.evaluate(weights) < 0.2 * program.evaluate(np.zeros_like(weights))
    assert np.mean((features @ weights[:-1] + weights[-1]).argmax(axis=1) == classes) > 0.95


PROGRAMS = {"mf": mf.program, "mlr": mlr.program, "lda": lda.program}


@pytest.mark.parametrize("app", PROGRAMS)
def test_an_application_without_settings_learns_from_generated_data_and_writes_what_it_is_for(
    app: str, tmp_path: Path
) -> None:
    """Its loss falls, and a file says that the data was generated."""
    program = PROGRAMS[app]({}, DATA)

    values = computed_alone(program, 12)
    program.write(values, tmp_path)

    assert program.evaluate(values) < 0.97 * program.evaluate(computed_alone(program, 0 if app != "lda" else 4))
    assert json.loads((tmp_path / "data.json").read_text())["source"] == "generated"


@pytest.mark.parametrize(
    ("app", "settings", "words"),
    [
        ("mf", {"rnk": 8}, r"settings\.rnk does not exist .*; did you mean rank\?"),
        ("mf", {"rank": 0}, r"settings\.rank must be a whole number from 1 to 10000, such as 16, not 0"),
        ("mf", {"rank": True}, "not True"),
        ("mf", {"rate": "1e-4"}, r"settings\.rate must be .*, not the text '1e-4'; write 0\.0001$"),
        ("mf", {"rate": float("nan")}, "not nan"),
        ("mf", {"rate": [1]}, "not a list"),
        ("mf", {"users": 100, "ratings": 99}, r"settings\.ratings must be at least the number of users, 100, not 99"),
        ("mf", {"users": 3, "ratings": 5}, "3 users are too few for 4 data partitions"),
        ("mf", {"source": "netflix"}, r"settings\.source must be generated or standard-library, not 'netflix'"),
        ("mf", {"source": "standard-library", "users": 7}, r"settings\.users does not exist for .* source of data"),
        (
            "mf",
            {"source": "standard-library", "digest": "abc"},
            r"settings\.digest: .* has the digest [0-9a-f]{64}, not abc",
        ),
        ("mf", {"file": "nowhere.csv"}, r"settings\.file: there is no file nowhere\.csv"),
        ("mlr", {"classes": 1}, r"settings\.classes must be a whole number from 2"),
        ("mlr", {"file": 5}, r"settings\.file must be text such as observations\.csv, not 5"),
        ("mlr", {"observations": 2}, "2 observations are too few"),
        ("lda", {"alpha": 0}, r"settings\.alpha must be a number from 1e-09 to 1000"),
        ("lda", {"documents": 2}, "2 documents are too few"),
    ],
)
def test_settings_are_checked_one_by_one(app: str, settings: dict[str, object], words: str) -> None:
    """One sentence names the wrong one, and what to write instead."""
    with pytest.raises(Misuse, match=words):
        PROGRAMS[app](settings, DATA)


@pytest.mark.parametrize(
    ("app", "text", "words"),
    [
        ("mf", "user,item,value\na,b,1\na,c,much\n", r":3: the value must be a finite number, not 'much'"),
        ("mf", "user,item,value\na,b,1\na,c\n", r":3: 2 columns, but the first line has 3"),
        ("mf", "user,item\n", "then rows"),
        ("mlr", "x,class\n1,a\ninf,b\n", r":3: a feature must be a finite number, not 'inf'"),
        ("mlr", "x,class\n1,a\n2,a\n", "one class only, 'a'"),
        ("lda", "a b c\n", "no words"),
    ],
)
def test_files_are_checked_line_by_line(app: str, text: str, words: str, tmp_path: Path) -> None:
    """The message has the file and the line."""
    (tmp_path / "data").write_text(text)

    with pytest.raises(Misuse, match=words):
        PROGRAMS[app]({"file": str(tmp_path / "data")}, 1)


def test_a_file_and_a_source_are_one_too_many(tmp_path: Path) -> None:
    """One of them is to be kept."""
    (tmp_path / "data").write_text("user,item\na,b\n")

    with pytest.raises(Misuse, match="keep one of them"):
        mf.program({"file": str(tmp_path / "data"), "source": "generated"}, 1)


def test_ratings_of_a_file_keep_the_names_of_users_and_items(tmp_path: Path) -> None:
    """They are beside their factors, whose products are the ratings."""
    lines = ["user,item,value", *(f"u{user},i{item},{user - item}" for item in range(4) for user in range(6))]
    (tmp_path / "ratings.csv").write_text("\n".join(lines))
    settings = {"file": str(tmp_path / "ratings.csv"), "rank": 4, "rate": 0.05, "decay": 0.0, "clocks": 2}
    program = mf.program(settings, DATA)

    program.write(computed_alone(program, 400), tmp_path)

    with np.load(tmp_path / "factors.npz") as factors:
        user, item = list(factors["user_names"]).index("u5"), list(factors["item_names"]).index("i2")
        assert factors["users"][user] @ factors["items"][item] == pytest.approx(3.0, abs=0.2)


def test_classes_of_a_file_keep_their_names(tmp_path: Path) -> None:
    """The weights find them."""
    lines = [
        "x,class",
        *(f"{number % 10 + (20 if number % 2 else 0)},{'odd' if number % 2 else 'even'}" for number in range(40)),
    ]
    (tmp_path / "data.csv").write_text("\n".join(lines))
    program = mlr.program({"file": str(tmp_path / "data.csv"), "rate": 0.1}, DATA)

    program.write(computed_alone(program, 400), tmp_path)

    with np.load(tmp_path / "weights.npz") as found:
        assert found["classes"][(np.array([25.0]) @ found["weights"] + found["constants"]).argmax()] == "odd"
        assert found["classes"][(np.array([3.0]) @ found["weights"] + found["constants"]).argmax()] == "even"


def test_sampled_negatives_are_pairs_that_were_not_seen() -> None:
    """All that were seen are ratings of 1, once each; of the others about `negatives` times as many."""
    rng = np.random.default_rng(4)
    users, items = rng.integers(0, 30, 300), rng.integers(0, 200, 300)
    seen = set(zip(users.tolist(), items.tolist(), strict=True))

    ratings = with_negatives(users, items, {}, negatives=3, seed=1)

    names = zip(ratings.user_names[ratings.users].tolist(), ratings.item_names[ratings.items].tolist(), strict=True)
    rated = Counter(zip(names, ratings.values.tolist(), strict=True))
    assert set(rated.values()) == {1}
    assert {pair for pair, value in rated if value == 1.0} == seen
    assert not {pair for pair, value in rated if value == 0.0} & seen
    assert 2.0 * len(seen) < len(rated) - len(seen) <= 3 * len(seen)
    assert np.all(np.diff(ratings.users) >= 0)


def small_library(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let a folder be the standard library."""
    kinds = [["socket", "server", "client"], ["matrix", "vector", "scalar"]]
    for number in range(8):
        words = " ".join(kinds[number % 2][(number + place) % 3] for place in range(40))
        (folder / f"m{number}.py").write_text(f"def f{number}(): return 'common {words}'\n")
    (folder / "test").mkdir()
    for number in range(2):
        (folder / "test" / f"m{number}.py").write_text("unwanted = 'unwanted'")
    monkeypatch.setattr(data_files.sysconfig, "get_path", lambda _: str(folder))


def test_topics_of_the_standard_library_are_written_by_word_and_counts_equal_a_recount(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of a small one with two kinds of modules; tests and words of all modules are left out."""
    (tmp_path / "lib").mkdir()
    small_library(monkeypatch, tmp_path / "lib")
    program: Any = lda.program({"source": "standard-library", "topics": 2, "clocks": 1}, DATA)

    values = computed_alone(program)
    program.write(values, tmp_path)

    with (tmp_path / "topics.csv").open() as file:
        lines = list(csv.DictReader(file))
    topic_of = {line["word"]: line["topic"] for line in lines}
    assert set(topic_of) == {"socket", "server", "client", "matrix", "vector", "scalar"}
    assert topic_of["socket"] == topic_of["server"] == topic_of["client"] != topic_of["matrix"] == topic_of["vector"]
    assert sum(int(line["tokens"]) for line in lines) == 8 * 40
    assert np.array_equal(values[: len(topic_of) + 1], program.recount(values))


def test_the_reader_of_the_standard_library_says_whether_its_files_are_those_of_the_stored_digest(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A changed letter changes the digest; with the digest of before it is refused."""
    (tmp_path / "lib").mkdir()
    small_library(monkeypatch, tmp_path / "lib")
    before = data_files.standard_library()
    monkeypatch.setitem(data_files.STORED_DIGESTS, before.python, before.digest)
    assert before.origin()["same files"] is True

    (tmp_path / "lib" / "m0.py").write_text("changed = 1")

    assert data_files.standard_library().origin()["same files"] is False
    with pytest.raises(Misuse, match=before.digest):
        data_files.standard_library(before.digest)


@pytest.mark.parametrize("app", ["mf", "lda"])
def test_applications_learn_from_the_real_standard_library(app: str) -> None:
    """Whichever Python runs; a short training lowers the loss."""
    settings: dict[str, object] = {"source": "standard-library", "clocks": 1} | (
        {"words": 1000} if app == "lda" else {}
    )
    program = PROGRAMS[app](settings, DATA)

    assert program.evaluate(computed_alone(program, 5)) < 0.97 * program.evaluate(computed_alone(program, 1))
