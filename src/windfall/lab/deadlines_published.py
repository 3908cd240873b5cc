"""What "Can't Be Late" prints of its evaluation, and what of its inputs.

Source: Z. Wu et al., "Can't Be Late: Optimizing Spot Instance Savings under Deadlines", NSDI 2024, Tables 3 to 5.
"""

from __future__ import annotations

from typing import Final

from windfall.structs import Struct

COMPUTE_H, WINDOW_H, CHANGEOVER_H = 48.0, 60.0, 0.2
"""The job of Table 3."""
TICK_S: Final = 120.0
"""Of the decisions [s]."""
PRICE_RATIO: Final = 3.0
"""On-demand over spot price: p3.2xlarge, 3.06 and about 1 USD/h."""
TABLE_3_H: Final[dict[str, tuple[float, float, float]]] = {
    "on demand": (48.0, 0.0, 0.0),
    "greedy": (30.8, 17.2, 17.7),
    "uniform progress": (25.1, 22.9, 15.3),
    "omniscient": (20.7, 27.4, 15.5),
}
"""Hours on demand, hours on spot, standard deviation of the hours on demand."""
SAVED_PCT: Final = (27.0, 84.0)
"""Section 1: of the cost on demand, over the three workloads."""


class Workload(Struct, frozen=True):
    """A workload of Tables 4 and 5.

    Attributes:
        name, where, machine_type: as printed.
        spot_usd_per_hour, discount_pct: the printed price, and how far it is below on demand [USD/h, %].
        compute_h, changeover_h: as printed [h].
        windows_h: the tight and the loose deadline [h].
        on_demand_usd, uniform_usd: Table 5 [USD].
        series: the public series of its place and kind of machine.
    """

    name: str
    where: str
    machine_type: str
    spot_usd_per_hour: float
    discount_pct: float
    compute_h: float
    changeover_h: float
    windows_h: tuple[float, float]
    on_demand_usd: float
    uniform_usd: tuple[float, float]
    series: str

    @property
    def on_demand_usd_per_hour(self) -> float:
        """The price that spot is that much below [USD/h]."""
        return self.spot_usd_per_hour / (1.0 - self.discount_pct / 100.0)


WORKLOADS: Final = (
    Workload(
        "ML", "us-west-2b", "p3.2xlarge", 0.92, 67.0, 72.0, 0.3, (84.0, 100.0), 233.5, (138.2, 122.0),
        "availability/1-node/aws-10-26-2022/us-west-2b_v100_1.json",
    ),
    Workload(
        "bioinformatics", "us-east1-b", "c3-highcpu-88", 0.34, 91.0, 22.5, 0.2, (24.0, 28.0), 140.5, (51.9, 22.8),
        "preemption/1-node/gcp-04-30-2023/us-east1-b_c3-88.json",
    ),
    Workload(
        "analytics", "us-east-1c", "r5.16xlarge", 1.85, 55.0, 27.0, 0.2, (30.0, 36.0), 109.6, (80.0, 74.1),
        "preemption/1-node/aws-04-19-2023/us-east-1c_intel_64.json",
    ),
)  # fmt: skip
