"""The embedded store after power cuts and damage: it has all answered commits, or is refused and repaired."""

import random
import shutil
import sqlite3
import zlib
from pathlib import Path

import pytest

from quire_bookie.env import durable
from quire_bookie.errors import MetadataUnavailableError, MetadataUnknownError, StartupError
from quire_bookie.metadata.local import change_log, database, repair
from quire_bookie.metadata.local.change_format import LogContent, read_log
from quire_bookie.metadata.local.inspection import inspect_database
from quire_bookie.metadata.local.opening import open_database
from quire_bookie.metadata.local.repair import carry_out, describe, plan_repair
from tests.support.metadata_files import (
    DAMAGES,
    FILES,
    Content,
    Groups,
    Recorder,
    content_of,
    damage,
    random_write,
)
from tests.support.sampling import one_in

GROUPS = 60


class World:
    """A store that was written and killed: `killed` is its folder, `content` all answered writes."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.killed = folder / "killed"
        self.older = folder / "older"
        live = folder / "live"
        live.mkdir(parents=True)
        store = open_database(live)
        groups = Groups()
        for number in range(GROUPS):
            if number == GROUPS // 2:
                store._connection.execute("PRAGMA wal_checkpoint")
                shutil.copytree(live, self.older)
            groups.run(store, *(random_write(self.chance, number) for _ in range(self.chance.randrange(1, 4))))
        self.content = content_of(store)
        shutil.copytree(live, self.killed)
        store.close()
        self.closed = live

    def copy(self, source: Path, to: Path) -> Path:
        shutil.copytree(source, to)
        return to


def opened(folder: Path) -> Content | str:
    """Return the content, or why the store was refused."""
    try:
        store = open_database(folder)
    except StartupError as error:
        return str(error)
    try:
        return content_of(store)
    finally:
        store.close()


@one_in(3)
@pytest.mark.parametrize("rest", ["killed", "closed"])
@pytest.mark.parametrize("kind", DAMAGES)
@pytest.mark.parametrize("name", FILES)
async def test_one_damaged_file_is_harmless_or_refused_and_repaired(
    tmp_path: Path, name: str, kind: str, rest: str, every: int
) -> None:
    world = World(tmp_path / "world", seed=zlib.crc32(f"{name} {kind} {rest}".encode()))
    rounds = 1 if kind in ("removed", "older") else 12 // every
    refused = 0
    for number in range(rounds):
        folder = world.copy(world.killed if rest == "killed" else world.closed, tmp_path / f"{number}")
        done = damage(folder, name, kind, world.older, world.chance)
        found = opened(folder)
        if isinstance(found, str):
            refused += 1
            assert "quire metadata repair" in found, done
            plan = plan_repair(folder)
            assert plan.lost is None, done
            carry_out(folder, plan, "20260101T000000Z")
            found = opened(folder)
            assert isinstance(found, dict), (done, found)
        assert found == world.content, done
        shutil.rmtree(folder)
    if name == "metadata.log" or (name, rest) == ("metadata.db", "closed"):
        assert refused


async def test_the_refusal_names_the_missing_commits_and_the_next_step(tmp_path: Path) -> None:
    world = World(tmp_path / "world", seed=5)
    folder = tmp_path / "data" / "metadata"
    folder.parent.mkdir()
    world.copy(world.killed, folder)
    put_back_the_database(world, folder)
    have = plan_repair(folder)
    assert have.last is not None
    found = opened(folder)
    assert isinstance(found, str)
    assert f"to {have.last.sequence} of the metadata store are missing from metadata.db" in found
    assert f"`quire metadata repair --data {folder.parent}" in found


async def test_a_refusal_changes_no_file(tmp_path: Path) -> None:
    world = World(tmp_path / "world", seed=6)
    folder = world.copy(world.killed, tmp_path / "damaged")
    damage(folder, "metadata.db-wal", "truncated", None, world.chance)
    before = {name: (folder / name).read_bytes() for name in FILES if name != "metadata.db-shm"}
    assert isinstance(opened(folder), str)
    assert {name: (folder / name).read_bytes() for name in before} == before


async def test_a_repair_keeps_the_original_files(tmp_path: Path) -> None:
    world = World(tmp_path / "world", seed=7)
    folder = world.copy(world.killed, tmp_path / "damaged")
    damage(folder, "metadata.db-wal", "truncated", None, world.chance)
    before = {name: (folder / name).read_bytes() for name in FILES if name != "metadata.db-shm"}
    aside = carry_out(folder, plan_repair(folder), "20260101T000000Z")
    assert aside.parent == folder
    assert {name: (aside / name).read_bytes() for name in before} == before


@pytest.mark.parametrize("seed", range(4))
async def test_a_power_cut_at_any_write_keeps_answered_commits_and_is_never_refused(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    live = tmp_path / "live"
    answered: list[Content] = [{}]
    cuts: list[tuple[Path, int]] = []
    live.mkdir()

    def hook() -> None:
        to = tmp_path / f"cut {len(cuts)}"
        recorder.cut(live, to, chance)
        cuts.append((to, len(answered) - 1))

    recorder = Recorder(hook)
    with recorder.recording():
        store = open_database(live)
        groups = Groups()
        for number in range(12):
            groups.run(store, *(random_write(chance, number) for _ in range(chance.randrange(1, 4))))
            answered.append(content_of(store))
        store.close()
    assert len(cuts) > 40
    for to, known in cuts:
        found = opened(to)
        assert isinstance(found, dict), found
        assert found in answered[known : known + 2], to


async def test_a_power_cut_at_any_write_while_the_log_is_rewritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_log, "METADATA_LOG_COMMITS_BYTES_MIN", 4000)
    monkeypatch.setattr(change_log, "METADATA_LOG_GROWTH_BYTES", 2000)
    monkeypatch.setattr(change_log, "METADATA_LOG_ROWS_BYTES", 1000)
    monkeypatch.setattr(database, "METADATA_LOG_STEP_NODES", 5)
    chance = random.Random(11)
    live = tmp_path / "live"
    answered: list[Content] = [{}]
    cuts: list[tuple[Path, int]] = []
    live.mkdir()

    def hook() -> None:
        if chance.random() < 0.15:
            to = tmp_path / f"cut {len(cuts)}"
            recorder.cut(live, to, chance)
            cuts.append((to, len(answered) - 1))

    recorder = Recorder(hook)
    with recorder.recording():
        store = open_database(live)
        groups = Groups()
        first = store._log
        for number in range(150):
            groups.run(store, *(random_write(chance, number) for _ in range(3)))
            answered.append(content_of(store))
            store.tidy()
        assert store._log is not first, "it was rewritten"
        assert (live / "metadata.log").stat().st_size < 300_000, "of more than 500,000 bytes of commits"
        store.close()
    assert isinstance(opened(live), dict)
    for to, known in cuts:
        found = opened(to)
        assert isinstance(found, dict), found
        assert found in answered[known : known + 2], to


async def test_an_interrupted_repair_is_completed_by_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path / "world", seed=8)
    damaged = world.copy(world.killed, tmp_path / "damaged")
    damage(damaged, "metadata.db", "removed", None, world.chance)
    copies: list[Path] = []

    def hook(folder: Path) -> None:
        to = tmp_path / f"cut {len(copies)}"
        shutil.copytree(folder, to)
        copies.append(to)

    def synced(folder: Path) -> None:
        durable.sync_path(folder)
        hook(damaged)

    for module in (repair, change_log):
        monkeypatch.setattr(module, "sync_path", synced)
    carry_out(damaged, plan_repair(damaged), "20260101T000000Z")
    assert len(copies) >= 4
    for folder in copies:
        found = opened(folder)
        if isinstance(found, str):
            plan = plan_repair(folder)
            assert plan.last is not None
            carry_out(folder, plan, "20260102T000000Z")
            found = opened(folder)
        assert found == world.content


async def test_commits_that_no_file_has_are_reported(tmp_path: Path) -> None:
    world = World(tmp_path / "world", seed=9)
    folder = world.copy(world.killed, tmp_path / "damaged")
    put_back_the_database(world, folder)
    data = bytearray((folder / "metadata.log").read_bytes())
    log = read_log(bytes(data), keep=True)
    last = log.commits[-1][0].sequence
    # Of the commits that the database lacks, the third is damaged: only the two before it can be used.
    lacked = inspect_database(folder).seen
    assert lacked is not None
    third = data.index(encode_frame_start(log, lacked.last.sequence + 3))
    data[third + 40] ^= 1
    (folder / "metadata.log").write_bytes(data)
    refused = opened(folder)
    assert isinstance(refused, str)
    assert f"commits {lacked.last.sequence + 1} to {last} " in refused
    plan = plan_repair(folder)
    assert plan.last is not None
    assert plan.last.sequence == lacked.last.sequence + 2
    assert plan.lost == (lacked.last.sequence + 3, last)
    assert f"commits {lacked.last.sequence + 3} to {last} " in "\n".join(describe(plan))
    assert not plan.whole


def encode_frame_start(log: LogContent, sequence: int) -> bytes:
    """Return the checksum at the start of a commit's frame."""
    return next(position.chain for position, _ in log.commits if position.sequence == sequence)


def put_back_the_database(world: World, folder: Path) -> None:
    """Restore an older copy of database and write-ahead log."""
    for name in FILES[:3]:
        (folder / name).unlink(missing_ok=True)
        if (world.older / name).exists():
            shutil.copy(world.older / name, folder / name)


async def test_a_database_and_a_log_that_are_both_unreadable_prove_nothing(tmp_path: Path) -> None:
    world = World(tmp_path / "world", seed=10)
    folder = world.copy(world.closed, tmp_path / "damaged")
    (folder / "metadata.db").write_bytes(b"\0" * 8192)
    (folder / "metadata.log").write_bytes(b"\0" * 8192)
    assert isinstance(opened(folder), str)
    plan = plan_repair(folder)
    assert plan.last is None
    assert not plan.whole


async def test_commits_after_damage_in_the_log_continue_a_proved_database(tmp_path: Path) -> None:
    world = World(tmp_path / "world", seed=12)
    folder = world.copy(world.killed, tmp_path / "damaged")
    put_back_the_database(world, folder)
    data = bytearray((folder / "metadata.log").read_bytes())
    data[40] ^= 1  # the first frame: the log alone has no starting point
    (folder / "metadata.log").write_bytes(data)
    plan = plan_repair(folder)
    assert plan.nodes == world.content
    assert plan.lost is None


async def test_a_store_of_format_1_gets_a_change_log(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "metadata.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA application_id=1366649202")
    connection.execute("PRAGMA user_version=1")
    connection.execute(
        "CREATE TABLE nodes (key BLOB PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL, "
        "ephemeral INTEGER NOT NULL) WITHOUT ROWID"
    )
    connection.execute("CREATE INDEX ephemeral_nodes ON nodes (ephemeral) WHERE ephemeral")
    connection.executemany(
        "INSERT INTO nodes VALUES (?, ?, ?, ?)",
        [(f"/k/{number}".encode(), b"v%d" % number, number, number % 5 == 0) for number in range(100)],
    )
    connection.close()
    wanted = {f"/k/{number}".encode(): (number, b"v%d" % number) for number in range(100) if number % 5}
    assert opened(tmp_path) == wanted
    assert opened(tmp_path) == wanted
    (tmp_path / "metadata.db").unlink()
    refused = opened(tmp_path)
    assert isinstance(refused, str)
    carry_out(tmp_path, plan_repair(tmp_path), "20260101T000000Z")
    assert opened(tmp_path) == wanted


async def test_a_power_cut_at_any_write_of_the_upgrade(tmp_path: Path) -> None:
    old = tmp_path / "live"
    old.mkdir()
    connection = sqlite3.connect(old / "metadata.db", isolation_level=None)
    connection.execute("PRAGMA application_id=1366649202")
    connection.execute("PRAGMA user_version=1")
    connection.execute(
        "CREATE TABLE nodes (key BLOB PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL, "
        "ephemeral INTEGER NOT NULL) WITHOUT ROWID"
    )
    connection.execute("INSERT INTO nodes VALUES (x'2f61', x'01', 3, 0)")
    connection.close()
    cuts: list[Path] = []
    chance = random.Random(1)

    def hook() -> None:
        cuts.append(tmp_path / f"cut {len(cuts)}")
        recorder.cut(old, cuts[-1], chance)

    recorder = Recorder(hook)
    with recorder.recording():
        open_database(old).close()
    assert len(cuts) > 4
    assert [opened(each) for each in cuts] == [{b"/a": (3, b"\x01")}] * len(cuts)


async def test_a_failed_write_of_the_change_log_leaves_the_outcome_unknown_and_the_next_write_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, groups = open_database(tmp_path), Groups()
    groups.run(store, lambda found: found.put("/a", b"1", None, False))

    def failing(self: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(change_log.LogFile, "sync", failing)
        (unknown,) = groups.run(store, lambda found: found.put("/a", b"2", None, False))
        assert isinstance(unknown, MetadataUnknownError)
        (refused,) = groups.run(store, lambda found: found.put("/a", b"3", None, False))
        assert isinstance(refused, MetadataUnavailableError)
    assert groups.run(store, lambda found: found.put("/b", b"4", None, False)) == [0]
    content = content_of(store)
    store.close()
    assert opened(tmp_path) == content


async def test_a_full_disk_refuses_a_commit_before_it_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, groups = open_database(tmp_path), Groups()
    large = bytes(900_000)
    written = change_log.LogFile.write

    def full(self: change_log.LogFile, offset: int, data: bytes) -> None:
        if len(data) > 1_000_000:
            raise OSError(28, "No space left on device")
        written(self, offset, data)

    with monkeypatch.context() as patch:
        patch.setattr(change_log.LogFile, "write", full)
        assert groups.run(store, lambda found: found.put("/a", large, None, False)) == [0]
        (refused,) = groups.run(store, lambda found: found.put("/b", large, None, False))
        assert isinstance(refused, MetadataUnavailableError)
        assert groups.run(store, lambda found: found.put("/c", b"", None, False)) == [0]
    assert groups.run(store, lambda found: found.put("/b", large, None, False)) == [0]
    content = content_of(store)
    store.close()
    assert opened(tmp_path) == content
