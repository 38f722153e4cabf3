"""A storage on a real disk whose direct writes are refused, short or out of space at some point."""

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from quire_bookie.env.local_disk import LocalDisk, LocalFile
from quire_bookie.errors import DiskFullError, TooManyRequestsError
from quire_bookie.model import Buffer, EntryId, LedgerId
from quire_bookie.storage import LedgerStorage
from tests.unit.bookie.storage.real_store import close_real, open_real
from tests.unit.bookie.storage.store import body_of, run_of

SIZES = (40, 700, 5_000, 20_000, 130_000)
Write = Callable[[int, Buffer, int], int]


class Disturbed:
    """`pwrite` that fails at its `turn`-th call; with kind "short" it is short from that call on."""

    def __init__(self, kind: str, turn: int) -> None:
        self.kind, self.turn, self.calls, self.real = kind, turn, 0, os.pwrite

    def __call__(self, fd: int, data: Buffer, offset: int) -> int:
        self.calls += 1
        if self.calls == self.turn and self.kind == "refused":
            raise OSError(errno.EINVAL, "refused")
        if self.calls == self.turn and self.kind == "no space":
            self.real(fd, memoryview(data)[:8192], offset)
            raise OSError(errno.ENOSPC, "no space")
        if self.calls >= self.turn and self.kind == "short":
            return self.real(fd, memoryview(data)[: min(len(data), 12_288)], offset)
        return self.real(fd, data, offset)


async def put_until_taken(storage: LedgerStorage[int], ledger: int, first: int, bodies: list[bytes]) -> None:
    """Put a run; flush while there is no space."""
    info = await storage.load_ledger(LedgerId(ledger)) or storage.create_ledger(LedgerId(ledger), b"k" * 20)
    while True:
        try:
            storage.put(info, run_of(ledger, first, list(bodies)))
            return
        except TooManyRequestsError:
            await flush_twice(storage)


async def flush_twice(storage: LedgerStorage[int]) -> None:
    """Flush; retry once after DiskFullError, when the disk has space again."""
    try:
        await storage.flush()
    except DiskFullError:
        await storage.flush()


@pytest.mark.linux
@pytest.mark.parametrize(
    ("kind", "turn"),
    [("none", 0), *((kind, turn) for kind in ("refused", "no space", "short") for turn in (1, 2, 4, 7))],
)
async def test_no_entry_is_lost_or_changed_and_no_bytes_change_while_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, turn: int
) -> None:
    disturbed = Disturbed(kind, turn)
    monkeypatch.setattr(os, "pwrite", disturbed)
    real_write = LocalFile.write

    async def write(file: LocalFile, offset: int, buffers: Sequence[Buffer]) -> None:
        before = b"".join(buffers)
        await real_write(file, offset, buffers)
        assert b"".join(buffers) == before
        assert offset % 4096 == 0

    monkeypatch.setattr(LocalFile, "write", write)
    storage, disk = await open_real(tmp_path)
    held: dict[tuple[int, int], bytes] = {}
    for round_number in range(24):
        for ledger in range(3):
            size = SIZES[(round_number + ledger) % len(SIZES)]
            first = round_number * 4
            bodies = [body_of(ledger, first + at, size) for at in range(4)]
            await put_until_taken(storage, ledger, first, bodies)
            held.update({(ledger, first + at): body for at, body in enumerate(bodies)})
        if round_number % 8 == 7:
            await flush_twice(storage)
    assert disturbed.calls >= turn
    assert storage.failure is None
    await close_real(storage, disk)
    storage, disk = await open_real(tmp_path)
    for (ledger, entry), body in held.items():
        assert await storage.read(LedgerId(ledger), EntryId(entry)) == body, (ledger, entry)
    assert storage.stats.logs_damaged == 0
    await close_real(storage, disk)


async def test_direct_writes_are_used_if_the_file_system_supports_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the test above disturbs nothing."""
    disturbed = Disturbed("none", 0)
    monkeypatch.setattr(os, "pwrite", disturbed)
    disk = LocalDisk()
    disk.close()
    storage, disk = await open_real(tmp_path)
    await put_until_taken(storage, 1, 0, [body_of(1, entry, 20_000) for entry in range(20)])
    await storage.flush()
    assert disturbed.calls > 0
    await close_real(storage, disk)
