"""Matrix factorisation by stochastic gradient descent, on a parameter server: ratings as products of users' and items' factors.

The table has the factors of users, then those of items.  A data partition has the ratings of a range of users, ordered by user:
so a user's factors stay in the cache while its ratings are used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from windfall.apps.app_settings import AppSettings
from windfall.apps.data_files import csv_rows, standard_library, write_origin
from windfall.errors import Misuse
from windfall.runtimes.parameter_partition import Rows, Values
from windfall.runtimes.tier_program import PracticeTable, Table, TierApplication
from windfall.structs import Struct

BLOCK_ROWS = 1024
"""Rows whose first values come from one random stream, so that they are the same however rows are dealt to parts."""
GENERATED_AT_ONCE = 1_000_000
"""Ratings whose values are generated at once: it bounds the memory that this takes."""
Factors = NDArray[np.float32]
Places = NDArray[np.int32]


class Ratings(Struct, frozen=True, eq=False):
    """Ratings, ordered by user.

    Attributes:
        users, items: numbers of both, from 0, one for each rating.
        values: the ratings.
        user_names, item_names: what the numbers mean; their lengths say how many users and items there are.
        origin: where the ratings are from.
    """

    users: Places
    items: Places
    values: NDArray[np.float32]
    user_names: NDArray[Any]
    item_names: NDArray[Any]
    origin: dict[str, object]


class RatingsPart(Struct, frozen=True, eq=False):
    """The ratings of a data partition that one clock goes through.

    Attributes:
        rows: of the table that they need: their users' first, then their items'.
        users, items: places in `rows`, one for each rating.
        values: the ratings.
    """

    rows: Rows
    users: Places
    items: Places
    values: NDArray[np.float32]


class MatrixFactorization:
    """`TierProgram`.

    Args:
        ratings: all of them.
        rank: factors of each user and item.
        data: how many data partitions there are.
        clocks_per_epoch: a clock goes through that part of the ratings.
        step_size: of the descent.
        decay: by how much factors are pulled to 0.
        seed: of the first values.

    Raises:
        Misuse: there are fewer users than data partitions.
    """

    def __init__(
        self,
        ratings: Ratings,
        rank: int,
        data: int,
        *,
        clocks_per_epoch: int = 4,
        step_size: float = 0.01,
        decay: float = 0.02,
        seed: int = 0,
    ) -> None:
        self._users, self._items = len(ratings.user_names), len(ratings.item_names)
        if self._users < data:
            raise Misuse(f"{self._users} users are too few for {data} data partitions: each needs one")
        self.rows = self._users + self._items
        self._ratings, self._rank, self._data, self._seed = ratings, rank, data, seed
        self._clocks_per_epoch = clocks_per_epoch
        self._step_size, self._decay = np.float32(step_size), np.float32(decay)

    def first(self, rows: Rows) -> Values:
        """Return small random factors, the same for a row whichever others are asked for."""
        found = np.empty((len(rows), self._rank), np.float32)
        for block in np.unique(rows // BLOCK_ROWS):
            among = rows // BLOCK_ROWS == block
            rng = np.random.default_rng([self._seed, int(block)])
            values = rng.standard_normal((BLOCK_ROWS, self._rank), np.float32) / np.float32(np.sqrt(self._rank))
            found[among] = values[rows[among] % BLOCK_ROWS]
        return found

    def load(self, data: int) -> tuple[RatingsPart, ...]:
        """Return the ratings of a range of users, in the parts that clocks go through."""
        bounds = [data * self._users // self._data, (data + 1) * self._users // self._data]
        start, end = (int(bound) for bound in np.searchsorted(self._ratings.users, bounds))
        each = -(-(end - start) // self._clocks_per_epoch)
        firsts = [min(end, start + number * each) for number in range(self._clocks_per_epoch + 1)]
        return tuple(self._part(first, last) for first, last in pairwise(firsts))

    def compute(self, loaded: tuple[RatingsPart, ...], clock: int, table: Table) -> float | None:
        """Descend along a part of the ratings of a data partition.

        Returns:
            The root mean square error of these ratings, of each just before its step; None without one.
        """
        part = loaded[(clock - 1) % len(loaded)]
        before = table.pull(part.rows)
        after = before.astype(np.float32, copy=True)
        squares = descend(after, part.users, part.items, part.values, self._step_size, self._decay)
        table.push(part.rows, np.subtract(after, before, out=after))
        return math.sqrt(squares / len(part.values)) if len(part.values) else None

    def warm_up(self) -> None:
        """Compile the kernel, or load it."""
        self.compute((self._part(0, 1),), 1, PracticeTable(self))

    def evaluate(self, values: Values) -> float:
        """Return the root mean square error over all ratings."""
        ratings = self._ratings
        factors = values.astype(np.float32, copy=False)
        return math.sqrt(
            squared_errors(factors, ratings.users, ratings.items, ratings.values, self._users) / self.ratings
        )

    def write(self, values: Values, folder: Path) -> None:
        """Write `factors.npz`: `users` and `items`, a row of factors for each, and `user_names` and `item_names`."""
        ratings = self._ratings
        np.savez(
            folder / "factors.npz",
            users=values[: self._users],
            items=values[self._users :],
            user_names=ratings.user_names,
            item_names=ratings.item_names,
        )
        write_origin(ratings.origin, folder)

    @property
    def ratings(self) -> int:
        """How many there are."""
        return len(self._ratings.values)

    def _part(self, first: int, last: int) -> RatingsPart:
        ratings, part = self._ratings, slice(first, last)
        users, places_of_users = np.unique(ratings.users[part], return_inverse=True)
        items, places_of_items = np.unique(ratings.items[part], return_inverse=True)
        return RatingsPart(
            np.concatenate((users.astype(np.int64), self._users + items.astype(np.int64))),
            places_of_users.astype(np.int32),
            (len(users) + places_of_items).astype(np.int32),
            ratings.values[part],
        )


@numba.njit(cache=True, fastmath=True, nogil=True)
def descend(  # noqa: PLR0917 - a compiled function takes flat arguments
    factors: Factors,
    users: Places,
    items: Places,
    values: NDArray[np.float32],
    step_size: np.float32,
    decay: np.float32,
) -> float:
    """Take a step for each rating, in order, in place, and return the sum of squared errors, each just before its step.

    Args:
        factors: shape (rows, rank).
        users: row of each rating's user.
        items: row of each rating's item.
        values: the ratings.
        step_size: of the descent.
        decay: by how much factors are pulled to 0.
    """
    rank, squares = factors.shape[1], 0.0
    for number in range(len(values)):
        user, item = factors[users[number]], factors[items[number]]
        predicted = np.float32(0.0)
        for place in range(rank):
            predicted += user[place] * item[place]
        missed = values[number] - predicted
        squares += missed * missed
        error = step_size * missed
        shrink = np.float32(1.0) - step_size * decay
        for place in range(rank):
            old = user[place]
            user[place] = shrink * old + error * item[place]
            item[place] = shrink * item[place] + error * old
    return squares


@numba.njit(cache=True, nogil=True)
def squared_errors(
    factors: Factors, users: Places, items: Places, values: NDArray[np.float32], users_all: int
) -> float:
    """Return the sum of squared errors of ratings.

    Args:
        factors: of all users, then of all items.
        users: number of each rating's user.
        items: number of each rating's item.
        values: the ratings.
        users_all: how many users there are.
    """
    total = 0.0
    for number in range(len(values)):
        user, item = factors[users[number]], factors[users_all + items[number]]
        predicted = 0.0
        for place in range(factors.shape[1]):
            predicted += user[place] * item[place]
        total += (values[number] - predicted) ** 2
    return total


def generated(users: int, items: int, ratings: int, *, rank: int = 8, noise: float = 0.1, seed: int = 0) -> Ratings:
    """Return generated ratings: products of random factors; items are in demand by a power law, and a pair may come twice.

    Args:
        users: how many; each has ratings / users ratings, or one more.
        items: how many.
        ratings: how many, of all users.
        rank: of the factors.
        noise: standard deviation of what the products do not say.
        seed: of chance.
    """
    rng = np.random.default_rng(seed)
    left, right = rng.standard_normal((users, rank), np.float32), rng.standard_normal((items, rank), np.float32)
    demand = np.cumsum(1.0 / np.arange(1, items + 1))
    numbers = np.arange(ratings) * users // ratings
    pairs = np.sort(numbers * items + np.searchsorted(demand, rng.random(ratings) * demand[-1]))
    chosen_users, chosen_items = (pairs // items).astype(np.int32), (pairs % items).astype(np.int32)
    values = np.float32(noise) * rng.standard_normal(ratings, np.float32)
    for start in range(0, ratings, GENERATED_AT_ONCE):
        some = slice(start, start + GENERATED_AT_ONCE)
        products = np.einsum("ij,ij->i", left[chosen_users[some]], right[chosen_items[some]])
        values[some] += products / np.float32(np.sqrt(rank))
    origin: dict[str, object] = {
        "source": "generated",
        "users": users,
        "items": items,
        "ratings": ratings,
        "seed": seed,
    }
    return Ratings(chosen_users, chosen_items, values, np.arange(users), np.arange(items), origin)


def with_negatives(
    users: NDArray[Any], items: NDArray[Any], origin: dict[str, object], *, negatives: int, seed: int
) -> Ratings:
    """Return pairs that were seen as ratings of 1, and pairs that were not, drawn at random, as ratings of 0.

    Args:
        users: name of each pair's user; a pair that comes twice counts once.
        items: name of each pair's item.
        origin: where they are from.
        negatives: pairs that are drawn for each user for each of its own; those that were seen are thrown away.
        seed: of the draws.
    """
    user_names, numbers = np.unique(users, return_inverse=True)
    item_names, chosen = np.unique(items, return_inverse=True)
    seen = np.unique(numbers * len(item_names) + chosen)
    repeated = np.repeat(seen // len(item_names), negatives) * len(item_names)
    drawn = np.unique(repeated + np.random.default_rng(seed).integers(0, len(item_names), len(repeated)))
    unseen = np.setdiff1d(drawn, seen, assume_unique=True)
    pairs = np.concatenate((seen, unseen))
    values = np.concatenate((np.ones(len(seen), np.float32), np.zeros(len(unseen), np.float32)))
    # By chance within a user, so that each part of its ratings has both kinds and items of all names.
    order = np.lexsort((np.random.default_rng([seed, 1]).random(len(pairs)), pairs // len(item_names)))
    pairs = pairs[order]
    return Ratings(
        (pairs // len(item_names)).astype(np.int32),
        (pairs % len(item_names)).astype(np.int32),
        values[order],
        user_names,
        item_names,
        {**origin, "pairs": len(seen), "negatives": len(unseen), "seed": seed},
    )


def modules_and_words(digest: str | None, *, negatives: int, seed: int) -> Ratings:
    """Return which module of Python's standard library has which word, with sampled negatives.

    Raises:
        Misuse: the library has another digest.
    """
    library = standard_library(digest)
    words = [sorted(set(text)) for text in library.words]
    users = np.repeat(np.array(library.names), [len(some) for some in words])
    items = np.array([word for some in words for word in some])
    return with_negatives(users, items, library.origin(), negatives=negatives, seed=seed)


def read_ratings(path: Path, *, negatives: int, seed: int) -> Ratings:
    """Return the ratings of a file with columns user, item and value; or, without values, its pairs with sampled negatives.

    Raises:
        Misuse: it cannot be read, or a value is no finite number.
    """
    rows = csv_rows(path, "user,item or user,item,value", 2, 3)
    users, items = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
    origin: dict[str, object] = {"source": "file", "file": str(path)}
    if len(rows[0]) == 2:
        return with_negatives(users, items, origin, negatives=negatives, seed=seed)
    values = np.empty(len(rows), np.float32)
    for number, row in enumerate(rows):
        try:
            values[number] = float(row[2])
        except ValueError:
            values[number] = math.nan
        if not math.isfinite(values[number]):
            raise Misuse(f"settings.file: {path}:{number + 2}: the value must be a finite number, not {row[2]!r}")
    user_names, numbers = np.unique(users, return_inverse=True)
    item_names, chosen = np.unique(items, return_inverse=True)
    order = np.argsort(numbers, kind="stable")
    return Ratings(
        numbers[order].astype(np.int32), chosen[order].astype(np.int32), values[order], user_names, item_names, origin
    )


def program(settings: Mapping[str, object], data: int) -> TierApplication:
    """Return the program that an application's settings describe.

    Settings:
        source: `generated` (default) or `standard-library`: which module has which word, with sampled negatives.
        file: comma-separated values with a first line of names: user, item, value; or user, item, with sampled negatives.
        users (2000), items (500), ratings (100000): of generated data.
        negatives (4), digest: for pairs: see `with_negatives` and `data_files.standard_library`.
        rank (16), rate (0.01), decay (0.02), clocks (4, for each epoch), seed (1): of the descent.

    Args:
        settings: by name.
        data: how many data partitions there are.

    Raises:
        Misuse: a setting is wrong, or data cannot be read.
    """
    given = AppSettings(settings)
    seed = given.whole("seed", 1, least=0)
    rank, clocks = given.whole("rank", 16, most=10_000), given.whole("clocks", 4, most=10_000)
    rate, decay = given.number("rate", 0.01, most=10.0), given.number("decay", 0.02, most=10.0)
    source = given.source("ratings.csv", ("generated", "standard-library"))
    if source == "generated":
        users, items = given.whole("users", 2000), given.whole("items", 500)
        wanted = given.whole("ratings", 100_000)
        given.end()
        if wanted < users:
            raise Misuse(f"settings.ratings must be at least the number of users, {users}, not {wanted}")
        ratings = generated(users, items, wanted, seed=seed)
    else:
        negatives = given.whole("negatives", 4, most=1000)
        digest = None if isinstance(source, Path) else given.text("digest", "its SHA-256")
        given.end()
        if isinstance(source, Path):
            ratings = read_ratings(source, negatives=negatives, seed=seed)
        else:
            ratings = modules_and_words(digest, negatives=negatives, seed=seed)
    return MatrixFactorization(ratings, rank, data, clocks_per_epoch=clocks, step_size=rate, decay=decay, seed=seed)
