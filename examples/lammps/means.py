"""Mean temperature, potential energy and pressure of the second half of a run, from LAMMPS' own log.

A log that was continued after a preemption has some steps twice: the last line of each step counts.
"""

from __future__ import annotations

import sys
from pathlib import Path

NAMES = ("temperature", "pe", "pressure")


def thermo(text: str) -> dict[int, tuple[float, ...]]:
    """Return temperature, potential energy per atom and pressure by step."""
    found: dict[int, tuple[float, ...]] = {}
    inside = False
    for line in text.splitlines():
        words = line.split()
        if words[:2] == ["Step", "Temp"]:
            inside = True
        elif inside and len(words) == 4 and words[0].isdigit():
            found[int(words[0])] = tuple(map(float, words[1:]))
        else:
            inside = False
    return found


def main() -> None:
    """Print the means of the log that is named."""
    lines = thermo(Path(sys.argv[1]).read_text())
    late = [values for step, values in lines.items() if 2 * step >= max(lines)]
    for name, column in zip(NAMES, zip(*late, strict=True), strict=True):
        print(f"mean {name} = {sum(column) / len(late):.6f}")


if __name__ == "__main__":
    main()
