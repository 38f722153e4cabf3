"""The check of RocksDB's log files refuses damage on which RocksDB hangs or drops records, and accepts crashes."""

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
    """Create an index as left by a killed process: tables, a MANIFEST of several records, a log of several blocks."""
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
    """Yield offset and end of each record."""
    at = 0
    while at + HEADER_BYTES <= len(content):
        end = at + HEADER_BYTES + struct.unpack_from("<H", content, at + 4)[0]
        yield at, end
        at = end if BLOCK_BYTES - end % BLOCK_BYTES >= HEADER_BYTES else end + BLOCK_BYTES - end % BLOCK_BYTES


def _flips(content: bytes, kind: str) -> Iterator[tuple[int, int]]:
    """Yield offsets and bits: all of a small file; of a large one, those of record headers and of some payload."""
    offsets: set[int] = set(range(len(content)))
    if kind == "*.log":
        headers = [range(at, at + HEADER_BYTES) for at, _ in _records(content)]
        offsets = {at for header in headers for at in header} | set(range(11, len(content), 997))
    for at in sorted(offsets):
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
def test_files_as_left_by_a_crash_are_accepted(index: Path, kind: str) -> None:
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
def test_a_record_of_zeros_followed_by_others_is_refused(index: Path, kind: str) -> None:
    file = _file(index, kind)
    content = file.read_bytes()
    for at, end in list(_records(content))[:-1]:
        file.write_bytes(content[:at] + bytes(end - at) + content[end:])
        with pytest.raises(DamagedError, match=f"byte {at} of its file {file.name} is zero, and more follows"):
            check_logs(str(index))


@pytest.mark.parametrize("kind", ["MANIFEST-*", "*.log"])
def test_an_index_on_which_the_open_of_rocksdb_hangs_is_refused(index: Path, kind: str) -> None:
    """Runs in a separate process: a hanging open holds the interpreter's lock, so no timeout inside could end it."""
    file = _file(index, kind)
    content = bytearray(file.read_bytes())
    content[list(_records(bytes(content)))[-1][0] + TYPE_AT] ^= RECYCLED
    file.write_bytes(content)
    command = [sys.executable, "-c", OPEN, str(index)]
    child = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert child.returncode == 1 and f"its file {file.name} has a wrong checksum" in child.stderr


def test_a_folder_without_a_database_is_accepted(tmp_path: Path) -> None:
    check_logs(str(tmp_path / "none"))
    (tmp_path / "MANIFEST-000001").write_bytes(b"a start was killed while it created the database")
    check_logs(str(tmp_path))


def test_a_missing_manifest_is_refused(index: Path) -> None:
    _file(index, "MANIFEST-*").unlink()
    with pytest.raises(DamagedError, match=r"CURRENT names MANIFEST-.* which is missing"):
        check_logs(str(index))
