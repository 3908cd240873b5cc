"""The configuration file: strict, with positions, and without a secret in it or in any message about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from windfall.errors import InvalidFile, Misuse, ProviderDenied
from windfall.market import AgentArchive, BootImage
from windfall.providers import provider_list
from windfall.providers.provider_list import ProviderEntry
from windfall.providers.provider_settings import (
    CredentialKind,
    CredentialReference,
    ProviderLimits,
    ProviderSettings,
    credential_problem,
    read_secret,
)
from windfall.spec.config_file import config_path, load

SECRET = "AKIAABCDEFGHIJKLMNOP"
DIGEST = "ab" * 32


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place for the file, and a second provider that takes every setting."""
    cloud = ProviderEntry("cloud", "providers.cloud:open_provider", "a cloud")
    monkeypatch.setattr(provider_list, "PROVIDERS", (*provider_list.PROVIDERS, cloud))
    return tmp_path / "config.yaml"


def read(path: Path, text: str) -> ProviderSettings:
    """What a file says of the cloud."""
    path.write_text(text)
    return load(str(path))["cloud"]


def test_everything_that_can_be_said(path: Path) -> None:
    """Each setting is read as its type; the file that it came from is remembered for messages."""
    text = f"""
providers:
  cloud:
    credentials: {{env: CLOUD_KEY}}
    region: eu-west-1
    image: {{container: ghcr.io/lab/train:3}}
    network: subnet-7
    agent: {{url: "https://lab.example/agent.zip", sha256: {DIGEST}}}
    limits: {{machines: 20, usd_per_hour: 15}}
"""
    assert read(path, text) == ProviderSettings(
        CredentialReference(CredentialKind.ENV, "CLOUD_KEY"),
        "eu-west-1",
        BootImage("ghcr.io/lab/train:3", container=True),
        "subnet-7",
        AgentArchive("https://lab.example/agent.zip", DIGEST),
        ProviderLimits(20, 15.0),
        str(path),
    )
    assert read(path, "providers: {cloud: {image: ami-1}}").image == BootImage("ami-1")


def test_no_file_and_an_empty_file_are_the_defaults(path: Path) -> None:
    """An absent file is no error, and none is made."""
    assert load(str(path)) == {}
    assert not path.exists()
    path.write_text("# nothing yet\n")
    assert load(str(path)) == {}


def test_the_file_is_where_the_desktop_standard_says() -> None:
    """`$XDG_CONFIG_HOME`, or `~/.config`; a relative folder does not count."""
    home = str(Path("~/.config/windfall/config.yaml").expanduser())
    assert config_path({"XDG_CONFIG_HOME": "/etc/xdg"}) == "/etc/xdg/windfall/config.yaml"
    assert config_path({}) == config_path({"XDG_CONFIG_HOME": "here"}) == home


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("provders: {}", "config.yaml:1:1: provders is an unknown key; did you mean providers?"),
        ("providers:\n  clod: {}", "config.yaml:2:3: providers.clod is an unknown key; did you mean cloud?"),
        ("providers:\n  aws: {}", "2:3: providers.aws is an unknown key; this provider is not supported yet"),
        ("providers:\n  cloud:\n    regoin: x", "3:5: providers.cloud.regoin is an unknown key; did you mean region?"),
        ("providers:\n  cloud:\n    region:", "3:12: providers.cloud.region has no value"),
        ("providers: {local: {region: x}}", "providers.local.region is an unknown key; choose one of limits"),
        ("providers: {cloud: {region: [a]}}", "providers.cloud.region must be a name without spaces, not a list"),
        ("providers: {cloud: {limits: {machines: 2.5}}}", "limits.machines must be a whole number from 0"),
        ("providers: {cloud: {limits: {usd_per_hour: cheap}}}", "limits.usd_per_hour must be a number of dollars"),
        ("providers: {cloud: {agent: {url: x}}}", "providers.cloud.agent needs url and sha256; sha256 is missing"),
        ("providers: {cloud: {credentials: {file: key}}}", "credentials.file must be an absolute path"),
        ("providers: {cloud: {credentials: {env: A, file: /b}}}", "must have exactly one of {env: NAME}"),
        ("- a", "1:1: the file must be a map of providers, not a list"),
    ],
)
def test_a_mistake_is_refused_at_its_place(path: Path, text: str, says: str) -> None:
    """File, line, the field, what is wrong, and the nearest key."""
    path.write_text(text)

    with pytest.raises(InvalidFile) as refused:
        load(str(path))

    assert says in str(refused.value)


@pytest.mark.parametrize(
    "value",
    [
        SECRET,
        f"{{env: {SECRET}}}",
        f"{{profile: {SECRET}}}",
        f"{{file: {SECRET}}}",
        f"{{secret: {SECRET}}}",
        f"{{{SECRET}: x}}",
        f"[{SECRET}]",
    ],
)
def test_a_literal_secret_is_refused_and_not_repeated(path: Path, value: str) -> None:
    """Wherever under `credentials` a secret stands, the message says so at its line and does not quote it."""
    path.write_text(f"providers:\n  cloud:\n    credentials: {value}\n")

    with pytest.raises(InvalidFile) as refused:
        load(str(path))

    assert "the secret itself does not belong in this file" in str(refused.value)
    assert "config.yaml:3:" in str(refused.value)
    assert SECRET not in str(refused.value)


def test_a_secret_elsewhere_is_refused_too(path: Path) -> None:
    """A key pasted as region is not repeated either."""
    path.write_text(f"providers: {{cloud: {{region: {SECRET}}}}}")

    with pytest.raises(Misuse, match="looks like a secret") as refused:
        load(str(path))

    assert SECRET not in str(refused.value)


def test_a_reference_leads_to_its_secret_only_if_nobody_else_can_read_it(tmp_path: Path) -> None:
    """A variable or a private file gives its text; an unset variable, a missing or a readable file says why not."""
    key = tmp_path / "key"
    key.write_text(f"{SECRET}\n")
    key.chmod(0o644)
    file = CredentialReference(CredentialKind.FILE, str(key))

    assert f"chmod 600 {key}" in (credential_problem(file, {}) or "")
    with pytest.raises(ProviderDenied) as refused:
        read_secret(file, {})
    assert SECRET not in str(refused.value)
    key.chmod(0o600)
    assert read_secret(file, {}) == SECRET
    key.unlink()
    assert "cannot read" in (credential_problem(file, {}) or "")
    variable = CredentialReference(CredentialKind.ENV, "KEY")
    assert credential_problem(variable, {}) == "the environment variable KEY is not set"
    assert read_secret(variable, {"KEY": SECRET}) == SECRET
    assert read_secret(CredentialReference(CredentialKind.PROFILE, "lab"), {}) == "lab"
