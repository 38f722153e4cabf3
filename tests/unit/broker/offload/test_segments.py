"""Segments written to a folder and read back: whole, in ranges, damaged, missing. Buckets: tests/integration."""

from pathlib import Path

import pytest

from quire_bookie.crc import crc32c
from quire_bookie.errors import NoSuchEntryError
from quire_bookie.model import EntryId, LedgerId
from quire_bookie.object_store.opening import open_object_store
from quire_bookie.object_store.store import ObjectStore
from quire_broker.errors import OffloadError, SegmentDamagedError, SegmentMissingError
from quire_broker.offload.format import BLOCK_BYTES_MIN, data_key, index_key
from quire_broker.offload.segment_reader import SegmentReader
from quire_broker.offload.segment_writer import delete_segment, write_segment
from quire_broker.offload.settings import WindowSettings, WriteSettings
from quire_broker.offload.windows import WindowCache
from tests.unit.broker.offload.ledgers import UUID, ClosedLedger

KIB = 1024
WINDOWS = WindowSettings(capacity_bytes=8 * 64 * KIB, window_bytes=64 * KIB, ahead=2)
SMALL = WriteSettings(block_bytes_max=BLOCK_BYTES_MIN, part_bytes=BLOCK_BYTES_MIN, read_bytes=300_000)


def objects_in(folder: Path) -> ObjectStore:
    return open_object_store(f"file://{folder}", {})


async def opened(objects: ObjectStore, cache: WindowCache, ledger: int = 7) -> SegmentReader:
    return await SegmentReader.open(objects, LedgerId(ledger), UUID, cache)


@pytest.mark.parametrize(("seed", "entries", "size_max"), [(1, 1, 10), (2, 3000, 5000), (3, 40, 600_000), (4, 900, 0)])
async def test_a_ledger_is_read_back_unchanged(tmp_path: Path, seed: int, entries: int, size_max: int) -> None:
    objects, ledger, cache = objects_in(tmp_path), ClosedLedger.random(seed, entries, size_max), WindowCache(WINDOWS)
    summary = await write_segment(objects, ledger, UUID, SMALL)
    reader = await opened(objects, cache)
    found = [bytes(entry.payload) async for run in reader.scan() for entry in run]
    assert found == ledger.payloads
    verified = await reader.verify()
    crc = 0
    for payload in ledger.payloads:
        crc = crc32c(payload, crc)
    assert (verified.entries, verified.payload_bytes, verified.crc) == (entries, ledger.metadata.length, crc)
    assert (summary.entries, summary.payload_bytes, summary.crc) == (entries, ledger.metadata.length, crc)
    assert summary.data_bytes == (tmp_path / data_key(UUID, 7)).stat().st_size
    assert summary.blocks == len(reader.index.blocks)
    assert cache.size_bytes <= WINDOWS.capacity_bytes
    await cache.close()


async def test_any_range_can_be_read(tmp_path: Path) -> None:
    objects, ledger, cache = objects_in(tmp_path), ClosedLedger.random(5, 4000, 4000), WindowCache(WINDOWS)
    await write_segment(objects, ledger, UUID, SMALL)
    reader = await opened(objects, cache)
    assert len(reader.index.blocks) > 1
    edges = [block.first_entry for block in reader.index.blocks[1:]]
    for first in [3999, 0, 2000, 1999, *edges, *(edge - 1 for edge in edges), 17]:
        last = min(3999, first + 40)
        run = await reader.read(EntryId(first), EntryId(last))
        assert [(entry.entry_id, bytes(entry.payload)) for entry in run] == [
            (at, ledger.payloads[at]) for at in range(first, last + 1)
        ]
    await cache.close()


async def test_a_read_stays_within_its_bytes_but_returns_at_least_one_entry(tmp_path: Path) -> None:
    objects, ledger, cache = objects_in(tmp_path), ClosedLedger([bytes(100)] * 10), WindowCache(WINDOWS)
    await write_segment(objects, ledger, UUID, SMALL)
    reader = await opened(objects, cache)
    assert len(await reader.read(EntryId(0), EntryId(9), 350)) == 3
    assert len(await reader.read(EntryId(4), EntryId(9), 10)) == 1
    assert len(await reader.read(EntryId(4), EntryId(9), 600)) == 6
    with pytest.raises(NoSuchEntryError, match="it has 0 to 9"):
        await reader.read(EntryId(4), EntryId(10))
    await cache.close()


async def test_a_search_reads_a_block_once(tmp_path: Path) -> None:
    objects, ledger = objects_in(tmp_path), ClosedLedger([bytes(1000)] * 5000)
    cache = WindowCache(WindowSettings(capacity_bytes=4 * 64 * KIB, window_bytes=64 * KIB, ahead=0))
    await write_segment(objects, ledger, UUID, SMALL)
    reader = await opened(objects, cache)
    await reader.read(EntryId(4900), EntryId(4900))
    whole = cache.stats.fetched
    for entry in (2450, 3675, 3062, 3368):
        await reader.read(EntryId(entry), EntryId(entry))
    assert cache.stats.fetched <= whole + 2 * 4
    await cache.close()


async def test_a_missing_object_is_named_in_the_error(tmp_path: Path) -> None:
    objects, cache = objects_in(tmp_path), WindowCache(WINDOWS)
    await write_segment(objects, ClosedLedger([b"x"]), UUID, SMALL)
    reader = await opened(objects, cache)
    await objects.delete(data_key(UUID, 7))
    with pytest.raises(SegmentMissingError, match="ledger-7 is missing"):
        await reader.read(EntryId(0), EntryId(0))
    await delete_segment(objects, 7, UUID)
    assert await objects.names() == []
    with pytest.raises(SegmentMissingError, match="ledger-7-index is missing"):
        await opened(objects, cache)
    await cache.close()


@pytest.mark.parametrize(
    ("at", "value"),
    [(130, b"\1"), (128 + 11, b"\7"), (128, b"\x7f"), (5 * 1024 * 1024, b"\0")],
    ids=["length", "entry id", "length beyond the block", "second block"],
)
async def test_unexpected_data_is_damage(tmp_path: Path, at: int, value: bytes) -> None:
    objects, cache = objects_in(tmp_path), WindowCache(WINDOWS)
    await write_segment(objects, ClosedLedger([bytes(1000)] * 6000), UUID, SMALL)
    with (tmp_path / data_key(UUID, 7)).open("r+b") as file:
        file.seek(at)
        file.write(value)
    with pytest.raises(SegmentDamagedError):
        await (await opened(objects, cache)).verify()
    await cache.close()


async def test_data_that_ends_early_is_damage(tmp_path: Path) -> None:
    objects, cache = objects_in(tmp_path), WindowCache(WINDOWS)
    await write_segment(objects, ClosedLedger([bytes(1000)] * 100), UUID, SMALL)
    path = tmp_path / data_key(UUID, 7)
    path.write_bytes(path.read_bytes()[:50_000])
    with pytest.raises(SegmentDamagedError, match="ends before"):
        await (await opened(objects, cache)).verify()
    (tmp_path / index_key(UUID, 7)).write_bytes(b"what")
    with pytest.raises(SegmentDamagedError, match="an index of 4 bytes"):
        await opened(objects, cache)
    await cache.close()


async def test_a_ledger_that_does_not_match_its_metadata_leaves_no_objects(tmp_path: Path) -> None:
    objects = objects_in(tmp_path)
    for length in (999, 1001):
        with pytest.raises(OffloadError, match=f"10 entries of {length} bytes"):
            await write_segment(objects, ClosedLedger([bytes(100)] * 10, length=length), UUID, SMALL)
    assert await objects.names() == []
    with pytest.raises(OffloadError, match="is open or empty"):
        await write_segment(objects, ClosedLedger([]), UUID, SMALL)


async def test_the_pace_is_awaited_for_every_byte_before_reading_continues(tmp_path: Path) -> None:
    seen: list[int] = []

    async def pace(size_bytes: int) -> None:
        seen.append(size_bytes)

    await write_segment(objects_in(tmp_path), ClosedLedger([bytes(100_000)] * 10), UUID, SMALL, pace)
    assert sum(seen) == 1_000_000 and max(seen) <= SMALL.read_bytes


@pytest.mark.parametrize("settings", [{"block_bytes_max": 1000}, {"part_bytes": 1000}, {"parts_at_once": 0}])
def test_settings_that_no_service_accepts_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(OffloadError, match=r"bytes: use|: use parts"):
        WriteSettings(**settings)
