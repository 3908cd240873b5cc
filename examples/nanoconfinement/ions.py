"""Ions between two neutral walls: the density at contact and in the middle, by Metropolis Monte Carlo.

The primitive model of an electrolyte: charged hard spheres in water (Bjerrum length 0.714 nm), walls at z = 0 and z = h,
periodic in x and y with the nearest image.  The parameters are those of "ions in nanoconfinement": the distance h of the
walls, the valency of the positive ions, the concentration of the salt, and the diameter of the ions.  A box this small
has no long-range correction, so the numbers are those of an example, and not of a publication.

It saves after every `--save-every` seconds of work (0: never) and continues from its save to the same last digit.
"""

from __future__ import annotations

import argparse
import json
import os
import time

import numpy as np

BJERRUM_NM = 0.714
SIDE_NM = 5.0
PER_NM3 = 0.6022
"""Ions per cubic nanometre in one mole per litre."""
BINS = 40
STATE = "state.npz"


class Ions:
    """Positions [nm] and charges of all ions, and the histogram of their heights."""

    def __init__(self, h: float, valency: int, molar: float, diameter: float, seed: int) -> None:
        self.h, self.diameter = h, diameter
        self.rng = np.random.default_rng(seed)
        positive = max(round(molar * PER_NM3 * SIDE_NM**2 * h / 2.0), 2)
        self.charges = np.concatenate((np.full(positive, float(valency)), np.full(positive * valency, -1.0)))
        self.places = np.empty((0, 3))
        while len(self.places) < len(self.charges):
            place = self._anywhere()
            if len(self.places) == 0 or self._distances(place, self.places).min() >= diameter:
                self.places = np.vstack((self.places, place))
        self.heights = np.zeros(BINS)
        self.sweeps = 0

    def _anywhere(self) -> np.ndarray:
        low = np.array([0.0, 0.0, self.diameter / 2.0])
        high = np.array([SIDE_NM, SIDE_NM, self.h - self.diameter / 2.0])
        return self.rng.uniform(low, high)

    def _distances(self, place: np.ndarray, others: np.ndarray) -> np.ndarray:
        apart = others - place
        apart[:, :2] -= SIDE_NM * np.round(apart[:, :2] / SIDE_NM)
        return np.sqrt(np.einsum("ij,ij->i", apart, apart))

    def sweep(self, *, counts: bool) -> None:
        """Try to move each ion once."""
        count = len(self.charges)
        steps = self.rng.uniform(-0.4, 0.4, (count, 3))
        chances = np.log(self.rng.uniform(size=count))
        for ion in range(count):
            place = self.places[ion] + steps[ion]
            place[:2] %= SIDE_NM
            if not self.diameter / 2.0 <= place[2] <= self.h - self.diameter / 2.0:
                continue
            after = self._distances(place, self.places)
            after[ion] = np.inf
            if after.min() < self.diameter:
                continue
            before = self._distances(self.places[ion], self.places)
            before[ion] = np.inf
            energy = BJERRUM_NM * self.charges[ion] * float(self.charges @ (1.0 / after - 1.0 / before))
            if chances[ion] < -energy:
                self.places[ion] = place
        self.sweeps += 1
        if counts:
            reach = self.h - self.diameter
            bins = ((self.places[:, 2] - self.diameter / 2.0) / reach * BINS).astype(int)
            self.heights += np.bincount(np.clip(bins, 0, BINS - 1), minlength=BINS)

    def densities(self, counted: int) -> dict[str, float]:
        """Return the density of all ions at the walls and in the middle [mol/l], and the pressure at the walls [kT/nm^3]."""
        volume = SIDE_NM**2 * (self.h - self.diameter) / BINS
        profile = self.heights / (counted * volume)
        contact = float(profile[:2].mean() + profile[-2:].mean()) / 2.0
        middle = float(profile[BINS // 2 - 4 : BINS // 2 + 4].mean())
        return {"contact": contact / PER_NM3, "middle": middle / PER_NM3, "pressure": contact}

    def save(self) -> None:
        """Write the state whole, or not at all."""
        generator = json.dumps(self.rng.bit_generator.state)
        with open(f"{STATE}.new", "wb") as file:
            np.savez(file, places=self.places, heights=self.heights, sweeps=self.sweeps, generator=generator)
        os.replace(f"{STATE}.new", STATE)

    def restore(self) -> None:
        """Continue from the state that was saved."""
        with np.load(STATE) as found:
            self.places, self.heights, self.sweeps = found["places"], found["heights"], int(found["sweeps"])
            self.rng.bit_generator.state = json.loads(str(found["generator"]))


def main() -> None:
    """Run, and write `densities.json`."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, kind in (("h", float), ("valency", int), ("molar", float), ("diameter", float), ("seed", int)):
        parser.add_argument(f"--{name}", type=kind, required=True)
    parser.add_argument("--sweeps", type=int, default=1500)
    parser.add_argument("--restart", type=int, default=0)
    parser.add_argument("--save-every", type=float, default=0.0)
    given = parser.parse_args()
    ions = Ions(given.h, given.valency, given.molar, given.diameter, given.seed)
    if given.restart:
        ions.restore()
        print(f"continues after {ions.sweeps} sweeps", flush=True)
    warm, saved_at = given.sweeps // 5, time.monotonic()
    while ions.sweeps < given.sweeps:
        ions.sweep(counts=ions.sweeps >= warm)
        if given.save_every and time.monotonic() - saved_at >= given.save_every:
            ions.save()
            saved_at = time.monotonic()
    with open("densities.json", "w") as file:
        json.dump(ions.densities(given.sweeps - warm), file)


if __name__ == "__main__":
    main()
