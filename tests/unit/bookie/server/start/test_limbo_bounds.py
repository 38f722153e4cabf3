"""Tests of the limbo bounds: they include every existing ledger, and no other."""

import random

import pytest

from quire_bookie.errors import MetadataUnavailableError
from quire_bookie.metadata.layout import SHORT_LEDGER_IDS_END, ledger_path
from quire_bookie.model import LedgerId
from quire_bookie.server.start.limbo_bounds import existing_bounds
from tests.sim.metadata import SimMetadata, SimMetadataStore

LONG = 1 << 32


@pytest.mark.parametrize(
    ("ledgers", "bounds"),
    [
        ((), []),
        ((0,), [0]),
        ((7, 3, 5), [7]),
        ((LONG | 2, LONG | 9), [LONG | 9]),
        ((4, LONG, 2), [4, LONG]),
        ((SHORT_LEDGER_IDS_END - 1, SHORT_LEDGER_IDS_END + 1), [SHORT_LEDGER_IDS_END - 1, SHORT_LEDGER_IDS_END + 1]),
        ((SHORT_LEDGER_IDS_END, LONG), [SHORT_LEDGER_IDS_END, LONG]),
        (range(2500), [2499]),
    ],
)
async def test_each_range_of_ids_has_its_largest_ledger_as_its_bound(
    ledgers: tuple[int, ...], bounds: list[int]
) -> None:
    server = SimMetadata(random.Random(1), delay_s=(0.0, 0.0))
    for ledger in ledgers:
        server.write(ledger_path(LedgerId(ledger)), b"", None)
    server.write("/ledgers/idgen", b"", None)
    assert await existing_bounds(SimMetadataStore(server)) == bounds


async def test_without_the_metadata_there_is_no_bound() -> None:
    server = SimMetadata(random.Random(1), delay_s=(0.0, 0.0))
    server.away = True
    with pytest.raises(MetadataUnavailableError):
        await existing_bounds(SimMetadataStore(server))
