"""Detects the provider of this machine from its firmware and its environment, without network access."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

DMI_ROOT = Path("/sys/class/dmi/id")
AZURE_CHASSIS = "7783-7084-3265-9085-8269-3286-77"
"""The chassis tag of every Azure VM."""


def detect(environ: Mapping[str, str], dmi_root: Path = DMI_ROOT) -> str:
    """Return the provider whose notices to watch.

    A cloud's firmware takes precedence over a scheduler's environment, because a cloud preempts a scheduler's machines
    too; the scheduler's signal is handled in any case.

    Args:
        environ: the process environment.
        dmi_root: folder with the firmware's text files; unreadable files count as empty.

    Returns:
        `aws`, `google`, `azure`, `slurm`, `kubernetes` or `local`.
    """
    if _is_aws(dmi_root):
        return "aws"
    if _text(dmi_root, "product_name") == "google compute engine":
        return "google"
    if _text(dmi_root, "chassis_asset_tag") == AZURE_CHASSIS:
        return "azure"
    if environ.get("SLURM_JOB_ID"):
        return "slurm"
    if environ.get("KUBERNETES_SERVICE_HOST"):
        return "kubernetes"
    return "local"


def _is_aws(dmi_root: Path) -> bool:
    # Nitro machines have the vendor and an instance id, Xen machines `4.11.amazon`.  The UUID that starts with ec2 is
    # readable by root only, and one in 4096 other machines has one too.
    return (
        _text(dmi_root, "sys_vendor") == "amazon ec2"
        or _text(dmi_root, "board_asset_tag").startswith("i-")
        or _text(dmi_root, "bios_version").endswith(".amazon")
    )


def _text(root: Path, name: str) -> str:
    try:
        return (root / name).read_text(encoding="utf-8", errors="replace").strip().lower()
    except OSError:
        return ""
