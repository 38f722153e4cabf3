"""Inspection of the ledger folders of a closed storage: contents and damage."""

import pytest

from quire_bookie.errors import NoSuchLedgerError
from quire_bookie.model import LedgerId
from quire_bookie.storage.formats.index_keys import block_key, state_key
from quire_bookie.storage.inspect import (
    check_all,
    inspect_index,
    inspect_ledger,
    inspect_ledgers,
    inspect_log,
    list_logs,
)
from tests.unit.bookie.storage.rebuilt_stores import Expected, filled, log_paths
from tests.unit.bookie.storage.store import DIRECTORY, Store, body_of, open_store


async def test_logs_are_listed_by_id_and_walked_with_their_ledgers() -> None:
    store, expected = await filled()
    await store.disk.replace_file(f"{DIRECTORY}/not-ours.qlog", b"")
    paths = await list_logs(store.disk, [DIRECTORY])
    assert list(paths) == sorted(paths) and list(paths.values()) == log_paths(store.disk)[: len(paths)]
    read: list[int] = []
    found = [await inspect_log(store.disk, log, path, LedgerId(4), read.append) for log, path in paths.items()]
    assert sum(read) <= sum(each.size_bytes for each in found)
    assert {entry for each in found for entry, _, _ in each.records if entry >= 0} == {
        entry for ledger, entry in expected if ledger == 4
    }
    assert found[0].sealed and not found[0].gaps and not found[0].what and set(found[0].spans) == {1, 2, 3, 4}


async def test_damage_to_a_log_or_to_its_header_is_reported() -> None:
    store, _ = await filled()
    path = log_paths(store.disk)[0]
    store.disk.corrupt(path, store.disk.content(path).index(body_of(1, 5)) + 45)
    found = await inspect_log(store.disk, 1, path)
    assert [gap.suspect for gap in found.gaps] == [(1, 5)] and "no intact record" in found.what
    store.disk.corrupt(path, 20)
    assert "header" in (await inspect_log(store.disk, 1, path)).what


async def test_the_index_is_summarised_and_its_damage_reported() -> None:
    store, _ = await filled()
    found = await inspect_index(store.index)
    assert (found.ledgers, found.deleted, found.fenced, found.in_limbo, found.without_key) == (3, 1, 1, 0, 0)
    assert found.damage == [] and found.entries > 0 and len(found.logs) == len(log_paths(store.disk))
    for key in (block_key(LedgerId(1), 0), state_key(LedgerId(2))):
        value = bytearray(store.index._image.current[key])
        value[-1] ^= 1
        store.index._image.current[key] = bytes(value)
    again = await inspect_index(store.index)
    assert len(again.damage) == 2 and again.ledgers == 2 and again.blocks == found.blocks


async def test_a_ledger_is_reported_with_its_ranges_bytes_and_limbo() -> None:
    store, expected = await filled()
    found = await inspect_ledger(store.index, LedgerId(4))
    assert found.ranges == [(0, 23)] and found.entries == 24 and not found.limbo
    assert found.size_bytes == sum(len(body) for (ledger, _), body in expected.items() if ledger == 4)
    assert sum(found.bytes_by_log.values()) == found.size_bytes
    with pytest.raises(NoSuchLedgerError, match="not in the index"):
        await inspect_ledger(store.index, LedgerId(77))
    again = await open_store(store.disk)
    await again.storage.enter_limbo([LedgerId(80)])
    await again.storage.close()
    assert (await inspect_ledger(store.index, LedgerId(4))).limbo
    assert {info.ledger_id: limbo for info, limbo in await inspect_ledgers(store.index)} == {
        1: True,
        2: True,
        3: False,
        4: True,
    }
    with pytest.raises(NoSuchLedgerError, match="limbo"):
        await inspect_ledger(store.index, LedgerId(77))


async def check(store: Store) -> tuple[set[tuple[int, int]], list[str]]:
    found, _stats = await check_all(store.disk, store.index, [DIRECTORY])
    entries: set[tuple[int, int]] = {
        (each.ledger, entry) for each in found if each.first >= 0 for entry in range(each.first, each.last + 1)
    }
    return entries, [each.what for each in found if each.first < 0]


async def test_a_full_check_covers_the_log_that_is_being_written_as_well() -> None:
    store, expected = await filled()
    assert await check(store) == (set(), [])
    path = log_paths(store.disk)[-1]
    content = store.disk.content(path)
    victims: Expected = {key: body for key, body in expected.items() if key[0] == 4 and body in content}
    key, body = sorted(victims.items())[-1]
    store.disk.corrupt(path, content.index(body) + 500)
    assert await check(store) == ({key}, [])


async def test_bytes_after_the_committed_ones_are_no_damage_but_missing_ones_are() -> None:
    store, expected = await filled()
    path = log_paths(store.disk)[-1]
    content = store.disk.content(path)
    await store.disk.replace_file(path, content + b"torn" * 5000)
    assert await check(store) == (set(), [])
    await store.disk.replace_file(path, content[: len(content) // 2])
    entries, _ = await check(store)
    assert entries and entries <= set(expected)


async def test_a_missing_log_is_reported_with_all_its_entries() -> None:
    store, expected = await filled()
    first = log_paths(store.disk)[0]
    content = store.disk.content(first)
    await store.disk.remove(first)
    entries, others = await check(store)
    held = {key for key, body in expected.items() if body in content}
    assert entries >= {key for key in held if key[0] == 4} and "the entry log is missing" in others
