"""spotDNN's Figures 2, 3, 5 and 8: what is drawn beside what the text says of it, and beside what constants can be had.

Source:
    spotDNN (IWQoS 2023); `spotdnn_published` has the points.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from scipy.optimize import curve_fit

from windfall.lab import spotdnn_arms as arms
from windfall.lab import spotdnn_published as paper
from windfall.lab.published_rows import Options, Progress, PublishedRow, cannot, compared, unprinted
from windfall.lab.spotdnn_rows import NO_IDEAL, ON_THEIRS, claim_row
from windfall.models import asp

NO_VGG: Final = "alpha1, beta1, the computation times and the batches of VGG-19 are not published"
NO_ESPER: Final = "alpha1, beta1, the computation times and the batches of EsperBERTo are not published"


# ------------------------------------------------------------------------------------------------------------ Figure 2


VGG_GPU_BATCH: Final = 64
"""FITTED: the batch of a GPU of G4dn in Figure 2b; the bus takes 2 S / B_pcie longer for each GPU."""


def figure_2(options: Options, progress: Progress) -> tuple[PublishedRow, ...]:
    """Return the speeds of VGG-19 by workers and by GPUs."""
    del options, progress
    rows = []
    for workers, _, observed in paper.FIGURE_2A:
        rows.append(cannot("spotDNN, Figure 2a", f"{workers} workers", "speed", unit="samples/s", published=observed,
                           reason=NO_VGG))  # fmt: skip
    last = paper.FIGURE_2A[-1]
    rows.append(claim_row("spotDNN, Figure 2a", "8 workers", "slower than linear", published=paper.FIGURE_2A_SLOWER_PCT,
                          ours=100.0 * (1.0 - last[2] / last[1])))  # fmt: skip
    load_mb = paper.PARAMETERS_MB["VGG-19"]
    alone_s = VGG_GPU_BATCH / paper.FIGURE_2B[0][2]
    for gpus, _, observed in paper.FIGURE_2B:
        iteration_s = alone_s + (gpus - 1) * 2.0 * load_mb / paper.PCIE_MB_PER_S
        rows.append(
            compared("spotDNN, Figure 2b", f"{gpus} GPUs", "speed", unit="samples/s", published=observed,
                     ours=gpus * VGG_GPU_BATCH / iteration_s, tolerance_pct=2.0,
                     method="equation 7 from the speed of one GPU, FITTED batch of 64; matches within 2 %")
        )  # fmt: skip
    last = paper.FIGURE_2B[-1]
    rows.append(claim_row("spotDNN, Figure 2b", "8 GPUs", "slower than linear", published=paper.FIGURE_2B_SLOWER_PCT,
                          ours=100.0 * (1.0 - last[2] / last[1]), reason="152 of 200 samples/s are drawn: 24.0 %"))  # fmt: skip
    return tuple(rows)


# ------------------------------------------------------------------------------------------------------------ Figure 3


def figure_3(options: Options, progress: Progress) -> tuple[PublishedRow, ...]:
    """Return how well equation 3 fits the curves of ResNet-50, and which gamma4 they imply."""
    del options, progress
    rows, scales = [], {}
    source = "spotDNN, Figure 3"
    curves = [(f"batch {batch}", curve) for batch, curve in paper.FIGURE_3A.items()]
    curves += [(f"CC {coefficient:g}", curve) for coefficient, curve in paper.FIGURE_3B.items()]
    for item, curve in curves:
        scales[item], gamma1 = _hyperbola(curve)
        iterations = paper.FIGURE_3_EVERY * (len(curve) - 1)
        rows += [
            compared(source, item, f"loss after {iterations} iterations", unit="", published=curve[-1],
                     ours=scales[item] / (iterations + gamma1), tolerance_pct=0.5, method=HYPERBOLA),
            compared(source, item, "loss at the start", unit="", published=curve[0], ours=scales[item] / gamma1,
                     tolerance_pct=0.5, method=HYPERBOLA),
        ]  # fmt: skip
    local = scales["CC 0"]
    for coefficient in (value for value in paper.FIGURE_3B if value > 0.0):
        gamma4 = coefficient / ((scales[f"CC {coefficient:g}"] / local) ** 2 - 1.0)
        rows.append(
            unprinted(source, f"CC {coefficient:g}", "gamma4 that the curve implies", unit="", ours=gamma4, reason=GAMMA4,
                      method="(CC + gamma4) / gamma4 as the square of the numerators' ratio")
        )  # fmt: skip
    ends = {item: curve[-1] for item, curve in curves}
    slower = 100.0 * (1.0 - ends["CC 0"] / ends["CC 0.93"])
    reason = (
        f"between the curves drawn, the last losses differ by {slower:.1f} % (CC 0 and 0.93), 20.3 % (0.87 and 0.93)"
    )
    rows.append(
        claim_row(source, "CC", "convergence varies", published=paper.FIGURE_3_SLOWER_PCT, ours=slower, reason=reason)
    )
    return tuple(rows)


HYPERBOLA: Final = "FITTED numerator and gamma1 of equation 3, with gamma5 = 0; matches within 0.5 %"
GAMMA4: Final = (
    "one gamma4 would be the same for the three: equation 3 does not describe how the curves of Figure 3b depend on the CC; "
    "nor is their gamma1 one constant, as all curves start at the same loss"
)


def _hyperbola(curve: Sequence[float]) -> tuple[float, float]:
    """Return numerator and gamma1 of loss = numerator / (j + gamma1) by least squares."""
    iterations = paper.FIGURE_3_EVERY * np.arange(len(curve), dtype=np.float64)
    found, _ = curve_fit(
        lambda j, scale, gamma1: scale / (j + gamma1), iterations, np.asarray(curve), p0=(15_000.0, 3_000.0)
    )
    return float(found[0]), float(found[1])


# ------------------------------------------------------------------------------------------------------------ Figure 5


GPU_PAIRS: Final = (
    "CM-DARE's bars are 8, 16 and 32 GPUs at 286.75 samples/s: the axis counts K80 boards of two GPUs; spotDNN's bars are "
    "2146, 4300 and 8500 samples/s, and the repository has 2115 for the first"
)


def figure_5(options: Options, progress: Progress) -> tuple[PublishedRow, ...]:
    """Return predicted and observed times: what constants give, and the errors that the text states."""
    del options, progress
    rows = _figure_5a()
    for place, workers in enumerate(paper.FIGURE_5B_WORKERS):
        half = workers // 2
        source, item = "spotDNN, Figure 5b, Inception-v3", f"{workers} workers"
        observed_s, spotdnn_s, ideal_s = paper.FIGURE_5B["Inception-v3"][place]
        speed = float(asp.cluster_speed(arms.inception(), (0, half, 0, half, 0)).samples_per_s)
        samples = paper.EPOCHS["Inception-v3"] * paper.CIFAR_SAMPLES
        rows += [
            compared(source, item, "speed, predicted", unit="samples/s", published=paper.INCEPTION_SPEEDS[place], ours=speed,
                     tolerance_pct=0.1, method="FITTED constants of Inception-v3, not published; matches within 0.1 %"),
            compared(source, item, "time, predicted", unit="s", published=spotdnn_s, ours=samples / speed,
                     tolerance_pct=0.1, method="FITTED constants of Inception-v3, not published; matches within 0.1 %"),
            cannot(source, item, "time, observed", unit="s", published=observed_s, reason=ON_THEIRS),
            cannot(source, item, "time, CM-DARE", unit="s", published=ideal_s,
                   reason=NO_IDEAL),
        ]  # fmt: skip
        rows += [
            cannot("spotDNN, Figure 5b, EsperBERTo", item, f"time, {name}", unit="s", published=value, reason=reason)
            for name, value, reason in zip(
                ("observed", "predicted", "CM-DARE"), paper.FIGURE_5B["EsperBERTo"][place], (ON_THEIRS, NO_ESPER, NO_ESPER),
                strict=True,
            )
        ]  # fmt: skip
    return (*rows, *_errors())


def _figure_5a() -> list[PublishedRow]:
    rows = []
    samples = paper.EPOCHS["ResNet-110"] * paper.CIFAR_SAMPLES
    for place, gpus in enumerate(paper.FIGURE_5A_GPUS):
        source, item = "spotDNN, Figure 5a, ResNet-110", f"{gpus} GPUs"
        observed_s, spotdnn_s, ideal_s = paper.FIGURE_5A["ResNet-110"][place]
        ideal = 2 * gpus * paper.RESNET_IDEAL_PER_GPU["K80"]
        rows += [
            compared(source, item, "time, CM-DARE", unit="s", published=ideal_s, ours=samples / ideal, tolerance_pct=0.1,
                     method="10 epochs of CIFAR-100 at 286.75 samples/s of each of two GPUs of a board; matches within 0.1 %"),
            cannot(source, item, "time, observed", unit="s", published=observed_s, reason=ON_THEIRS),
        ]  # fmt: skip
        if place == 0:
            rows.append(
                compared(source, item, "time, predicted", unit="s", published=spotdnn_s,
                         ours=samples / paper.RESNET_SAMPLES_PER_S[4], tolerance_pct=0.1,
                         method="the repository's speed of p2.8xl; matches within 0.1 %", reason=GPU_PAIRS)
            )  # fmt: skip
        else:
            rows.append(cannot(source, item, "time, predicted", unit="s", published=spotdnn_s,
                               reason=f"the repository has no speed of this machine; {GPU_PAIRS}"))  # fmt: skip
        rows += [
            cannot("spotDNN, Figure 5a, VGG-19", item, f"time, {name}", unit="s", published=value, reason=reason)
            for name, value, reason in zip(
                ("observed", "predicted", "CM-DARE"), paper.FIGURE_5A["VGG-19"][place], (ON_THEIRS, NO_VGG, NO_VGG), strict=True
            )
        ]  # fmt: skip
    return rows


def _errors() -> list[PublishedRow]:
    """Return the least and largest error of each prediction, from the drawn bars, next to those of the text."""
    bars = {"5a": paper.FIGURE_5A, "5b": paper.FIGURE_5B}
    rows = []
    for figure, whose, least, most in paper.FIGURE_5_ERRORS_PCT:
        column = 1 if whose == "spotDNN" else 2
        loads = [load for load in bars[figure] if "VGG" not in whose or load == "VGG-19"]
        errors = [100.0 * abs(cells[column] / cells[0] - 1.0) for load in loads for cells in bars[figure][load]]
        source, reason = f"spotDNN, Figure {figure}", f"the bars give {', '.join(f'{error:.1f}' for error in errors)} %"
        if least is not None:
            rows.append(claim_row(source, whose, "least error", published=least, ours=min(errors), reason=reason))
        rows.append(claim_row(source, whose, "largest error", published=most, ours=max(errors), reason=reason))
    return rows


# ------------------------------------------------------------------------------------------------------------ Figure 8


TOO_SHORT: Final = (
    "no constants are published, and none give its plans; beside Figure 6b it cannot be: [0,0,0,4,0] would need some 19,700 "
    "iterations for 4.8, so 1.35 s for each of a worker, and its transfers alone take 1.5 s or more"
)
NO_FIGURE_8: Final = "no constants are published, and none were found that give its plans (Table VI)"
COST_DRAWN: Final = (
    "the drawn cost is not the drawn time at the repository's prices, which the other bars of Figures 7 and 8 follow"
)


def figure_8(options: Options, progress: Progress) -> tuple[PublishedRow, ...]:
    """Return the costs of Table VI's plans from the drawn times, and the claim on Homo-fast."""
    del options, progress
    rows, dearer = [], []
    for load, bars in paper.FIGURE_8.items():
        source = f"spotDNN, Figure 8, {load}"
        for arm, (times_s, costs_usd) in bars.items():
            column = ("Homo-slow", "Homo-fast", "spotDNN").index(arm)
            for cell, time_s, cost_usd in zip(paper.TABLE_6[load], times_s, costs_usd, strict=True):
                plan, item = cell[2 + column], f"{arm}, {cell[0]:g} in {cell[1]:g} s"
                ours = time_s * float(np.dot(plan, paper.FIGURE_PRICES)) / 3_600.0
                reason = TOO_SHORT if load == "EsperBERTo" else NO_FIGURE_8
                rows += [
                    cannot(source, item, "time", unit="s", published=time_s, reason=reason),
                    compared(source, item, "cost", unit="USD", published=cost_usd, ours=ours,
                             tolerance_pct=100.0 * 0.1 / cost_usd,
                             method="the printed plan for the drawn time at the repository's prices; matches within 0.1 USD",
                             reason=COST_DRAWN),
                ]  # fmt: skip
        dearer += [
            100.0 * (1.0 - one / other) for one, other in zip(bars["spotDNN"][1], bars["Homo-fast"][1], strict=True)
        ]
    rows.append(claim_row("spotDNN, Figure 8", "Homo-fast", "dearer than spotDNN, at most",
                          published=paper.HOMO_FAST_DEARER_PCT, ours=max(dearer)))  # fmt: skip
    return tuple(rows)
