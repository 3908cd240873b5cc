"""The commands of a page, as a reader types them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", ROOT / "docs" / "tutorial.md", *sorted((ROOT / "docs" / "howto").glob("*.md")))
STARTS = re.compile(r"(\$ )?(windfall|make|python|pip|git|torchrun|srun|export|echo|\.) \S|windfall$")


def blocks(text: str) -> list[str]:
    """Fenced blocks of a shell, and indented blocks, in the order of the page; other languages are left out."""
    found: list[str] = []
    shell: bool | None = None
    for line in text.splitlines():
        if line.startswith("```"):
            shell = None if shell is not None else line[3:].strip() in ("sh", "bash", "console")
            found.append("")
        elif shell is None and line.startswith("    ") and not line.lstrip().startswith(("- ", "* ")):
            found.append((found.pop() if found else "") + line[4:] + "\n")
        elif shell:
            found.append(found.pop() + line + "\n")
        else:
            found.append("")
    return [block for block in found if block.strip()]


def commands(page: Path) -> list[str]:
    """Every command of a page, without prompts and comments; what is continued on a next line is one."""
    found = []
    for block in blocks(page.read_text("utf-8")):
        lines = (line.strip() for line in re.sub(r"\\\n\s*", " ", block).splitlines())
        found += [re.sub(r"\s+#.*$", "", line).removeprefix("$ ") for line in lines if STARTS.match(line)]
    return found


def windfall_calls(page: Path) -> list[list[str]]:
    """The words of each call of `windfall` within the commands, its own alone: nothing behind `--`, a pipe or `>`."""
    calls = []
    for command in commands(page):
        found = re.search(r"(?:^|[ &(])windfall (.*)", command)
        if found is not None and found[1][0] not in "#&":
            calls.append(re.split(r" -- | --$|[|>&;)]", found[1])[0].split())
    return calls
