"""A small market and a job, from which the tests of buying and planning depart."""

from __future__ import annotations

from windfall.jobs import Job, Measurement, Resources, Work
from windfall.market import Offer
from windfall.structs import replace
from windfall.terms import Reliability, Seconds, Unit, WallTime

HOUR = 3600.0

SPOT = Offer(
    provider="aws",
    machine_type="small",
    zone="a",
    price_usd_per_hour=1.0,
    on_demand_usd_per_hour=3.0,
    reliability=Reliability.TRANSIENT,
    notice_s=Seconds(120.0),
    quoted_at=WallTime(1_000_000.0),
    cpus=4.0,
    memory_gib=16.0,
    startup_s=Seconds(60.0),
)
ON_DEMAND = replace(SPOT, price_usd_per_hour=3.0, reliability=Reliability.RELIABLE, notice_s=Seconds(0.0))
LARGE = replace(
    SPOT, machine_type="large", price_usd_per_hour=1.5, on_demand_usd_per_hour=5.0, cpus=8.0, memory_gib=32.0
)

JOB = Job(
    job_id="resnet-1",
    name="resnet",
    user="ada",
    run_url="file:///runs/resnet-1",
    command=("python", "train.py"),
    resources=(Resources(),),
    work=Work(36_000.0, Unit.STEP),
)

MEASURED = Measurement(
    provider="aws",
    machine_type="small",
    unit=Unit.STEP,
    work_per_s=1.0,
    prepare_s=Seconds(90.0),
    allocate_s=Seconds(60.0),
    runs=3,
    stall_s=Seconds(2.0),
    size_bytes=1_000_000_000,
    upload_s=Seconds(20.0),
    commit_s=Seconds(1.0),
    boot_s=Seconds(30.0),
)


def rate(hours: float, zone: str = "a", machine_type: str = "small") -> tuple[str, str, str, Seconds, Seconds | None]:
    """One row of pooled beliefs: machines of this kind last so long in the mean."""
    return "aws", machine_type, zone, Seconds(hours * HOUR), None
