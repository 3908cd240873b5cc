"""Programs of the parameter server against the bare loops that one would write for one process, on the same generated data.

Matrix factorisation has the shape of the Netflix data, 480,189 users and 17,770 items, at rank 100 and with 24 million
generated ratings (50 for each user; the real data has 209): some 1.5 GB of memory in all.  A worker's turn reads the rows
that its ratings need, descends on a copy, and pushes what has changed; the bare loop descends on the factors in place.
Compared is processor time, where one thread does all the work.
"""

from __future__ import annotations

import itertools
import multiprocessing
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np
from numba import njit

from benchmarks.harness import Benchmark
from windfall.apps.lda import TopicModel, draw_topics
from windfall.apps.lda import generated as generated_documents
from windfall.apps.mf import MatrixFactorization, Ratings, generated
from windfall.runtimes.parameter_partition import ParameterPartition, PushAnswer, PushId, RowValues

USERS, ITEMS, RATINGS, RANK = 480_189, 17_770, 24_000_000, 100
RATE, DECAY = 0.01, 0.02
CLOCKS = 4
SHARED_PARTS = 8
DOCUMENTS, TOKENS_EACH, WORDS, TOPICS, SWEEPS = 5000, 200, 5000, 50, 50
RATED_SWEEPS = 3
DRAWN_TOPICS = 1000
"""Of the paper's experiments with documents."""
ALPHA, BETA = 0.1, 0.01
SEEDS = range(1, 6)


def benchmarks() -> list[Callable[[], Benchmark]]:
    return [mf_worker_vs_bare, mf_served_vs_bare, mf_two_processes_vs_one, lda_vs_dense, lda_loss_vs_dense]


class LocalTable:
    """`Table` of one worker: it reads copies, and adds at once what is pushed."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def pull(self, rows: Any) -> Any:
        return self.values[rows]

    def push(self, rows: Any, changes: Any) -> None:
        self.values[rows] += changes


class ServedTable:
    """`Table` whose rows a server's own code has, in this thread: it checks, keeps, seals and can roll back one clock."""

    def __init__(self, values: Any) -> None:
        self.part = ParameterPartition(values, (0,), fresh_reads=False)

    def pull(self, rows: Any) -> Any:
        return self.part.read(rows)

    def push(self, rows: Any, changes: Any) -> None:
        push = PushId(0, self.part.clock + 1, 0, 0)
        assert self.part.push(push, RowValues(rows, changes)) is PushAnswer.KEPT
        assert self.part.seal(push) is PushAnswer.KEPT
        self.part.forget(self.part.clock - 1)


# ------------------------------------------------------------------------------------------------------ matrix factorisation


@njit(fastmath=True)
def _bare_descent(left, right, users, items, values, rate, decay):
    rank = left.shape[1]
    for number in range(len(values)):
        user, item = users[number], items[number]
        predicted = np.float32(0.0)
        for place in range(rank):
            predicted += left[user, place] * right[item, place]
        error = values[number] - predicted
        for place in range(rank):
            old = left[user, place]
            left[user, place] += rate * (error * right[item, place] - decay * old)
            right[item, place] += rate * (error * old - decay * right[item, place])


def _netflix_shape() -> tuple[Ratings, MatrixFactorization, Any]:
    ratings = generated(USERS, ITEMS, RATINGS)
    program = MatrixFactorization(ratings, RANK, 1, clocks_per_epoch=CLOCKS, step_size=RATE, decay=DECAY)
    return ratings, program, program.first(np.arange(program.rows))


def _against_bare(
    name: str, table_of: Callable[[Any], Any], values_of: Callable[[Any], Any], target: float
) -> Benchmark:
    """Rate of a worker's turns against that of the bare loop; both must come to the same loss."""
    ratings, program, first = _netflix_shape()
    left, right = first[:USERS].copy(), first[USERS:].copy()
    table, loaded, clocks = table_of(first), program.load(0), itertools.count(1)
    del first

    def ours() -> float:
        begin = time.process_time()
        for _ in range(CLOCKS):
            program.compute(loaded, next(clocks), table)
        return RATINGS / (time.process_time() - begin) / 1e6

    def yardstick() -> float:
        begin = time.process_time()
        _bare_descent(left, right, ratings.users, ratings.items, ratings.values, np.float32(RATE), np.float32(DECAY))
        return RATINGS / (time.process_time() - begin) / 1e6

    ours(), yardstick()
    mine, other = program.evaluate(values_of(table)), program.evaluate(np.concatenate((left, right)))
    assert abs(mine - other) < 0.001 * other, (mine, other)
    return Benchmark(name, ours, yardstick, target, at_most=False, unit="million ratings/s", rounds=5)


def mf_worker_vs_bare() -> Benchmark:
    """A worker with a table of its own."""
    return _against_bare("mf, worker's turns, vs bare loop", LocalTable, lambda table: table.values, 0.7)


def mf_served_vs_bare() -> Benchmark:
    """The work of the worker and that of the server of its rows, one after the other: half of the bare rate is to be left."""
    return _against_bare("mf, worker and its server, vs bare loop", ServedTable, lambda table: table.part._values, 0.5)


def mf_two_processes_vs_one() -> Benchmark:
    """An epoch on one table in shared memory, by two processes with half of the users each, or by one with all of them.

    Counted are seconds of a process on a core of its own: its processor time, and how long it waited for the other one.
    """
    context = multiprocessing.get_context("spawn")
    _, program, first = _netflix_shape()
    memory = SharedMemory(create=True, size=first.nbytes)
    np.ndarray(first.shape, first.dtype, memory.buf)[:] = first
    del program
    locks, ends, processes = [context.Lock() for _ in range(SHARED_PARTS)], [], []
    for number in range(2):
        here, there = context.Pipe()
        process = context.Process(target=_worker_process, args=(there, locks, memory.name, number), daemon=True)
        process.start()
        ends.append(here)
        processes.append(process)
    for end in ends:
        assert end.recv() == "ready"

    def epoch(orders: list[tuple[Connection, str]]) -> float:
        for end, order in orders:
            end.send(order)
        return RATINGS / max(end.recv() for end, _ in orders) / 1e6

    def close() -> None:
        for end, process in zip(ends, processes, strict=True):
            end.send("end")
            process.join()
        memory.close()
        memory.unlink()

    return Benchmark(
        "mf, two processes vs one",
        lambda: epoch([(end, "half") for end in ends]),
        lambda: epoch([(ends[0], "all")]),
        1.6,
        at_most=False,
        unit="million ratings/s",
        rounds=5,
        close=close,
    )


class SharedTable:
    """`Table` in shared memory: who adds to a range of rows holds its lock, who reads does not.

    Attributes:
        waited_s: for locks, so far.
    """

    def __init__(self, values: Any, locks: list[Any]) -> None:
        self.values, self.locks, self.waited_s = values, locks, 0.0
        self.starts = [number * len(values) // len(locks) for number in range(1, len(locks))]

    def pull(self, rows: Any) -> Any:
        return self.values[rows]

    def push(self, rows: Any, changes: Any) -> None:
        bounds = [0, *np.searchsorted(rows, self.starts), len(rows)]
        for lock, (first, last) in zip(self.locks, itertools.pairwise(bounds), strict=True):
            if first < last:
                begin = time.perf_counter()
                with lock:
                    self.waited_s += time.perf_counter() - begin
                    self.values[rows[first:last]] += changes[first:last]


def _worker_process(end: Connection, locks: list[Any], name: str, number: int) -> None:
    ratings = generated(USERS, ITEMS, RATINGS)
    program = MatrixFactorization(ratings, RANK, 2, clocks_per_epoch=CLOCKS, step_size=RATE, decay=DECAY)
    memory = SharedMemory(name=name)
    table = SharedTable(np.ndarray((program.rows, RANK), np.float32, memory.buf), locks)
    halves = {"half": [program.load(number)], "all": [program.load(data) for data in range(2 if number == 0 else 0)]}
    clock = 0
    end.send("ready")
    while (order := end.recv()) != "end":
        begin = time.process_time() + table.waited_s
        for _ in range(CLOCKS):
            clock += 1
            for loaded in halves[order]:
                program.compute(loaded, clock, table)
        end.send(time.process_time() + table.waited_s - begin)


# ------------------------------------------------------------------------------------------------------------------- topics


@njit
def _dense_sweep(of_words, of_documents, sums, topics, documents, words, alpha, beta, first):
    number_of_topics, words_all = len(sums), len(of_words)
    weights = np.empty(number_of_topics)
    for token in range(len(words)):
        word, document = words[token], documents[token]
        if not first:
            old = topics[token]
            of_words[word, old] -= 1
            of_documents[document, old] -= 1
            sums[old] -= 1
        total = 0.0
        for topic in range(number_of_topics):
            total += (
                (of_documents[document, topic] + alpha)
                * (of_words[word, topic] + beta)
                / (sums[topic] + words_all * beta)
            )
            weights[topic] = total
        drawn = np.random.random() * total
        new = 0
        while weights[new] < drawn and new < number_of_topics - 1:
            new += 1
        topics[token] = new
        of_words[word, new] += 1
        of_documents[document, new] += 1
        sums[new] += 1


@njit
def _seed_of_compiled_chance(seed):
    np.random.seed(seed)


class DenseGibbs:
    """Collapsed Gibbs sampling with all counts in three arrays, as one writes it for one process."""

    def __init__(self, documents: Any, seed: int) -> None:
        _seed_of_compiled_chance(seed)
        self.documents = documents
        self.of_words = np.zeros((WORDS, TOPICS))
        self.of_documents = np.zeros((DOCUMENTS, TOPICS))
        self.sums = np.zeros(TOPICS)
        self.topics = np.zeros(len(documents.words), np.int64)
        self.first = True

    def sweep(self) -> None:
        counts = self.of_words, self.of_documents, self.sums, self.topics
        _dense_sweep(*counts, self.documents.documents, self.documents.words, ALPHA, BETA, self.first)
        self.first = False

    def loss(self) -> float:
        """Minus the logarithm of a token's likelihood, on average: numpy's own sums, not the program's."""
        by_word = (self.of_words + BETA) / (self.sums + WORDS * BETA)
        shares = self.of_documents + ALPHA
        shares /= shares.sum(axis=1, keepdims=True)
        tokens = np.einsum("ij,ij->i", shares[self.documents.documents], by_word[self.documents.words])
        return -float(np.log(tokens).mean())


class Sampling:
    """The program with a table of its own.

    Args:
        documents: all of them.
        seed: of chance.
        data: how many data partitions there are; each reads what was there when the clock began.
    """

    def __init__(self, documents: Any, seed: int, data: int) -> None:
        self.program = TopicModel(documents, TOPICS, data, clocks_per_sweep=CLOCKS, alpha=ALPHA, beta=BETA, seed=seed)
        self.values = self.program.first(np.arange(self.program.rows))
        self.loaded = [self.program.load(number) for number in range(data)]
        self.clock = 0

    def sweep(self) -> None:
        for _ in range(CLOCKS):
            self.clock += 1
            table = ClockTable(self.values)
            for loaded in self.loaded:
                self.program.compute(loaded, self.clock, table)
            table.end()

    def loss(self) -> float:
        assert np.array_equal(self.program.recount(self.values), self.values[: WORDS + 1])
        return self.program.evaluate(self.values)


class ClockTable:
    """`Table` for one clock of several data partitions: what they push is added at its end."""

    def __init__(self, values: Any) -> None:
        self.values, self.pushed = values, []

    def pull(self, rows: Any) -> Any:
        return self.values[rows]

    def push(self, rows: Any, changes: Any) -> None:
        self.pushed.append((rows, changes))

    def end(self) -> None:
        for rows, changes in self.pushed:
            self.values[rows] += changes


def _documents() -> Any:
    return generated_documents(DOCUMENTS, WORDS, TOKENS_EACH, topics=TOPICS)


def lda_vs_dense() -> Benchmark:
    """Rate of sweeps by four data partitions in turn against that of dense sampling."""
    documents = _documents()
    mine, dense = Sampling(documents, 1, 4), DenseGibbs(documents, 1)

    def rate(sweep: Callable[[], None]) -> float:
        begin = time.process_time()
        for _ in range(RATED_SWEEPS):
            sweep()
        return RATED_SWEEPS * len(documents.words) / (time.process_time() - begin) / 1e6

    return Benchmark(
        "lda, worker's turns, vs dense sampling",
        lambda: rate(mine.sweep),
        lambda: rate(dense.sweep),
        0.7,
        at_most=False,
        unit="million tokens/s",
    )


def draw_s() -> float:
    """Return how long our kernel takes on one core to draw the topic of a token out of 1,000 [s], the median of five sweeps."""
    documents, chance = generated_documents(200, 20_000, 300), np.random.default_rng(1)
    counts = np.zeros((20_001, DRAWN_TOPICS))
    topics = np.zeros(len(documents.words), np.int64)
    taken_s = []
    for _ in range(6):
        drawn, begin = chance.random(len(topics)), time.process_time()
        draw_topics(counts, topics, documents.documents, documents.words, drawn, np.array([ALPHA, BETA, 20_000 * BETA]))
        taken_s.append((time.process_time() - begin) / len(topics))
    return statistics.median(taken_s[1:])


def lda_loss_vs_dense() -> Benchmark:
    """What both come to after as many sweeps, by five seeds; ours may be no worse than the worst of the five."""
    documents = _documents()

    def after(made: Any) -> float:
        for _ in range(SWEEPS):
            made.sweep()
        return made.loss()

    dense = [after(DenseGibbs(documents, seed)) for seed in SEEDS]
    middle = statistics.median(dense)
    seeds, turns = itertools.cycle(SEEDS), itertools.cycle(dense)
    return Benchmark(
        f"lda, loss after {SWEEPS} sweeps, vs dense sampling",
        lambda: after(Sampling(documents, next(seeds), 4)),
        lambda: next(turns),
        max(dense) / middle,
        at_most=True,
        unit="nats/token",
        rounds=5,
    )


if __name__ == "__main__":
    print(f"drawing the topic of a token out of {DRAWN_TOPICS:,}: {1e6 * draw_s():.2f} us of a core")
