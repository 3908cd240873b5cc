"""The providers whose machines get notices: how each is recognised, and what watches it.

A new provider is one entry of `PROVIDERS`; the command line, `windfall doctor`, the node agent and the agent read it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path

from windfall.errors import Misuse
from windfall.ports import Clock, NoticeSource
from windfall.structs import Struct
from windfall.terms import Seconds

DMI_ROOT = Path("/sys/class/dmi/id")
AZURE_CHASSIS = "7783-7084-3265-9085-8269-3286-77"
"""The chassis tag of every Azure VM."""


class NoticeProvider(Struct, frozen=True):
    """A provider whose notices can be watched.

    Attributes:
        name: as `windfall exec --provider` takes it.
        is_here: whether this machine is the provider's, by its environment and the folder with its firmware's text files.
        notices: what ends machines with notice, for users.
        source: module and class that polls its metadata service; empty if only signals give notice.
        options: more arguments of the class.
        service_always: whether the service has a documented address; otherwise it is watched at a given one only.
    """

    name: str
    is_here: Callable[[Mapping[str, str], Path], bool]
    notices: str
    source: str = ""
    options: Mapping[str, Seconds] = {}
    service_always: bool = True


def _firmware(name: str, value: str) -> Callable[[Mapping[str, str], Path], bool]:
    return lambda _, root: _text(root, name) == value


def _variable(name: str) -> Callable[[Mapping[str, str], Path], bool]:
    return lambda environ, _: bool(environ.get(name))


def _is_aws(_: Mapping[str, str], root: Path) -> bool:
    # Nitro machines have the vendor and an instance id, Xen machines `4.11.amazon`.  The UUID that starts with ec2 is
    # readable by root only, and one in 4096 other machines has one too.
    return (
        _text(root, "sys_vendor") == "amazon ec2"
        or _text(root, "board_asset_tag").startswith("i-")
        or _text(root, "bios_version").endswith(".amazon")
    )


def _text(root: Path, name: str) -> str:
    try:
        return (root / name).read_text(encoding="utf-8", errors="replace").strip().lower()
    except OSError:
        return ""


PROVIDERS = (
    NoticeProvider("aws", _is_aws, "spot/instance-action", "notices.aws:AwsNotices"),
    NoticeProvider(
        "google",
        _firmware("product_name", "google compute engine"),
        "instance/preempted",
        "notices.google:GoogleNotices",
    ),
    NoticeProvider(
        "azure", _firmware("chassis_asset_tag", AZURE_CHASSIS), "Scheduled Events", "notices.azure:AzureNotices"
    ),
    # A machine that Windfall ordered also has a service of its own, which announces its time limit.
    NoticeProvider(
        "slurm",
        _variable("SLURM_JOB_ID"),
        "SIGTERM and the signal of sbatch --signal",
        "notices.aws:AwsNotices",
        {"poll_s": Seconds(1.0), "margin_s": Seconds(0.05)},
        service_always=False,
    ),
    NoticeProvider(
        "kubernetes", _variable("KUBERNETES_SERVICE_HOST"), "SIGTERM, terminationGracePeriodSeconds before the end"
    ),
    # A service on this machine shares its clock, so neither a margin of a second nor a slow poll is needed.
    NoticeProvider(
        "local",
        lambda *_: True,
        "SIGTERM and `windfall inject`",
        "notices.aws:AwsNotices",
        {"poll_s": Seconds(0.25), "margin_s": Seconds(0.05)},
        service_always=False,
    ),
)
"""In the order of detection: a cloud's firmware takes precedence over a scheduler's environment, because a cloud preempts
a scheduler's machines too; the scheduler's signal is handled in any case."""


def names() -> tuple[str, ...]:
    """Return the names of all providers."""
    return tuple(provider.name for provider in PROVIDERS)


def detect(environ: Mapping[str, str], dmi_root: Path = DMI_ROOT) -> str:
    """Return the provider of this machine by its firmware and environment, without network access.

    Args:
        environ: the process environment.
        dmi_root: folder with the firmware's text files; unreadable files count as empty.
    """
    return next(provider.name for provider in PROVIDERS if provider.is_here(environ, dmi_root))


def provider_named(name: str) -> NoticeProvider:
    """Return a provider by its name.

    Raises:
        Misuse: there is none.
    """
    for provider in PROVIDERS:
        if provider.name == name:
            return provider
    raise Misuse(f"no notices are known of a provider {name!r}: choose one of {', '.join(names())}")


def open_sources(name: str, url: str | None, clock: Clock) -> tuple[NoticeSource, ...]:
    """Return what watches a provider's notices.

    Args:
        name: of the provider.
        url: address of its metadata service; None for the documented one.
        clock: this machine's clocks.

    Raises:
        Misuse: there is no such provider.
    """
    provider = provider_named(name)
    if not provider.source or (url is None and not provider.service_always):
        return ()
    module, _, kind = provider.source.partition(":")
    # Loaded here: the HTTP client takes longer to load than everything else a machine without a service needs.
    open_source: Callable[..., NoticeSource] = getattr(import_module(f"windfall.{module}"), kind)
    address = () if url is None else (url,)
    return (open_source(clock, *address, **provider.options),)
