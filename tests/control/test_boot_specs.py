"""What a machine starts with: the job's own, the provider's block, and secrets that nothing shows."""

from __future__ import annotations

import pytest

from windfall import codec
from windfall.control.boot_specs import make_boot, on_this_host, setup_key
from windfall.jobs import Job, ProviderBlock, Resources
from windfall.market import AgentArchive, BootImage, BootSpec, Offer
from windfall.providers import provider_list
from windfall.providers.provider_list import ProviderEntry
from windfall.providers.provider_settings import ProviderSettings
from windfall.structs import replace
from windfall.terms import Bundle, Reliability, Seconds, WallTime
from windfall.wire import boot_data
from windfall.wire.start_script import NODE_AGENT
from windfall.wiring_control import equip

JOB = Job(
    "j", "j", "ada", "s3://lab/j", ("train",), (Resources(),), setup="pip install x",
    blocks=(ProviderBlock("local", (("speed", 0.5),)), ProviderBlock("cloud", (("qos", "high"),))),
)  # fmt: skip


def offered(provider: str, cpus: float = 0.0, memory_gib: float = 0.0) -> Offer:
    """An offer of a provider."""
    return Offer(
        provider,
        "m",
        "zone-a",
        0.1,
        0.3,
        Reliability.TRANSIENT,
        Seconds(0.0),
        WallTime(0.0),
        cpus=cpus,
        memory_gib=memory_gib,
    )


def boot(job: Job = JOB, provider: str = "local") -> BootSpec:
    """A machine of the job."""
    return make_boot(
        job, offered(provider), argv=("agent",), controller="https://c", credential="hush", lent=(("AWS_KEY", "quiet"),),
        equip=on_this_host,
    )  # fmt: skip


def test_a_machine_gets_the_block_of_its_own_provider() -> None:
    """Another provider's settings stay where they are."""
    assert boot().block == (("speed", 0.5),)
    assert boot(provider="cloud").block == (("qos", "high"),)
    assert boot(provider="other").block == ()


def test_a_machine_knows_the_size_of_its_type() -> None:
    """Items of a bag run at once by it, not by the host's processors; a provider that names none sends none."""
    made = make_boot(
        JOB, offered("local", 4.0, 8.0), argv=("agent",), controller="", credential="hush", lent=(), equip=on_this_host
    )

    assert boot_data.size_of(dict(made.env)) == (4.0, 8.0)
    assert boot_data.size_of(dict(boot().env)) == (0.0, 0.0)


def test_secrets_are_named_apart_and_not_shown() -> None:
    """Open variables and secrets are two things, the one-time credential is known by name, and no `repr` has a value."""
    made = boot()

    assert [secret.name for secret in made.secrets] == ["WINDFALL_CREDENTIAL", "AWS_KEY"]
    assert made.credential == "WINDFALL_CREDENTIAL"
    assert "hush" not in f"{made!r} {made}"
    assert "quiet" not in f"{made!r} {made}"
    assert not {"hush", "quiet"} & {value for _, value in made.env}
    assert made.environment()["WINDFALL_CREDENTIAL"] == "hush"
    assert codec.decode(codec.encode(made), BootSpec) == made


def test_the_same_set_up_has_the_same_key() -> None:
    """Command, code and image make the key; without a set-up there is none."""
    code = Bundle("sha256:1", "code/1", 3)
    keys = [
        setup_key("a", None, None),
        setup_key("b", None, None),
        setup_key("a", "sha256:1", None),
        setup_key("a", None, BootImage("i")),
        setup_key("a", None, BootImage("i", container=True)),
    ]

    assert len(set(keys)) == len(keys)
    made = boot()
    assert made.setup is not None
    assert made.setup.cache_key == setup_key("pip install x", None, None)
    assert ("WINDFALL_SETUP_KEY", made.setup.cache_key) in made.env
    assert boot(replace(JOB, bundle=code)).setup != made.setup
    assert boot(replace(JOB, setup=None)).setup is None


def test_a_machine_elsewhere_gets_image_agent_and_its_own_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """The provider on this host runs the controller's Python; any other is told how the agent arrives, and finds its own."""
    image, agent = BootImage("ami-1"), AgentArchive("https://x/a.zip", "0" * 64)
    settings = ProviderSettings(image=image, agent=agent)

    cloud = ProviderEntry("cloud", "providers.cloud:open_provider", "a cloud")
    monkeypatch.setattr(provider_list, "PROVIDERS", (*provider_list.PROVIDERS, cloud))
    configured = {"local": settings, "cloud": settings}

    here, there = (equip(BootSpec(("agent",)), name, configured) for name in ("local", "cloud"))

    assert here == BootSpec(("agent",))
    assert there == BootSpec(NODE_AGENT, image=image, agent=agent)
