"""Whose machine it is, from firmware texts and environment alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from windfall.notices.notice_sources import detect

SLURM, KUBERNETES = {"SLURM_JOB_ID": "7"}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}


@pytest.mark.parametrize(
    ("texts", "environ", "expected"),
    [
        ({"sys_vendor": "Amazon EC2\n"}, {}, "aws"),
        ({"board_asset_tag": "i-0123456789abcdef0\n"}, {}, "aws"),
        ({"sys_vendor": "Xen\n", "bios_version": "4.11.amazon\n"}, {}, "aws"),
        ({"product_uuid": "ec2abcde-0000-0000-0000-000000000000\n"}, {}, "local"),
        ({"product_name": "Google Compute Engine\n"}, {}, "google"),
        ({"product_name": "Google Compute Engine\n"}, KUBERNETES, "google"),
        ({"chassis_asset_tag": "7783-7084-3265-9085-8269-3286-77\n"}, {}, "azure"),
        ({"sys_vendor": "Microsoft Corporation\n", "product_name": "Virtual Machine\n"}, {}, "local"),
        ({"sys_vendor": "Amazon EC2\n"}, SLURM, "aws"),
        ({"sys_vendor": "Dell Inc.\n"}, SLURM, "slurm"),
        ({}, KUBERNETES, "kubernetes"),
        ({}, SLURM | KUBERNETES, "slurm"),
        ({}, {"SLURM_JOB_ID": ""}, "local"),
        ({}, {}, "local"),
    ],
)
def test_the_provider_is_told_from_the_machine(
    tmp_path: Path, texts: dict[str, str], environ: dict[str, str], expected: str
) -> None:
    """A cloud's firmware first, then the scheduler's environment, then nobody."""
    for name, text in texts.items():
        (tmp_path / name).write_text(text)

    assert detect(environ, tmp_path) == expected


def test_firmware_that_cannot_be_read_counts_as_empty(tmp_path: Path) -> None:
    """No folder, a folder in place of a file, bytes that are no text: no exception."""
    (tmp_path / "product_name").mkdir()
    (tmp_path / "sys_vendor").write_bytes(b"\xff\xfe\x00")

    assert detect({}, tmp_path) == "local"
    assert detect({}, tmp_path / "absent") == "local"
