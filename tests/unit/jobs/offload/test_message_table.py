"""Which ledgers a table still needs: offloaded, not in it, consecutive ones together."""

from dataclasses import replace

from quire_broker.managed_ledger.ledger_list import LedgerRecord
from quire_broker.managed_ledger.offload_context import OffloadContext
from quire_broker.topic.topic_names import parse_topic
from quire_jobs.offload.message_table import Due, due
from quire_jobs.tables.marks import LedgerRange

TOPIC = parse_topic("t")
NAME = TOPIC.ledger_name


def offloaded_record(number: int, entries: int, size_bytes: int) -> LedgerRecord:
    context = OffloadContext("0a1b2c3d-4e5f-4789-8abc-def012345678", complete=True)
    return LedgerRecord(number, entries, size_bytes, 1, offload=context)


def plan(
    records: list[LedgerRecord], marks: str = "", ids: frozenset[int] = frozenset(), most: int = 1000
) -> list[Due]:
    return due(TOPIC, records, {f"ledgers.{NAME}": marks}, ids, most)


def ranges(found: list[Due]) -> list[tuple[int, int, int | None]]:
    return [(each.mark.first, each.mark.last, each.mark.before) for each in found]


def test_consecutive_offloaded_ledgers_come_together_up_to_a_size() -> None:
    records = [offloaded_record(number, entries=10, size_bytes=400) for number in (3, 5, 8, 9)]
    found = plan([*records, replace(records[0], ledger_id=12, offload=None)])
    assert ranges(found) == [(3, 5, None), (8, 9, 5)]
    assert found[0] == Due(TOPIC, LedgerRange(NAME, 3, 5), 2, 800)
    assert ranges(plan(records, most=100)) == [(3, 3, None), (5, 5, 3), (8, 8, 5), (9, 9, 8)], "one at least"


def test_what_is_in_the_table_or_not_offloaded_is_left() -> None:
    records = [offloaded_record(number, entries=10, size_bytes=1) for number in range(1, 8)]
    records[3] = replace(records[3], offload=None)
    assert ranges(plan(records, "1-2")) == [(3, 3, 2), (5, 7, 4)]
    assert ranges(plan(records, "1-7")) == []
    assert ranges(plan(records, ids=frozenset({2, 6}))) == [(2, 2, 1), (6, 6, 5)]


def test_empty_ledgers_join_and_are_nothing_alone() -> None:
    empty = replace(offloaded_record(2, entries=0, size_bytes=0), offload=None)
    records = [offloaded_record(1, entries=1, size_bytes=1), empty, offloaded_record(3, entries=1, size_bytes=1)]
    assert ranges(plan(records)) == [(1, 3, None)]
    assert plan([empty]) == []
