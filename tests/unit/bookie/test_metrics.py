"""Readings as Prometheus text, read back by Prometheus' own parser."""

import dataclasses

from prometheus_client.parser import text_string_to_metric_families

from quire_bookie.admin.readings import COLLECTION, JOURNAL, REGISTRATION, SERVER, STORAGE
from quire_bookie.journal.writer import JournalStats
from quire_bookie.metrics import Reading, of_stats, render
from quire_bookie.server.garbage_collection import GarbageCollectionStats
from quire_bookie.server.registration import RegistrationStats
from quire_bookie.server.settings import BookieStats
from quire_bookie.storage.settings import StorageStats


def test_text_survives_prometheus_parser() -> None:
    awkward = 'a"b\\c\nd'
    text = render(
        [
            Reading("one_total", "counter", "first\nline", 3, {"topic": awkward}),
            Reading("two", "gauge", "second", 0.5),
            Reading("one_total", "counter", "first\nline", 4, {"topic": "other"}),
        ]
    )
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert [(s.labels, s.value) for s in families["one"].samples] == [({"topic": awkward}, 3), ({"topic": "other"}, 4)]
    assert families["one"].type == "counter"
    assert families["two"].samples[0].value == 0.5


def test_members_of_a_family_stand_together() -> None:
    lines = render([Reading("a", "gauge", "", 1), Reading("b", "gauge", "", 2), Reading("a", "gauge", "", 3)])
    assert [line for line in lines.splitlines() if not line.startswith("#")] == ["a 1", "a 3", "b 2"]


def test_every_counter_of_a_bookie_has_a_name() -> None:
    seen: set[str] = set()
    for stats, names in (
        (BookieStats(), SERVER),
        (JournalStats(), JOURNAL),
        (StorageStats(), STORAGE),
        (GarbageCollectionStats(), COLLECTION),
        (RegistrationStats(), REGISTRATION),
    ):
        fields = {field.name for field in dataclasses.fields(stats)}
        # The same deletions are counted by garbage collection, which decides on them.
        assert fields - {"ledgers_deleted"} <= set(names) <= fields, type(stats).__name__
        readings = of_stats(stats, names, {"bookie": "b"})
        assert not seen & {reading.name for reading in readings}, "one name, one meaning"
        seen |= {reading.name for reading in readings}
