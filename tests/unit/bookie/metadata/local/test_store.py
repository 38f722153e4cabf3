"""The embedded store: its folder, its crashes, its group commits. The conformance suite tests the port's contract."""

import asyncio
import multiprocessing
import os
import signal
import sqlite3
from pathlib import Path

import pytest

from quire_bookie.errors import MetadataUnavailableError, MetadataUnknownError, StartupError
from quire_bookie.metadata.local.database import Database
from quire_bookie.metadata.local.store import LocalMetadataStore
from quire_bookie.metadata.store import Event, EventKind


async def test_the_folder_belongs_to_one_process(tmp_path: Path) -> None:
    store = await LocalMetadataStore.open(tmp_path / "m")
    with pytest.raises(StartupError, match="in use by another process"):
        await LocalMetadataStore.open(tmp_path / "m")
    await store.close()
    again = await LocalMetadataStore.open(tmp_path / "m")
    await again.close()


def _write_until_killed(folder: str, pipe: "multiprocessing.connection.Connection") -> None:
    async def run() -> None:
        store = await LocalMetadataStore.open(folder)
        await store.put("/e", b"", ephemeral=True)
        for number in range(100_000):
            await store.put("/n", str(number).encode())
            pipe.send(number)

    asyncio.run(run())


async def test_after_a_kill_every_acknowledged_write_is_there_and_no_ephemeral_node(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_write_until_killed, args=(str(tmp_path), theirs))
    process.start()
    theirs.close()
    acknowledged = -1
    while acknowledged < 200:
        acknowledged = await asyncio.to_thread(ours.recv)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    while ours.poll():
        try:
            acknowledged = ours.recv()
        except EOFError:
            break
    store = await LocalMetadataStore.open(tmp_path)
    node = await store.get("/n")
    assert node is not None
    assert int(node.value) >= acknowledged
    assert node.version == int(node.value)
    assert await store.get("/e") is None
    await store.close()


async def test_a_foreign_database_is_refused_and_untouched(tmp_path: Path) -> None:
    file = tmp_path / "metadata.db"
    connection = sqlite3.connect(file)
    connection.execute("CREATE TABLE theirs (x)")
    connection.commit()
    connection.close()
    before = file.read_bytes()
    with pytest.raises(StartupError, match="another program"):
        await LocalMetadataStore.open(tmp_path)
    assert file.read_bytes() == before


async def test_a_file_that_is_not_a_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "metadata.db").write_bytes(b"not a database at all" * 100)
    with pytest.raises(StartupError, match=r"metadata\.db"):
        await LocalMetadataStore.open(tmp_path)


async def test_a_later_format_is_refused(tmp_path: Path) -> None:
    store = await LocalMetadataStore.open(tmp_path)
    await store.close()
    connection = sqlite3.connect(tmp_path / "metadata.db")
    connection.execute("PRAGMA user_version=3")
    connection.commit()
    connection.close()
    with pytest.raises(StartupError, match="format 3"):
        await LocalMetadataStore.open(tmp_path)


async def test_a_folder_that_cannot_be_created_is_a_startup_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartupError, match="cannot be used"):
        await LocalMetadataStore.open(tmp_path / "file" / "metadata")


async def test_writes_that_wait_together_share_a_commit(tmp_path: Path) -> None:
    store = await LocalMetadataStore.open(tmp_path)
    await asyncio.gather(*(store.put(f"/k/{number}", b"") for number in range(500)))
    assert store.stats.writes >= 500
    assert store.stats.commits <= store.stats.writes / 5
    await store.close()


async def test_a_failing_database_fails_the_whole_group_and_keeps_none_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await LocalMetadataStore.open(tmp_path)
    watch = await store.watch("/")
    original = Database.put

    def failing(self: Database, key: str, value: bytes, expected: int | None, ephemeral: bool) -> int:
        version = original(self, key, value, expected, ephemeral)
        if key == "/bad":
            raise sqlite3.OperationalError("disk I/O error")
        return version

    monkeypatch.setattr(Database, "put", failing)
    with pytest.raises(MetadataUnavailableError, match="disk I/O error"):
        await store.put("/bad", b"")
    assert await store.get("/bad") is None
    assert await store.put("/good", b"") == 0
    assert await anext(aiter(watch)) == Event(EventKind.CREATED, "/good")
    await store.close()


async def test_a_failed_commit_is_unknown_for_every_write_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await LocalMetadataStore.open(tmp_path)

    def failing(self: Database) -> list[Event]:
        raise sqlite3.OperationalError("disk I/O error")

    with monkeypatch.context() as patch:
        patch.setattr(Database, "commit", failing)
        outcomes = await asyncio.gather(*(store.put(f"/{n}", b"") for n in range(3)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [MetadataUnknownError] * 3
    assert await store.put("/after", b"") == 0
    await store.close()


async def test_a_job_that_fails_unexpectedly_is_answered_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await LocalMetadataStore.open(tmp_path)

    def failing(self: Database, key: str) -> None:
        raise RuntimeError("a mistake")

    with monkeypatch.context() as patch:
        patch.setattr(Database, "get", failing)
        with pytest.raises(MetadataUnavailableError, match="a mistake"):
            await store.get("/a")
    assert await store.get("/a") is None
    await store.close()


async def test_a_cancelled_caller_does_not_disturb_the_others(tmp_path: Path) -> None:
    store = await LocalMetadataStore.open(tmp_path)
    cancelled = asyncio.ensure_future(store.put("/a", b""))
    await asyncio.sleep(0)
    cancelled.cancel()
    assert await store.put("/b", b"") == 0
    await store.close()


def modes_below(folder: Path) -> dict[str, str]:
    return {path.name: oct(path.stat().st_mode & 0o777) for path in folder.rglob("*")}


async def test_folder_database_and_log_are_for_our_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store = await LocalMetadataStore.open(tmp_path / "data" / "m")
        await store.put("/n", b"value")
        names = modes_below(tmp_path)
        await store.close()
    finally:
        os.umask(before)
    assert {"metadata.db", "metadata.db-wal", "metadata.db-shm", "metadata.log"} <= names.keys()
    assert names.pop("data") == names.pop("m") == "0o700"
    assert set(names.values()) == {"0o600"}, names
