"""`windfall completion`: the script by which a shell completes commands and options."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

Shell = Literal["bash", "zsh", "fish"]


def completion(shell: Shell | None = None, /) -> int:
    """Print the completion script of a shell.

    Add this line to `~/.bashrc` (or `~/.zshrc`, with `zsh`):

    `eval "$(windfall completion bash)"`

    For fish: `windfall completion fish > ~/.config/fish/completions/windfall.fish`

    Args:
        shell: bash, zsh or fish; by default the shell you use.
    """
    from windfall.cli.verbs import build  # noqa: PLC0415 - it loads this verb

    print(build().generate_completion(prog_name="windfall", shell=shell or _own_shell()))
    return 0


def _own_shell() -> Shell:
    name = Path(os.environ.get("SHELL", "")).name
    return "zsh" if name == "zsh" else "fish" if name == "fish" else "bash"
