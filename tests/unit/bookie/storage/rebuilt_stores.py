"""A storage whose index is lost and rebuilt from its entry logs, on the simulated disk."""

from collections.abc import Sequence

from quire_bookie.errors import DamagedError, NoSuchEntryError, NoSuchLedgerError, UnknownLedgerStateError
from quire_bookie.model import EntryId, LedgerId
from quire_bookie.storage.rebuilding.rebuild import RebuildReport, rebuild_index, remove_lost_proof
from tests.sim.disk import SimDisk
from tests.sim.index_store import SimIndexStore
from tests.sim.world import SimChance
from tests.unit.bookie.storage.store import DIRECTORY, Store, body_of, open_store

Expected = dict[tuple[int, int], bytes]


def log_paths(disk: SimDisk) -> list[str]:
    """Return the entry logs on the disk, oldest first."""
    return sorted(path for path in disk._names if path.endswith(".qlog"))


async def rebuild(
    disk: SimDisk,
    *,
    accept_limbo: bool = False,
    bounds: Sequence[LedgerId] = (),
    directories: Sequence[str] = (DIRECTORY,),
    home: str = DIRECTORY,
    seed: int = 0,
) -> RebuildReport:
    """Delete the index and rebuild it."""
    disk.indexes.pop("/index", None)
    report = await rebuild_index(
        disk,
        SimIndexStore(disk),
        directories,
        home,
        chance=SimChance(seed),
        accept_limbo=accept_limbo,
        limbo_bounds=bounds,
    )
    await remove_lost_proof(disk, home, report)
    return report


async def filled(*, flushes: int = 4) -> tuple[Store, Expected]:
    """Make several flushes into two logs: dense, striped, late, stored again, large; one ledger deleted, one fenced."""
    store, expected = await open_store(), Expected()

    async def put(ledger: int, ids: Sequence[int], version: int, size: int = 40) -> None:
        await store.put_ids(ledger, ids, size, version=version)
        expected.update({(ledger, entry): body_of(ledger, entry, size, version=version) for entry in ids})

    for version in range(flushes):
        await put(1, range(version * 100, version * 100 + 110), version)
        await put(2, [e for e in range(version * 60, version * 60 + 60) if e % 3 != 1], version)
        await put(3, [version * 300, 5, 1000 - version], version)
        await put(4, range(version * 6, version * 6 + 6), version, 90_000)
        await store.storage.flush()
    await store.storage.delete_ledger(LedgerId(3))
    for key in [key for key in expected if key[0] == 3]:
        del expected[key]
    info = await store.ledger(2)
    store.storage.fence(info)
    store.storage.set_explicit_lac(info, b"packet", EntryId(33))
    await store.storage.close()
    return store, expected


async def check_nothing_is_absent(store: Store, expected: Expected) -> tuple[int, int]:
    """Check that every entry has its bytes, or is damaged or in limbo; return how many of each."""
    right = unknown = 0
    for (ledger, entry), body in expected.items():
        try:
            found = await store.read(ledger, entry)
        except (DamagedError, UnknownLedgerStateError):
            unknown += 1
            continue
        except (NoSuchEntryError, NoSuchLedgerError) as error:
            raise AssertionError(f"ledger {ledger} entry {entry} became absent") from error
        # A log that lost the newer copy of an entry that was stored again may still have the older one.
        assert found == body or found in {body_of(ledger, entry, len(body) - 32, version=v) for v in range(9)}
        right += 1
    return right, unknown
