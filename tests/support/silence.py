"""What a contender has seen of a heartbeat: whether it stood still for as long as a take-over needs."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Looks:
    """Every look of everybody at every heartbeat: when, and at which content."""

    seen: dict[tuple[object, str], list[tuple[float, object]]] = field(default_factory=dict)

    def look(self, actor: object, key: str, at: float, content: object) -> None:
        self.seen.setdefault((actor, key), []).append((at, content))

    def silence(self, actor: object, key: str) -> tuple[float, int]:
        """Return for how long [s], and at how many looks, the newest content has stood there."""
        looks = self.seen.get((actor, key), [])
        changes = [at for at, content in looks if content != looks[-1][1]]
        silent = [at for at, content in looks if content == looks[-1][1] and (not changes or at > changes[-1])]
        return (silent[-1] - silent[0] if silent else 0.0), len(silent)
