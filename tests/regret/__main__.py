"""`python -m tests.regret [WORLDS]`: the worst regret of the default policy against insuring always, with its world."""

from __future__ import annotations

import os
import sys
import time

from tests.regret import worlds
from tests.regret.worlds import Regret


def describe(found: Regret) -> str:
    """A regret in a line."""
    return (
        f"world {found.number}: {100 * found.regret:+.3f} % +- {100 * found.stderr:.3f} %, at most "
        f"{100 * found.most:+.3f} % (95 %), {found.histories} histories"
    )


def search(count: int, again: int = worlds.HISTORIES_AGAIN, processes: int | None = None) -> list[Regret]:
    """Search so many worlds, play the worst again from a fresh seed, and return these, the worst first."""
    processes = processes or len(os.sched_getaffinity(0))
    began_s = time.monotonic()
    found = []
    for place, one in enumerate(worlds.regrets(range(count), worlds.HISTORIES, 1, processes)):
        found.append(one)
        if (place + 1) % max(count // 20, 1) == 0:
            worst = max(found, key=lambda each: each.regret)
            print(f"{place + 1} worlds in {time.monotonic() - began_s:.0f} s; so far {describe(worst)}", flush=True)
    counted = [one for one in found if one.histories]
    print(f"{len(counted)} worlds counted; in {count - len(counted)} insuring always takes over {worlds.HOPELESS:g} x")
    mean, better = sum(one.regret for one in counted) / len(counted), sum(one.regret < 0.0 for one in counted)
    print(f"regret in the mean {100 * mean:+.3f} %; better than insuring always in {better}, the best:")
    print(f"  {describe(min(counted, key=lambda one: one.regret))}")
    worst_first = sorted(counted, key=lambda one: -one.regret)[: worlds.WORST]
    numbers = [one.number for one in worst_first]
    once_more = sorted(worlds.regrets(numbers, again, 2, processes), key=lambda one: -one.most)
    print(f"the {len(numbers)} worst again, {again} histories from fresh seeds, {time.monotonic() - began_s:.0f} s:")
    for one in once_more[:10]:
        print(f"  {describe(one)}")
    return once_more


def main() -> None:
    """Search, and show the worst world."""
    worst = search(int(sys.argv[1]) if len(sys.argv) > 1 else worlds.WORLDS)[0]
    print(f"worst regret: {describe(worst)}")
    print(f"{worlds.world(worst.number)}")
    sys.exit(worst.most > worlds.REGRET_MAX)


if __name__ == "__main__":
    main()
