"""`windfall backup`: the SDK's hand-over for scripts in any language, over the session found in the environment."""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from windfall.errors import Misuse, StoreFull
from windfall.sdk import attachment
from windfall.wire import environment, page


def backup(path: str, *, step: int | None = None, result: str | None = None) -> int:
    """Hand a saved checkpoint over, or a result, from any language.

    For use inside `windfall exec`; outside it nothing happens.  WINDFALL_CHECKPOINT names the checkpoint to resume from,
    WINDFALL_NOTICE_FILE a file that appears when this machine will be taken.  Give each save a name of its own.

    Example: `windfall backup out/epoch-7 --step 7`

    Args:
        path: the file or folder; it is uploaded behind the script and must not be changed afterwards.
        step: how many steps are complete since the run began; one more than at the last hand-over if not given.
        result: the name of what the script made: it is stored before the run is done, and no restart restores it.
    """
    if result is not None and step is not None:
        raise Misuse("--step belongs to a checkpoint, --result to what the script made: choose one of them")
    if result is not None and not _is_name(result):
        raise Misuse(f"--result {result!r} is no name: give one that a file could have")
    if not path or not Path(path).exists():
        where = Path(path).absolute() if path else "''"
        raise Misuse(f"{where} cannot be handed over, nothing is there: save first, then name what was saved")
    folder = os.environ.get(environment.SESSION)
    if not folder:
        print("windfall: not inside `windfall exec`, so nothing was handed over", file=sys.stderr)
        return 0
    if result is None:
        hand_over(os.environ, folder, os.path.abspath(path), step)
    else:
        hand_over_result(os.environ, folder, os.path.abspath(path), result)
    return 0


def _is_name(name: str) -> bool:
    return name not in ("", ".", "..") and "/" not in name and name.isprintable() and len(os.fsencode(name)) <= 255


def hand_over_result(environ: Mapping[str, str], folder: str, path: str, name: str) -> None:
    """Write the hand-over of a result; no step ends by it.

    Raises:
        Misuse: the session is gone, or the script hands over through the SDK itself.
        StoreFull: the session's folder has no room for a line.
    """
    rank = attachment.rank_of(environ)
    with _page(environ, folder, rank) as words:
        message = {"it": "result", "step": words[page.STEP], "request": 0, "path": path, "name": name, "stall_ns": 0}
        _say(words, folder, rank, message | {"at_ns": time.monotonic_ns()})


def hand_over(environ: Mapping[str, str], folder: str, path: str, step: int | None) -> None:
    """Write the hand-over as the SDK would: the answer to a request first, the step last.

    A look of the agent reads step, messages, answer in this order, so none of its looks sees a step that went past a
    request without an answer.

    Raises:
        Misuse: the session is gone, the script hands over through the SDK itself, or the step went back.
        StoreFull: the session's folder has no room for a line.
    """
    rank = attachment.rank_of(environ)
    with _page(environ, folder, rank) as words:
        done = words[page.STEP] + 1 if step is None else step
        if done < words[page.STEP]:
            raise Misuse(f"--step {done}: step {words[page.STEP]} was handed over before; steps never go back")
        now_ns, request = time.monotonic_ns(), 0
        asked = done == words[page.TARGET] if words[page.EXACT] else done >= words[page.TARGET]
        if asked and words[page.REQUEST] != words[page.ACK]:
            request = words[page.REQUEST]
            words[page.ACK_STEP], words[page.ACK_NS] = done, now_ns
            words[page.ACK] = request
        message = {
            "it": "backup",
            "at_ns": now_ns,
            "step": done,
            "request": request,
            "path": path,
            "stall_ns": 0,
            "own": True,
            "counted": step is None,
        }
        _say(words, folder, rank, message)
        words[page.STEP_END_NS] = now_ns
        words[page.STEP] = done
        words[page.PHASE] = page.PHASES.index("between")


def _say(words: memoryview, folder: str, rank: int, message: dict[str, object]) -> None:
    line = json.dumps({"seq": words[page.MESSAGES] + 1, **message}).encode() + b"\n"
    try:
        attachment.append(folder, rank, line)
    except OSError as error:
        why = f"({error.strerror}): {message['path']} was not stored"
        raise StoreFull(f"{folder} has no room for a message {why}") from error
    words[page.MESSAGES] += 1


@contextmanager
def _page(environ: Mapping[str, str], folder: str, rank: int) -> Iterator[memoryview]:
    """Hold this rank's page alone; a call of this command at the same moment waits."""
    path = os.path.join(folder, page.page_name(rank))
    try:
        lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Misuse(
            f"the session in {environment.SESSION}={folder} cannot be used ({error.strerror}): "
            "`windfall backup` belongs into the script that `windfall exec` runs"
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        words = _attached(environ, path, rank)
        # Held by this process for the moment: what finds a living process in place leaves the page alone.
        words[page.PID] = os.getpid()
        try:
            yield words
        finally:
            words[page.PID] = 0
    finally:
        os.close(lock)


def _attached(environ: Mapping[str, str], path: str, rank: int) -> memoryview:
    step = int(environ.get(environment.STEP, "0"))
    try:
        words = page.create(path, pid=os.getpid(), rank=rank, step=step)
    except FileExistsError:
        try:
            words = page.attach(path)
        except ValueError as error:
            raise Misuse(f"{error}: use the `windfall` that started the script") from error
        if words[page.PID] != 0 and Path(f"/proc/{words[page.PID]}").exists():
            raise Misuse(
                f"process {words[page.PID]} speaks to Windfall through its SDK: "
                "hand the checkpoint over there, with wf.backup(path)"
            ) from None
    return words
