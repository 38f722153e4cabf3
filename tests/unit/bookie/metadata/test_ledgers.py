"""Ledger nodes: compare-and-set, and writes of unknown outcome."""

import dataclasses

import pytest

from quire_bookie.errors import (
    BadVersionError,
    LedgerExistsError,
    MetadataFormatError,
    MetadataUnavailableError,
    MetadataUnknownError,
    NoSuchLedgerError,
)
from quire_bookie.metadata.layout import ledger_path
from quire_bookie.metadata.ledgers import LedgerNodes
from quire_bookie.metadata.store import Node
from quire_bookie.model import BookieId, EntryId, LedgerId, LedgerMetadata, LedgerState, Segment
from tests.sim.metadata import SimMetadata, SimMetadataStore

LEDGER = LedgerId(7)
OPEN = LedgerMetadata(ensemble_size=1, write_quorum=1, ack_quorum=1, segments=(Segment(EntryId(0), (BookieId("b1"),)),))
RECOVERING = dataclasses.replace(OPEN, state=LedgerState.IN_RECOVERY)
CLOSED = dataclasses.replace(OPEN, state=LedgerState.CLOSED, last_entry=EntryId(9), length=100)


class FaultyStore(SimMetadataStore):
    """Loses the next responses, in the given order: `done` (written, response lost), `not done`, `late` (written just
    before the next write), `away` for reads."""

    def __init__(self, server: SimMetadata) -> None:
        super().__init__(server)
        self.faults: list[str] = []
        self.late: list[tuple[str, bytes, int | None]] = []
        self.reads_fail = False
        self.puts = 0

    async def put(self, key: str, value: bytes, *, expected: int | None = None, ephemeral: bool = False) -> int:
        self.puts += 1
        while self.late:
            late_key, late_value, late_expected = self.late.pop()
            await super().put(late_key, late_value, expected=late_expected)
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "late":
            self.late.append((key, value, expected))
        elif fault != "not done":
            version = await super().put(key, value, expected=expected, ephemeral=ephemeral)
            if not fault:
                return version
        raise MetadataUnknownError("lost")

    async def delete(self, key: str, *, expected: int | None = None) -> None:
        fault = self.faults.pop(0) if self.faults else ""
        if fault != "not done":
            await super().delete(key, expected=expected)
        if fault:
            raise MetadataUnknownError("lost")

    async def get(self, key: str) -> Node | None:
        if self.reads_fail:
            raise MetadataUnavailableError("away")
        return await super().get(key)


@pytest.fixture
def faulty(server: SimMetadata) -> FaultyStore:
    """Return a store whose responses can be lost."""
    return FaultyStore(server)


async def test_a_ledger_is_created_once_read_changed_and_deleted(store: SimMetadataStore) -> None:
    nodes = LedgerNodes(store)
    created = await nodes.create(LEDGER, OPEN)
    assert created.version == 0
    with pytest.raises(LedgerExistsError):
        await nodes.create(LEDGER, OPEN)
    updated = await nodes.update(LEDGER, CLOSED, created.version)
    assert await nodes.read(LEDGER) == updated
    assert (updated.value, updated.version) == (CLOSED, 1)
    with pytest.raises(BadVersionError):
        await nodes.update(LEDGER, RECOVERING, created.version)
    assert await nodes.exists(LEDGER)
    with pytest.raises(BadVersionError):
        await nodes.delete(LEDGER, expected=0)
    await nodes.delete(LEDGER, expected=1)
    assert not await nodes.exists(LEDGER)
    for missing in (nodes.read(LEDGER), nodes.delete(LEDGER)):
        with pytest.raises(NoSuchLedgerError):
            await missing


@pytest.mark.parametrize("faults", [["done"], ["not done"], ["late"], ["not done", "done"], ["late", "not done"]])
async def test_a_create_with_a_lost_response_is_settled_by_reading_back(faulty: FaultyStore, faults: list[str]) -> None:
    faulty.faults = faults
    nodes = LedgerNodes(faulty)
    created = await nodes.create(LEDGER, OPEN)
    assert await nodes.read(LEDGER) == created
    assert created.version == 0


@pytest.mark.parametrize("faults", [["done"], ["not done"], ["late"], ["not done", "late"]])
async def test_an_update_with_a_lost_response_is_written_exactly_once(faulty: FaultyStore, faults: list[str]) -> None:
    nodes = LedgerNodes(faulty)
    created = await nodes.create(LEDGER, OPEN)
    faulty.faults = faults
    updated = await nodes.update(LEDGER, CLOSED, created.version)
    assert updated.version == 1
    assert await nodes.read(LEDGER) == updated


async def test_an_update_that_lost_to_another_writer_while_unknown_is_reported(
    server: SimMetadata, faulty: FaultyStore
) -> None:
    nodes = LedgerNodes(faulty)
    created = await nodes.create(LEDGER, OPEN)
    faulty.faults = ["not done"]
    other = LedgerNodes(SimMetadataStore(server))

    async def interfere(key: str) -> Node | None:
        await other.update(LEDGER, RECOVERING, created.version)
        return await SimMetadataStore.get(faulty, key)

    faulty.get = interfere  # type: ignore[method-assign]
    with pytest.raises(BadVersionError):
        await nodes.update(LEDGER, CLOSED, created.version)
    assert (await other.read(LEDGER)).value == RECOVERING


async def test_an_outcome_that_cannot_be_read_back_stays_unknown(faulty: FaultyStore) -> None:
    nodes = LedgerNodes(faulty)
    faulty.faults = ["done"]
    faulty.reads_fail = True
    with pytest.raises(MetadataUnknownError):
        await nodes.create(LEDGER, OPEN)


async def test_requests_to_a_store_that_never_answers_end(faulty: FaultyStore) -> None:
    faulty.faults = ["not done"] * 100
    with pytest.raises(MetadataUnknownError):
        await LedgerNodes(faulty).create(LEDGER, OPEN)
    assert faulty.puts <= 5


async def test_a_delete_with_a_lost_response_succeeds_if_the_ledger_is_gone(faulty: FaultyStore) -> None:
    nodes = LedgerNodes(faulty)
    await nodes.create(LEDGER, OPEN)
    faulty.faults = ["not done"]
    with pytest.raises(MetadataUnknownError):
        await nodes.delete(LEDGER)
    faulty.faults = ["done"]
    await nodes.delete(LEDGER)
    assert not await nodes.exists(LEDGER)


async def test_listings_contain_every_ledger_and_nothing_else(server: SimMetadata, store: SimMetadataStore) -> None:
    nodes = LedgerNodes(store)
    ids = [LedgerId(n) for n in (1, 2, 10_000, 2**31 - 1, 2**40)]
    for ledger in ids:
        await nodes.create(ledger, OPEN)
    for key in ("/ledgers/idgen", "/ledgers/cookies/b1", "/ledgers/available/b1", "/ledgersx/00/0000/L0009"):
        server.write(key, b"", None)
    assert sorted([ledger async for page in nodes.ids(page_keys=2) for ledger in page]) == ids
    found = [(ledger, stored.value) async for page in nodes.scan(page_keys=2) for ledger, stored in page]
    assert sorted(found, key=lambda each: each[0]) == [(ledger, OPEN) for ledger in ids]


async def test_a_damaged_node_is_reported_and_not_skipped(server: SimMetadata, store: SimMetadataStore) -> None:
    server.write(ledger_path(LEDGER), b"junk", None)
    nodes = LedgerNodes(store)
    with pytest.raises(MetadataFormatError):
        await nodes.read(LEDGER)
    with pytest.raises(MetadataFormatError):
        _ = [page async for page in nodes.scan()]
    assert [page async for page in nodes.ids()] == [[LEDGER]]
