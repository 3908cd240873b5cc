"""Who may import whom: the table of rooms, import-linter's contracts, and what a fresh process really loads."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.house.source import PACKAGE, ROOT, imports, module_name, parse, python_files, where

WORDS = frozenset(
    {
        "terms",
        "events",
        "errors",
        "jobs",
        "market",
        "fleet",
        "ports",
        "codec",
        "structs",
        "results",
        "stored_forms",
        "bags",
        "tier_layout",
        "tier_status",
        "shape_layout",
        "shape_measurements",
        "shape_status",
    }
)
NUMERIC = frozenset({"numpy", "scipy", "numba"})
TO_CORE = WORDS | {"wire", "models", "policies", "core"}
ADAPTER = frozenset({"windfall", "sdk", "storage", "wire"})
ANY = frozenset({"*"})
NONE: frozenset[str] = frozenset()
IN_SCRIPT = frozenset({"wire.script_page", "wire.environment", "policies.checkpointing.rules", "sdk"})
WEB = frozenset({"fastapi", "pydantic", "starlette", "uvicorn"})
BY_NAME = "cli.executor"
"""What `import windfall` loads from a room above, when it is asked for `windfall.Executor` and not before."""

# The longest matching prefix rules.  `ours` names rooms or modules under `windfall`, `others` packages outside the
# standard library.  A room that is not here has no right to exist yet.
RULES: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "terms": (frozenset({"structs"}), NONE),
    "errors": (NONE, NONE),
    "stored_forms": (frozenset({"structs"}), NONE),
    "events": (frozenset({"terms", "structs", "stored_forms"}), NONE),
    "jobs": (frozenset({"terms", "structs"}), NONE),
    "bags": (frozenset({"terms", "structs"}), NONE),
    "tier_layout": (frozenset({"structs", "tier_status"}), NONE),
    "shape_layout": (frozenset({"structs"}), NONE),
    "shape_measurements": (frozenset({"structs"}), NONE),
    "shape_status": (frozenset({"structs", "terms"}), NONE),
    "tier_status": (frozenset({"structs", "terms"}), NONE),
    "market": (frozenset({"terms", "structs"}), NONE),
    "fleet": (frozenset({"terms", "events", "jobs", "market", "structs"}), NONE),
    "results": (frozenset({"terms", "events", "structs"}), NONE),
    "ports": (WORDS - {"ports", "codec"}, NONE),
    "codec": (WORDS - {"ports", "codec"}, NONE),
    "units": (frozenset({"terms", "errors"}), NONE),
    "spelling": (NONE, NONE),
    "settings": (WORDS | {"units", "wire"}, NONE),
    "structs": (NONE, frozenset({"msgspec"})),
    "extras": (frozenset({"errors"}), NONE),
    "wire": (WORDS | {"wire"}, NONE),
    "wire.script_page": (NONE, NONE),
    "wire.environment": (NONE, NONE),
    "wire.script_channel": (NONE, frozenset({"numpy"})),
    "models": (WORDS | {"models", "units"}, NUMERIC),
    "policies": (WORDS | {"models", "policies", "units"}, NUMERIC),
    "policies.checkpointing.rules": (NONE, NONE),
    "runtimes": (WORDS | {"wire", "storage", "runtimes"}, NONE),
    # The dispatcher is a loop around its reducer, as control is one around the driver.
    "runtimes.item_dispatcher": (
        WORDS | {"wire", "storage", "runtimes", "core.item_table", "core.item_decisions"},
        NONE,
    ),
    **dict.fromkeys(
        (
            "runtimes.parameter_partition",
            "runtimes.table_rows",
            "runtimes.tier_loop",
            "runtimes.tier_program",
            "runtimes.tier_counts",
        ),
        (WORDS | {"runtimes"}, frozenset({"numpy"})),
    ),
    "runtimes.script_process": (WORDS | {"wire.environment", "wire.script_channel", "runtimes"}, frozenset({"numpy"})),
    "runtimes.tier_script": (WORDS | {"runtimes"}, frozenset({"numpy"})),
    "runtimes.tier_history": (WORDS | {"runtimes"}, NONE),
    "runtimes.tier_store": (WORDS | {"wire", "runtimes"}, frozenset({"numpy"})),
    "runtimes.tier_actors": (
        WORDS
        | {
            "storage",
            "linux.crashes",
            "linux.random_names",
            "runtimes",
            "core.tier_coordinator",
            "core.tier_decisions",
            "policies.layout.tiers",
        },
        frozenset({"ray"}),
    ),
    "runtimes.tier_node": (
        WORDS | {"linux.crashes", "linux.listening", "wire", "storage", "runtimes"},
        frozenset({"ray"}),
    ),
    "runtimes.tier_coordinator_loop": (
        WORDS | {"runtimes", "core.bulk_watch", "core.tier_coordinator", "core.tier_summary", "policies.layout.tiers"},
        NONE,
    ),
    **dict.fromkeys(
        (
            "runtimes.shape_backup",
            "runtimes.shape_engine",
            "runtimes.shape_layers",
            "runtimes.shape_links",
            "runtimes.shape_loading",
            "runtimes.shape_posts",
            "runtimes.shape_samples",
            "runtimes.shape_stage",
            "runtimes.shape_states",
            "runtimes.shape_times",
            "runtimes.shape_wrap",
        ),
        (WORDS | {"wire", "runtimes"}, frozenset({"numpy", "torch"})),
    ),
    "runtimes.shape_member": (
        WORDS | {"wire", "runtimes", "policies.shapes.spill_rule"},
        frozenset({"numpy", "torch"}),
    ),
    "runtimes.shape_terms": (WORDS | {"wire", "runtimes", "policies.shapes.spill_rule"}, NONE),
    "runtimes.shape_tcp": (NONE, frozenset({"torch"})),
    "runtimes.shape_watch": (WORDS | {"runtimes"}, NONE),
    "runtimes.shape_node": (WORDS | {"runtimes"}, NONE),
    "runtimes.shape_coordinator_loop": (
        WORDS | {"runtimes", "core.shape_coordinator", "core.shape_meter", "core.shape_planner", "core.shape_summary"},
        NONE,
    ),
    "elastic": (
        WORDS
        | {"runtimes.shape_engine", "runtimes.shape_loading", "runtimes.shape_product", "runtimes.shape_watch"}
        | {"runtimes.shape_wrap", "wire.environment"}
        | {"linux.clock", "settings", "storage.object_stores", "storage.store_operations"},
        frozenset({"torch"}),
    ),
    "apps": (
        WORDS | {"runtimes.parameter_partition", "runtimes.tier_program", "spelling", "apps"},
        frozenset({"numpy", "numba"}),
    ),
    **dict.fromkeys(
        ("apps.cnn", "apps.cnn_memory"),
        (
            WORDS
            | {"wire.python_programs"}
            | {"runtimes.parameter_partition", "runtimes.tier_program", "models.asp", "sdk.wrapped_model", "apps"},
            frozenset({"numpy", "torch"}),
        ),
    ),
    "apps.pictures": (WORDS | {"spelling"}, frozenset({"numpy", "PIL"})),
    "core": (TO_CORE - {"wire"} | {"units"}, NONE),
    "linux": (WORDS | {"wire", "linux"}, NONE),
    "storage": (
        WORDS | {"wire", "storage", "extras", "linux", "settings"},
        frozenset({"obstore", "pathspec", "sqlalchemy", "xxhash"}),
    ),
    "notices": (WORDS | {"wire", "notices"}, NONE),
    "providers": (WORDS | {"units", "spelling", "wire", "linux", "providers"}, NONE),
    "providers.local.local_provider": (WORDS | {"providers", "wire.python_programs"}, frozenset({"httpx"})),
    "providers.local.market_config": (WORDS | {"units"}, frozenset({"pydantic", "yaml"})),
    "channels": (WORDS | {"wire", "channels"}, NONE),
    "sdk": (IN_SCRIPT, NONE),
    "paramserver": (
        frozenset({"errors", "wire.environment", "wire.script_channel", "sdk.wrapped_model"}),
        frozenset({"numpy"}),
    ),
    **dict.fromkeys(
        ("sdk.wrapped_model", "sdk.partition_state"),
        (frozenset({"errors", "paramserver", "sdk.partition_state"}), frozenset({"torch", "numpy"})),
    ),
    "sdk.remote_call": (IN_SCRIPT, frozenset({"cloudpickle"})),
    "sdk.torch": (ADAPTER, frozenset({"torch", "numpy"})),
    "sdk.transformers": (ADAPTER, frozenset({"torch", "transformers", "accelerate"})),
    "sdk.lightning": (ADAPTER, frozenset({"torch", "lightning"})),
    "agent": (TO_CORE | {"linux", "agent", "settings", "units"}, NONE),
    "control": (TO_CORE | {"units", "spelling", "control"}, WEB),
    "control.notifier": (WORDS | {"control.notifier"}, frozenset({"httpx"})),
    "simulation": (TO_CORE | {"simulation", "spelling", "units", "extras"}, NUMERIC),
    "report": (ANY, frozenset({"rich", "matplotlib"})),
    "report.bag_table": (ANY, frozenset({"pyarrow"})),
    "report.simulate_report": (ANY, NUMERIC | {"rich"}),
    "report.simulate_plot": (ANY, NUMERIC | {"matplotlib"}),
    "spec": (ANY, frozenset({"pydantic", "pydantic_core", "yaml"})),
    "wiring": (ANY, ANY),
    "wiring_control": (ANY, ANY),
    "wiring_node_agent": (ANY, ANY),
    "wiring_items": (ANY, ANY),
    "wiring_tiers": (ANY, ANY),
    "wiring_shapes": (ANY, ANY),
    "cli.client": (ANY, frozenset({"httpx", "pydantic"})),
    "cli.ray_probe": (NONE, frozenset({"ray"})),
    "cli.executor_calls": (ANY, frozenset({"cloudpickle"})),
    "cli": (ANY, frozenset({"rich", "cyclopts"})),
    "drill": (ANY, frozenset({"rich", "cyclopts"})),
    "drill.profile_cluster": (ANY, frozenset({"numpy", "ray"})),
    "drill.profile_machine": (ANY, frozenset({"numpy"})),
    **dict.fromkeys(
        ("drill.watch", "drill.digest", "drill.torch_hooks", "drill.variables"), (IN_SCRIPT | {"drill"}, NONE)
    ),
    "lab": (ANY, NUMERIC | {"rich", "cyclopts", "matplotlib"}),
    "": (frozenset({"sdk", BY_NAME}), NONE),
}
TYPES_ONLY = frozenset({"_typeshed"})
VALUES = "structs"
"""Who may import the base of values may import the library behind it."""
TOP_FLOOR = frozenset({"drill", "lab"})
ROOMS_ABOVE = (
    frozenset(
        {"report", "spec", "wiring", "wiring_control", "wiring_node_agent", "wiring_items", "wiring_tiers"}
        | {"wiring_shapes", "cli"}
    )
    | TOP_FLOOR
)


def _rule(module: str) -> str:
    inside = module.removeprefix("windfall").removeprefix(".")
    matching = [key for key in RULES if inside == key or (key and inside.startswith(f"{key}."))]
    assert matching, f"{module}: no row in the table of rooms says what it may import"
    return max(matching, key=len)


def _within(target: str, allowed: frozenset[str]) -> bool:
    inside = target.removeprefix("windfall.")
    return "*" in allowed or any(inside == room or inside.startswith(f"{room}.") for room in allowed)


def _breach(module: str, target: str) -> str | None:
    ours, others = RULES[_rule(module)]
    top = target.split(".", maxsplit=1)[0]
    if top == "windfall":
        return None if _within(target, ours) else f"{module} may not import {target}"
    if top == "msgspec" and _within(f"windfall.{VALUES}", ours):
        return None
    if top in sys.stdlib_module_names or top in TYPES_ONLY or "*" in others or top in others:
        return None
    return f"{module} may not import {top}"


def test_every_module_imports_only_what_its_room_may() -> None:
    """Each import of each file, lazy ones included, is allowed by the row of its room."""
    breaches = []
    for path in python_files(PACKAGE):
        found = ((use, _breach(module_name(path), use.name)) for use in imports(parse(path)))
        breaches += [f"{where(path, use.line)}: {breach}" for use, breach in found if breach]

    assert breaches == []


def test_nobody_imports_from_the_rooms_above() -> None:
    """`report`, `spec`, `wiring` and `cli` are imported only by one another; `drill` and `lab` by nobody."""
    breaches = []
    for path in python_files(PACKAGE):
        room = _rule(module_name(path)).split(".")[0]
        closed = (TOP_FLOOR if room in ROOMS_ABOVE else ROOMS_ABOVE) - {room}
        ours = (use for use in imports(parse(path)) if use.name.startswith("windfall."))
        ours = (use for use in ours if room or not _within(use.name, frozenset({BY_NAME})))
        breaches += [f"{where(path, use.line)}: {use.name}" for use in ours if use.name.split(".")[1] in closed]

    assert breaches == []


def test_the_checkpointing_rules_import_only_math() -> None:
    """`policies/checkpointing/rules.py` runs in a script and compiles in a kernel, so it knows only `math`."""
    path = PACKAGE / "policies" / "checkpointing" / "rules.py"

    assert {use.name.split(".")[0] for use in imports(parse(path))} <= {"math", "__future__"}


def test_the_contracts_hold() -> None:
    """import-linter keeps every contract of `.importlinter`."""
    linter = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"]

    result = subprocess.run([*linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)

    assert result.returncode == 0, result.stdout + result.stderr


@pytest.fixture(scope="module")
def loaded() -> set[str]:
    """The modules that `import windfall` and a first call add to a fresh interpreter."""
    first_call = "import sys, json; before = set(sys.modules); import windfall; windfall.step()"
    code = f"{first_call}; print(json.dumps([*set(sys.modules) - before]))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(result.stdout))


def test_import_windfall_loads_nothing_heavy(loaded: set[str]) -> None:
    """A training script that says `import windfall` gets the standard library's light part and nothing else."""
    heavy = {
        "asyncio",
        "dataclasses",
        "inspect",
        "logging",
        "numpy",
        "pydantic",
        "subprocess",
        "torch",
        "typing_extensions",
    }
    foreign = {name for name in loaded if name.split(".")[0] not in sys.stdlib_module_names | {"windfall"}}

    assert (loaded & heavy, foreign) == (set(), set())


def test_import_windfall_loads_only_the_sdk(loaded: set[str]) -> None:
    """Of our own modules, `import windfall` loads the session, the page, the names of variables and the saving rules."""
    allowed = (
        "windfall.sdk",
        "windfall.wire.script_page",
        "windfall.wire.environment",
        "windfall.policies.checkpointing.rules",
    )
    packages = {"windfall", "windfall.wire", "windfall.policies", "windfall.policies.checkpointing"}
    ours = {name for name in loaded if name.split(".")[0] == "windfall"} - packages

    assert {name for name in ours if not name.startswith(allowed)} == set()
    assert not ours & {"windfall.sdk.torch", "windfall.sdk.transformers", "windfall.sdk.lightning"}


def test_the_supervisor_needs_the_standard_library_alone() -> None:
    """It lives as long as the script, and nothing that a package does may end it; nor may loading one delay the script."""
    code = "import sys; import windfall.agent.supervisor; print(*{name.split('.')[0] for name in sys.modules})"
    bare = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.append({str(PACKAGE.parent)!r}); {code}"]
    result = subprocess.run(bare, capture_output=True, text=True, check=True)

    assert set(result.stdout.split()) - sys.stdlib_module_names - {"windfall", "__main__"} == set()
