"""Writes around the page cache: the same bytes in the file, whatever the file system supports."""

import errno
import mmap
import os
from pathlib import Path

import pytest

from quire_bookie.env.local_disk import LocalDisk
from quire_bookie.errors import DiskFullError

PIECE = 1 << 20


@pytest.fixture(params=[True, False])
def disk(request: pytest.FixtureRequest) -> LocalDisk:
    return LocalDisk(threads=2, direct_writes=request.param)


def pages(*fill: int) -> mmap.mmap:
    """Return page-aligned memory with one page per byte value."""
    memory = mmap.mmap(-1, PIECE * len(fill))
    for index, value in enumerate(fill):
        memory[index * PIECE : (index + 1) * PIECE] = bytes([value]) * PIECE
    return memory


async def test_pages_and_other_bytes_of_one_file_are_stored_at_their_offsets(disk: LocalDisk, tmp_path: Path) -> None:
    file = await disk.open(f"{tmp_path}/log", create=True)
    memory = memoryview(pages(1, 2))
    await file.write(0, [b"h" * 4096])
    await file.write(4096, [memory[:PIECE]])
    await file.write(4096 + PIECE, [memory[PIECE : PIECE + 5000]])
    await file.write(4096 + PIECE + 5000, [b"tail"])
    await file.sync()
    assert await file.read(0, 3 * PIECE) == b"h" * 4096 + b"\1" * PIECE + b"\2" * 5000 + b"tail"
    await file.write(4096, [memory[PIECE:]])
    assert await file.read(4096, 10) == b"\2" * 10, "a repeated read returns no old copy"
    await file.close()


async def test_memory_that_begins_within_a_page_is_written_too(disk: LocalDisk, tmp_path: Path) -> None:
    file = await disk.open(f"{tmp_path}/log", create=True)
    memory = memoryview(pages(3, 4))
    await file.write(0, [memory[100 : PIECE + 100]])
    await file.write(PIECE, [memory[:PIECE]])
    assert await file.read(0, 3 * PIECE) == bytes(memory[100 : PIECE + 100]) + bytes(memory[:PIECE])
    await file.close()


@pytest.mark.linux
async def test_a_file_system_that_refuses_direct_writes_gets_buffered_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = LocalDisk(threads=2)
    file = await disk.open(f"{tmp_path}/log", create=True)
    monkeypatch.setattr(os, "pwrite", refuse(errno.EINVAL))
    await file.write(0, [memoryview(pages(5))])
    assert await file.read(0, 2 * PIECE) == b"\5" * PIECE
    await file.close()


async def test_no_space_for_a_direct_write_is_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = LocalDisk(threads=2)
    file = await disk.open(f"{tmp_path}/log", create=True)
    monkeypatch.setattr(os, "pwrite", refuse(errno.ENOSPC))
    with pytest.raises(DiskFullError):
        await file.write(0, [memoryview(pages(5))])
    await file.close()


async def test_a_failed_direct_write_is_an_error_and_not_retried_in_another_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = LocalDisk(threads=2)
    file = await disk.open(f"{tmp_path}/log", create=True)
    monkeypatch.setattr(os, "pwrite", refuse(errno.EIO))
    with pytest.raises(OSError, match="refused"):
        await file.write(0, [memoryview(pages(5))])
    assert await file.size() == 0
    await file.close()


async def test_a_partial_direct_write_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = LocalDisk(threads=2)
    file = await disk.open(f"{tmp_path}/log", create=True)
    whole = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: whole(fd, memoryview(data)[:8192], offset))
    await file.write(0, [memoryview(pages(6))])
    assert await file.read(0, 2 * PIECE) == b"\6" * PIECE
    await file.close()


def refuse(code: int):  # type: ignore[no-untyped-def]
    """Return a system call that fails."""

    def call(*_arguments: object) -> int:
        raise OSError(code, "refused")

    return call


@pytest.mark.linux
@pytest.mark.parametrize("kind", ["whole", "refused", "short"])
async def test_a_journal_file_is_complete_whatever_the_file_system_supports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    written: list[int] = []
    whole = os.pwrite

    def pwrite(fd: int, data: memoryview, offset: int) -> int:
        if kind == "refused":
            raise OSError(errno.EINVAL, "refused")
        written.append(whole(fd, data[:8192] if kind == "short" else data, offset))
        return written[-1]

    monkeypatch.setattr(os, "pwrite", pwrite)
    disk, size = LocalDisk(threads=2), 5 * PIECE + 8192
    await disk.create_journal(f"{tmp_path}/journal", size)
    assert await disk.read_file(f"{tmp_path}/journal") == bytes(size)
    assert os.stat(tmp_path / "journal").st_blocks * 512 >= size
    if kind == "whole":
        assert sum(written) == size, "all of it bypasses the page cache"
    assert os.listdir(tmp_path) == ["journal"]


@pytest.mark.linux
async def test_a_journal_file_without_space_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pwrite", refuse(errno.ENOSPC))
    with pytest.raises(DiskFullError):
        await LocalDisk(threads=2).create_journal(f"{tmp_path}/journal", 4 * PIECE)
    assert not os.listdir(tmp_path)
