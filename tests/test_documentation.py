"""The pages say what is so: links lead somewhere, every fault has its tests, every command its page."""

import re
from pathlib import Path

import pytest

from tessera.cli.app import COMMANDS

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links(page):
    """Every relative link leads to a file of the project."""
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_every_page_is_found():
    """Every page of the documentation can be reached from the README."""
    linked = set(re.findall(r"\]\((docs/[^)#]+\.md)", (ROOT / "README.md").read_text()))
    assert linked == {str(page.relative_to(ROOT)) for page in ROOT.glob("docs/*.md")}


def test_every_fault_has_its_tests():
    """Each numbered fault is proven by a test of that number, and each such test's fault is on the page."""
    listed = {
        int(n) for n in re.findall(r"^\| (\d+) \|", (ROOT / "docs/faults.md").read_text(), re.MULTILINE)
    }
    tested = set()
    for file in [*ROOT.glob("tests/**/*.py"), *ROOT.glob("e2e/*.py")]:
        for numbers in re.findall(r"def test_faults?_((?:\d+_)+)", file.read_text()):
            tested |= {int(n) for n in numbers.strip("_").split("_")}
    assert listed >= set(range(1, 29))
    assert listed == tested


def test_both_readmes_tell_the_same():
    """The Chinese README links to the same pages as the English one."""
    pages = [
        set(re.findall(r"\]\((docs/[^)#]+\.md)", (ROOT / name).read_text()))
        for name in ("README.md", "README.zh-CN.md")
    ]
    assert pages[0] == pages[1]


def test_every_command_is_documented():
    """Each command stands somewhere in the documentation."""
    text = "\n".join(page.read_text() for page in PAGES)
    for name in COMMANDS:
        assert f"tessera {name}" in text, name
