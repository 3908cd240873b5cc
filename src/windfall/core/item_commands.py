"""What an item runs: the bag's command with the item's parameters, and the variables that it finds in its environment."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

from windfall.bags import Bag, Value
from windfall.structs import Struct

ITEM, SEED, ATTEMPT, PARAMETERS = "WINDFALL_ITEM", "WINDFALL_SEED", "WINDFALL_ATTEMPT", "WINDFALL_PARAMETERS"
"""Variables of an item: its number from 0, its seed, the number of its try from 1, its parameters as a JSON object."""
RESTART, RESTART_FILE, SAVE_EVERY = "WINDFALL_RESTART", "WINDFALL_RESTART_FILE", "WINDFALL_SAVE_EVERY_S"
"""Variables of an item: 1 if there is a save to continue from, else 0; its newest file; how often to save [s]."""
NO_FILE = "none"
"""What {{restart_file}} is without a save."""
OWN = ("item", "seed", "restart", "restart_file", "save_every_s")
CPUS = "WINDFALL_CPUS"
"""Variable of an item: on how many processors it runs."""
RANKS, REPEAT, SIZE = "ranks", "repeat", "cpus"
"""Names that a command may use beside the parameters: RANKS in a bag with ranks, SIZE in one with several numbers of
processors, and the parameter that tells repeats apart."""
_PLACE = re.compile(r"\{\{\s*([A-Za-z_][A-Za-z0-9_]*)\s*\}\}")
_SEED_BITS = 31


def places(command: str) -> Iterator[tuple[str, int]]:
    """Yield each name that a command uses, with its offset."""
    for found in _PLACE.finditer(command):
        yield found[1], found.start()


def unused(bag: Bag, command: str) -> tuple[str, ...]:
    """Return the parameters that a command never uses; none if it uses the item's number, which stands for all."""
    used = {name for name, _ in places(command)}
    if "item" in used or ITEM in command or PARAMETERS in command:
        return ()
    return tuple(name for name in bag.parameters if name not in {*used, bag.weight, REPEAT})


def text_of(value: Value) -> str:
    """Return a parameter as programs read it: 0.1 and not 0.10000000000000001, 3 and not 3.0, true and false."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value)) if "e" not in repr(value) else repr(value)
    return str(value)


def item_seed(seed: int, values: Sequence[Value]) -> int:
    """Return the seed of an item: below 2^31, the same for each of its tries, and unlike that of its neighbours.

    It follows from the item's parameters and not from its number, so that a file with more rows changes none.
    """
    digest = hashlib.blake2b(json.dumps([seed, *values]).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> (64 - _SEED_BITS)


class ItemTry(Struct, frozen=True):
    """What a try of an item continues from, how often it saves, and on how many processors it runs.

    Attributes:
        file: the newest file of the save that is in its folder; empty for none.
        save_every_s: work between two saves [s]; 0 for never.
        cpus: its processors, if they are fewer than the item wants.
    """

    file: str = ""
    save_every_s: float = 0.0
    cpus: float | None = None

    def texts(self) -> dict[str, str]:
        """Return the values of a command's places."""
        return {
            "restart": "1" if self.file else "0",
            "restart_file": self.file or NO_FILE,
            "save_every_s": f"{self.save_every_s:.4g}" if self.save_every_s < 1e4 else f"{self.save_every_s:.0f}",
        }


FIRST = ItemTry()


def ranks_of(ranks: int, cores: float, cpus: float) -> float:
    """Return how many ranks an item has on fewer processors than it wants: the same number on each of them."""
    return ranks * cpus / cores


def filled(argv: Sequence[str], bag: Bag, values: Sequence[Value], *, item: int, this: ItemTry = FIRST) -> list[str]:
    """Return a command with an item's parameters; each is one word for the shell, whatever characters it has.

    Args:
        argv: the bag's command; {{name}} in it stands for a parameter.
        bag: with the names of the parameters.
        values: of the item's parameters.
        item: its number.
        this: how this try runs.
    """
    known = {"item": str(item), "seed": str(item_seed(bag.seed, values))}
    if bag.ranks is not None:
        known[RANKS] = f"{ranks_of(bag.ranks, bag.cores, this.cpus or bag.cores):.0f}"
    if bag.smaller:
        known[SIZE] = text_of(this.cpus or bag.cores)
    known |= {name: shlex.quote(text) for name, text in this.texts().items()}
    known |= {name: shlex.quote(text_of(value)) for name, value in zip(bag.parameters, values, strict=True)}
    return [_PLACE.sub(lambda found: known.get(found[1], found[0]), word) for word in argv]


def variables(bag: Bag, values: Sequence[Value], *, item: int, attempt: int, this: ItemTry) -> Mapping[str, str]:
    """Return the variables of an item, whose try has the number `attempt`."""
    texts = this.texts()
    return {
        CPUS: text_of(this.cpus or bag.cores),
        RESTART: texts["restart"],
        RESTART_FILE: this.file,
        SAVE_EVERY: texts["save_every_s"],
        ITEM: str(item),
        SEED: str(item_seed(bag.seed, values)),
        ATTEMPT: str(attempt),
        PARAMETERS: json.dumps(dict(zip(bag.parameters, values, strict=True))),
    }
