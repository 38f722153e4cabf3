"""The list of ledgers with entries that no replica can serve."""

import random

from quire_bookie.metadata.layout import ledger_of_path
from quire_bookie.metadata.unrecoverable import UNRECOVERABLE, Unrecoverable, UnrecoverableLedgers
from quire_bookie.model import LedgerId
from tests.sim.metadata import SimMetadata, SimMetadataStore


async def test_a_note_counts_attempts_and_keeps_the_first_time() -> None:
    server = SimMetadata(random.Random(1), delay_s=(0.0, 0.0))
    notes = UnrecoverableLedgers(SimMetadataStore(server))
    await notes.note(LedgerId(7), "b1 lost its disk", 100)
    await notes.note(LedgerId(7), "x" * 5000, 200)
    await notes.note(LedgerId(3), "other", 300)
    found = [entry for page in [page async for page in notes.pages()] for entry in page]
    assert found[0] == Unrecoverable(LedgerId(3), "other", 300, 300, 1)
    assert (found[1].since_ms, found[1].last_ms, found[1].attempts, len(found[1].reason)) == (100, 200, 2, 2000)
    await notes.clear(LedgerId(7))
    await notes.clear(LedgerId(7))
    assert [entry.ledger for page in [page async for page in notes.pages()] for entry in page] == [3]


async def test_a_note_is_not_listed_as_a_ledger() -> None:
    server = SimMetadata(random.Random(1), delay_s=(0.0, 0.0))
    await UnrecoverableLedgers(SimMetadataStore(server)).note(LedgerId(7), "gone", 1)
    assert all(key.startswith(f"{UNRECOVERABLE}/") and ledger_of_path(key) is None for key in server.nodes)


async def test_an_invalid_note_is_skipped_and_replaced() -> None:
    server = SimMetadata(random.Random(1), delay_s=(0.0, 0.0))
    notes = UnrecoverableLedgers(SimMetadataStore(server))
    server.write(f"{UNRECOVERABLE}/L{7:019d}", b"[]", None)
    assert [page async for page in notes.pages()] == []
    await notes.note(LedgerId(7), "gone", 5)
    assert [entry.since_ms for page in [page async for page in notes.pages()] for entry in page] == [5]
