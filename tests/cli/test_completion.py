"""Shell completion: the scripts that shells load name the verbs and their options."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from windfall.cli.main import main


@pytest.mark.trial("F3")
def test_bash_completes_verbs_and_options(capsys: pytest.CaptureFixture[str]) -> None:
    """A real bash that has loaded the script completes `windfall che` and `windfall get --res`."""
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out

    def completed(*words: str) -> set[str]:
        typed = " ".join(f"'{word}'" for word in words)
        ask = f"""{script}
COMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}; COMP_LINE="{" ".join(words)}"; COMP_POINT=${{#COMP_LINE}}
function=$(complete -p windfall | sed 's/.*-F \\([^ ]*\\).*/\\1/')
$function windfall "${{COMP_WORDS[COMP_CWORD]}}" "${{COMP_WORDS[COMP_CWORD-1]}}"
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
        done = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True)
        return {word.strip() for word in done.stdout.splitlines()}

    assert "checkpoints" in completed("windfall", "che")
    assert {"--result", "--results"} <= completed("windfall", "get", "--res")


@pytest.mark.trial("F3")
@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_have_their_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The script of each shell names each verb."""
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(verb in script for verb in ("run", "checkpoints", "simulate", "completion"))
