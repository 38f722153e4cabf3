"""The file with the position from which to replay."""

import pytest

from quire_bookie.env.chance import SystemChance
from quire_bookie.errors import DamagedError
from quire_bookie.journal.format import JournalPosition, Mark
from quire_bookie.journal.mark import MARK_NAME, NOTHING_WRITTEN, create_mark, load_mark, store_mark
from tests.sim.disk import SimDisk


async def test_a_stored_mark_survives_a_crash_and_the_later_one_wins() -> None:
    disk = SimDisk()
    await disk.make_dirs("/j")
    assert await load_mark(disk, "/j") is None
    first, _ = await create_mark(disk, "/j", SystemChance())
    assert first.position == NOTHING_WRITTEN and len(first.uuid) == 16
    second = Mark(first.uuid, JournalPosition(3, 8192, 17))
    await store_mark(disk, "/j", second)
    assert await load_mark(disk.crash(), "/j") == second


async def test_two_journals_have_different_uuids() -> None:
    disk = SimDisk()
    await disk.make_dirs("/j")
    one, other = [(await create_mark(disk, "/j", SystemChance()))[0] for _ in range(2)]
    assert one.uuid != other.uuid


async def test_a_truncated_mark_is_reported_as_damage_with_its_path() -> None:
    disk = SimDisk()
    await disk.make_dirs("/j")
    await create_mark(disk, "/j", SystemChance())
    disk.cut(f"/j/{MARK_NAME}", 20)
    with pytest.raises(DamagedError, match="20 bytes") as caught:
        await load_mark(disk, "/j")
    assert caught.value.path == f"/j/{MARK_NAME}"
