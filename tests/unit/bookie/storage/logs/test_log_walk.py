"""A walk over a log finds exactly the intact records, regardless of damage between them."""

import copy
import random

import pytest

from quire_bookie.errors import DamagedError
from quire_bookie.storage.formats.log_format import FILE_LEDGER, LOG_HEADER_BYTES, SEAL_BYTES
from quire_bookie.storage.logs.log_walk import Gap, LogAccount, LogWalk, WalkedRecord, open_log
from tests.sim.disk import SimDisk
from tests.unit.bookie.storage.rebuilt_stores import filled, log_paths


async def walk(disk: SimDisk, path: str, start: int = 0) -> tuple[list[WalkedRecord], list[Gap], LogAccount]:
    log = await open_log(disk, path)
    account = LogAccount(log)
    records: list[WalkedRecord] = []
    gaps: list[Gap] = []
    async for piece in LogWalk(log, start).pieces():
        account.add(piece)
        records += piece.records
        gaps += piece.gaps
    await log.file.close()
    return records, gaps, account


def seen(records: list[WalkedRecord]) -> set[tuple[int, int, int, bytes]]:
    return {(record.ledger, record.entry, record.offset, bytes(record.body)) for record in records}


async def test_every_record_of_a_log_is_found_with_its_bytes() -> None:
    store, expected = await filled()
    found: set[bytes] = set()
    for path in log_paths(store.disk):
        records, gaps, account = await walk(store.disk, path)
        assert gaps == []
        log = await open_log(store.disk, path)
        whole = account.expected(sealed=log.sealed, durable_bytes=log.size_bytes)
        assert whole == account.found and account.losses(account.found) == {}
        found |= {bytes(record.body) for record in records if record.entry >= 0}
    assert set(expected.values()) <= found


async def test_a_walk_continues_where_another_stopped() -> None:
    store, _ = await filled()
    path = log_paths(store.disk)[0]
    records, _, _ = await walk(store.disk, path)
    middle = records[len(records) // 2].offset
    rest, gaps, _ = await walk(store.disk, path, middle)
    assert gaps == [] and seen(rest) == seen([record for record in records if record.offset >= middle])


@pytest.mark.parametrize("seed", range(10))
async def test_damage_costs_only_the_records_that_contain_it(seed: int) -> None:
    chance = random.Random(seed)
    store, _ = await filled()
    path = log_paths(store.disk)[0]
    records, _, _ = await walk(store.disk, path)
    ends = [record.offset + 24 + len(record.body) for record in records]
    disk = copy.deepcopy(store.disk)
    hit = {
        at
        for start in (chance.randrange(LOG_HEADER_BYTES, ends[-1]) for _ in range(5))
        for at in range(start, min(ends[-1], start + chance.choice([1, 1, 40])))
    }
    for at in hit:
        disk.corrupt(path, at, 1 << chance.randrange(8))
    touched = {
        record.offset for record, end in zip(records, ends, strict=True) if any(record.offset <= at < end for at in hit)
    }
    intact = seen([record for record in records if record.offset not in touched])
    found, gaps, account = await walk(disk, path)
    assert seen(found) == intact
    assert all(any(gap.offset <= at < gap.end for gap in gaps) for at in touched)
    expected = account.expected(sealed=True, durable_bytes=0)
    if expected is not None:
        lost = {record.ledger for record in records if record.offset in touched and record.ledger != FILE_LEDGER}
        assert set(account.losses(expected)) == lost


async def test_a_log_without_map_and_seal_does_not_determine_its_content() -> None:
    store, _ = await filled()
    path = log_paths(store.disk)[0]
    log = await open_log(store.disk, path)
    assert log.map_offset is not None
    store.disk.cut(path, log.map_offset)
    _, gaps, account = await walk(store.disk, path)
    assert gaps == [] and account.expected(sealed=True, durable_bytes=0) is None


async def test_a_damaged_seal_or_map_alone_hides_nothing() -> None:
    for where in ("seal", "map"):
        store, _ = await filled()
        path = log_paths(store.disk)[0]
        log = await open_log(store.disk, path)
        assert log.map_offset is not None
        store.disk.corrupt(path, log.size_bytes - SEAL_BYTES + 9 if where == "seal" else log.map_offset + 30)
        _, _, account = await walk(store.disk, path)
        expected = account.expected(sealed=True, durable_bytes=0)
        assert expected is not None and account.losses(expected) == {}


async def test_bytes_that_the_device_cannot_read_are_a_gap() -> None:
    store, _ = await filled()
    path = log_paths(store.disk)[0]
    records, _, _ = await walk(store.disk, path)
    log = await open_log(store.disk, path)
    refused = range(200_000, 260_000)
    read = log.file.read

    async def failing(offset: int, size: int) -> bytes:
        if offset < refused.stop and offset + size > refused.start:
            raise OSError(5, "input/output error")
        return await read(offset, size)

    log.file.read = failing  # type: ignore[method-assign]
    found: list[WalkedRecord] = []
    gaps: list[Gap] = []
    async for piece in LogWalk(log).pieces():
        found += piece.records
        gaps += piece.gaps
    assert gaps and gaps[0].offset <= refused.start < gaps[0].end
    assert seen(found) <= seen(records) and len(found) > len(records) // 2


async def test_a_log_with_a_damaged_header_cannot_be_walked() -> None:
    store, _ = await filled(flushes=1)
    path = log_paths(store.disk)[0]
    store.disk.corrupt(path, 45)
    with pytest.raises(DamagedError, match="header"):
        await open_log(store.disk, path)
    with pytest.raises(DamagedError, match="opened"):
        await open_log(store.disk, path + "x")
