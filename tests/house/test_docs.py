"""The documentation: pages made from the code are current, links lead somewhere, and examples name real verbs."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from tests.house.source import ROOT, tree_files

PAGES = [path for path in tree_files() if path.suffix == ".md"]


@pytest.fixture(scope="module")
def builder() -> ModuleType:
    """`docs/build.py` as a module."""
    spec = importlib.util.spec_from_file_location("docs_build", ROOT / "docs" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_is_what_the_code_says(builder: ModuleType) -> None:
    """Every generated page is as `make docs` would write it now."""
    stale = [
        path.relative_to(ROOT).as_posix()
        for path, text in builder.pages().items()
        if not path.exists() or path.read_text("utf-8") != text
    ]

    assert stale == [], "run `make docs`"


def _links(path: Path) -> list[str]:
    found = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text("utf-8"))
    return [link for link in found if "://" not in link and not link.startswith("mailto:")]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_to_files_that_exist(path: Path) -> None:
    """No page points to a file that is not in the tree."""
    assert [link for link in _links(path) if not (path.parent / link).exists()] == []


def test_pages_name_only_verbs_that_exist(builder: ModuleType) -> None:
    """Every `windfall VERB` in a block of code or in backticks is a verb of the command line."""
    verbs = {name for name in builder.build_cli() if not name.startswith("-")}
    written = re.compile(r"(?<!import )(?<![\w.-])windfall ([a-z]+)\b(?=[ `\n])")
    code = re.compile(r"```.*?```|`[^`\n]+`|^ {4}.*$", re.MULTILINE | re.DOTALL)
    unknown = {
        (path.relative_to(ROOT).as_posix(), verb)
        for path in PAGES
        for block in code.findall(path.read_text("utf-8"))
        for verb in written.findall(block)
        if verb not in verbs
    }

    assert unknown == set()
