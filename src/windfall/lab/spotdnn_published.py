"""Numbers that spotDNN prints or draws, and the constants that are published or follow from them.

Figures are read from the vector drawing of the paper's PDF; its precision is about 0.05 s, 0.01 of a loss, 1 iteration.

Source:
    R. Shang et al., "spotDNN: provisioning spot instances for predictable distributed DNN training in the cloud", IWQoS 2023;
    its repository `icloud-ecnu/spotDNN` (MIT).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

Plan = tuple[int, int, int, int, int]
"""Workers of each of `TYPES`, in the order of Tables V and VI."""
TYPES: Final = ("p3.2xl", "g4dn.4xl", "g3.8xl", "g3.16xl", "p2.8xl")
GPU: Final = ("V100", "T4", "M60", "M60", "K80")
GPUS: Final = (1, 1, 2, 4, 8)
QUOTAS: Final = (2, 5, 5, 8, 5)
"""The repository's; the third and fourth plan of Table V need no more."""
TABLE_1_QUOTAS: Final = (0, 5, 5, 5, 5)

SERVER_MB_PER_S, PCIE_MB_PER_S = 1_200.0, 10_000.0
"""Section V-A."""
PARAMETERS_MB: Final = {"ResNet-110": 11.54, "EsperBERTo": 336.0, "VGG-19": 574.0, "Inception-v3": 98.0}
REQUIRED_MB_PER_S: Final = {"ResNet-110": 142.0, "EsperBERTo": 543.0, "VGG-19": 620.0, "Inception-v3": 562.0}
"""Table IV."""

FIGURE_PRICES: Final = (0.918, 0.3612, 0.684, 1.5676, 2.16)
"""USD per hour of the repository, which Figures 7 and 8 use."""
TABLE_1_PRICES: Final = (0.918, 0.3612, 0.684, 1.368, 2.16)
"""Those that Table I's costs follow from: another one for g3.16xl."""
TABLE_3_PRICES: Final = (1.25, 0.36, 0.69, 1.37, 2.16)
ON_DEMAND_PRICES: Final = (3.06, 1.2, 2.28, 4.56, 7.2)
"""Table III, spot and on demand."""

RESNET: Final[Mapping[str, float]] = {
    "parameters_mb": 11.5,
    "required_mb_per_s": 142.0,
    "alpha1": 0.8,
    "beta1": -1.92,
    "gamma1": 876.5,
    "gamma2": -0.2,
    "gamma3": 2507.6,
    "gamma5": 0.5,
}
"""The repository's `instanceinfo.py`; there is no gamma4, as its loss has sqrt(n)."""
RESNET_SAMPLES_PER_S: Final = (1_885.0, 750.0, 1_018.0, 1_995.0, 2_115.0)
RESNET_GPU_BATCH: Final = (1_024, 1_024, 512, 512, 1_024)
RESNET_IDEAL_PER_GPU: Final = {"V100": 1_885.0, "T4": 750.0, "M60": 530.0, "K80": 286.75}
"""FITTED: CM-DARE+'s samples per second of one GPU alone; with 525 or 535 for M60 one of its four plans is lost."""

INCEPTION: Final[Mapping[str, float]] = {
    "parameters_mb": 98.0,
    "required_mb_per_s": 562.0,
    "alpha1": 0.526168,
    "beta1": -0.709344,
    "gamma1": 4_135.29,
    "gamma2": -28.1096,
    "gamma3": 14_764.2288,
    "gamma5": 0.308311,
}
INCEPTION_COMPUTE_S: Final = {"V100": 0.445551, "T4": 0.455872, "M60": 0.386258, "K80": 3.60031}
INCEPTION_GPU_BATCH: Final = {"V100": 128, "T4": 64, "M60": 32, "K80": 64}
"""FITTED: ten numbers and the batches, to seven times and speeds and the plans of Table V; one with gamma1 3,364 is as good."""

ESPER_GAMMA1, ESPER_GAMMA5, ESPER_SCALE = 7_196.418, 3.51013, 49_010.447
"""FITTED to the four points of Figure 6b: gamma1, gamma5, and the numerator on 4 g4dn.4xl and 4 g3.16xl."""

ARMS: Final = ("on demand", "CM-DARE+", "Srifty+", "spotDNN")

TABLE_1: Final[Mapping[str, tuple[Plan, float, float, float]]] = {
    "on demand": ((0, 0, 5, 3, 0), 2_549.02, 17.75, 0.02),
    "CM-DARE+": ((0, 0, 4, 3, 0), 2_710.85, 5.16, 0.02),
    "Srifty+": ((0, 2, 5, 2, 0), 2_597.34, 4.97, 0.21),
    "spotDNN": ((0, 0, 5, 3, 0), 2_549.02, 5.33, 0.02),
}
"""Plan, time [s], cost [USD] and time of the search [s], for a loss of 0.8 in 2,600 s."""
TABLE_1_GOAL: Final = (0.8, 2_600.0)

RESNET_GOALS: Final = ((0.9, 1_900.0), (0.8, 2_400.0), (0.7, 3_700.0))
INCEPTION_GOALS: Final = ((1.2, 4_500.0), (1.1, 5_400.0), (1.0, 6_700.0))
TABLE_5_RESNET: Final[Mapping[str, tuple[Plan, Plan, Plan]]] = {
    "on demand": ((2, 0, 2, 0, 0), (2, 0, 4, 0, 0), (2, 1, 4, 0, 0)),
    "CM-DARE+": ((2, 0, 2, 0, 0), (2, 0, 3, 0, 0), (2, 0, 3, 0, 0)),
    "Srifty+": ((2, 0, 2, 0, 0), (2, 0, 4, 0, 0), (2, 1, 3, 0, 0)),
    "spotDNN": ((2, 0, 2, 0, 0), (2, 0, 4, 0, 0), (2, 1, 4, 0, 0)),
}
TABLE_5_INCEPTION: Final[Mapping[str, tuple[Plan, Plan, Plan]]] = {
    "on demand": ((2, 0, 0, 3, 0), (2, 0, 0, 2, 0), (2, 0, 1, 0, 0)),
    "CM-DARE+": ((2, 0, 0, 1, 0), (0, 5, 2, 0, 0), (0, 5, 2, 0, 0)),
    "Srifty+": ((2, 0, 0, 3, 0), (2, 0, 0, 2, 0), (2, 0, 2, 0, 0)),
    "spotDNN": ((2, 0, 0, 3, 0), (2, 0, 0, 2, 0), (2, 0, 1, 0, 0)),
}
FIGURE_7_RESNET: Final[Mapping[str, tuple[tuple[float, float, float], tuple[float, float, float]]]] = {
    "on demand": ((1_876.04, 2_340.76, 3_568.33), (5.6, 9.9, 15.1)),
    "CM-DARE+": ((1_876.04, 2_494.15, 3_851.96), (1.6, 2.6, 4.0)),
    "Srifty+": ((1_876.04, 2_340.76, 3_694.59), (1.6, 2.9, 4.42)),
    "spotDNN": ((1_876.04, 2_340.76, 3_568.33), (1.6, 2.9, 4.5)),
}
FIGURE_7_INCEPTION: Final[Mapping[str, tuple[tuple[float, float, float], tuple[float, float, float]]]] = {
    "on demand": ((4_489.93, 5_359.66, 6_607.5), (24.7, 22.7, 19.6)),
    "CM-DARE+": ((4_639.42, 6_523.85, 7_806.34), (4.3, 5.8, 6.9)),
    "Srifty+": ((4_489.93, 5_359.66, 6_623.5), (8.1, 7.4, 5.9)),
    "spotDNN": ((4_489.93, 5_359.66, 6_607.5), (8.1, 7.4, 6.1)),
}
"""Times [s] and costs [USD] at the three goals; costs are cut or rounded to 0.1."""

TABLE_6: Final[Mapping[str, tuple[tuple[float, float, Plan, Plan, Plan, tuple[float, float, float]], ...]]] = {
    "VGG-19": (
        (4.6, 2_700.0, (0, 2, 0, 0, 0), (2, 0, 0, 0, 0), (1, 1, 0, 0, 0), (0.71, 0.71, 0.51)),
        (4.0, 7_000.0, (0, 3, 0, 0, 0), (3, 0, 0, 0, 0), (2, 1, 0, 0, 0), (0.82, 0.82, 0.75)),
        (3.6, 11_000.0, (0, 3, 0, 0, 0), (3, 0, 0, 0, 0), (2, 1, 0, 0, 0), (0.82, 0.82, 0.75)),
    ),
    "EsperBERTo": (
        (6.4, 2_100.0, (0, 0, 3, 0, 0), (0, 0, 0, 3, 0), (0, 0, 1, 2, 0), (0.82, 0.82, 0.59)),
        (5.6, 4_000.0, (0, 0, 4, 0, 0), (0, 0, 0, 4, 0), (0, 0, 1, 3, 0), (0.87, 0.87, 0.83)),
        (4.8, 7_000.0, (0, 0, 4, 0, 0), (0, 0, 0, 4, 0), (0, 0, 1, 3, 0), (0.87, 0.87, 0.83)),
    ),
}
"""Loss, time [s], plans of Homo-slow, Homo-fast and spotDNN, and their convergence coefficients."""
TABLE_6_SLOW: Final = {"VGG-19": (1, 0), "EsperBERTo": (2, 3)}
"""Places of the slower and the faster type in each plan."""
FIGURE_8: Final[Mapping[str, Mapping[str, tuple[tuple[float, float, float], tuple[float, float, float]]]]] = {
    "VGG-19": {
        "Homo-slow": ((3_828.07, 10_440.12, 15_173.49), (0.768, 3.142, 4.56)),
        "Homo-fast": ((2_193.56, 6_134.21, 10_195.98), (1.073, 4.616, 7.593)),
        "spotDNN": ((2_609.13, 6_876.01, 10_850.87), (0.955, 4.256, 6.68)),
    },
    "EsperBERTo": {
        "Homo-slow": ((2_184.77, 4_048.53, 7_104.0), (1.245, 3.075, 5.394)),
        "Homo-fast": ((1_961.58, 3_725.96, 6_621.44), (2.7, 6.83, 11.88)),
        "spotDNN": ((2_077.69, 3_930.2, 6_822.31), (2.2, 5.88, 10.21)),
    },
}
HOMO_FAST_DEARER_PCT: Final = 18.5
"""Section V-C: Homo-fast costs up to this much more."""
SAVED_PCT, SAVED_TABLE_1_PCT = 68.1, 69.9
"""The abstract and section V-C, about Figure 7; section II-C, about Table I: cheaper than on demand, up to [%]."""

FIGURE_2A: Final = ((1, 49.0, 49.0), (2, 95.0, 94.5), (4, 190.0, 155.7), (8, 380.0, 130.25))
FIGURE_2B: Final = ((1, 25.0, 25.0), (2, 50.0, 47.0), (4, 100.0, 87.0), (8, 200.0, 152.0))
"""Workers or GPUs, linear speed, observed speed [samples/s]: VGG-19 on ImageNet."""
FIGURE_2A_SLOWER_PCT, FIGURE_2B_SLOWER_PCT = 65.7, 25.6
"""Section II-B."""

FIGURE_3_EVERY, FIGURE_3_SLOWER_PCT = 400, 39.8
"""Iterations between the points; section II-B: the convergence rate varies by up to this."""
FIGURE_3A: Final[Mapping[int, tuple[float, ...]]] = {
    128: (4.97, 4.53, 4.15, 3.84, 3.57, 3.33, 3.13, 2.94, 2.78, 2.64, 2.51, 2.39, 2.28, 2.18, 2.09, 2.01, 1.93, 1.86),
    256: (4.96, 4.4, 3.95, 3.59, 3.29, 3.03, 2.81, 2.63, 2.46, 2.31, 2.19, 2.07, 1.97, 1.87, 1.79, 1.71, 1.64, 1.57),
    512: (4.96, 4.16, 3.59, 3.16, 2.81, 2.54, 2.31, 2.13, 1.97, 1.83, 1.71, 1.6, 1.51, 1.43, 1.35, 1.29, 1.23, 1.17),
}
"""Loss of ResNet-50 by the mean batch, from iteration 0."""
FIGURE_3B: Final[Mapping[float, tuple[float, ...]]] = {
    0.93: (4.95, 4.57, 4.25, 3.97, 3.73, 3.51, 3.32, 3.14, 2.99, 2.85, 2.72, 2.6, 2.49, 2.39, 2.3, 2.22, 2.14, 2.07),
    0.90: (4.95, 4.5, 4.12, 3.8, 3.53, 3.29, 3.08, 2.9, 2.74, 2.59, 2.46, 2.34, 2.24, 2.14, 2.05, 1.97, 1.89, 1.82),
    0.87: (4.95, 4.43, 4.01, 3.66, 3.36, 3.11, 2.9, 2.71, 2.55, 2.4, 2.27, 2.16, 2.05, 1.95, 1.87, 1.79, 1.71, 1.65),
    0.0: (4.95, 4.15, 3.57, 3.14, 2.8, 2.52, 2.3, 2.11, 1.95, 1.81, 1.69, 1.59, 1.5, 1.41, 1.34, 1.27, 1.21, 1.16),
}
"""Loss of ResNet-50 by the convergence coefficient, from iteration 0; 10 workers but for 0.0, local training."""

FIGURE_5A: Final[Mapping[str, tuple[tuple[float, float, float], ...]]] = {
    "ResNet-110": ((227.27, 232.99, 217.96), (114.16, 116.28, 108.98), (58.48, 58.82, 54.49)),
    "VGG-19": ((1_404.49, 1_420.45, 1_250.0), (757.58, 771.61, 625.0), (443.26, 428.08, 312.5)),
}
"""Observed, spotDNN's and CM-DARE's time [s] with 4, 8 and 16 GPUs of a P2 instance."""
FIGURE_5A_GPUS: Final = (4, 8, 16)
FIGURE_5B: Final[Mapping[str, tuple[tuple[float, float, float], ...]]] = {
    "Inception-v3": ((1_239.67, 1_276.6, 1_132.08), (674.16, 689.66, 568.18), (491.8, 500.83, 283.82)),
    "EsperBERTo": ((2_112.68, 2_173.91, 2_000.0), (1_530.61, 1_612.9, 1_000.0), (1_886.79, 2_013.42, 500.0)),
}
"""The same for 2, 4 and 8 workers, half of them g4dn.4xl, half g3.16xl."""
FIGURE_5B_WORKERS: Final = (2, 4, 8)
EPOCHS: Final = {"ResNet-110": 10.0, "VGG-19": 5.0, "Inception-v3": 6.0, "EsperBERTo": 1.5}
CIFAR_SAMPLES: Final = 50_000
INCEPTION_SPEEDS: Final = (235.0, 435.0, 599.0)
"""Figure 5b: spotDNN's bars for Inception-v3, as speeds [samples/s]: six epochs of CIFAR-100 over the time."""
FIGURE_5_ERRORS_PCT: Final = (
    ("5a", "spotDNN", 0.2, 2.5),
    ("5a", "CM-DARE of VGG-19", 13.7, 28.5),
    ("5b", "spotDNN", 1.8, 6.9),
    ("5b", "CM-DARE", None, 73.5),
)
"""Section V-B: figure, whose prediction, least and largest error."""

FIGURE_6: Final[Mapping[str, tuple[tuple[float, float, float], ...]]] = {
    "ResNet-110": (
        (2.4, 2_308.0, 2_378.0),
        (1.9, 3_340.0, 3_540.0),
        (1.4, 5_593.0, 5_993.0),
        (0.9, 13_600.0, 14_580.0),
    ),
    "EsperBERTo": (
        (7.2, 5_806.0, 6_086.0),
        (6.4, 9_303.0, 9_763.0),
        (5.6, 15_005.0, 16_255.0),
        (4.8, 27_550.0, 30_800.0),
    ),
}
"""Loss, observed and predicted iterations, on 4 g4dn.4xl and 4 g3.16xl."""
FIGURE_6_PLAN: Final[Plan] = (0, 4, 0, 4, 0)

PROFILING_S: Final = {"ResNet-110": 114.0, "Inception-v3": 75.0, "VGG-19": 141.0, "EsperBERTo": 21.9}
PROFILING_MIN: Final = {"ResNet-110": 0.6, "Inception-v3": 5.8, "VGG-19": 12.8, "EsperBERTo": 11.7}
"""Section V-D: 30 iterations alone [s]; 3 epochs on clusters of 2, 4 and 7 workers [min]."""
SEARCH_S: Final = ((25, 0.2, 1.3), (70, 0.3, 1_503.7))
"""Sections V-C and V-D: instances, time of spotDNN's and of Srifty+'s search [s]."""

FIGURE_9_LEFT: Final[Plan] = (0, 0, 0, 3, 0)
FIGURE_9_ADDED: Final[Plan] = (3, 0, 0, 0, 0)
FIGURE_9_QUOTAS: Final = (10, 10, 0, 10, 10)
"""Table III's, without the type that was revoked; Table V's quota of p3.2xl, 2, does not allow the printed take-over."""
FIGURE_9: Final[Mapping[str, float]] = {
    "loss": 0.8,
    "loss_now": 0.9,
    "time_left_s": 810.0,
    "added": 3.0,
    "join_min": 2.1,
    "degraded_s": 29.6,
    "joined_min": 31.9,
    "finished_min": 41.9,
}
"""The take-over of section V-C: three g3.16xl remain, three p3.2xl are bought."""
