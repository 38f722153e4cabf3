"""The web site of the documentation: every page is built and in the navigation, and a broken link fails the build."""

from pathlib import Path

import pytest

from scripts import site

pytestmark = pytest.mark.slow
LISTS = {"crds/list.md", "docs/kubernetes/examples/list.md"}
"""Pages of folders without a page of their own, which links reach."""


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    site.collect(folder / "pages")
    return folder


def test_every_page_is_built_and_named_in_the_navigation(work: Path) -> None:
    assert site.build(work)
    built = work.parent / "site"
    pages = [path.relative_to(work / "pages") for path in (work / "pages").rglob("*.md")]
    assert len(pages) > 50
    for page in pages:
        name = page.with_name("index.html") if page.name == "README.md" else page.with_suffix(".html")
        assert (built / name).exists(), page
    named = [path for part in site.configuration(work / "pages")["nav"] for paths in part.values() for path in paths]
    assert len(named) == len(set(named)), "a page stands in one place"
    assert set(named) | LISTS == {str(page) for page in pages}


@pytest.mark.parametrize("link", ["missing.md", "cli.md#no-such-heading"])
def test_a_broken_link_fails_the_build(work: Path, link: str, capfd: pytest.CaptureFixture[str]) -> None:
    page = work / "pages" / "docs" / "limits.md"
    page.write_text(page.read_text() + f"\n[elsewhere]({link})\n")
    assert not site.build(work)
    assert link.partition("#")[0] in capfd.readouterr().err
