"""Every relative link in the documentation leads to a file, and to a heading of it."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("docs", "tests", "bookie", "broker", "operator", "jobs", "charts", "scripts")
PAGES = sorted([*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in ROOT.glob(f"{folder}/**/*.md"))])
_LINK = re.compile(r"\]\(([^()\s]*(?:\([^()\s]*\)[^()\s]*)*)\)")
_OTHER_SITE = re.compile(r"[a-z]+:")
_CODE = re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL)


def anchors(text: str) -> set[str]:
    """The anchors of all headings, as code hosts derive them."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ +(.+?)\s*$", _CODE.sub("", text), re.MULTILINE):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        number = 1
        while anchor in found:
            anchor = f"{re.sub(r'-[0-9]+$', '', anchor)}-{number}"
            number += 1
        found.add(anchor)
    return found


def broken(page: Path, text: str) -> Iterator[str]:
    """Yield the relative links of a page that lead nowhere."""
    for link in _LINK.findall(_CODE.sub("", text)):
        path, _, anchor = link.partition("#")
        if _OTHER_SITE.match(link) or not link:
            continue
        target = page if not path else (page.parent / path).resolve()
        if not target.exists():
            yield f"{link}: no such file"
            continue
        content = text if target == page or target.suffix != ".md" else target.read_text()
        if anchor and target.suffix == ".md" and anchor not in anchors(content):
            yield f"{link}: no such heading"


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_each_relative_link_leads_to_a_file_and_heading(page: Path) -> None:
    assert list(broken(page, page.read_text())) == []


def test_broken_links_are_found() -> None:
    page = ROOT / "README.md"
    assert list(broken(page, "# A b\n[x](#a-b) [y](docs/limits.md) [z](https://example.org/x)")) == []
    assert list(broken(page, "# A\n[x](#b)")) == ["#b: no such heading"]
    assert list(broken(page, "[x](docs/none.md)")) == ["docs/none.md: no such file"]
