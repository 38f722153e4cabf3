"""docs/reference against the code: the pages are up to date, and describe everything."""

import pytest

from scripts.reference import metrics
from scripts.reference.pages import FOLDER, PAGES


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_up_to_date(name: str) -> None:
    assert (FOLDER / name).read_text() == PAGES[name](), "run `make reference`"


def test_every_page_of_the_folder_is_generated() -> None:
    assert {path.name for path in FOLDER.iterdir()} == PAGES.keys()


def test_every_request_is_described() -> None:
    rows = [line for line in (FOLDER / "rest.md").read_text().splitlines() if line.startswith("| `")]
    assert len(rows) > 250
    assert [row for row in rows if row.endswith("|  |")] == []


def test_every_command_is_there() -> None:
    text = (FOLDER / "commands.md").read_text()
    for name in ("standalone", "topic create", "bookie quarantine list", "metadata restore", "jobs run"):
        assert f" quire {name}\n" in text


@pytest.mark.parametrize("part", metrics.PARTS)
def test_a_metric_has_a_type_and_a_help(part: str) -> None:
    rows = metrics.rows_of(part)
    assert rows
    for row in rows:
        assert row.type in ("counter", "gauge", "histogram", "summary"), row
        assert row.text and not row.text.startswith(("quire_", "pulsar_", "bookie_")), row
