"""The durable write of the submitting thread, with a system that accepts partial writes or has no RWF_DSYNC."""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from quire_bookie.env.journal_submit_thread import ThreadJournalFile, write_durably
from quire_bookie.env.local_disk import LocalDisk


@pytest.mark.linux
def test_the_rest_of_a_partial_write_is_written_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwritev

    def short(fd: int, buffers: Sequence[bytes], offset: int, flags: int) -> int:
        return real(fd, [b"".join(buffers)[:1000]], offset, flags)

    monkeypatch.setattr(os, "pwritev", short)
    data = os.urandom(4096)
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    write_durably(fd, 8192, [data[:100], data[100:3000], data[3000:]])
    assert os.pread(fd, 5000, 8192) == data
    os.close(fd)


@pytest.mark.parametrize("synced", [True, False])
def test_more_buffers_than_one_call_accepts_are_written_too(tmp_path: Path, synced: bool) -> None:
    """A group of entries of 16 KiB in runs of one has more than a thousand parts; EINVAL poisoned the journal."""
    buffers = [bytes([at % 251]) * (1 + at % 7) for at in range(5000)]
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    write_durably(fd, 4096, buffers, synced=synced)
    assert os.pread(fd, 1 << 20, 4096) == b"".join(buffers)
    os.close(fd)


def test_without_a_durable_write_call_the_file_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.delattr(os, "RWF_DSYNC", raising=False)
    monkeypatch.setattr(os, "fdatasync", synced.append, raising=False)
    monkeypatch.setattr(os, "fsync", synced.append)
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    write_durably(fd, 0, [b"abc"])
    assert synced == [fd]
    os.close(fd)


@pytest.mark.linux
async def test_without_syncs_a_submission_is_done_once_written_and_the_close_syncs_it_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags_seen: list[int] = []
    synced: list[int] = []
    real_write, real_sync = os.pwritev, os.fsync

    def pwritev(fd: int, buffers: Sequence[bytes], offset: int, flags: int) -> int:
        flags_seen.append(flags)
        return real_write(fd, buffers, offset, flags)

    def fsync(fd: int) -> None:
        synced.append(fd)
        real_sync(fd)

    disk = LocalDisk()
    path = str(tmp_path / "journal")
    await disk.create_journal(path, 16 * 4096)
    monkeypatch.setattr(os, "pwritev", pwritev)
    monkeypatch.setattr(os, "fsync", fsync)
    file = await disk.open_journal(path, synced=False)
    assert isinstance(file, ThreadJournalFile)
    done: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
    file.submit(4096, [b"x" * 4096], done.set_result)
    assert await done is None
    assert (flags_seen, synced) == ([0], [])
    await file.close()
    assert len(synced) == 1
    assert (tmp_path / "journal").read_bytes()[4096:8192] == b"x" * 4096
    disk.close()


def test_the_boot_id_of_this_machine_is_constant() -> None:
    disk = LocalDisk()
    assert disk.boot_id() == disk.boot_id()
    assert disk.boot_id() != ""
    disk.close()
