"""Handing over a checkpoint on behalf of a script that does not speak Python: what `windfall backup PATH` does."""

from __future__ import annotations

from collections.abc import Mapping

from windfall.sdk.session import Session, StrPath
from windfall.wire import environment


def hand_over(environ: Mapping[str, str], path: StrPath, *, step: int | None = None) -> bool:
    """Hand over a file or folder in the name of the script whose environment this is.

    Args:
        environ: the variables of `wire.environment` as the script has them.
        path: the file or folder.
        step: how many steps are complete; hand-overs are counted, on from the restored step, if not given.

    Returns:
        Whether it was written down: not outside a session, nor when the script has a page of its own.
    """
    session = Session(environ)
    if not session.attached:
        return False
    before = session.messages
    done = int(environ.get(environment.STEP, "0")) + before + 1 if step is None else step
    session.step(done)
    session.backup(path)
    return session.messages > before
