"""Topics of documents (latent Dirichlet allocation) by collapsed Gibbs sampling, on a parameter server.

The table has, for each word, how many of its tokens have each topic; then one row of all words' sums; then the topic of each
token, as a number from 1, 0 for none yet.  Since the topics of tokens roll back with the counts, these always equal a recount.

Source: T. Griffiths and M. Steyvers, "Finding scientific topics", PNAS 101 (2004), equation 5.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numba
import numpy as np
from numpy.typing import NDArray

from windfall.apps.app_settings import AppSettings
from windfall.apps.data_files import standard_library, text_lines, write_origin
from windfall.errors import Misuse
from windfall.runtimes.parameter_partition import Rows, Values
from windfall.runtimes.tier_program import PracticeTable, Table, TierApplication
from windfall.structs import Struct

WORDS_SHOWN = 20
"""Most frequent words of a topic that are written."""

PRODUCT_MIN = 1e-200
"""Below this a product of likelihoods is taken into the logarithm: one more factor does not make it 0."""
BLOCK_TOPICS = 8
"""Topics whose weights are added up before they are searched one by one: sums of blocks do not wait for each other."""


class Documents(Struct, frozen=True, eq=False):
    """Documents as tokens, one document after the other.

    Attributes:
        documents, words: of each token: the number of its document, ascending, and of its word.
        documents_all: how many documents there are.
        vocabulary: all words, by number.
        origin: where the documents are from.
    """

    documents: NDArray[np.int64]
    words: NDArray[np.int64]
    documents_all: int
    vocabulary: tuple[str, ...]
    origin: dict[str, object]


class Tokens(Struct, frozen=True, eq=False):
    """The tokens of a range of documents, which one clock of a data partition goes through.

    Attributes:
        documents: of each token, from 0.
        words: of each token.
        topic_rows: of the table.
    """

    documents: NDArray[np.int64]
    words: NDArray[np.int64]
    topic_rows: slice

    def topics(self, values: Values) -> NDArray[np.int64]:
        """Return the topics of the tokens, from 1, 0 for none, as a table has them."""
        return values[self.topic_rows].ravel()[: len(self.words)].astype(np.int64)


class TokenBlock(Struct, frozen=True, eq=False):
    """The same with the rows of the table that they need.

    Attributes:
        rows: the words', the sums', those of the tokens' topics.
        documents: of each token, from 0.
        words: of each token, places in `rows`.
        words_here: how many words there are; the row of the sums is behind them.
        data: number of the data partition.
    """

    rows: Rows
    documents: NDArray[np.int64]
    words: NDArray[np.int64]
    words_here: int
    data: int


class TopicModel:
    """`TierProgram`.

    Args:
        documents: all of them.
        topics: how many.
        data: how many data partitions there are.
        clocks_per_sweep: a clock goes through the tokens of that part of the documents.
        alpha, beta: of the Dirichlet priors of documents' topics, and of topics' words.
        seed: of chance.

    Raises:
        Misuse: there are fewer documents than data partitions.
    """

    def __init__(
        self,
        documents: Documents,
        topics: int,
        data: int,
        *,
        clocks_per_sweep: int = 4,
        alpha: float = 0.1,
        beta: float = 0.01,
        seed: int = 0,
    ) -> None:
        if documents.documents_all < data:
            raise Misuse(f"{documents.documents_all} documents are too few for {data} data partitions: each needs one")
        self.topics, self.alpha, self.beta = topics, alpha, beta
        self._documents, self._data, self._seed = documents, data, seed
        self._clocks_per_sweep, self._words = clocks_per_sweep, len(documents.vocabulary)
        ranges = data * clocks_per_sweep
        self._bounds = np.searchsorted(
            documents.documents, [number * documents.documents_all // ranges for number in range(ranges + 1)]
        )
        rows_of_topics = -(-np.diff(self._bounds) // topics)
        self._topic_rows = self._words + 1 + np.concatenate(([0], np.cumsum(rows_of_topics)))
        self.rows = int(self._topic_rows[-1])

    def first(self, rows: Rows) -> Values:
        """Return zeros: no token has a topic yet."""
        return np.zeros((len(rows), self.topics))

    def load(self, data: int) -> tuple[TokenBlock, ...]:
        """Return the tokens of a range of documents, in the parts that clocks go through."""
        first = data * self._clocks_per_sweep
        return tuple(self._block(number, data) for number in range(first, first + self._clocks_per_sweep))

    def compute(self, loaded: tuple[TokenBlock, ...], clock: int, table: Table) -> float | None:
        """Draw the topics of a part of the tokens again.

        Returns:
            Minus the logarithm of the likelihood of a token, on average, by the counts of all others just before its draw;
            None without one.  `evaluate` counts the token too, and so is a little lower.
        """
        block = loaded[(clock - 1) % len(loaded)]
        before = table.pull(block.rows)
        after = before.astype(np.float64, copy=True)
        words, tokens = block.words_here, len(block.words)
        topics = after[words + 1 :].ravel()[:tokens].astype(np.int64)
        drawn = np.random.default_rng([self._seed, block.data, clock]).random(tokens)
        logs = draw_topics(after[: words + 1], topics, block.documents, block.words, drawn, self._priors)
        after[words + 1 :].ravel()[:tokens] = topics
        table.push(block.rows, np.subtract(after, before, out=after))
        return -logs / tokens if tokens else None

    def warm_up(self) -> None:
        """Compile the kernel, or load it."""
        none = self._documents.documents[:0]
        block = TokenBlock(np.array([self._words]), none, none, 0, 0)
        self.compute((block,), 1, PracticeTable(self))

    def recount(self, values: Values) -> Values:
        """Return the counts of words, and their sums, that follow from the topics of tokens in a table."""
        counts = np.zeros((self._words + 1, self.topics))
        for part in self._ranges():
            topics = part.topics(values)
            drawn = topics > 0
            np.add.at(counts, (part.words[drawn], topics[drawn] - 1), 1.0)
        counts[-1] = counts[:-1].sum(axis=0)
        return counts

    def evaluate(self, values: Values) -> float:
        """Return minus the logarithm of the likelihood of a token, on average, by its document's and the topics' counts."""
        words, total = self._words, 0.0
        by_word = (values[:words] + self.beta) / (values[words] + words * self.beta)
        for part in self._ranges():
            if not len(part.words):
                continue
            topics = part.topics(values)
            in_documents = np.full((part.documents[-1] + 1, self.topics), self.alpha)
            np.add.at(in_documents, (part.documents[topics > 0], topics[topics > 0] - 1), 1.0)
            in_documents /= in_documents.sum(axis=1, keepdims=True)
            total += log_likelihood(in_documents, by_word, part.documents, part.words)
        return -total / len(self._documents.words)

    def write(self, values: Values, folder: Path) -> None:
        """Write `topics.csv`: a line for each of the most frequent words of each topic, with how many tokens it has."""
        with (folder / "topics.csv").open("w", newline="", encoding="utf-8") as file:
            lines = csv.writer(file, lineterminator="\n")
            lines.writerow(("topic", "word", "tokens"))
            for topic in range(self.topics):
                counts = values[: self._words, topic]
                for word in np.argsort(-counts, kind="stable")[:WORDS_SHOWN]:
                    if counts[word] > 0:
                        lines.writerow((topic, self._documents.vocabulary[word], int(counts[word])))
        write_origin(self._documents.origin, folder)

    @property
    def _priors(self) -> NDArray[np.float64]:
        return np.array([self.alpha, self.beta, self._words * self.beta])

    def _ranges(self) -> Iterator[Tokens]:
        return (self._tokens(number) for number in range(self._data * self._clocks_per_sweep))

    def _tokens(self, number: int) -> Tokens:
        """Return the tokens of a range of documents, by its number among those of all data partitions and clocks."""
        tokens = slice(int(self._bounds[number]), int(self._bounds[number + 1]))
        documents = self._documents.documents[tokens]
        return Tokens(
            documents - documents[:1],
            self._documents.words[tokens],
            slice(int(self._topic_rows[number]), int(self._topic_rows[number + 1])),
        )

    def _block(self, number: int, data: int) -> TokenBlock:
        part = self._tokens(number)
        words, places = np.unique(part.words, return_inverse=True)
        topic_rows = np.arange(part.topic_rows.start, part.topic_rows.stop)
        return TokenBlock(np.concatenate((words, [self._words], topic_rows)), part.documents, places, len(words), data)


@numba.njit(cache=True, nogil=True)
def log_likelihood(
    in_documents: NDArray[np.float64],
    by_word: NDArray[np.float64],
    documents: NDArray[np.int64],
    words: NDArray[np.int64],
) -> float:
    """Return the sum of logarithms of tokens' likelihoods.

    Args:
        in_documents: share of each topic, shape (documents, topics).
        by_word: share of each word in a topic, shape (words, topics).
        documents: of each token.
        words: of each token.
    """
    total = 0.0
    for token in range(len(words)):
        likelihood = 0.0
        for topic in range(by_word.shape[1]):
            likelihood += in_documents[documents[token], topic] * by_word[words[token], topic]
        total += np.log(likelihood)
    return total


@numba.njit(cache=True, nogil=True)
def draw_topics(  # noqa: PLR0917 - a compiled function takes flat arguments
    counts: NDArray[np.float64],
    topics: NDArray[np.int64],
    documents: NDArray[np.int64],
    words: NDArray[np.int64],
    drawn: NDArray[np.float64],
    priors: NDArray[np.float64],
) -> float:
    """Draw the topics of tokens, in place, and return the sum of logarithms of their likelihoods by the counts of all others.

    Args:
        counts: of each word, shape (words + 1, topics); the sums last.
        topics: of the tokens, from 1, 0 for none.
        documents: of the tokens.
        words: of the tokens.
        drawn: a random number in [0, 1) for each token.
        priors: alpha, beta, and beta times the number of all words.
    """
    number_of_topics, sums = counts.shape[1], counts[counts.shape[0] - 1]
    weights, of_document = np.empty(number_of_topics), np.zeros(number_of_topics)
    of_blocks = np.empty((number_of_topics + BLOCK_TOPICS - 1) // BLOCK_TOPICS)
    # A division costs more than the rest of a weight, and only two of the sums change with a token.
    inverse = 1.0 / (sums + priors[2])
    logs, likelihood, others = 0.0, 1.0, 0
    for token in range(len(words)):
        if token == 0 or documents[token] != documents[token - 1]:
            of_document[:] = 0.0
            others, other = 0, token
            while other < len(topics) and documents[other] == documents[token]:
                if topics[other] > 0:
                    of_document[topics[other] - 1] += 1.0
                    others += 1
                other += 1
        row, old = counts[words[token]], topics[token] - 1
        if old >= 0:
            row[old] -= 1.0
            sums[old] -= 1.0
            inverse[old] = 1.0 / (sums[old] + priors[2])
            of_document[old] -= 1.0
            others -= 1
        for topic in range(number_of_topics):
            weights[topic] = (of_document[topic] + priors[0]) * (row[topic] + priors[1]) * inverse[topic]
        total = 0.0
        for block in range(len(of_blocks)):
            of_block = 0.0
            for topic in range(block * BLOCK_TOPICS, min(number_of_topics, (block + 1) * BLOCK_TOPICS)):
                of_block += weights[topic]
            of_blocks[block] = of_block
            total += of_block
        # A logarithm costs more than the rest: it is taken of products.
        likelihood *= total / (others + number_of_topics * priors[0])
        if likelihood < PRODUCT_MIN:
            logs += np.log(likelihood)
            likelihood = 1.0
        left, block = drawn[token] * total, 0
        while left >= of_blocks[block] and block < len(of_blocks) - 1:
            left -= of_blocks[block]
            block += 1
        new, last = block * BLOCK_TOPICS, min(number_of_topics, (block + 1) * BLOCK_TOPICS) - 1
        while left >= weights[new] and new < last:
            left -= weights[new]
            new += 1
        row[new] += 1.0
        sums[new] += 1.0
        inverse[new] = 1.0 / (sums[new] + priors[2])
        of_document[new] += 1.0
        others += 1
        topics[token] = new + 1
    found: float = logs + np.log(likelihood)
    return found


def documents_of(texts: Sequence[Sequence[str]], words_max: int, origin: dict[str, object]) -> Documents:
    """Return documents as numbers, of the most frequent words.

    Args:
        texts: the words of each document, in order.
        words_max: how many words to keep.
        origin: where they are from.

    Raises:
        Misuse: there is no word.
    """
    every, counts = np.unique([word for text in texts for word in text], return_counts=True)
    if not len(every):
        raise Misuse("the documents have no words: give some that have words of at least three letters")
    kept = np.sort(every[np.argsort(-counts, kind="stable")[:words_max]])
    numbers = {str(word): number for number, word in enumerate(kept)}
    tokens = [(document, numbers[word]) for document, text in enumerate(texts) for word in text if word in numbers]
    documents, words = np.array(tokens, np.int64).T.copy()
    return Documents(documents, words, len(texts), tuple(numbers), {**origin, "tokens": len(words)})


def generated(documents: int, words: int, each: int, *, topics: int = 10, seed: int = 0) -> Documents:
    """Return generated documents, by the model itself: few topics in each document, few words in each topic.

    Args:
        documents: how many.
        words: how many different ones.
        each: tokens of each document.
        topics: by which the tokens are drawn.
        seed: of chance.
    """
    rng = np.random.default_rng(seed)
    of_topics = np.cumsum(rng.dirichlet(np.full(words, 0.05), topics), axis=1)
    of_documents = np.cumsum(rng.dirichlet(np.full(topics, 0.1), documents), axis=1)
    tokens = np.empty((documents, each), np.int64)
    for document in range(documents):
        drawn = np.searchsorted(of_documents[document] / of_documents[document, -1], rng.random(each), "right")
        for topic in np.unique(drawn):
            among = drawn == topic
            found = np.searchsorted(of_topics[topic] / of_topics[topic, -1], rng.random(int(among.sum())), "right")
            tokens[document, among] = np.minimum(found, words - 1)
    return Documents(
        np.repeat(np.arange(documents), each),
        tokens.ravel(),
        documents,
        tuple(f"w{number}" for number in range(words)),
        {"source": "generated", "topics": topics, "tokens": documents * each, "seed": seed},
    )


def program(settings: Mapping[str, object], data: int) -> TierApplication:
    """Return the program that an application's settings describe.

    Settings:
        source: `generated` (default) or `standard-library`: the modules' texts, see `data_files.standard_library`.
        file: a text file, each line a document.
        documents (1000), tokens (100, of each), words (2000): of generated data, by `topics` and `seed`.
        words (5000): for texts, how many to keep, the most frequent.  digest: of the standard library.
        topics (10), alpha (0.1), beta (0.01), clocks (4, for each sweep over all tokens), seed (1): of the sampling.

    Args:
        settings: by name.
        data: how many data partitions there are.

    Raises:
        Misuse: a setting is wrong, or data cannot be read.
    """
    given = AppSettings(settings)
    seed, topics = given.whole("seed", 1, least=0), given.whole("topics", 10, least=2, most=10_000)
    alpha, beta = given.number("alpha", 0.1, least=1e-9, most=1e3), given.number("beta", 0.01, least=1e-9, most=1e3)
    clocks = given.whole("clocks", 4, most=10_000)
    source = given.source("documents.txt", ("generated", "standard-library"))
    if source == "generated":
        number, each, words = given.whole("documents", 1000), given.whole("tokens", 100), given.whole("words", 2000)
        given.end()
        documents = generated(number, words, each, topics=topics, seed=seed)
    else:
        words = given.whole("words", 5000)
        digest = None if isinstance(source, Path) else given.text("digest", "its SHA-256")
        given.end()
        if isinstance(source, Path):
            documents = documents_of(text_lines(source), words, {"source": "file", "file": str(source)})
        else:
            library = standard_library(digest)
            documents = documents_of(library.words, words, library.origin())
    return TopicModel(documents, topics, data, clocks_per_sweep=clocks, alpha=alpha, beta=beta, seed=seed)
