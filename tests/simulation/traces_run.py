"""`windfall lab traces ...` as a user meets it: what is printed, the sentence of an error, the exit code."""

from __future__ import annotations

from windfall.cli.verbs import build
from windfall.errors import WindfallError


def run(*arguments: object) -> tuple[int, str]:
    """Exit code and sentence; any other exception than an error of ours reaches the test, as it would the user."""
    try:
        build("lab")(["lab", "traces", *(str(one) for one in arguments)], exit_on_error=False, print_error=False)
    except WindfallError as error:
        return error.exit_code, str(error)
    return 0, ""
