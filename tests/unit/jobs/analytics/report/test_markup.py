"""No name that a producer can choose breaks out of a page."""

from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire_jobs.analytics.report.markup import NAME_CHARACTERS_MAX, Markup, join, shortened, tag, visible
from quire_jobs.analytics.report.page import Advice, Cell, Level, Page, Section, Table, Tile, render


class Elements(HTMLParser):
    """Collects names of elements, their attributes, and all text."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.attributes: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record an element."""
        self.elements.append(tag)
        self.attributes += [name for name, _ in attrs]

    def handle_data(self, data: str) -> None:
        """Record a text."""
        self.words.append(data)


def parsed(page: str) -> Elements:
    found = Elements()
    found.feed(page)
    found.close()
    return found


def test_text_and_attributes_are_escaped() -> None:
    assert tag("p", "<b>&\"'", title='"><script>') == (
        '<p title="&quot;&gt;&lt;script&gt;">&lt;b&gt;&amp;&quot;&#x27;</p>'
    )
    assert tag("p", tag("b", "x"), None, 3, class_="a", data_x=None) == '<p class="a"><b>x</b>3</p>'
    assert join("<", Markup("<br>")) == "&lt;<br>"


@pytest.mark.parametrize(
    ("name", "shown"), [("a\x00b", "a\\u{0}b"), ("\u202egnp.exe", "\\u{202e}gnp.exe"), ("Zürich", "Zürich")]
)
def test_control_characters_are_made_visible(name: str, shown: str) -> None:
    assert visible(name) == shown


def test_a_long_name_loses_its_middle_and_keeps_both_ends() -> None:
    name = "head" + "x" * 500 + "tail"
    assert len(shortened(name)) == NAME_CHARACTERS_MAX
    assert shortened(name).startswith("head") and shortened(name).endswith("tail")
    assert shortened("short") == "short"


def page_about(name: str) -> str:
    return render(
        Page(
            name,
            name,
            0.0,
            [Advice(Level.ACT, name, name)],
            [Tile(name, name, name)],
            [Section(name, name, table=Table((name, name), [(name, Cell(name))], folded=True))],
            [name],
        )
    )


@given(
    st.text(min_size=1) | st.sampled_from(["</style><script>x()</script>", "'\"><img src=x onerror=alert(1)>", "]]>"])
)
def test_a_page_has_the_same_elements_for_all_names(name: str) -> None:
    plain, named = parsed(page_about("n")), parsed(page_about(name))
    assert named.elements == plain.elements
    # A long name has a title with all of it; no other attribute may be added.
    assert [each for each in named.attributes if each != "title"] == plain.attributes


def test_a_page_makes_no_requests() -> None:
    page = page_about("n")
    assert "default-src 'none'" in page.replace("&#x27;", "'")
    for word in ("http://", "https://", "<script", "@import", "url("):
        assert word not in page
