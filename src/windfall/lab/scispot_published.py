"""Numbers that SciSpot prints, and numbers from its authors' programs and data.

There are three kinds: printed in the text or drawn in a figure; printed by the authors' public program and notebooks;
and derived from the published formulas and the authors' data set where the text has only curves.  Each constant says
which.

Source:
    "Modeling The Temporally Constrained Preemptions of Transient Cloud VMs" (HPDC'20), its draft of 2019 ("SciSpot"), its
    later journal text, and the public repository `prateek-s/scispot`; data `kadupitiya/goog-preemption-data`.
"""

from __future__ import annotations

from typing import Final

from windfall.models.lifetimes.families import BlendedAsPrinted

H: Final = 3_600.0
LAW: Final = BlendedAsPrinted(0.4137, 24.0 * H, 0.9 * H, 0.76 * H)
"""Equation 1 with the constants of the authors' program: A and tau2 as fitted to all machines, b not (there 24.45 h)."""
OVER_H: Final = 24.3
"""In the authors' notebooks a job that ends after this age certainly fails [h]: F exceeds 1."""
QUOTED_MEAN_H: Final = 9.61439
"""The "expected lifetime" that a notebook quotes [h]."""

R2: Final = (
    ("all", 717, 0.968, 0.136, 0.749, 0.778),
    ("n1-highcpu-2", 151, 0.954, 0.178, 0.636, 0.801),
    ("n1-highcpu-4", 142, 0.910, 0.195, 0.674, -0.243),
    ("n1-highcpu-8", 90, 0.961, 0.157, 0.731, -0.465),
    ("n1-highcpu-16", 132, 0.957, 0.130, 0.788, 0.116),
    ("n1-highcpu-32", 150, 0.978, 0.090, 0.795, 0.988),
    ("n1-highcpu-64", 21, 0.958, 0.143, 0.810, 0.983),
    ("us-central1-c", 347, 0.980, 0.099, 0.628, 0.772),
    ("us-central1-f", 15, 0.955, 0.162, 0.868, 0.916),
    ("us-east1-b", 212, 0.947, 0.173, 0.666, -1.090),
    ("us-west1-a", 135, 0.985, 0.101, 0.676, 0.702),
)
"""Group, preempted machines, R2 of the blended form, its KS, R2 of exponential and Gompertz-Makeham.

R2: the authors' table (repository, `data/error_table_R_2.tex`); KS: the same fits to the same machines, which the authors do
not print.
"""

CENSORED: Final = (
    ("all", 16.7122, 13.7537),
    ("n1-highcpu-2", 19.0946, 18.1610),
    ("n1-highcpu-4", 19.2328, 16.3285),
    ("n1-highcpu-8", 17.4777, 16.3177),
    ("n1-highcpu-16", 15.5692, 13.0904),
    ("n1-highcpu-32", 13.6819, 6.72999),
    ("n1-highcpu-64", 7.51737, 6.06637),
)
"""Group, mean lifetime within 24 h with censoring (Kaplan-Meier), mean lifetime of the preempted machines alone [h]; for
the authors' 1442 machines, of which users stopped 725.  The authors print neither: they fit the 717 preempted ones."""

PROGRAM: Final = (
    (30, 0, 33.32266080232621, (14,)),
    (60, 0, 65.30750573819537, (16, 44)),
    (120, 0, 127.69005061724253, (15, 43, 81)),
    (180, 0, 188.939214226179, (15, 43, 81, 140)),
    (240, 0, 249.6420063172762, (17, 45, 84, 146)),
    (300, 0, 310.0687164353175, (15, 43, 81, 140, 268)),
    (60, 360, 61.011221422510644, (60,)),
    (60, 1_260, 61.69221518061477, (60,)),
    (169, 1_260, 178.11472331394893, (67, 118, 150)),
)
"""Job, the machine's age at its start, expected makespan, instants of saves [min]: the authors' program.  The 5 h job's
intervals, 15, 28, 38, 59, 128, are in the text too."""

PROGRAM_BY_AGE: Final = (
    246.58092978100981,
    244.08494945560076,
    242.69341856131004,
    241.5807909422249,
    241.19178602195404,
    241.06319968400433,
    241.02081363995933,
    241.00685893746513,
    241.00228212736874,
    241.00084122342432,
    241.00061224869702,
    241.0014515202931,
    241.00513719151797,
    241.0190576531683,
    241.07098093061285,
    241.2641622145265,
    241.97887929351998,
    243.42577593284318,
    246.31209908245805,
)
"""Expected makespan of the 4 h job on machines of 1, 2, ... 19 h [min]: the authors' notebook."""

EXACT: Final = (
    (240, 0, 256.088, 18),
    (240, 360, 241.060, 240),
    (240, 1_200, 259.576, 77),
    (300, 0, 317.076, 16),
    (60, 0, 66.953, 18),
    (120, 0, 131.491, 17),
)
"""Job, age, expected makespan, first interval [min]: an independent exact program of the same model, checked by random
lifetimes (4 h from age 0: 256.07 +- 0.09).  The authors' own results are in `PROGRAM`."""

YOUNG_DALY_H: Final = (1.25795376, 2.51590752, 3.77386128, 5.03181504, 6.2897688, 7.54772256, 8.80567632, 10.06363008,
                       11.32158384)  # fmt: skip
"""The notebook's Young-Daly line for jobs of 1, 2, ... 9 h [h]."""
YOUNG_DALY_PCT: Final = 25.0
SAVES_PCT: Final = 5.0
"""Overhead of periodic saves by Young-Daly, and of the paper's own schedule ("less than"), as the text claims them [%]."""

FAILURE_6H: Final = (0.41317, 0.13601, 0.04477, 0.01474, 0.00485, 0.0016, 0.00053, 0.00017, 6e-05, 2e-05, 2e-05, 4e-05,
                     0.00015, 0.00057, 0.00214, 0.00798, 0.02976, 0.11094, 0.41355)  # fmt: skip
"""Probability that a 6 h job fails on a machine of 0, 1, ... 18 h; later: 1.  By the published formula behind the figure."""
FAILURE_BY_JOB: Final = (
    (2, 0.0864, 0.0595),
    (6, 0.2575, 0.1353),
    (8, 0.3409, 0.1699),
    (12, 0.5076, 0.2389),
    (20, 0.8408, 0.3782),
)
"""Job [h], mean probability of failure over ages of 0 to 23 h, on any machine and with the reuse policy; same formula."""
HALVED: Final = 2.0
"""The text: the policy halves the probability "for all but the shortest and longest jobs"."""

WASTE_H: Final = ((1, 0.4093), (2, 0.6569), (3, 0.789), (5, 0.8806), (6, 0.8924), (8, 0.8989), (10, 0.8999), (12, 0.9),
                  (16, 0.9004), (20, 0.9945), (24, 12.07))  # fmt: skip
"""Job, expected time lost if a fresh machine is lost before the job ends [h]; by the published formula."""
INCREASE_H: Final = ((1, 0.1136), (2, 0.2423), (3, 0.3148), (4, 0.3485), (5, 0.3629), (6, 0.3687), (8, 0.3718), (10, 0.3723),
                     (12, 0.3723), (16, 0.3725), (20, 0.4136))  # fmt: skip
"""Job, expected increase of its time with at most one loss [h]; by the published formula."""
TEXT_INCREASE_H, TEXT_INCREASE_PCT = 0.5, 5.0
"""The text on the 10 h job: "about 30 minutes", 5 %."""
CROSSOVER_H: Final = (4.0, 5.0)
"""According to the text, bathtub lifetimes cost less than uniform ones above a job length in this range [h]."""

FRONTIER_H: Final = ((0.25, 19.75), (0.5, 19.99), (1.0, 19.95), (2.0, 19.34), (4.0, 17.56), (6.0, 15.60), (8.0, 13.61),
                     (10.0, 11.61), (12.0, 9.61), (14.0, 7.61), (16.0, 5.60), (18.0, 3.54), (20.0, 0.85),
                     (21.0, 0.0))  # fmt: skip
"""Age, longest job for which the published rule keeps the machine, T*(s) [h]; by the published formula."""

COSTS_USD: Final = (
    ("nanoconfinement", 0.1273, 0.1721, 0.5672),
    ("shapes", 0.0798, 0.0798, 0.3630),
    ("lulesh", 0.1524, 0.2217, 0.4802),
)
"""Application, cost of a job with SciSpot, ExoSphere, on demand: read from the bars of the cost figure."""
CHEAPER, CHEAPER_THAN_EXOSPHERE_PCT, SELECTION_PCT = 5.0, 20.0, 40.0
"""The text: cheaper than on demand [times]; cheaper than ExoSphere [%]; saved by choosing the type, at most [%]."""
BAG_S: Final = ((0, 6_655), (2, 7_024), (3, 7_186), (6, 7_951), (7, 7_795), (8, 8_560), (15, 9_842))
"""Preemptions, running time of a bag of 100 jobs on 32 machines [s]: the authors' notebook."""
PER_LOSS_PCT: Final = 3.0
"""The text: how much longer a bag takes for each preemption [%]."""
HPC_WAIT_PCT: Final = (("under 1 h", 185.8), ("1-2 h", 242.1), ("2-4 h", 156.7), ("4-8 h", 72.5), ("8-16 h", 32.6))
"""Job length, wait in the queue of an HPC cluster as a share of the run time [%]: read from the bars of a figure."""

RUNS_H: Final[dict[str, dict[int, tuple[float, float]]]] = {
    "nanoconfinement": {
        4: (0.35, 0.1202),
        8: (0.3, 0.0586),
        16: (0.25, 0.0232),
        32: (0.25, 0.0151),
        64: (0.1833, 0.084),
    },
    "shapes": {4: (0.15, 0.0289), 8: (0.15, 0.0162), 16: (0.15, 0.0086), 32: (0.16, 0.0063), 64: (0.1833, 0.084)},
    "lulesh": {8: (0.375, 0.087), 64: (0.2117, 0.1058)},
}
"""A job of 64 cores on machines of this number of CPUs: its time without a loss and what losses add, from the bars of the
figure on running times [h]; the bars of shapes for 64 CPUs equal those of nanoconfinement."""
SELECTION_CORES: Final = 64
CPU_USD_PER_HOUR: Final = 0.0075
"""Price of a preemptible CPU of n1-highcpu in 2019 [USD/h]."""

ON_DEMAND_CPU_USD_PER_HOUR: Final = 0.03545
"""Price of a CPU of n1-highcpu on demand in 2019 [USD/h]."""
ASSUMED_MTTF_H: Final = {2: 5.0, 4: 5.0, 8: 5.0, 16: 5.0, 32: 4.0, 64: 0.2}
"""Mean times to failure by CPUs [h] that the authors' notebook of running times and costs (`code/runtime-sim.ipynb`) puts into
equation 3.  They are typed in there, and are the mean of no group of the data."""
RUNS_16_H: Final[dict[int, float]] = {2: 39.0 / 60.0, 4: 37.0 / 60.0, 8: 35.0 / 60.0, 16: 30.0 / 60.0}
"""A nanoconfinement job of 16 cores on machines of this number of CPUs, without a loss [h]: the same notebook."""
HPC_RECOMPUTE_PCT: Final = (
    ("under 1 h", 0.5, 11.7159),
    ("1-2 h", 1.5, 30.4659),
    ("2-4 h", 3.0, 46.875),
    ("4-8 h", 6.0, 50.0),
    ("8-16 h", 12.0, 50.0),
)
"""Job length, the length that stands for it [h], share of the run time that is computed again [%]: bars beside the waits."""
JOB_MIN: Final = {"nanoconfinement": 14.0, "shapes": 9.0, "lulesh": 12.5}
"""A job on two n1-highcpu-32 (lulesh: one n1-highcpu-64) [min]: the text."""
BAG_B_S: Final = {
    "nanoconfinement": {1: 8_621.0, 2: 6_723.0, 4: 7_186.0, 8: 7_054.0},
    "shapes": {1: 7_805.0, 2: 6_723.0, 4: 4_658.0, 8: 4_702.0},
}
"""Time of a bag of 32 jobs, four at a time, by n1-highcpu-32 machines for each job [s]: figure on the size of the cluster."""
BAG_C_S: Final = {
    "nanoconfinement": {1: 4_214.0, 2: 6_908.0, 4: 15_281.0, 8: 20_983.0},
    "shapes": {1: 3_597.0, 2: 5_183.0, 4: 8_807.0, 8: 18_545.0},
}
"""Time of a bag of 32 jobs on eight n1-highcpu-32, by machines for each job [s]; 8 / that number run at a time.  Figure on
parallel jobs; the run logs say which is which (`experiment_data/FigureC/*/32_8_1`: one job on eight machines, 20,983 s)."""
BAG_JOBS_BC: Final = 32
BAG_JOBS, BAG_CORES = 100, 1_024
"""The bag of the cost figure: jobs, and the cores of its 32 n1-highcpu-32."""
TYPE_FITS: Final = {
    4: (0.285499, 24.0465, 0.684328, 0.679874),
    8: (0.310584, 24.1836, 1.27565, 0.582388),
    16: (0.422694, 24.4535, 1.0603, 0.784104),
    32: (0.664136, 29.0337, 0.724778, 5.0),
    64: (0.646305, 28.0193, 0.43264, 5.0),
}
"""CPUs, and A, b, tau1, tau2 [h] of equation 1, fitted to the preempted machines alone as the paper does."""
CENSORED_FITS: Final = {
    4: (0.237383, 2.62177, 0.610398),
    8: (0.336731, 4.1865, 0.573276),
    16: (0.433288, 3.53229, 0.615759),
    32: (0.534697, 3.59127, 0.768016),
    64: (0.771561, 2.12726, 0.955441),
}
"""CPUs, and early share, tau1, tau2 [h] of the normalised form until 24.84 h: maximum likelihood, the machines that users
stopped count as censored."""
CENSORED_END_H: Final = 24.84
