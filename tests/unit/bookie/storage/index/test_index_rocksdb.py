"""The index store on RocksDB: the port's contract, restarts, damage, memory."""

import asyncio
import shutil
from pathlib import Path

import pytest

from quire_bookie.errors import DamagedError, StorageError
from quire_bookie.storage.index.index_rocksdb import RocksIndexStore

MIB = 1 << 20


async def _open(path: Path) -> RocksIndexStore:
    return await RocksIndexStore.open(str(path), cache_bytes=8 * MIB)


async def test_committed_pairs_are_found_in_order(tmp_path: Path) -> None:
    index = await _open(tmp_path / "index")
    await index.commit([(bytes((i,)), bytes((i,)) * 3) for i in range(0, 200, 2)])
    assert await index.get(b"\x04") == b"\x04" * 3
    assert await index.get(b"\x05") is None
    assert await index.get_many([b"\x02", b"\x03", b"\x06"]) == [b"\x02" * 3, None, b"\x06" * 3]
    assert await index.get_many([]) == []
    assert await index.last_at_or_below(b"\x09", b"\x00") == (b"\x08", b"\x08" * 3)
    assert await index.last_at_or_below(b"\x09", b"\x09") is None
    assert await index.last_at_or_below(b"\xff", b"\x10") == (bytes((198,)), bytes((198,)) * 3)
    assert [key async for key, _value in index.scan(b"\x05", b"\x0a")] == [b"\x06", b"\x08"]
    await index.commit([(b"\x05", b"new")], [b"\x06"])
    assert [key async for key, _value in index.scan(b"\x04", b"\x09")] == [b"\x04", b"\x05", b"\x08"]
    await index.delete_range(b"\x04", b"\x08")
    assert [key async for key, _value in index.scan(b"\x00", b"\x0a")] == [b"\x00", b"\x02", b"\x08"]
    await index.close()


async def test_a_scan_of_many_pairs_sees_one_snapshot(tmp_path: Path) -> None:
    index = await _open(tmp_path / "index")
    keys = [i.to_bytes(4, "big") for i in range(5000)]
    await index.commit([(key, b"old") for key in keys])
    seen: list[tuple[bytes, bytes]] = []
    async for key, value in index.scan(b"", b"\xff"):
        if not seen:
            await index.commit([(key, b"new") for key in keys])
        seen.append((key, value))
    assert seen == [(key, b"old") for key in keys]
    await index.close()


async def test_commits_survive_a_restart(tmp_path: Path) -> None:
    index = await _open(tmp_path / "index")
    await index.commit([(b"a", b"1")])
    await index.close()
    index = await _open(tmp_path / "index")
    assert await index.get(b"a") == b"1"
    await index.close()


async def test_many_concurrent_gets_are_all_served(tmp_path: Path) -> None:
    index = await _open(tmp_path / "index")
    await index.commit([(bytes((i,)), bytes((i,))) for i in range(100)])
    found = await asyncio.gather(*(index.get(bytes((i,))) for i in range(200)))
    assert found == [bytes((i,)) if i < 100 else None for i in range(200)]
    await index.close()


async def _fill_and_flip(path: Path) -> None:
    """Commit thousands of values to table files, then flip one bit in each 4 KiB of their first half."""
    index = await _open(path)
    for part in range(4):
        await index.commit([(b"k%06d" % i, b"value%06d" % i * 8) for i in range(part * 5000, part * 5000 + 5000)])
    await index.close()
    _flip_bits(path)


def _flip_bits(path: Path) -> None:
    for table in path.glob("*.sst"):
        data = bytearray(table.read_bytes())
        for at in range(1000, len(data) // 2, 4096):
            data[at] ^= 0x10
        table.write_bytes(data)


async def test_a_flipped_bit_in_a_table_is_damage_and_never_absence(tmp_path: Path) -> None:
    path = tmp_path / "index"
    await _fill_and_flip(path)
    index = await _open(path)
    damaged = 0
    for i in range(0, 20_000, 37):
        try:
            assert await index.get(b"k%06d" % i) == b"value%06d" % i * 8
        except DamagedError:
            damaged += 1
    assert damaged > 50
    with pytest.raises(DamagedError):
        async for _pair in index.scan(b"k", b"l"):
            continue
    answers = await asyncio.gather(*(index.get(b"k%06d" % i) for i in range(0, 20_000, 500)), return_exceptions=True)
    assert any(isinstance(answer, DamagedError) for answer in answers)
    assert any(isinstance(answer, bytes) for answer in answers), "only gets of damaged keys fail"
    await index.close()


async def test_a_missing_table_refuses_to_open(tmp_path: Path) -> None:
    path = tmp_path / "index"
    index = await _open(path)
    await index.commit([(b"a", b"1")])
    await index.close()
    for table in path.glob("*.sst"):
        table.unlink()
    with pytest.raises(StorageError):
        await _open(path)


async def test_the_block_cache_stays_within_its_share(tmp_path: Path) -> None:
    index = await _open(tmp_path / "index")
    for part in range(16):
        await index.commit([(b"%08d" % i, bytes(200)) for i in range(part * 10_000, part * 10_000 + 10_000)])
    async for _pair in index.scan(b"", b"\xff"):
        continue
    assert 0 < index.memory_bytes <= 8 * MIB
    await index.close()


async def _three_sessions_of_commits(tmp_path: Path, each: int = 10) -> tuple[Path, Path]:
    """Return an index with several flushes of tables, as left by a killed process, and an older copy."""
    index = await _open(tmp_path / "index")
    folders = []
    for step in range(3):
        for i in range(each):
            await index.commit([(b"k%d/%d" % (step, i), b"v")])
        if step:
            folders.append(Path(shutil.copytree(tmp_path / "index", tmp_path / f"copy{step}")))
        await index._run(index._writes, index._db.flush)
        await index.commit([(b"after%d" % step, b"v")])
    killed = Path(shutil.copytree(tmp_path / "index", tmp_path / "killed"))
    await index.close()
    return killed, folders[0]


@pytest.mark.parametrize("each", [10, 1500])
async def test_an_older_manifest_is_damage_and_never_absence(tmp_path: Path, each: int) -> None:
    killed, older = await _three_sessions_of_commits(tmp_path, each)
    (manifest,) = [path.name for path in killed.glob("MANIFEST-*")]
    shutil.copy(older / manifest, killed / manifest)
    with pytest.raises(DamagedError, match=r"commits are missing|No such file"):
        await _open(killed)


@pytest.mark.parametrize("commits", [5, 10_000])
async def test_an_intact_index_of_any_number_of_commits_opens(tmp_path: Path, commits: int) -> None:
    index = await _open(tmp_path / "index")
    for i in range(commits):
        await index.commit([(b"k%d" % i, b"v")], sync=i == commits - 1)
    killed = Path(shutil.copytree(tmp_path / "index", tmp_path / "killed"))
    await index.close()
    for folder in (killed, tmp_path / "index"):
        index = await _open(folder)
        assert len([key async for key, _ in index.scan(b"k", b"l")]) == commits
        await index.delete_range(b"", b"\xff" * 32)
        await index.commit([(b"again", b"v")])
        await index.close()
        index = await _open(folder)
        assert await index.get(b"again") == b"v"
        await index.close()


async def test_an_index_whose_chain_is_damaged_is_closed_again(tmp_path: Path) -> None:
    index = await _open(tmp_path / "index")
    for i in range(200):
        await index.commit([(b"k%d" % i, b"v")])
    await index.close()
    (table,) = (tmp_path / "index").glob("*.sst")
    content = bytearray(table.read_bytes())
    content[content.index(b"chain")] ^= 1
    for _ in range(2):
        table.write_bytes(content)
        with pytest.raises(DamagedError, match="checksum"):
            await _open(tmp_path / "index")


async def test_an_index_without_its_file_current_is_damage_and_not_a_new_one(tmp_path: Path) -> None:
    index = await _open(tmp_path / "index")
    await index.commit([(b"k", b"v")])
    await index.close()
    (tmp_path / "index" / "CURRENT").unlink()
    with pytest.raises(DamagedError, match="CURRENT is missing"):
        await _open(tmp_path / "index")
