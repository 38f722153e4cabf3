"""The disk port on the real file system."""

import asyncio
import errno
import logging
import os
from pathlib import Path

import pytest

from quire_bookie.env import journal_submit_aio
from quire_bookie.env.disk import JournalFile
from quire_bookie.env.journal_submit_aio import AioContext, AioContexts, AioJournalFile
from quire_bookie.env.journal_submit_thread import ThreadJournalFile
from quire_bookie.env.local_disk import JournalSubmit, LocalDisk
from quire_bookie.errors import DiskFullError
from quire_bookie.model import Buffer

BLOCK = 4096


@pytest.fixture
def disk() -> LocalDisk:
    return LocalDisk(threads=2)


async def submit(file: JournalFile, offset: int, *buffers: Buffer) -> BaseException | None:
    answered: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
    file.submit(offset, buffers, answered.set_result)
    assert not answered.done(), "done never runs inside submit"
    return await answered


async def test_a_file_is_written_read_cut_and_synced(disk: LocalDisk, tmp_path: Path) -> None:
    path = f"{tmp_path}/file"
    file = await disk.open(path, create=True)
    await file.write(0, [b"abc", memoryview(b"def"), bytearray(b"g")])
    await file.write(3, [b"D"])
    await file.sync()
    assert file.path == path
    assert await file.read(0, 100) == b"abcDefg"
    assert await file.read(5, 1) == b"f"
    assert await file.read(7, 5) == b""
    await file.truncate(2)
    assert await file.size() == 2
    await file.close()
    await file.close()
    with pytest.raises(FileExistsError):
        await disk.open(path, create=True)
    reader = await disk.open_read_only(path)
    with pytest.raises(OSError, match="Bad file descriptor"):
        await reader.write(0, [b"x"])
    await reader.close()


async def test_more_buffers_than_one_call_accepts_are_all_written(disk: LocalDisk, tmp_path: Path) -> None:
    file = await disk.open(f"{tmp_path}/many", create=True)
    await file.write(10, [b"%06d" % n for n in range(3000)])
    assert await file.read(10, 18000) == b"".join(b"%06d" % n for n in range(3000))
    await file.close()


async def test_names(disk: LocalDisk, tmp_path: Path) -> None:
    folder = f"{tmp_path}/a/b/c"
    await disk.make_dirs(folder)
    await disk.make_dirs(folder)
    assert await disk.exists(folder) and not await disk.exists(f"{folder}/x")
    await disk.replace_file(f"{folder}/z", b"1")
    await disk.replace_file(f"{folder}/z", b"22")
    await disk.replace_file(f"{folder}/y", b"3")
    assert await disk.read_file(f"{folder}/z") == b"22"
    await disk.rename(f"{folder}/z", f"{folder}/y")
    await disk.sync_dir(folder)
    assert await disk.list_dir(folder) == ["y"]
    await disk.remove(f"{folder}/y")
    assert await disk.list_dir(folder) == []
    with pytest.raises(FileNotFoundError):
        await disk.list_dir(f"{folder}/none")
    with pytest.raises(FileNotFoundError):
        await disk.read_file(f"{folder}/y")


async def test_make_dirs_does_not_take_a_file_for_a_folder(disk: LocalDisk, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError):
        await disk.make_dirs(f"{tmp_path}/file/below")


async def test_usage_counts_bytes(disk: LocalDisk, tmp_path: Path) -> None:
    usage = await disk.usage(str(tmp_path))
    assert 0 < usage.free_bytes <= usage.total_bytes


async def test_a_locked_folder_refuses_a_second_owner_until_released(disk: LocalDisk, tmp_path: Path) -> None:
    lock = disk.lock_dir(str(tmp_path))
    with pytest.raises(BlockingIOError):
        disk.lock_dir(str(tmp_path))
    lock.release()
    lock.release()
    disk.lock_dir(str(tmp_path)).release()
    assert os.listdir(tmp_path) == []


async def test_a_journal_file_consists_of_written_zeros(disk: LocalDisk, tmp_path: Path) -> None:
    path = f"{tmp_path}/journal"
    await disk.create_journal(path, 5 * BLOCK + 4 * 1024 * 1024)
    assert await disk.read_file(path) == bytes(5 * BLOCK + 4 * 1024 * 1024)
    assert os.stat(path).st_blocks * 512 >= 4 * 1024 * 1024
    with pytest.raises(FileExistsError):
        await disk.create_journal(path, BLOCK)
    assert await disk.exists(path), "a refused creation does not change the existing file"


@pytest.mark.linux
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
async def test_no_space_is_reported_and_leaves_no_partial_file(
    disk: LocalDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def full(*_: object) -> int:
        raise OSError(code, "no room")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(DiskFullError, match="no room"):
        await disk.create_journal(f"{tmp_path}/journal", BLOCK)
    assert os.listdir(tmp_path) == []
    monkeypatch.setattr(os, "pwritev", full)
    file = await disk.open(f"{tmp_path}/other", create=True)
    with pytest.raises(DiskFullError, match="other"):
        await file.write(0, [b"x"])
    await file.close()


@pytest.mark.linux
async def test_another_error_is_not_changed(disk: LocalDisk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(*_: object) -> int:
        raise OSError(errno.EIO, "broken")

    file = await disk.open(f"{tmp_path}/file", create=True)
    monkeypatch.setattr(os, "fdatasync", broken)
    with pytest.raises(OSError, match="broken") as caught:
        await file.sync()
    assert caught.value.errno == errno.EIO
    await file.close()


@pytest.mark.parametrize("way", ["auto", "aio", "thread"])
async def test_every_journal_submit_writes_the_given_bytes(tmp_path: Path, way: JournalSubmit) -> None:
    disk = LocalDisk(journal_submit=way)
    path = f"{tmp_path}/journal"
    await disk.create_journal(path, 1024 * BLOCK)
    file = await disk.open_journal(path)
    assert file.path == path and file.alignment_bytes == BLOCK
    large = os.urandom(600 * BLOCK)
    head = bytearray(b"h" * 100)
    assert await submit(file, 0, head, b"b" * 3000, bytes(BLOCK - 3100)) is None
    assert await submit(file, BLOCK, memoryview(large)) is None
    assert await submit(file, 601 * BLOCK, b"t" * BLOCK) is None
    await file.close()
    content = await disk.read_file(path)
    assert content[:BLOCK] == b"h" * 100 + b"b" * 3000 + bytes(996)
    assert content[BLOCK : 601 * BLOCK] == large
    assert content[601 * BLOCK : 602 * BLOCK] == b"t" * BLOCK
    assert not any(content[602 * BLOCK :]) and len(content) == 1024 * BLOCK
    assert sorted(os.listdir(tmp_path)) == ["journal"], "the probe removes its file"


def journal_file(kind: str, path: str) -> AioJournalFile | ThreadJournalFile:
    """Open a journal file with one of the ways to submit. OSError where it is not possible."""
    return AioJournalFile(path, AioContexts()) if kind == "aio" else ThreadJournalFile(path)


@pytest.mark.linux
@pytest.mark.parametrize("kind", ["aio", "thread"])
async def test_a_failed_submission_is_reported_through_done(tmp_path: Path, kind: str) -> None:
    path = f"{tmp_path}/journal"
    await LocalDisk().create_journal(path, 4 * BLOCK)
    try:
        file = journal_file(kind, path)
    except OSError as error:
        pytest.skip(f"not possible here: {error}")
    fd, file._fd = file._fd, os.open(path, os.O_RDONLY)
    failure = await submit(file, 0, bytes(BLOCK))
    assert isinstance(failure, OSError) and failure.errno == errno.EBADF
    os.close(fd)
    await file.close()


@pytest.mark.linux
@pytest.mark.parametrize("kind", ["aio", "thread"])
async def test_close_waits_for_the_submission_in_flight(tmp_path: Path, kind: str) -> None:
    path = f"{tmp_path}/journal"
    await LocalDisk().create_journal(path, 300 * BLOCK)
    try:
        file = journal_file(kind, path)
    except OSError as error:
        pytest.skip(f"not possible here: {error}")
    answers: list[BaseException | None] = []
    file.submit(0, [b"x" * 256 * BLOCK], answers.append)
    with pytest.raises(AssertionError, match="one submission"):
        file.submit(0, [bytes(BLOCK)], answers.append)
    await file.close()
    assert answers == [None]
    assert (await LocalDisk().read_file(path))[: 256 * BLOCK] == b"x" * 256 * BLOCK


@pytest.mark.linux
async def test_closing_a_journal_file_destroys_no_context_and_the_next_file_uses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel takes about 30 ms to destroy one, on the event loop, for every journal file that is full."""
    made: list[AioContext] = []
    destroyed: list[AioContext] = []

    class Counted(AioContext):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

        def close(self) -> None:
            destroyed.append(self)
            super().close()

    monkeypatch.setattr(journal_submit_aio, "AioContext", Counted)
    disk = LocalDisk()
    names = [f"{tmp_path}/{name}" for name in "abcdef"]
    for name in names:
        await disk.create_journal(name, 4 * BLOCK)
    current = await disk.open_journal(names[0])
    if not isinstance(current, AioJournalFile):
        pytest.skip("not possible here")
    for number, name in enumerate(names[1:], 1):
        following = await disk.open_journal(name)
        assert await submit(current, BLOCK, bytes([number]) * 2 * BLOCK) is None
        await current.close()
        assert await submit(following, 0, bytes([number]) * BLOCK) is None
        current = following
    await current.close()
    assert len(made) == 2 and not destroyed
    disk.close()
    assert sorted(map(id, destroyed)) == sorted(map(id, made))
    for number, name in enumerate(names[:-1], 1):
        assert (await LocalDisk().read_file(name))[BLOCK : 3 * BLOCK] == bytes([number]) * 2 * BLOCK


async def test_without_direct_asynchronous_writes_a_thread_is_used_and_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(_: str, _contexts: AioContexts) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(journal_submit_aio, "probe", refused)
    disk = LocalDisk(journal_submit="aio")
    with caplog.at_level(logging.WARNING, "quire.disk"):
        for name in ("one", "two"):
            await disk.create_journal(f"{tmp_path}/{name}", BLOCK)
            file = await disk.open_journal(f"{tmp_path}/{name}")
            assert isinstance(file, ThreadJournalFile)
            await file.close()
    assert len(caplog.records) == 1
    assert "Invalid argument" in caplog.text


def modes_below(folder: Path) -> dict[str, str]:
    return {path.name: oct(path.stat().st_mode & 0o777) for path in folder.rglob("*")}


async def test_new_folders_and_files_are_for_our_user_alone(disk: LocalDisk, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        await disk.make_dirs(f"{tmp_path}/a/b")
        await (await disk.open(f"{tmp_path}/a/b/opened", create=True)).close()
        await disk.create_journal(f"{tmp_path}/a/b/journal", 2 * BLOCK)
        await disk.allocate(f"{tmp_path}/a/b/allocated", BLOCK)
        await disk.replace_file(f"{tmp_path}/a/b/replaced", b"content")
    finally:
        os.umask(before)
    assert modes_below(tmp_path) == {
        **dict.fromkeys(("a", "b"), "0o700"),
        **dict.fromkeys(("opened", "journal", "allocated", "replaced"), "0o600"),
    }


async def test_the_mode_of_an_existing_folder_is_not_changed(disk: LocalDisk, tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()
    volume.chmod(0o2775)
    await disk.make_dirs(f"{volume}/current")
    assert volume.stat().st_mode & 0o7777 == 0o2775
