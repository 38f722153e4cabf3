"""Offloaded objects that another party replaced in the bucket: an index or data with lies, objects of any size.

A reader answers with the entries that it asked for, whatever they hold, or with an error. It holds no more memory than
its budget and one entry.
"""

from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from struct import pack

import pytest

from quire_bookie.errors import NoSuchEntryError, QuireError
from quire_bookie.model import EntryId, LedgerId
from quire_bookie.object_store.opening import open_object_store
from quire_bookie.object_store.store import ObjectStore
from quire_broker.errors import SegmentDamagedError
from quire_broker.offload import segment_reader
from quire_broker.offload.format import BLOCK_BYTES_MIN, data_key, index_key
from quire_broker.offload.segment_reader import SCAN_BYTES, SegmentReader
from quire_broker.offload.segment_writer import write_segment
from quire_broker.offload.settings import WindowSettings, WriteSettings
from quire_broker.offload.windows import WindowCache
from tests.unit.broker.offload.ledgers import UUID, ClosedLedger

WINDOWS = WindowSettings(capacity_bytes=8 * 65536, window_bytes=65536, ahead=2)
SMALL = WriteSettings(block_bytes_max=BLOCK_BYTES_MIN, part_bytes=BLOCK_BYTES_MIN, read_bytes=300_000)
INDEX, DATA = index_key(UUID, 7), data_key(UUID, 7)


@pytest.fixture
async def cache() -> AsyncIterator[WindowCache]:
    found = WindowCache(WINDOWS)
    yield found
    await found.close()


async def written(folder: Path, ledger: ClosedLedger) -> ObjectStore:
    objects = open_object_store(f"file://{folder}", {})
    await write_segment(objects, ledger, UUID, SMALL)
    return objects


async def read_all(objects: ObjectStore, cache: WindowCache) -> list[int]:
    reader = await SegmentReader.open(objects, LedgerId(7), UUID, cache)
    await reader.verify()
    return [entry.entry_id async for run in reader.scan() for entry in run]


async def test_an_index_of_any_size_is_read_up_to_its_limit(
    tmp_path: Path, cache: WindowCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = await written(tmp_path, ClosedLedger.random(1, 10, 10))
    with (tmp_path / INDEX).open("r+b") as file:
        file.truncate(1 << 40)
    monkeypatch.setattr(segment_reader, "INDEX_BYTES_MAX", 1 << 20)
    with pytest.raises(SegmentDamagedError, match="more than 1048576 bytes"):
        await read_all(objects, cache)


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (4, pack(">i", 2**31 - 1)),  # bytes of the index
        (8, pack(">q", 2**62)),  # bytes of the data
        (8, pack(">q", -1)),
        (16, pack(">q", 2**40)),  # bytes of a header
        (24, pack(">i", 2**31 - 1)),  # blocks
        (24, pack(">i", -1)),
        (28, pack(">i", 2**31 - 1)),  # bytes of the metadata
        (28, pack(">i", -(2**31))),
        (-8, pack(">q", 2**62)),  # offset of the last block
        (-8, pack(">q", -1)),
        (-20, pack(">q", 2**62)),  # first entry of the last block
    ],
)
async def test_an_index_with_lies_is_an_error(tmp_path: Path, cache: WindowCache, at: int, value: bytes) -> None:
    objects = await written(tmp_path, ClosedLedger.random(3, 40, 600_000))
    raw = bytearray((tmp_path / INDEX).read_bytes())
    start = at % len(raw)
    raw[start : start + len(value)] = value
    (tmp_path / INDEX).write_bytes(raw)
    with pytest.raises(QuireError):
        await read_all(objects, cache)


async def test_a_random_index_or_object_is_an_error_or_the_ledger(tmp_path: Path, cache: WindowCache) -> None:
    random = Random(18)
    objects = await written(tmp_path, ClosedLedger.random(2, 200, 2_000))
    for name in (INDEX, DATA):
        good = (tmp_path / name).read_bytes()
        for _ in range(150):
            raw = bytearray(good)
            for _ in range(random.randrange(1, 4)):
                raw[random.randrange(min(len(raw), 400))] = random.randrange(256)
            (tmp_path / name).write_bytes(raw)
            try:
                assert await read_all(objects, cache) == list(range(200))
            except QuireError:
                pass
            cache.drop()
        (tmp_path / name).write_bytes(good)


async def test_an_entry_that_says_it_is_huge_is_damage(tmp_path: Path, cache: WindowCache) -> None:
    """The object has as many bytes as it claims: only the limit keeps them out of memory."""
    objects = await written(tmp_path, ClosedLedger([bytes(1_000_000)]))
    raw = bytearray((tmp_path / INDEX).read_bytes())
    raw[8:16] = pack(">q", 1 << 30)
    (tmp_path / INDEX).write_bytes(raw)
    with (tmp_path / DATA).open("r+b") as file:
        file.seek(12)
        file.write(pack(">q", 1 << 30))
        file.seek(128)
        file.write(pack(">iq", (1 << 30) - 140, 0))
        file.truncate(1 << 30)
    reader = await SegmentReader.open(objects, LedgerId(7), UUID, cache)
    with pytest.raises(SegmentDamagedError, match="instead of 0"):
        await reader.read(EntryId(0), EntryId(0))
    assert cache.size_bytes <= WINDOWS.capacity_bytes


async def test_entries_without_payload_come_in_runs(tmp_path: Path, cache: WindowCache) -> None:
    count = SCAN_BYTES // 64 + 1_000
    objects = await written(tmp_path, ClosedLedger([b""] * count))
    reader = await SegmentReader.open(objects, LedgerId(7), UUID, cache)
    runs = [len(run) async for run in reader.scan()]
    assert sum(runs) == count
    assert max(runs) <= SCAN_BYTES // 64
    assert len(await reader.read(EntryId(0), EntryId(count - 1))) == count
    with pytest.raises(NoSuchEntryError):
        await reader.read(EntryId(0), EntryId(count))
