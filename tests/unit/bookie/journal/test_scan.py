"""Reading forward, and the search for a later group."""

import pytest

from quire_bookie.env.disk import DiskFile
from quire_bookie.journal import scan
from quire_bookie.journal.format import encode_group_head
from quire_bookie.journal.scan import Window, find_group
from tests.sim.disk import SimDisk

UUID = bytes(range(16))
SIZE = 64 * 1024


async def file_with(groups: dict[int, bytes]) -> DiskFile:
    disk = SimDisk()
    await disk.make_dirs("/j")
    file = await disk.open("/j/f", create=True)
    await file.truncate(SIZE)
    for offset, head in groups.items():
        await file.write(offset, [head])
    return file


@pytest.mark.parametrize("window_bytes", [512, 4096, 1 << 20])
async def test_a_group_is_found_at_any_window_boundary(monkeypatch: pytest.MonkeyPatch, window_bytes: int) -> None:
    monkeypatch.setattr(scan, "WINDOW_BYTES", window_bytes)
    for offset in (4096, 8192 - 512, 8192, SIZE - 512):
        file = await file_with({offset: encode_group_head(UUID, 5, 9, b"", 0)})
        found = await find_group(file, 4096, SIZE, UUID, 5)
        assert found is not None and found.sequence == 9


async def test_groups_that_prove_nothing_are_skipped() -> None:
    file = await file_with(
        {
            4096: encode_group_head(UUID, 4, 9, b"", 0),  # a stale generation
            8192: encode_group_head(bytes(16), 5, 9, b"", 0),  # another journal's
            12288: encode_group_head(UUID, 5, 6, b"", 0),  # before the one in question
            16384 + 7: encode_group_head(UUID, 5, 9, b"", 0),  # inside a payload
        }
    )
    assert await find_group(file, 4096, SIZE, UUID, 5, sequence=7) is None
    assert await find_group(file, 4096, SIZE, UUID, 6) is None


async def test_exact_restricts_the_search_to_that_generation() -> None:
    file = await file_with({4096: encode_group_head(UUID, 7, 1, b"", 0), 8192: encode_group_head(UUID, 5, 2, b"", 0)})
    later = await find_group(file, 4096, SIZE, UUID, 5)
    exact = await find_group(file, 4096, SIZE, UUID, 5, exact=True)
    assert later is not None and later.generation == 7
    assert exact is not None and exact.sequence == 2


async def test_the_end_bounds_the_start_of_a_group() -> None:
    file = await file_with({8192: encode_group_head(UUID, 5, 9, b"", 0)})
    assert await find_group(file, 4096, 8192, UUID, 5) is None
    assert await find_group(file, 4096, 8193, UUID, 5) is not None


async def test_a_window_returns_bytes_of_the_file_and_reads_once_per_window() -> None:
    disk = SimDisk()
    await disk.make_dirs("/j")
    file = await disk.open("/j/f", create=True)
    await file.write(0, [bytes(range(200))])
    window = Window(file)
    assert await window.bytes_at(10, 5) == bytes(range(10, 15))
    disk.fail_next("read", "/j/f", OSError("read again"))
    assert await window.bytes_at(100, 100) == bytes(range(100, 200))
    with pytest.raises(OSError, match="read again"):
        await window.bytes_at(150, 100)
    assert await window.bytes_at(150, 100) == bytes(range(150, 200))
