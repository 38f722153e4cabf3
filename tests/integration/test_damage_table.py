"""Every file of a bookie, damaged in every way, on a real disk: the table of docs/durability.md, tried out.

After each start every acknowledged entry is read back and compared, and every fenced ledger is asked for an add.
"""

import asyncio
from pathlib import Path

import pytest

from tests.damage.corpus import Image, build_with_other, files_of, kind_of
from tests.damage.outcome import Damage, trial
from tests.damage.table import TABLE, allowed, markdown

DOC = Path(__file__).parents[2] / "docs" / "durability.md"
STOPPED_TOO = ("journal file, newest", "last-mark", "index, MANIFEST", "index, write-ahead log")
"""Kinds that mean something else after a clean stop."""
USUAL = (Damage.REMOVED, Damage.FLIPPED)
"""The kinds tried by default; CI tries all."""


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> list[Image]:
    """Bookies as a kill, a stop and an accepted loss left them."""
    return asyncio.run(build_with_other(tmp_path_factory.mktemp("images")))


def _chosen(images: list[Image], kind: str) -> list[tuple[Image, str]]:
    """The last file of that kind in each image."""
    found = []
    for image in images:
        names = [name for name in files_of(image.folder) if kind_of(image.folder, name) == kind]
        found += [(image, names[-1])] if names else []
    return found[:2] if kind in STOPPED_TOO else found[:1]


@pytest.mark.parametrize(
    "damage",
    [each if each in USUAL else pytest.param(each, marks=pytest.mark.slow) for each in Damage],
)
@pytest.mark.parametrize("kind", list(TABLE))
async def test_an_outcome_is_the_one_of_the_table(
    images: list[Image], tmp_path: Path, kind: str, damage: Damage
) -> None:
    for image, name in _chosen(images, kind):
        outcome = await trial(image, name, kind, damage, 1, tmp_path / "trial")
        assert outcome is None or outcome in allowed(kind, damage), f"{image.name} {name}"


async def test_a_bookie_makes_no_file_that_the_table_does_not_list(images: list[Image]) -> None:
    found = {kind_of(image.folder, name) for image in images for name in files_of(image.folder)}
    assert found == set(TABLE)


async def test_the_document_shows_the_table() -> None:
    assert markdown() in DOC.read_text()
