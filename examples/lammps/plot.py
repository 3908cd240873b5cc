"""Plot the equation of state, pressure over density for each temperature, from the results of the bag.

python3 plot.py results.csv [equation-of-state.png]
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt


def isotherms(path: str) -> dict[float, list[tuple[float, float]]]:
    """Return density and pressure by temperature, densities ascending."""
    found: dict[float, list[tuple[float, float]]] = defaultdict(list)
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            if row["pressure"]:
                found[float(row["T"])].append((float(row["rho"]), float(row["pressure"])))
    return {temperature: sorted(points) for temperature, points in sorted(found.items())}


def main() -> None:
    """Read the file named first, and write the picture named second."""
    picture = sys.argv[2] if len(sys.argv) > 2 else "equation-of-state.png"
    figure, axes = plt.subplots(figsize=(6.0, 4.0), layout="constrained")
    for temperature, points in isotherms(sys.argv[1]).items():
        densities = [density for density, _ in points]
        (line,) = axes.plot(densities, [pressure for _, pressure in points], "o-", ms=4, label=f"T = {temperature:g}")
        ideal = [density * temperature for density in densities]
        axes.plot(densities, ideal, ":", lw=0.8, color=line.get_color())
    axes.set(xlabel="density", ylabel="pressure", title="Lennard-Jones fluid (dotted: ideal gas)")
    axes.legend()
    figure.savefig(picture, dpi=150)


if __name__ == "__main__":
    main()
