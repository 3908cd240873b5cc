"""Build the package's catalogue of machine types from public price lists: `python docs/build_catalogue.py FOLDER`.

The folder has `aws_us-east-1_on_demand_DATE.csv`, `aws_spot_advisor_MONTH.csv.gz`, `gcp_DATE.csv.gz` and
`azure_polandcentral_linux_DATE.csv`, as their sources publish them (the catalogue's header names these).  Kept are types that
people rent for training and batch work, in one or two regions of each cloud.
"""

from __future__ import annotations

import csv
import gzip
import re
import sys
from collections.abc import Iterator
from pathlib import Path

OUT = Path(__file__).parents[1] / "src" / "windfall" / "lab" / "catalogue.csv"
COLUMNS = (
    "provider", "zone", "machine_type", "cpus", "memory_gib", "accelerator", "accelerators", "on_demand_usd_per_hour",
    "spot_usd_per_hour", "spot_basis", "lost_per_month", "priced", "spot_as_of", "losses_as_of",
)  # fmt: skip
HEADER = """\
# Machine types and their list prices in USD per hour, Linux.  Built by docs/build_catalogue.py; prices move: see the dates.
# aws: on-demand prices from aws/karpenter-provider-aws 1d927085 (Apache-2.0), accelerators from vantage-sh/ec2instances.info
#   4ef36cd2 (MIT); processors, memory, savings and losses from the Spot Instance Advisor by alexei-led/spotinfo 05e93313
#   (Apache-2.0).  Its spot prices are derived: on demand x (1 - saving).  lost_per_month: share of instances interrupted.
# google: Cyclenerd/google-cloud-pricing-cost-calculator fd66b26 (Apache-2.0).
# azure: sstybel/azure-vm-price-importer 6c018796 (Apache-2.0).
"""
BANDS = ("0-0.05", "0.05-0.1", "0.1-0.15", "0.15-0.2", "0.2-1")
AWS = re.compile(r"(c5|c6i|c6a|c7i|c7g|m5|m6i|m6a|m7i|m7g|r5|r6i|r7i)\.(large|[248]?xlarge|16xlarge|24xlarge)")
AWS_GPU = re.compile(r"(g4dn|g5|g6|p3|p4d|p5)\..*")
GOOGLE = re.compile(r"(n1|n2|n2d|e2|c3|t2d)-(standard|highcpu)-(2|4|8|16|32|64|22|44|88)|c2-standard-\d+|(a2|a3|g2)-.*")
GOOGLE_REGIONS = ("us-central1", "europe-west4")
AZURE = re.compile(r"(D|E|F)(2|4|8|16|32|64)(s|as)? v[345]|N[CDV]\d.*")


def rows_of(folder: Path, pattern: str) -> tuple[str, list[dict[str, str]]]:
    """Return the date in a file's name and its rows."""
    (path,) = folder.glob(pattern)
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
    found = re.search(r"\d{4}-\d\d(-\d\d)?", path.name)
    assert found is not None, f"{path.name} has no date"
    return found[0], list(csv.DictReader(text.splitlines()))


def aws(folder: Path) -> Iterator[dict[str, str]]:
    """Yield the rows of AWS, us-east-1."""
    priced, prices = rows_of(folder, "aws_us-east-1_on_demand_*.csv")
    advised, advice = rows_of(folder, "aws_spot_advisor_*.csv.gz")
    known = {row["instance_type"]: row for row in advice if row["region"] == "us-east-1"}
    for row in prices:
        name, advisor = row["instance_type"], known.get(row["instance_type"])
        if not (AWS.fullmatch(name) or AWS_GPU.fullmatch(name)) or not row["vcpus"] or advisor is None:
            continue
        saved = float(advisor["savings_over_on_demand_pct"]) / 100.0
        on_demand = float(row["on_demand_usd_per_hour"])
        yield {
            "provider": "aws", "zone": "us-east-1", "machine_type": name, "cpus": row["vcpus"], "memory_gib": row["memory_gb"],
            "accelerator": row["gpu"], "accelerators": row["gpu_count"], "on_demand_usd_per_hour": f"{on_demand:.6g}",
            "spot_usd_per_hour": f"{on_demand * (1.0 - saved):.4g}", "spot_basis": "derived",
            "lost_per_month": BANDS[int(advisor["interruption_bucket"])], "priced": priced, "spot_as_of": advised,
            "losses_as_of": advised,
        }  # fmt: skip


def google(folder: Path) -> Iterator[dict[str, str]]:
    """Yield the rows of Google Cloud; spot prices of GPU types below a seventh of on demand are list entries, not offers."""
    priced, prices = rows_of(folder, "gcp_*.csv.gz")
    for row in prices:
        on_demand, spot = (float(row[name] or 0.0) for name in ("on_demand_usd_per_hour", "spot_usd_per_hour"))
        unsold = row["gpu"] and spot < on_demand / 7.0
        whole = not row["gpu_count"] or float(row["gpu_count"]).is_integer()
        if (
            row["region"] in GOOGLE_REGIONS
            and GOOGLE.fullmatch(row["machine_type"])
            and on_demand
            and not unsold
            and whole
        ):
            yield _row("google", row["region"], row["machine_type"], row, (on_demand, spot, priced))


def azure(folder: Path) -> Iterator[dict[str, str]]:
    """Yield the rows of Azure, polandcentral."""
    priced, prices = rows_of(folder, "azure_polandcentral_linux_*.csv")
    for row in prices:
        name = row["instance_name"]
        on_demand, spot = (float(row[key] or 0.0) for key in ("on_demand_usd_per_hour", "spot_usd_per_hour"))
        count, _, kind = row["gpu"].lower().partition("x ")
        if AZURE.fullmatch(name) and on_demand and "/" not in count:  # whole accelerators
            split = {**row, "gpu": kind.split(" (")[0].removeprefix("80gb "), "gpu_count": count}
            yield _row("azure", "polandcentral", "Standard_" + name.replace(" ", "_"), split, (on_demand, spot, priced))


def _row(provider: str, zone: str, name: str, row: dict[str, str], priced: tuple[float, float, str]) -> dict[str, str]:
    on_demand, spot, date = priced
    return {
        "provider": provider, "zone": zone, "machine_type": name, "cpus": row["vcpus"], "memory_gib": row["memory_gb"],
        "accelerator": row["gpu"], "accelerators": row["gpu_count"], "on_demand_usd_per_hour": f"{on_demand:.6g}",
        "spot_usd_per_hour": f"{spot:.6g}" if spot else "", "spot_basis": "listed" if spot else "", "lost_per_month": "",
        "priced": date, "spot_as_of": date if spot else "", "losses_as_of": "",
    }  # fmt: skip


def main(folder: Path) -> None:
    """Write the catalogue."""
    rows = [row for source in (aws, google, azure) for row in source(folder)]
    rows = list({(row["provider"], row["zone"], row["machine_type"]): row for row in rows}.values())
    rows.sort(key=lambda row: (row["provider"], row["zone"], row["machine_type"]))
    with OUT.open("w", newline="") as out:
        out.write(HEADER)
        writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    sys.stdout.write(f"{OUT.name}: {len(rows)} rows\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
