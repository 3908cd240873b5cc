"""A surrogate of the simulation: contact and middle density from the parameters, fitted on the results of a bag.

    python3 fit.py results.csv [surrogate.json]

A polynomial of second order in the scaled parameters, by ridge regression; the penalty is the one that predicts best what
it was not fitted to.  Each row is predicted by a fit without it, and the error that is printed is the error of these
predictions, beside that of the mean alone.
"""

from __future__ import annotations

import csv
import itertools
import json
import sys

import numpy as np

INPUTS = ("h", "valency", "molar", "diameter")
OUTPUTS = ("contact", "middle")
PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)


def features(scaled: np.ndarray) -> np.ndarray:
    """Return 1, each parameter, and each product of two, for each row."""
    pairs = [scaled[:, a] * scaled[:, b] for a, b in itertools.combinations_with_replacement(range(scaled.shape[1]), 2)]
    return np.column_stack((np.ones(len(scaled)), scaled, *pairs))


def left_out(table: np.ndarray, wanted: np.ndarray, penalty: float) -> np.ndarray:
    """Return the prediction of each row by the fit without that row, in closed form from the hat matrix."""
    hat = table @ np.linalg.solve(table.T @ table + penalty * np.eye(table.shape[1]), table.T)
    residual = wanted - hat @ wanted
    return wanted - residual / (1.0 - np.diag(hat))


def main() -> None:
    """Fit, print the errors, and write the coefficients."""
    with open(sys.argv[1], newline="") as file:
        rows = [row for row in csv.DictReader(file) if all(row[name] for name in OUTPUTS)]
    inputs = np.array([[float(row[name]) for name in INPUTS] for row in rows])
    center, width = inputs.mean(axis=0), inputs.std(axis=0)
    table = features((inputs - center) / width)
    found: dict[str, object] = {"inputs": INPUTS, "center": center.tolist(), "width": width.tolist(), "rows": len(rows)}
    for name in OUTPUTS:
        wanted = np.array([float(row[name]) for row in rows])
        errors = {penalty: np.std(left_out(table, wanted, penalty) - wanted) for penalty in PENALTIES}
        penalty = min(errors, key=lambda one: errors[one])
        explained = 1.0 - (errors[penalty] / wanted.std()) ** 2
        weights = np.linalg.solve(table.T @ table + penalty * np.eye(table.shape[1]), table.T @ wanted)
        found[name] = {
            "weights": weights.tolist(),
            "penalty": penalty,
            "error": float(errors[penalty]),
            "explained": explained,
        }
        print(
            f"{name}: error {errors[penalty]:.4f} mol/l, {wanted.std():.4f} of the mean alone, {explained:.1%} explained"
        )
    with open(sys.argv[2] if len(sys.argv) > 2 else "surrogate.json", "w") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main()
