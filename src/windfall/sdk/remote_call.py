"""What an item of `wf.Executor` runs: `python -P -m windfall.sdk.remote_call FUNCTION CALLS OFFSET SIZE`.

It reads the pickled function and its arguments, calls it, and leaves a file with the pickled result, or with the exception.
A call is a process of its own, so this module imports nothing but what each call needs.
"""

from __future__ import annotations

import os
import pickle
import sys

from windfall.wire import environment

RESULT = ".result"
"""The file that a call leaves in its folder."""
VALUE, ERROR, LOST_ERROR, REFUSED = "value", "error", "lost error", "refused"
"""What it is: a value; an exception and its traceback; type and text of an exception that cannot be pickled, and its
traceback; why the function was not called."""


def python_version() -> bytes:
    """Return this Python's version as functions are marked with it: their bytecode runs on no other one."""
    return b"%d.%d" % sys.version_info[:2]


def main(function: str, calls: str, offset: str, size_bytes: str) -> int:
    """Call a function.

    Args:
        function: key of the pickled function, behind a line with the version of Python.
        calls: key of the object with pickled arguments.
        offset: where in it those of this call start [B].
        size_bytes: how long they are [B].
    """
    folder = os.environ[environment.CALL_INPUTS]
    sys.path.insert(0, os.environ[environment.CALL_CODE])
    try:
        with open(os.path.join(folder, function), "rb") as file:
            version, pickled = file.readline().strip(), file.read()
        with open(os.path.join(folder, calls), "rb") as file:
            file.seek(int(offset))
            arguments = file.read(int(size_bytes))
    except FileNotFoundError as error:
        return _refuse(f"the call's {os.path.relpath(error.filename, folder)} is no longer in the store of the run")
    if version != python_version():
        theirs, ours = version.decode(), python_version().decode()
        return _refuse(
            f"the call was submitted by Python {theirs}, and the machine has Python {ours}, which cannot read its bytecode: "
            f"pass Executor(python=...) a Python {theirs} of the machines, or use Python {ours} here"
        )
    try:
        value = _called(pickled, arguments)
    except BaseException as error:
        return _leave_error(error)
    try:
        data = _pickled((VALUE, value))
    except Exception as error:
        kind = type(value).__name__
        return _leave_error(
            TypeError(
                f"the call returned a {kind}, which cannot be pickled ({error}): return plain data, or write a file"
            )
        )
    _leave(data)
    return 0


def _called(pickled: bytes, arguments: bytes) -> object:
    try:
        function = pickle.loads(pickled)  # noqa: S301 - the user's own call
        positional, named = pickle.loads(arguments)  # noqa: S301
    except ModuleNotFoundError as error:
        error.add_note(
            f"the machine cannot import {error.name}: pass Executor(workdir=FOLDER) if it is your own module, and "
            "Executor(setup='pip install ...') if it is a package"
        )
        raise
    return function(*positional, **named)


def _pickled(result: tuple[object, ...]) -> bytes:
    try:
        return pickle.dumps(result)
    except Exception:
        # What is defined in the user's script is pickled by value, which takes longer.
        import cloudpickle  # noqa: PLC0415 - most results need none

        data: bytes = cloudpickle.dumps(result)
        return data


def _leave_error(error: BaseException) -> int:
    import traceback  # noqa: PLC0415 - only a failed call needs it

    below = error.__traceback__
    while below is not None and below.tb_frame.f_code.co_filename == __file__:
        below = below.tb_next
    text = "".join(traceback.format_exception(type(error), error, below))
    sys.stderr.write(text)
    error.__traceback__ = None
    try:
        data = _pickled((ERROR, error, text))
        pickle.loads(data)  # noqa: S301 - of this process
    except Exception:
        data = pickle.dumps((LOST_ERROR, f"{type(error).__name__}: {error}", text))
    _leave(data)
    return 1


def _refuse(reason: str) -> int:
    sys.stderr.write(f"windfall: {reason}\n")
    _leave(pickle.dumps((REFUSED, reason)))
    return 1


def _leave(data: bytes) -> None:
    with open(RESULT, "wb") as file:
        file.write(data)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
