"""`windfall backup`: the SDK's `backup` for scripts in any language, through the session in the environment."""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from windfall.errors import Misuse, StoreFull
from windfall.sdk import attachment
from windfall.wire import environment, script_page
from windfall.wire import hand_over as hand_over_files

ITEM_STORED_S = 600.0
"""How long `--item` waits until the runner has stored the files [s]."""
_POLL_S = 0.05


def backup(
    path: str,
    /,
    *more: str,
    step: int | None = None,
    result: Annotated[str | None, Parameter(metavar="NAME")] = None,
    item: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Store a checkpoint or a result, from a script in any language.

    For scripts that run under `windfall exec`; elsewhere it does nothing.  WINDFALL_CHECKPOINT is the checkpoint to
    resume from; the file WINDFALL_NOTICE_FILE appears when this machine is about to be preempted.  Give each save its own
    name.

    Example: `windfall backup out/epoch-7 --step 7`

    Example: `windfall backup --item state.bin` in an item of a bag

    Args:
        path: file or folder; it is uploaded in the background and must not change afterwards.
        more: with --item, more files of the same save.
        step: the number of steps completed in the whole run; by default, one more than at the last backup.
        result: store it as a result with this name: it is kept, and no restart restores it.
        item: in an item of a bag: store files from which the item continues if it is preempted; returns once they are stored.
    """
    if item:
        return _hand_over_item((path, *more), step, result)
    if more:
        raise Misuse(f"{more[0]}: give one file or folder; several files go with --item")
    if result is not None and step is not None:
        raise Misuse("--step is for a checkpoint and --result for a result: choose one")
    if result is not None and not _is_name(result):
        raise Misuse(f"--result: {result!r} is not a valid file name")
    if not path or not Path(path).exists():
        where = Path(path).absolute() if path else "''"
        raise Misuse(f"{where} does not exist: save first, then back up what was saved")
    folder = os.environ.get(environment.SESSION)
    if not folder:
        print("windfall: not inside `windfall exec`: nothing was stored", file=sys.stderr)
        return 0
    if result is None:
        hand_over(os.environ, folder, os.path.abspath(path), step)
    else:
        hand_over_result(os.environ, folder, os.path.abspath(path), result)
    return 0


def _hand_over_item(paths: Sequence[str], step: int | None, result: str | None) -> int:
    if step is not None or result is not None:
        raise Misuse(
            "--item goes with neither --step nor --result: an item has no steps, and the bag names its results"
        )
    named = os.environ.get(environment.ITEM_FOLDER)
    if not named:
        print("windfall: not inside an item of a bag: nothing was stored", file=sys.stderr)
        return 0
    folder = Path(named)
    for path in paths:
        if not Path(path).is_file():
            raise Misuse(f"{Path(path).absolute()} is no file: save first, then back up the files that were saved")
        if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
            raise Misuse(f"{path} is not in the item's folder {folder}, where the next try would find it")
    files = [os.path.relpath(os.path.realpath(path), os.path.realpath(folder)) for path in paths]
    with open(folder / f"{hand_over_files.HANDED}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        number = hand_over_files.read_handed(folder)[0] + 1
        hand_over_files.write_handed(folder, number, files)
        deadline_ns = time.monotonic_ns() + int(ITEM_STORED_S * 1e9)
        while (answer := hand_over_files.read_answer(folder))[0] < number:
            if time.monotonic_ns() > deadline_ns:
                raise StoreFull(f"not stored within {ITEM_STORED_S:.0f} s: {', '.join(paths)}")
            time.sleep(_POLL_S)
    if answer[1]:
        raise Misuse(f"not stored: {answer[1]}")
    return 0


def _is_name(name: str) -> bool:
    return name not in ("", ".", "..") and "/" not in name and name.isprintable() and len(os.fsencode(name)) <= 255


def hand_over_result(environ: Mapping[str, str], folder: str, path: str, name: str) -> None:
    """Write the message for a result; it does not complete a step.

    Raises:
        Misuse: the session is gone, or the script uses the SDK itself.
        StoreFull: the session's folder has no space for a line.
    """
    rank = attachment.rank_of(environ)
    with _page(environ, folder, rank) as words:
        message = {
            "type": "result",
            "step": words[script_page.STEP],
            "request": 0,
            "path": path,
            "name": name,
            "stall_ns": 0,
        }
        _append_message(words, folder, rank, message | {"at_ns": time.monotonic_ns()})


def hand_over(environ: Mapping[str, str], folder: str, path: str, step: int | None) -> None:
    """Write the message for a checkpoint as the SDK does: the answer to a request first, the step last.

    The agent reads step, messages and answer in this order, so it never sees a step past a request without its answer.

    Raises:
        Misuse: the session is gone, the script uses the SDK itself, or the step went back.
        StoreFull: the session's folder has no space for a line.
    """
    rank = attachment.rank_of(environ)
    with _page(environ, folder, rank) as words:
        done = words[script_page.STEP] + 1 if step is None else step
        if done < words[script_page.STEP]:
            raise Misuse(f"--step {done}: step {words[script_page.STEP]} is already backed up; steps cannot go back")
        now_ns, request = time.monotonic_ns(), 0
        asked = done == words[script_page.TARGET] if words[script_page.EXACT] else done >= words[script_page.TARGET]
        if asked and words[script_page.REQUEST] != words[script_page.ACK]:
            request = words[script_page.REQUEST]
            words[script_page.ACK_STEP], words[script_page.ACK_NS] = done, now_ns
            words[script_page.ACK] = request
        message = {
            "type": "backup",
            "at_ns": now_ns,
            "step": done,
            "request": request,
            "path": path,
            "stall_ns": 0,
            "own": True,
            "counted": step is None,
        }
        _append_message(words, folder, rank, message)
        words[script_page.STEP_END_NS] = now_ns
        words[script_page.STEP] = done
        words[script_page.PHASE] = script_page.PHASES.index("between")


def _append_message(words: memoryview, folder: str, rank: int, message: dict[str, object]) -> None:
    line = json.dumps({"seq": words[script_page.MESSAGES] + 1, **message}).encode() + b"\n"
    try:
        attachment.append(folder, rank, line)
    except OSError as error:
        reason = f"({error.strerror}): {message['path']} was not stored"
        raise StoreFull(f"{folder} has no space for a message {reason}") from error
    words[script_page.MESSAGES] += 1


@contextmanager
def _page(environ: Mapping[str, str], folder: str, rank: int) -> Iterator[memoryview]:
    """Lock this rank's page alone; a call of this command at the same moment waits."""
    path = os.path.join(folder, script_page.page_name(rank))
    try:
        lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Misuse(
            f"the session in {environment.SESSION}={folder} cannot be used ({error.strerror}): "
            "call `windfall backup` from the script that `windfall exec` runs"
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        words = _attached(environ, path, rank)
        # Held by this process for now: other processes leave a page alone while its process is alive.
        words[script_page.PID] = os.getpid()
        try:
            yield words
        finally:
            words[script_page.PID] = 0
    finally:
        os.close(lock)


def _attached(environ: Mapping[str, str], path: str, rank: int) -> memoryview:
    step = int(environ.get(environment.STEP, "0"))
    try:
        words = script_page.create(path, pid=os.getpid(), rank=rank, step=step)
    except FileExistsError:
        try:
            words = script_page.attach(path)
        except ValueError as error:
            raise Misuse(f"{error}: use the `windfall` that started the script") from error
        if words[script_page.PID] != 0 and Path(f"/proc/{words[script_page.PID]}").exists():
            raise Misuse(
                f"process {words[script_page.PID]} uses Windfall's SDK: call wf.backup(path) there instead"
            ) from None
    return words
