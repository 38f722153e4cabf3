"""RocksDB's log files, damaged: the check refuses what RocksDB would hang on or drop, and takes what a crash leaves."""

import asyncio
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from quire_bookie.errors import DamagedError
from quire_bookie.storage.index.index_logs import BLOCK_BYTES, check_logs
from quire_bookie.storage.index.index_rocksdb import RocksIndexStore

MIB = 1 << 20
HEADER_BYTES = 7
TYPE_AT = 6
RECYCLED = 4
"""Bit that turns the type of a record into that of a recycled log."""
OPEN = """
import asyncio, sys
from quire_bookie.errors import DamagedError
from quire_bookie.storage.index.index_rocksdb import RocksIndexStore
try:
    asyncio.run(RocksIndexStore.open(sys.argv[1], cache_bytes=8 << 20))
except DamagedError as error:
    sys.exit(str(error))
"""


async def _fill(folder: Path) -> None:
    """As a killed process leaves it: tables, a MANIFEST of several records, a write-ahead log of several blocks."""
    index = await RocksIndexStore.open(str(folder / "bookie"), cache_bytes=8 * MIB)
    await index.commit([(b"first", b"v")])
    await index._run(index._writes, index._db.flush)
    for i in range(8):
        await index.commit([(b"k%d" % i, bytes(range(256)) * (150 if i == 4 else 1))])
    shutil.copytree(folder / "bookie", folder / "killed")
    await index.close()


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("index")
    asyncio.run(_fill(folder))
    return folder / "killed"


@pytest.fixture
def index(killed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(killed, tmp_path / "index"))


def _file(index: Path, kind: str) -> Path:
    (found,) = [path for path in index.glob(kind) if path.stat().st_size]
    return found


def _records(content: bytes) -> Iterator[tuple[int, int]]:
    """Offset and end of each record."""
    at = 0
    while at + HEADER_BYTES <= len(content):
        end = at + HEADER_BYTES + struct.unpack_from("<H", content, at + 4)[0]
        yield at, end
        at = end if BLOCK_BYTES - end % BLOCK_BYTES >= HEADER_BYTES else end + BLOCK_BYTES - end % BLOCK_BYTES


def _flips(content: bytes, kind: str) -> Iterator[tuple[int, int]]:
    """Bytes and their bits: all of a small file, of a large one those of each record's header and of some payload."""
    places: set[int] = set(range(len(content)))
    if kind == "*.log":
        headers = [range(at, at + HEADER_BYTES) for at, _ in _records(content)]
        places = {at for header in headers for at in header} | set(range(11, len(content), 997))
    for at in sorted(places):
        for bit in range(8):
            yield at, 1 << bit


@pytest.mark.parametrize("kind", ["MANIFEST-*", "*.log", "CURRENT"])
def test_every_flipped_bit_is_refused(index: Path, kind: str) -> None:
    check_logs(str(index))
    file = _file(index, kind)
    content = bytearray(file.read_bytes())
    for at, bit in _flips(bytes(content), kind):
        content[at] ^= bit
        file.write_bytes(content)
        with pytest.raises(DamagedError, match=file.name):
            check_logs(str(index))
        content[at] ^= bit


@pytest.mark.parametrize("kind", ["MANIFEST-*", "*.log"])
def test_what_a_crash_leaves_is_sound(index: Path, kind: str) -> None:
    file = _file(index, kind)
    content = file.read_bytes()
    last, end = list(_records(content))[-1]
    assert end == len(content)
    for size in range(last, len(content)):
        file.write_bytes(content[:size])
        check_logs(str(index))
    for size in (1, HEADER_BYTES, BLOCK_BYTES, 3 * BLOCK_BYTES):
        file.write_bytes(content + bytes(size))
        check_logs(str(index))
        file.write_bytes(content[:last] + bytes(size))
        check_logs(str(index))


@pytest.mark.parametrize("kind", ["MANIFEST-*", "*.log"])
def test_a_record_of_zeros_with_others_behind_it_is_refused(index: Path, kind: str) -> None:
    file = _file(index, kind)
    content = file.read_bytes()
    for at, end in list(_records(content))[:-1]:
        file.write_bytes(content[:at] + bytes(end - at) + content[end:])
        with pytest.raises(DamagedError, match=f"byte {at} of its file {file.name} is zero, and more follows"):
            check_logs(str(index))


@pytest.mark.parametrize("kind", ["MANIFEST-*", "*.log"])
def test_an_index_that_rocksdb_would_open_for_ever_is_refused(index: Path, kind: str) -> None:
    """In a process of its own: the open that hangs holds the interpreter's lock, and no timeout within ends it."""
    file = _file(index, kind)
    content = bytearray(file.read_bytes())
    content[list(_records(bytes(content)))[-1][0] + TYPE_AT] ^= RECYCLED
    file.write_bytes(content)
    command = [sys.executable, "-c", OPEN, str(index)]
    child = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert child.returncode == 1 and f"its file {file.name} has a wrong checksum" in child.stderr


def test_a_folder_without_a_database_is_sound(tmp_path: Path) -> None:
    check_logs(str(tmp_path / "none"))
    (tmp_path / "MANIFEST-000001").write_bytes(b"a start was killed while it made the database")
    check_logs(str(tmp_path))


def test_a_manifest_that_is_missing_is_refused(index: Path) -> None:
    _file(index, "MANIFEST-*").unlink()
    with pytest.raises(DamagedError, match=r"CURRENT names MANIFEST-.* which is missing"):
        check_logs(str(index))
