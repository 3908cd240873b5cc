"""Topics of documents (latent Dirichlet allocation) by collapsed Gibbs sampling, on a parameter server.

The table has, for each word, how many of its tokens have each topic; then one row of all words' sums; then the topic of each
token, as a number from 1, 0 for none yet.  Since the topics of tokens roll back with the counts, these always equal a recount.

Source: T. Griffiths and M. Steyvers, "Finding scientific topics", PNAS 101 (2004), equation 5.
"""

from __future__ import annotations

from collections.abc import Sequence

import numba
import numpy as np
from numpy.typing import NDArray

from windfall.errors import Misuse
from windfall.runtimes.parameter_partition import Rows, Values
from windfall.runtimes.tier_program import Table
from windfall.structs import Struct


class Documents(Struct, frozen=True, eq=False):
    """Documents as tokens, one document after the other.

    Attributes:
        documents, words: of each token: the number of its document, ascending, and of its word.
        documents_all, words_all: how many there are.
    """

    documents: NDArray[np.int64]
    words: NDArray[np.int64]
    documents_all: int
    words_all: int


class TokenBlock(Struct, frozen=True, eq=False):
    """The tokens of a data partition.

    Attributes:
        data: its number.
        rows: of the table that it needs: its words, the sums, its tokens' topics.
        documents: of each token, from 0.
        words: of each token, places in `rows`.
        words_here: how many words it has; the row of the sums is behind them.
    """

    data: int
    rows: Rows
    documents: NDArray[np.int64]
    words: NDArray[np.int64]
    words_here: int


class TopicModel:
    """`TierProgram`.

    Args:
        documents: all of them.
        topics: how many.
        data: how many data partitions there are.
        clocks_per_sweep: a clock goes through that part of the tokens.
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
        self._clocks_per_sweep = clocks_per_sweep
        self._bounds = np.searchsorted(
            documents.documents, [number * documents.documents_all // data for number in range(data + 1)]
        )
        rows_of_topics = -(-np.diff(self._bounds) // topics)
        self._topic_rows = documents.words_all + 1 + np.concatenate(([0], np.cumsum(rows_of_topics)))
        self.rows = int(self._topic_rows[-1])

    def first(self, rows: Rows) -> Values:
        """Return zeros: no token has a topic yet."""
        return np.zeros((len(rows), self.topics))

    def load(self, data: int) -> TokenBlock:
        """Return the tokens of a range of documents."""
        tokens = slice(self._bounds[data], self._bounds[data + 1])
        words, places = np.unique(self._documents.words[tokens], return_inverse=True)
        documents = self._documents.documents[tokens]
        rows = np.concatenate(
            (words, [self._documents.words_all], np.arange(self._topic_rows[data], self._topic_rows[data + 1]))
        )
        return TokenBlock(data, rows, documents - documents[0], places, len(words))

    def compute(self, loaded: TokenBlock, clock: int, table: Table) -> None:
        """Draw the topics of a part of the tokens again."""
        before = table.pull(loaded.rows)
        after = before.astype(np.float64, copy=True)
        words, tokens = loaded.words_here, len(loaded.words)
        topics = after[words + 1 :].ravel()[:tokens].astype(np.int64)
        each = -(-tokens // self._clocks_per_sweep)
        start = (clock - 1) % self._clocks_per_sweep * each
        end = min(tokens, start + each)
        drawn = np.random.default_rng([self._seed, loaded.data, clock]).random(max(0, end - start))
        draw_topics(after[: words + 1], topics, loaded.documents, loaded.words, start, drawn, self._priors)
        after[words + 1 :].ravel()[:tokens] = topics
        table.push(loaded.rows, after - before)

    @property
    def _priors(self) -> NDArray[np.float64]:
        return np.array([self.alpha, self.beta, self._documents.words_all * self.beta])

    def recount(self, values: Values) -> Values:
        """Return the counts of words, and their sums, that follow from the topics of tokens in a table."""
        counts = np.zeros((self._documents.words_all + 1, self.topics))
        for data in range(self._data):
            tokens = slice(self._bounds[data], self._bounds[data + 1])
            words = self._documents.words[tokens]
            topics = values[self._topic_rows[data] : self._topic_rows[data + 1]].ravel()[: len(words)].astype(np.int64)
            drawn = topics > 0
            np.add.at(counts, (words[drawn], topics[drawn] - 1), 1.0)
        counts[-1] = counts[:-1].sum(axis=0)
        return counts

    def log_likelihood(self, values: Values) -> float:
        """Return the logarithm of the likelihood of a token, on average, by its document's and the topics' word counts."""
        words, total = self._documents.words_all, 0.0
        by_word = (values[:words] + self.beta) / (values[words] + words * self.beta)
        for data in range(self._data):
            tokens = slice(self._bounds[data], self._bounds[data + 1])
            documents, found = self._documents.documents[tokens], self._documents.words[tokens]
            topics = values[self._topic_rows[data] : self._topic_rows[data + 1]].ravel()[: len(found)].astype(np.int64)
            here = documents - documents[0]
            in_documents = np.full((here[-1] + 1, self.topics), self.alpha)
            np.add.at(in_documents, (here[topics > 0], topics[topics > 0] - 1), 1.0)
            in_documents /= in_documents.sum(axis=1, keepdims=True)
            total += float(np.log(np.einsum("ij,ij->i", in_documents[here], by_word[found])).sum())
        return total / len(self._documents.words)


@numba.njit(cache=True, nogil=True)
def draw_topics(  # noqa: PLR0917 - a compiled function takes flat arguments
    counts: NDArray[np.float64],
    topics: NDArray[np.int64],
    documents: NDArray[np.int64],
    words: NDArray[np.int64],
    start: int,
    drawn: NDArray[np.float64],
    priors: NDArray[np.float64],
) -> None:
    """Draw the topics of tokens from `start` on, in place.

    Args:
        counts: of each word, shape (words + 1, topics); the sums last.
        topics: of all tokens, from 1, 0 for none.
        documents: of all tokens.
        words: of all tokens.
        start: first token.
        drawn: a random number in [0, 1) for each token that is drawn.
        priors: alpha, beta, and beta times the number of all words.
    """
    number_of_topics, sums = counts.shape[1], counts[counts.shape[0] - 1]
    weights, of_document = np.empty(number_of_topics), np.zeros(number_of_topics)
    for place in range(len(drawn)):
        token = start + place
        if place == 0 or documents[token] != documents[token - 1]:
            of_document[:] = 0.0
            first = np.searchsorted(documents, documents[token])
            while first < len(topics) and documents[first] == documents[token]:
                if topics[first] > 0:
                    of_document[topics[first] - 1] += 1.0
                first += 1
        row, old = counts[words[token]], topics[token] - 1
        if old >= 0:
            row[old] -= 1.0
            sums[old] -= 1.0
            of_document[old] -= 1.0
        total = 0.0
        for topic in range(number_of_topics):
            total += (of_document[topic] + priors[0]) * (row[topic] + priors[1]) / (sums[topic] + priors[2])
            weights[topic] = total
        new = min(np.searchsorted(weights, drawn[place] * total, "right"), number_of_topics - 1)
        row[new] += 1.0
        sums[new] += 1.0
        of_document[new] += 1.0
        topics[token] = new + 1


def documents_of(texts: Sequence[Sequence[str]], words_max: int) -> tuple[Documents, list[str]]:
    """Return documents as numbers, and the words: the most frequent ones.

    Args:
        texts: the words of each document, in order.
        words_max: how many words to keep.
    """
    every, counts = np.unique([word for text in texts for word in text], return_counts=True)
    kept = np.sort(every[np.argsort(-counts, kind="stable")[:words_max]])
    documents, words = [], []
    for number, text in enumerate(texts):
        places = np.searchsorted(kept, np.array(text, kept.dtype)) if text else np.empty(0, np.int64)
        known = [place for place, word in zip(places, text, strict=True) if place < len(kept) and kept[place] == word]
        documents.append(np.full(len(known), number))
        words.append(np.array(known, np.int64))
    return Documents(np.concatenate(documents), np.concatenate(words), len(texts), len(kept)), [
        str(one) for one in kept
    ]
