"""Sums over a step's micro-batches whose last bit does not depend on the shape.

Floating-point addition is not associative, so the order is fixed by the micro-batches' numbers alone: a binary tree whose node
(level, place) is the sum of micro-batches place 2^level and the next 2^level - 1, as far as there are that many.  A pipeline
has a range of them, and of that the largest whole nodes; replicas of a stage merge what they have, in any order, and get the
same root to the last bit.  A pipeline keeps at most 2 log2 n partial sums of n micro-batches.

Why not in order of the numbers: then each pipeline had to keep the gradients of all of its micro-batches until the one
before it is done.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Node = tuple[int, int]


class PairwiseSum:
    """Some nodes of the tree over `count` micro-batches.

    Args:
        count: micro-batches of the step.

    Attributes:
        nodes: sums by (level, place); sums are added in place.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self.nodes: dict[Node, Any] = {}

    def add(self, number: int, value: Any) -> None:
        """Add a micro-batch's value, which is the sum's own from now on."""
        self.put((0, number), value)

    def put(self, node: Node, value: Any) -> None:
        """Add a node, and join it with its neighbour as far as that is there."""
        level, place = node
        while (1 << level) < self._count:
            left, right = place - place % 2, place - place % 2 + 1
            if right << level >= self._count:
                # It has no neighbour: the node above is the same sum.
                level, place = level + 1, place // 2
                continue
            other = self.nodes.pop((level, right if place == left else left), None)
            if other is None:
                break
            # Of tensors in place; a + b and b + a are the same number.
            value += other
            level, place = level + 1, place // 2
        self.nodes[level, place] = value

    def root(self) -> Any:
        """Return the whole sum."""
        assert len(self.nodes) == 1, self.nodes.keys()
        return next(iter(self.nodes.values()))


def nodes_of(numbers: Iterable[int], count: int) -> list[Node]:
    """Return the nodes that are left of these micro-batches, in order."""
    found = PairwiseSum(count)
    for number in numbers:
        found.add(number, 0)
    return sorted(found.nodes)
