"""The metrics of a real bookie on simulated disks: names, both formats, several bookies of one process."""

import dataclasses

from quire_bookie.admin.bookie_collector import BookieCollector
from quire_bookie.admin.names import (
    COLLECTION,
    COMPACTION,
    COMPACTION_SCHEDULE,
    JOURNAL,
    LATENCIES,
    REGISTRATION,
    SCRUBBING,
    SERVER,
    STORAGE,
)
from quire_bookie.exposition.rendering import Exposition
from quire_bookie.journal.writer import JournalStats
from quire_bookie.metrics import LatencyHistogram
from quire_bookie.server.settings import BookieStats
from quire_bookie.server.start.registration import RegistrationStats
from quire_bookie.server.upkeep.compaction_schedule import CompactionScheduleStats
from quire_bookie.server.upkeep.garbage_collection import GarbageCollectionStats
from quire_bookie.server.upkeep.scrubbing import ScrubbingStats
from quire_bookie.storage.compaction import CompactionStats
from quire_bookie.storage.stats import StorageStats
from tests.support.bookie_world import BookieWorld
from tests.support.scrapes import ACCEPT_OPENMETRICS, check_formats


def test_every_counter_of_a_bookie_has_a_name() -> None:
    seen: set[str] = set()
    for stats, names in (
        (BookieStats(), SERVER),
        (JournalStats(), JOURNAL),
        (StorageStats(), STORAGE),
        (GarbageCollectionStats(), COLLECTION),
        (CompactionStats(), COMPACTION),
        (CompactionScheduleStats(), COMPACTION_SCHEDULE),
        (RegistrationStats(), REGISTRATION),
        (ScrubbingStats(), SCRUBBING),
    ):
        fields = {field.name for field in dataclasses.fields(stats)}
        latencies = {name for name in fields if isinstance(getattr(stats, name), LatencyHistogram)}
        assert latencies <= LATENCIES.keys(), "a name in LATENCIES for each histogram"
        fields -= latencies
        # The same deletions are counted by garbage collection, which decides on them.
        assert fields <= set(names) | ({"ledgers_deleted"} if isinstance(stats, StorageStats) else set()), type(stats)
        assert set(names) <= fields, type(stats).__name__
        published = {name for name, _, _ in names.values()}
        assert len(published) == len(names) and not seen & published, "one name, one meaning"
        seen |= published


async def test_both_formats_show_two_bookies_of_a_process_in_one_family_each() -> None:
    one, two = BookieWorld(), BookieWorld()
    bookies = [await one.start(), await two.start()]
    try:
        exposition = Exposition()
        exposition.registry.register(BookieCollector(lambda: bookies, own_memory=False))
        classic, openmetrics = await exposition.scrape(""), await exposition.scrape(ACCEPT_OPENMETRICS)
        found = check_formats(classic.body.decode(), openmetrics.body.decode())
    finally:
        await one.stop()
        await two.stop()
    ids = {str(bookie.bookie_id) for bookie in bookies}
    assert len(ids) == 2
    assert {sample.labels["bookie"] for sample in found["bookie_SERVER_STATUS"].samples} == ids
    assert found["bookkeeper_server_ADD_ENTRY_REQUEST"].type == "summary"
    assert found["quire_bookie_add_seconds"].type == "histogram"
    assert found["bookie_WRITE_BYTES"].type == "counter"
    assert "quire_connection_memory_bytes" not in found, "the process shows the memory that its bookies share"
