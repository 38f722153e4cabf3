"""Proofs that need the witness: that the newest journal file existed, and how far it was durable."""

import asyncio
import contextlib
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from quire_bookie.errors import DamagedError, DiskFullError, JournalDamagedError, QuireError
from quire_bookie.journal import Journal
from quire_bookie.journal.format import JournalPosition, decode_mark, encode_mark
from quire_bookie.journal.mark import MARK_NAME
from quire_bookie.journal.witness import (
    SLOT_BYTES,
    WITNESS_NAME,
    WitnessRecord,
    create_witness,
    decode_slot,
    encode_slot,
    load_witness,
)
from tests.sim.disk import SimDisk
from tests.support.journals import FOLDER, SMALL, entries_of, open_journal, run_of

WITNESS = f"{FOLDER}/{WITNESS_NAME}"
RECORD = WitnessRecord(bytes(range(16)), JournalPosition(3, 8192, 17), 4, 9, True, 6)


def payload(entry: int) -> bytes:
    return random.Random(entry).randbytes(2000 + entry % 30 * 31)


async def add(journal: Journal, first: int, count: int) -> None:
    """Append entries one per group; each is durable on return."""
    for entry in range(first, first + count):
        durable: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        journal.append_run(run_of(entry, payload(entry)), durable.set_result)
        if (error := await durable) is not None:
            raise error


async def ids_after(disk: SimDisk) -> list[int]:
    """Start on the disk; return the replayed entry ids."""
    _, records, _ = await open_journal(disk)
    found = entries_of(records)
    assert all(data == payload(entry) for entry, data in found)
    return [entry for entry, _ in found]


async def until(holds: Callable[[], bool]) -> None:
    """Let the journal's own tasks run until the condition holds."""
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 - no event reports the content of the disk
            await asyncio.sleep(0)


def generations(disk: SimDisk) -> dict[int, str]:
    """Return the paths by the generation in their headers."""
    found = {}
    for path in disk._names:
        content = disk.content(path)
        if path.endswith(".log") and content[:8] == b"QuireJnl":
            found[int.from_bytes(content[32:40], "little")] = path
    return found


def record_of(disk: SimDisk) -> WitnessRecord:
    content = disk.content(WITNESS)
    slots = [decode_slot(content[at : at + SLOT_BYTES]) for at in (0, SLOT_BYTES)]
    return max((slot for slot in slots if slot is not None), key=lambda slot: slot.number)


def put(disk: SimDisk, path: str, content: bytes) -> None:
    """Replace a file's bytes outside the journal."""
    inode = disk._names[path]
    inode.current[:] = inode.durable[:] = content


def test_a_slot_reads_back_and_no_flipped_bit_passes() -> None:
    slot = encode_slot(RECORD)
    assert len(slot) == SLOT_BYTES and decode_slot(slot) == RECORD
    for bit in range(8 * 100):
        broken = bytearray(slot)
        broken[bit // 8] ^= 1 << bit % 8
        assert decode_slot(broken) in (None, RECORD)
        if bit // 8 < 84:
            assert decode_slot(broken) is None


def test_the_slot_matches_version_1() -> None:
    fixed = encode_slot(RECORD)
    assert fixed[:12] == b"QuireWit\x01\0\0\0" and fixed[16:32] == RECORD.uuid
    assert [int.from_bytes(fixed[at : at + 8], "little") for at in range(32, 80, 8)] == [6, 3, 8192, 17, 4, 9]
    assert fixed[80:84] == b"\x01\0\0\0" and not any(fixed[84:])


async def test_removal_of_the_newest_file_is_reported_even_if_the_mark_points_to_an_older_one() -> None:
    disk = SimDisk()
    journal, _, _ = await open_journal(disk)
    await add(journal, 0, 60)
    disk = disk.crash()
    files = generations(disk)
    assert journal.mark.generation < max(files) and len(files) > 3
    for last in range(1, 4):
        copy = disk.crash()
        for generation in sorted(files)[-last:]:
            del copy._names[files[generation]], copy._durable_names[files[generation]]
        with pytest.raises(JournalDamagedError, match=r"missing.*accept-lost-volumes"):
            await ids_after(copy)


async def test_the_newest_file_is_provable_as_soon_as_it_is_in_use() -> None:
    """Its loss is detected before any group of it is acknowledged, even if the witness does not cover it yet."""
    seen = 0
    for steps in range(10, 60):
        disk = SimDisk()
        journal, _, _ = await open_journal(disk)
        disk.crash_after(steps)
        with contextlib.suppress(OSError, QuireError):
            await add(journal, 0, 40)
        copy = disk.crash()
        files = generations(copy)
        newest = max(files)
        if record_of(copy).position.generation < newest:
            seen += 1
            del copy._names[files[newest]], copy._durable_names[files[newest]]
            with pytest.raises(DamagedError, match="missing"):
                await ids_after(copy)
    assert seen, "no crash came between the header and the witness"


async def test_an_older_copy_of_the_newest_file_is_reported_once_the_witness_covers_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("quire_bookie.journal.journal.JOURNAL_WITNESS_S", 0.0)
    disk = SimDisk()
    journal, _, _ = await open_journal(disk)
    await add(journal, 0, 9)
    older = {path: disk.content(path) for path in generations(disk).values()}
    await add(journal, 9, 2)
    await until(lambda: record_of(disk).position == journal.position())
    crashed = disk.crash()
    assert await ids_after(crashed.crash()) == list(range(11))
    crashed = crashed.crash()
    path = generations(crashed)[max(generations(crashed))]
    put(crashed, path, older[path])
    with pytest.raises(DamagedError, match="its witness proves that") as caught:
        await ids_after(crashed)
    assert caught.value.path == path


async def test_damage_below_the_witness_is_not_treated_as_a_torn_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire_bookie.journal.journal.JOURNAL_WITNESS_S", 0.0)
    disk = SimDisk()
    journal, _, _ = await open_journal(disk)
    await add(journal, 0, 3)
    last = journal.position().offset
    await add(journal, 3, 1)
    await until(lambda: record_of(disk).position == journal.position())
    crashed = disk.crash()
    path = generations(crashed)[max(generations(crashed))]
    crashed.corrupt(path, last + 100)
    with pytest.raises(DamagedError, match="its witness proves that"):
        await ids_after(crashed)


async def test_an_older_copy_of_the_newest_file_is_reported_after_a_clean_stop() -> None:
    disk = SimDisk()
    journal, _, _ = await open_journal(disk)
    await add(journal, 0, 2)
    path = generations(disk)[1]
    older = disk.content(path)
    await add(journal, 2, 1)
    await journal.close()
    assert record_of(disk).closed
    put(disk, path, older)
    with pytest.raises(DamagedError, match="its witness proves that"):
        await ids_after(disk.crash())


async def test_removal_of_a_prepared_file_is_reported_after_a_crash_but_not_after_a_clean_stop() -> None:
    disk = SimDisk()
    journal, _, _ = await open_journal(disk)
    await add(journal, 0, 1)
    await until(lambda: record_of(disk).prepared_generation > 0)
    prepared = disk.content(WITNESS)
    spare = journal._files.path_of(record_of(disk).prepared_file)
    await journal.close()
    stopped = disk.crash()
    del stopped._names[spare], stopped._durable_names[spare]
    assert await ids_after(stopped.crash()) == [0]
    crashed = stopped.crash()
    put(crashed, WITNESS, prepared)
    with pytest.raises(DamagedError, match="may hold generation 2") as caught:
        await ids_after(crashed)
    assert caught.value.path == spare


async def test_a_prepared_file_of_another_size_is_kept_while_the_witness_names_it() -> None:
    disk = SimDisk()
    journal, _, _ = await open_journal(disk)
    await add(journal, 0, 1)
    await until(lambda: record_of(disk).prepared_generation > 0)
    larger = replace(SMALL, file_bytes=2 * SMALL.file_bytes)
    for steps in range(100):
        crashed = disk.crash()
        crashed.crash_after(steps)
        with contextlib.suppress(OSError, QuireError):
            await open_journal(crashed, larger)
        if not crashed.crashed:
            break
        assert await ids_after(crashed.crash()) == [0]
    assert steps > 5 and f"{FOLDER}/journal-00000002.log" not in generations(crashed).values()


@pytest.mark.parametrize("damage", ["removed", "cut", "emptied", "both slots", "another's"])
async def test_an_unreadable_witness_is_reported_and_not_treated_as_missing(damage: str) -> None:
    disk = SimDisk()
    journal, _, _ = await open_journal(disk)
    await add(journal, 0, 9)
    disk = disk.crash()
    if damage == "removed":
        del disk._names[WITNESS], disk._durable_names[WITNESS]
    elif damage == "both slots":
        disk.corrupt(WITNESS, 20)
        disk.corrupt(WITNESS, SLOT_BYTES + 20)
    elif damage == "another's":
        await create_witness(disk, FOLDER, bytes(16), JournalPosition(0, 0, 0))
    else:
        disk.cut(WITNESS, 0 if damage == "emptied" else SLOT_BYTES)
    with pytest.raises(JournalDamagedError, match=r"accept-lost-volumes") as caught:
        await ids_after(disk)
    assert caught.value.path == WITNESS


async def test_a_flipped_bit_in_one_slot_or_an_older_witness_loses_nothing() -> None:
    disk = SimDisk()
    journal, _, _ = await open_journal(disk)
    older = [disk.content(WITNESS)]
    for first in range(0, 60, 20):
        await add(journal, first, 20)
        older.append(disk.content(WITNESS))
    for slot in (0, SLOT_BYTES):
        copy = disk.crash()
        copy.corrupt(WITNESS, slot + 40)
        assert await ids_after(copy) == list(range(60))
    for content in older:
        copy = disk.crash()
        put(copy, WITNESS, content)
        assert await ids_after(copy) == list(range(60))


@pytest.mark.parametrize("full", [False, True])
async def test_a_journal_without_a_witness_receives_one(full: bool) -> None:
    """The mark is of version 1. On a full disk the journal continues without a witness until a later start."""
    disk = SimDisk()
    journal, _, _ = await open_journal(disk)
    await add(journal, 0, 9)
    disk = disk.crash()
    mark = decode_mark(disk.content(f"{FOLDER}/{MARK_NAME}"))
    put(disk, f"{FOLDER}/{MARK_NAME}", encode_mark(replace(mark, witnessed=False)))
    del disk._names[WITNESS], disk._durable_names[WITNESS]
    if full:
        disk.fail_next("replace", WITNESS_NAME, DiskFullError("full"))
    journal, records, _ = await open_journal(disk)
    assert [entry for entry, _ in entries_of(records)] == list(range(9))
    await add(journal, 9, 1)
    disk = disk.crash()
    assert decode_mark(disk.content(f"{FOLDER}/{MARK_NAME}")).witnessed is not full
    assert await ids_after(disk) == list(range(10))
    disk = disk.crash()
    assert decode_mark(disk.content(f"{FOLDER}/{MARK_NAME}")).witnessed
    del disk._names[WITNESS], disk._durable_names[WITNESS]
    with pytest.raises(DamagedError, match="missing"):
        await ids_after(disk)


async def test_a_start_that_died_between_witness_and_mark_is_completed() -> None:
    disk = SimDisk()
    await disk.make_dirs(FOLDER)
    await create_witness(disk, FOLDER, bytes(16), JournalPosition(0, 0, 0))
    journal, records, _ = await open_journal(disk)
    assert journal.is_new and not records
    await add(journal, 0, 2)
    mark = decode_mark(disk.content(f"{FOLDER}/{MARK_NAME}"))
    assert await ids_after(disk.crash()) == [0, 1]
    assert mark.witnessed and mark.uuid != bytes(16)
    assert (await load_witness(disk.crash(), FOLDER, mark.uuid)) is not None


async def test_a_witness_that_cannot_be_written_poisons_the_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire_bookie.journal.journal.JOURNAL_WITNESS_S", 0.0)
    disk = SimDisk()
    journal, _, _ = await open_journal(disk)
    await add(journal, 0, 1)
    disk.fail_next("submit", WITNESS_NAME, OSError(5, "no"))
    poisoned = asyncio.get_running_loop().create_future()
    journal.on_poison = poisoned.set_result
    durable: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
    journal.append_run(run_of(1, b"x"), durable.set_result)
    await poisoned
    assert journal.poisoned
    await journal.close()
