"""The process that has a user's rule for stopping items: `python -m windfall.cli.stop_rule_process FILE.py:FUNCTION`.

It runs in the folder with the job's code.  After a first line that it is ready, it answers each line with a question, both in
JSON.  What the function prints goes to the machine's output.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Callable
from typing import Any, TextIO

from windfall.linux import processes

_CHARACTERS_MAX = 300


def main() -> int:
    """Answer questions until there are no more."""
    processes.die_with_parent(os.getppid())
    questions, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    file, _, name = sys.argv[1].rpartition(":")
    try:
        function = load(file, name)
    except BaseException as error:
        _write(answers, {"error": f"{file} cannot be loaded: {_in_words(error)}", "for_all": True})
        return 1
    _write(answers, {})
    for line in questions:
        question = json.loads(line)
        _write(answers, answer(function, question["parameters"], question["values"]))
    return 0


def load(file: str, name: str) -> Callable[[dict[str, Any], list[float]], object]:
    """Return a function of a file of the working folder, whose modules it may import."""
    sys.path.insert(0, os.getcwd())
    described = importlib.util.spec_from_file_location(os.path.splitext(os.path.basename(file))[0], file)
    if described is None or described.loader is None:
        raise ImportError("it is no Python file")
    module = importlib.util.module_from_spec(described)
    sys.modules[described.name] = module
    described.loader.exec_module(module)
    found: Callable[[dict[str, Any], list[float]], object] = getattr(module, name)
    return found


def answer(
    function: Callable[[dict[str, Any], list[float]], object], parameters: dict[str, Any], values: list[float]
) -> dict[str, object]:
    """Return what the function says of an item."""
    try:
        found = function(parameters, values)
        return {"stop": bool(found), "reason": _short(found) if isinstance(found, str) else ""}
    except BaseException as error:
        return {"error": f"it raised {_in_words(error)}"}


def _in_words(error: BaseException) -> str:
    text = _short(str(error))
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _short(text: str) -> str:
    return " ".join(text.split())[:_CHARACTERS_MAX]


def _write(file: TextIO, value: dict[str, object]) -> None:
    file.write(json.dumps(value) + "\n")
    file.flush()


if __name__ == "__main__":
    sys.exit(main())
