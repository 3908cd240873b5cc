"""Matrix factorisation by stochastic gradient descent, on a parameter server: ratings as products of users' and items' factors.

The table has the factors of users, then those of items.  A data partition has the ratings of a range of users, ordered by user:
so a user's factors stay in the cache while its ratings are used.
"""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from windfall.runtimes.parameter_partition import Rows, Values
from windfall.runtimes.tier_program import Table
from windfall.structs import Struct

BLOCK_ROWS = 1024
"""Rows whose first values come from one random stream, so that they are the same however rows are dealt to parts."""
Factors = NDArray[np.float32]


class Ratings(Struct, frozen=True, eq=False):
    """Ratings, ordered by user.

    Attributes:
        users, items: numbers of both, from 0, one for each rating.
        values: the ratings.
        users_all, items_all: how many users and items there are.
    """

    users: NDArray[np.int64]
    items: NDArray[np.int64]
    values: NDArray[np.float32]
    users_all: int
    items_all: int


class RatingsBlock(Struct, frozen=True, eq=False):
    """The ratings of a data partition.

    Attributes:
        rows: of the table that they need: their users' first, then their items'.
        users, items: places in `rows`, one for each rating.
        values: the ratings.
    """

    rows: Rows
    users: NDArray[np.int64]
    items: NDArray[np.int64]
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
        self.rows = ratings.users_all + ratings.items_all
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

    def load(self, data: int) -> RatingsBlock:
        """Return the ratings of a range of users."""
        ratings = self._ratings
        bounds = [data * ratings.users_all // self._data, (data + 1) * ratings.users_all // self._data]
        start, end = np.searchsorted(ratings.users, bounds)
        users, places_of_users = np.unique(ratings.users[start:end], return_inverse=True)
        items, places_of_items = np.unique(ratings.items[start:end], return_inverse=True)
        rows = np.concatenate((users, ratings.users_all + items))
        return RatingsBlock(rows, places_of_users, len(users) + places_of_items, ratings.values[start:end])

    def compute(self, loaded: RatingsBlock, clock: int, table: Table) -> None:
        """Descend along a part of the ratings of a data partition."""
        each = -(-len(loaded.values) // self._clocks_per_epoch)
        start = (clock - 1) % self._clocks_per_epoch * each
        part = slice(start, start + each)
        before = table.pull(loaded.rows)
        after = before.astype(np.float32, copy=True)
        descend(after, loaded.users[part], loaded.items[part], loaded.values[part], self._step_size, self._decay)
        table.push(loaded.rows, after - before)

    def loss(self, factors: Factors) -> float:
        """Return the root mean square error over all ratings."""
        ratings = self._ratings
        users, items = factors[ratings.users], factors[ratings.users_all + ratings.items]
        return float(np.sqrt(np.mean((ratings.values - np.einsum("ij,ij->i", users, items)) ** 2)))


@numba.njit(cache=True, fastmath=True, nogil=True)
def descend(  # noqa: PLR0917 - a compiled function takes flat arguments
    factors: Factors,
    users: NDArray[np.int64],
    items: NDArray[np.int64],
    values: NDArray[np.float32],
    step_size: np.float32,
    decay: np.float32,
) -> None:
    """Take a step for each rating, in order, in place.

    Args:
        factors: shape (rows, rank).
        users: row of each rating's user.
        items: row of each rating's item.
        values: the ratings.
        step_size: of the descent.
        decay: by how much factors are pulled to 0.
    """
    rank = factors.shape[1]
    for number in range(len(values)):
        user, item = factors[users[number]], factors[items[number]]
        predicted = np.float32(0.0)
        for place in range(rank):
            predicted += user[place] * item[place]
        error = step_size * (values[number] - predicted)
        shrink = np.float32(1.0) - step_size * decay
        for place in range(rank):
            old = user[place]
            user[place] = shrink * old + error * item[place]
            item[place] = shrink * item[place] + error * old


def generated(users: int, items: int, each: int, *, rank: int = 8, noise: float = 0.1, seed: int = 0) -> Ratings:
    """Return generated ratings: products of random factors, items in demand by a power law.

    Args:
        users: how many.
        items: how many.
        each: ratings of each user.
        rank: of the factors.
        noise: standard deviation of what the products do not say.
        seed: of chance.
    """
    rng = np.random.default_rng(seed)
    left, right = rng.standard_normal((users, rank)), rng.standard_normal((items, rank))
    demand = 1.0 / np.arange(1, items + 1)
    rated = np.sort(rng.choice(items, (users, each), p=demand / demand.sum()), axis=1)
    numbers = np.repeat(np.arange(users), each)
    chosen = rated.ravel()
    values = np.einsum("ij,ij->i", left[numbers], right[chosen]) / np.sqrt(rank) + noise * rng.standard_normal(
        len(chosen)
    )
    return Ratings(numbers, chosen, values.astype(np.float32), users, items)
