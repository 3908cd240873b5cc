"""What others write into a run's inbox for the machine that holds it; whoever may write to the store may write anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from windfall import codec
from windfall.events import BeliefsChanged, Fact, StopAsked
from windfall.terms import Seconds

_NOTICE_S_MAX = 1e9
_REASON = "windfall stop"
_REASON_CHARACTERS_MAX = 200


def understand(
    message: Mapping[str, object], deliver: Callable[[Fact], None], inject: Callable[[float | None], None]
) -> bool:
    """Do what a message asks for; return whether it could be understood.

    Args:
        message: as it was found.
        deliver: takes facts.
        inject: called with the notice [s] (None: without one) when somebody asks for a preemption.
    """
    try:
        match message.get("do"):
            case "stop":
                deliver(_stop(message))
            case "inject":
                inject(_length_s(message["notice_s"]))
            case "believe":
                mttp_s, share = _length_s(message.get("mttp_s")), _share(message.get("unannounced_share"))
                deliver(BeliefsChanged(mttp_s=mttp_s, unannounced_share=share))
            case _:
                return False
    except (ValueError, KeyError):
        return False
    return True


def _stop(message: Mapping[str, object]) -> StopAsked:
    now: bool = codec.decode(message["now"], bool)
    reason: str = codec.decode(message.get("reason", _REASON), str)
    shown = reason if reason.isprintable() and len(reason) <= _REASON_CHARACTERS_MAX else _REASON
    return StopAsked(now, shown)


def _length_s(said: object) -> Seconds | None:
    length_s: Seconds | None = codec.decode(said, float | None)
    if length_s is not None and not 0.0 <= length_s <= _NOTICE_S_MAX:
        raise ValueError(f"{length_s} is no length of time")
    return length_s


def _share(said: object) -> float | None:
    share: float | None = codec.decode(said, float | None)
    if share is not None and not 0.0 <= share <= 1.0:
        raise ValueError(f"{share} is no share")
    return share
