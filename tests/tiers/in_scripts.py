"""A parameter server in tiers whose machines run in threads of one process, and their scripts in processes of their own."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.tiers.in_threads import DATA, ThreadCluster
from windfall.runtimes.tier_script import ScriptProgram

SCRIPTS = Path(__file__).parent / "scripts"


def started(script: Path, *arguments: str, slots: int = 1, restarts: int = 3, within_s: float = 60.0) -> ScriptProgram:
    """Start the processes of a machine."""
    return ScriptProgram.start(
        [sys.executable, str(script), *arguments],
        str(script.parent),
        dict(os.environ),
        slots,
        DATA,
        restarts=restarts,
        connect_within_s=within_s,
    )


class ScriptCluster(ThreadCluster):
    """Machines with a program each; a machine that is lost loses its scripts too.

    Attributes:
        programs: by machine.
    """

    def __init__(
        self, programs: dict[str, ScriptProgram], *, clocks: int, staleness: int | None = 0, loop_slots: int = DATA
    ) -> None:
        self.programs = programs
        first = next(iter(programs.values()))
        super().__init__(list(programs), first, clocks=clocks, staleness=staleness, slots=loop_slots)

    def add(self, name: str) -> None:
        """Let a machine join whose scripts have started."""
        self.program = self.programs[name]
        super().add(name)

    def lose(self, name: str) -> None:
        """Let a machine vanish."""
        super().lose(name)
        self.programs[name].close(0.0)


def played(
    names: list[str],
    start: Callable[[], ScriptProgram],
    story: Callable[[ScriptCluster], Awaitable[None]],
    *,
    clocks: int,
    staleness: int | None = 0,
    loop_slots: int = DATA,
) -> ScriptCluster:
    """Run a cluster of scripts to its end, with a story meanwhile."""
    programs: dict[str, ScriptProgram] = {}

    async def play() -> ScriptCluster:
        cluster = ScriptCluster(programs, clocks=clocks, staleness=staleness, loop_slots=loop_slots)
        deciding = asyncio.get_running_loop().create_task(cluster.coordinator.run())
        await story(cluster)
        await cluster.until(clocks)
        await deciding
        await asyncio.gather(*cluster.tasks.values())
        return cluster

    try:
        for name in names:
            programs[name] = start()
        return asyncio.run(play())
    finally:
        for program in programs.values():
            program.close(5.0)
