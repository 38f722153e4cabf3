"""Rebuilds of an index after two simultaneous faults: each loss is still reported, as damage or limbo."""

import copy

import pytest

from quire_bookie.errors import DamagedError, StartupError, UnknownLedgerStateError
from quire_bookie.model import Buffer, EntryId, LedgerId
from quire_bookie.storage.formats import log_format
from quire_bookie.storage.ledgers.limbo import LIMBO_NAME
from tests.unit.bookie.storage.rebuilt_stores import log_paths, rebuild
from tests.unit.bookie.storage.store import DIRECTORY, body_of, open_store


async def test_records_that_a_crash_left_after_the_last_flush_do_not_offset_damage_before_it() -> None:
    store = await open_store()
    await store.put_ids(1, range(50))
    await store.storage.close()
    path = log_paths(store.disk)[0]
    content = store.disk.content(path)
    salt = log_format.salt_of(log_format.decode_header(content, path))
    torn: list[Buffer] = []
    ids = [EntryId(entry) for entry in range(50, 53)]
    log_format.encode_records(salt, LedgerId(1), ids, [body_of(1, entry) for entry in ids], torn)
    file = await store.disk.open(path)
    await file.write(len(content), torn)
    await file.close()
    store.disk.corrupt(path, content.index(body_of(1, 20)) + 40)
    report = await rebuild(store.disk)
    assert [(loss[0], loss[3]) for loss in report.losses] == [(1, 1)]
    again = await open_store(store.disk)
    with pytest.raises(DamagedError):
        await again.read(1, 20)
    assert await again.read(1, 21) == body_of(1, 21)
    assert (await again.ledger(1)).fenced
    await again.storage.close()


async def test_limbo_entered_after_its_record_was_lost_is_newer_than_any_limbo_that_ended() -> None:
    store = await open_store()
    await store.put_ids(1, range(3))
    for _ in range(3):
        await store.storage.enter_limbo([LedgerId(9)])
    await store.storage.end_limbo(LedgerId(1))
    await store.storage.flush()
    await store.storage.close()
    lost = copy.deepcopy(store.disk)
    await lost.remove(f"{DIRECTORY}/{LIMBO_NAME}")
    await lost.remove(f"{DIRECTORY}/index.proof")
    report = await rebuild(lost, accept_limbo=True, bounds=[LedgerId(9)])
    assert report.limbo
    again = await open_store(lost)
    assert (await again.ledger(1)).limbo
    with pytest.raises(UnknownLedgerStateError):
        await again.read(1, 7)
    await again.storage.close()


async def test_two_files_of_one_log_refuse_the_rebuild() -> None:
    store = await open_store()
    await store.put_ids(1, range(3))
    await store.storage.close()
    path = log_paths(store.disk)[0]
    await store.disk.make_dirs("/data/second")
    copied = f"/data/second/{path.rpartition('/')[2]}"
    await store.disk.replace_file(copied, store.disk.content(path)[:4096])
    for directories in ([DIRECTORY, "/data/second"], ["/data/second", DIRECTORY]):
        with pytest.raises(StartupError, match="are the same entry log"):
            await rebuild(store.disk, directories=directories)


async def test_a_log_with_a_damaged_last_footer_is_kept_for_entries_that_no_map_counts() -> None:
    store = await open_store()
    await store.put_ids(1, range(5))
    await store.storage.flush()
    await store.put_ids(2, range(5))
    await store.storage.close()
    (path,) = log_paths(store.disk)
    content = store.disk.content(path)
    store.disk.corrupt(path, content.index(b"\xff" * 16, content.index(body_of(2, 4))) + 20)
    report = await rebuild(store.disk, accept_limbo=True)
    assert report.limbo
    store = await open_store(store.disk)
    await store.put_ids(3, [0])
    await store.storage.flush()
    store.storage._logs.flushed.leave_log()
    await store.put_ids(4, [0])
    await store.storage.flush()
    for ledger in (1, 3):
        await store.storage.delete_ledger(LedgerId(ledger))
    await store.storage.drop_dead_logs()
    assert [await store.read(2, entry) for entry in range(5)] == [body_of(2, entry) for entry in range(5)]
    await store.storage.close()
