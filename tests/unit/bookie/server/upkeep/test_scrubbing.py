"""Tests of the background scrub: digests, its report, its saved position, and the keys that it restores."""

import asyncio
import copy
import random

import pytest

from quire_bookie.errors import ConfigError
from quire_bookie.limits import SCRUB_ENTRIES_PER_SECOND, SCRUB_RETRY_S
from quire_bookie.metadata.layout import ledger_path
from quire_bookie.metadata.ledgers import LedgerNodes
from quire_bookie.model import BookieId, DigestType, EntryId, LedgerId, LedgerMetadata, Segment
from quire_bookie.server.upkeep.scrubbing import POSITION_NAME, Scrubbing
from quire_bookie.settings.scrubbing import ScrubbingSettings
from quire_bookie.storage.scrub import ScrubPosition
from quire_bookie.wire.digest import Digest, master_key
from tests.sim.loop import SimLoop
from tests.sim.metadata import SimMetadata, SimMetadataStore
from tests.unit.bookie.storage.rebuilt_stores import log_paths, rebuild
from tests.unit.bookie.storage.store import DIRECTORY, Store, open_store

FAST = ScrubbingSettings(3600.0, 1 << 40)
TYPES = {1: DigestType.CRC32C, 2: DigestType.CRC32, 3: DigestType.HMAC, 4: DigestType.DUMMY}


class Clock:
    """A wall clock that tests set."""

    def __init__(self) -> None:
        self.ms = 1_800_000_000_000

    def now_ms(self) -> int:
        """Return the time set by the test."""
        return self.ms


def entry_of(ledger: int, entry: int, size: int = 60_000) -> bytes:
    payload = b"%d/%d;" % (ledger, entry) * (size // 4)
    digest = Digest(TYPES[ledger], b"secret")
    return digest.encode_entry(LedgerId(ledger), EntryId(entry), EntryId(-1), size, [payload]) + payload


def no_metadata() -> SimMetadataStore:
    return SimMetadataStore(SimMetadata(random.Random(1)))


async def filled(*, bad: tuple[int, int] | None = None) -> tuple[Store, SimMetadataStore]:
    """Return four ledgers, one for each digest, in sealed logs; the entry `bad` is stored with a wrong digest."""
    store, metadata = await open_store(), no_metadata()
    for ledger, digest_type in TYPES.items():
        found = LedgerMetadata(
            3, 3, 2, (Segment(EntryId(0), (BookieId("b"),) * 3),), digest_type=digest_type, password=b"secret"
        )
        await LedgerNodes(metadata).create(LedgerId(ledger), found)
        info = await store.ledger(ledger, master_key(b"secret"))
        assert info.master_key == master_key(b"secret")
        for entry in range(24):
            body = bytearray(entry_of(ledger, entry))
            if (ledger, entry) == bad:
                body[-1] ^= 1
            await store.put(ledger, entry, [bytes(body)])
    await store.storage.flush()
    assert len(log_paths(store.disk)) > 1
    return store, metadata


def scrubbing(
    store: Store, metadata: SimMetadataStore, settings: ScrubbingSettings = FAST, clock: Clock | None = None
) -> Scrubbing:
    return Scrubbing(store.storage, metadata, store.disk, clock or Clock(), settings)


async def test_intact_entries_are_checked_with_tsuccessor_digest_if_they_have_one() -> None:
    store, metadata = await filled()
    work = scrubbing(store, metadata)
    assert await work.run_round() == [] and work.damage.findings == []
    assert 0 < work.stats.digests < work.stats.entries
    assert work.stats.rounds == 1 and work.stats.bytes_read > 1 << 20 and work.position is None
    await store.storage.close()


@pytest.mark.parametrize("ledger", [1, 2, 3])
async def test_an_entry_that_was_stored_with_a_wrong_digest_is_reported_once(ledger: int) -> None:
    store, metadata = await filled(bad=(ledger, 2))
    work = scrubbing(store, metadata)
    for rounds in (1, 2):
        found = await work.run_round()
        assert [(damage.ledger, damage.first, damage.last) for damage in found] == [(ledger, 2, 2)]
        assert "does not match" in found[0].what and work.damage.findings == found
        assert (work.stats.rounds, work.damage.stats.damages) == (rounds, 1)
    await store.storage.close()


async def test_without_metadata_the_checksums_of_the_records_are_still_checked() -> None:
    store, _ = await filled()
    path = log_paths(store.disk)[0]
    store.disk.corrupt(path, store.disk.content(path).index(entry_of(1, 5)) + 90)
    work = scrubbing(store, no_metadata())
    found = await work.run_round()
    assert [(damage.ledger, damage.first) for damage in found] == [(1, 5)] and work.stats.digests == 0
    await store.storage.close()


async def test_a_key_that_a_rebuild_did_not_find_is_restored_from_the_metadata() -> None:
    store, metadata = await filled()
    await store.storage.close()
    disk = copy.deepcopy(store.disk)
    path = log_paths(disk)[0]
    disk.corrupt(path, disk.content(path).index(master_key(b"secret")) + 2)
    assert (await rebuild(disk)).without_key == [1]
    again = await open_store(disk)
    assert (await again.ledger(1)).master_key != master_key(b"secret")
    work = scrubbing(again, metadata)
    assert await work._settle_keys()
    info = await again.ledger(1)
    assert info.master_key == master_key(b"secret") and info.fenced and work.stats.keys_restored == 1
    await again.storage.close()


async def test_unreadable_metadata_does_not_prevent_restoring_the_keys_of_other_ledgers() -> None:
    store, server = await open_store(), SimMetadata(random.Random(1))
    metadata = SimMetadataStore(server)
    found = LedgerMetadata(3, 3, 2, (Segment(EntryId(0), (BookieId("b"),) * 3),), password=b"secret")
    await store.storage.enter_limbo([LedgerId(2)])
    for ledger in (LedgerId(1), LedgerId(2)):
        await LedgerNodes(metadata).create(ledger, found)
        assert await store.storage.load_ledger(ledger) is None
        store.storage.create_ledger_without_key(ledger)
    server.write(ledger_path(LedgerId(1)), b"of a later version", None)
    assert await scrubbing(store, metadata)._settle_keys()
    assert (await store.ledger(1)).key_unknown
    assert (await store.ledger(2)).master_key == master_key(b"secret") and (await store.ledger(2)).fenced
    await store.storage.close()


def test_rounds_run_at_tsuccessor_interval_and_a_new_process_continues_from_the_saved_position() -> None:
    async def scenario() -> None:
        store, metadata = await filled()
        clock = Clock()
        work = scrubbing(store, metadata, ScrubbingSettings(3600.0, 10_000), clock)
        task = asyncio.ensure_future(work.run())
        await asyncio.sleep(2 * SCRUB_RETRY_S)
        assert work.stats.rounds == 0 and work.stats.bytes_read == 0, "not before the first interval is over"
        clock.ms += 3_600_000
        await asyncio.sleep(SCRUB_RETRY_S + 40)
        assert work.position is not None and 0 < work.stats.bytes_read < 2_000_000
        await work._save(work.position)
        task.cancel()
        await asyncio.wait((task,))
        successor = scrubbing(store, metadata, ScrubbingSettings(3600.0, 10_000), clock)
        start = await successor._load()
        assert start == work.position != ScrubPosition()
        task = asyncio.ensure_future(successor.run())
        await asyncio.sleep(600)
        assert successor.stats.rounds == 1
        assert (await store.disk.read_file(f"{DIRECTORY}/{POSITION_NAME}")).split() == [b"0", b"0", b"%d" % clock.ms]
        task.cancel()
        await asyncio.wait((task,))
        await store.storage.close()

    loop = SimLoop(seed=1)
    try:
        loop.run_until_complete(scenario())
    finally:
        loop.close()


def test_a_clock_that_was_set_back_by_days_does_not_end_the_scrub() -> None:
    async def scenario() -> None:
        store, metadata = await filled()
        clock = Clock()
        await scrubbing(store, metadata, clock=clock).run_round()
        clock.ms -= 10 * 24 * 3_600_000
        successor = scrubbing(store, metadata, clock=clock)
        task = asyncio.ensure_future(successor.run())
        await asyncio.sleep(SCRUB_RETRY_S)
        assert successor.stats.rounds == 1
        task.cancel()
        await asyncio.wait((task,))
        await store.storage.close()

    loop = SimLoop(seed=1)
    try:
        loop.run_until_complete(scenario())
    finally:
        loop.close()


def test_small_entries_are_paced_by_tsuccessor_number() -> None:
    async def scenario() -> None:
        store = await open_store()
        await store.put_ids(1, range(2 * SCRUB_ENTRIES_PER_SECOND), 1)
        await store.put_ids(9, range(40), 60_000)
        await store.storage.flush()
        loop = asyncio.get_running_loop()
        before = loop.time()
        work = scrubbing(store, no_metadata())
        assert await work.run_round() == []
        assert work.stats.entries >= 2 * SCRUB_ENTRIES_PER_SECOND and 2 <= loop.time() - before < 10
        await store.storage.close()

    loop = SimLoop(seed=1)
    try:
        loop.run_until_complete(scenario())
    finally:
        loop.close()


async def test_a_position_that_does_not_parse_restarts_the_scrub() -> None:
    store, metadata = await filled()
    await store.disk.replace_file(f"{DIRECTORY}/{POSITION_NAME}", b"nonsense")
    assert await scrubbing(store, metadata)._load() == ScrubPosition()
    await store.storage.close()


def test_impossible_settings_are_refused() -> None:
    for settings in ({"interval_s": -1.0}, {"bytes_per_second": 0}):
        with pytest.raises(ConfigError, match="scrub"):
            ScrubbingSettings(**settings)
