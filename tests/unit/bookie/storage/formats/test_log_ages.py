"""The ages of records: their bytes, lookups by offset, and completeness after many flushes and restarts."""

import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire_bookie.errors import DamagedError
from quire_bookie.storage.formats.log_ages import (
    FLUSH_AGES_START,
    UNKNOWN_AGE,
    AgeRun,
    AgeTable,
    LogAges,
    age_of_flush,
    commit_of_age,
    decode_ages,
    encode_ages,
)
from quire_bookie.storage.formats.log_catalog import decode_age_floor, encode_age_floor
from tests.unit.bookie.storage.store import Store, open_store

RUNS = st.lists(st.integers(1, 1000), max_size=20).map(
    lambda steps: [AgeRun(sum(steps[: at + 1]), FLUSH_AGES_START + steps[at] % 3) for at in range(len(steps))]
)


def test_a_table_has_the_documented_format() -> None:
    table = AgeTable([AgeRun(4096, 7), AgeRun(5000, FLUSH_AGES_START + 2)], 99)
    data = struct.pack("<QI", 99, 2) + struct.pack("<IQ", 4096, 7) + struct.pack("<IQ", 5000, (1 << 32) + 2)
    assert encode_ages(table) == data
    assert decode_ages(data, "x.qlog", 8192) == table
    assert decode_ages(b"", "x.qlog", 8192) is None
    for wrong in (data[:-1], data[:5], data + b"\0"):
        with pytest.raises(DamagedError, match="ages"):
            decode_ages(wrong, "x.qlog", 8192)
    with pytest.raises(DamagedError, match="after one at 99"):
        decode_ages(data, "x.qlog", 99)


@given(RUNS, st.integers(0, 22_000))
def test_every_offset_has_the_age_of_its_run(runs: list[AgeRun], offset: int) -> None:
    ages = LogAges(5, runs)
    assert ages.at(offset) == next((run.age for run in reversed(runs) if run.offset <= offset), 5)
    assert ages.newest == max((run.age for run in runs), default=0)
    cuts = ages.cuts(offset, offset + 500)
    assert all(offset < cut < offset + 500 and ages.at(cut - 1) != ages.at(cut) for cut in cuts)
    ends = [offset, *cuts, offset + 500]
    for start, end in itertools.pairwise(ends):
        assert ages.at(start) == ages.at(end - 1), "between two cuts the age is constant"


def test_a_flush_without_footer_has_an_unknown_age_and_one_without_table_that_of_its_log() -> None:
    ages = LogAges(9)
    ages.add_flush(4096, None)
    assert ages.at(4096) == 9 == ages.newest
    ages.add_flush(8192, AgeTable([AgeRun(12288, age_of_flush(4))], 0))
    assert [ages.at(offset) for offset in (8192, 12287, 12288)] == [UNKNOWN_AGE, UNKNOWN_AGE, age_of_flush(4)]
    ages = LogAges(9)
    ages.add_flush(8192, AgeTable([AgeRun(4096, age_of_flush(3)), AgeRun(8200, age_of_flush(4))], 0))
    assert [ages.at(offset) for offset in (8192, 8200)] == [age_of_flush(3), age_of_flush(4)]


def test_ages_rise_with_commits_and_are_above_the_ids_of_logs() -> None:
    assert age_of_flush(1) > (1 << 32) - 1
    assert commit_of_age(age_of_flush(77)) == 77
    assert commit_of_age(5) == 0


def test_the_floor_of_ages_round_trips_and_damage_is_detected() -> None:
    assert decode_age_floor(encode_age_floor(123)) == 123
    assert decode_age_floor(None) == 0
    with pytest.raises(DamagedError):
        decode_age_floor(encode_age_floor(123)[:-1] + b"\1")


async def ages_of_first_log(store: Store) -> LogAges:
    """Seal the log and read its ages as compaction does."""
    logs = store.storage._logs
    logs.flushed.leave_log()
    await store.put_ids(9, [0])
    await store.storage.flush()
    assert logs.sealed()[0].log == 1
    return await logs.read_ages(1)


@pytest.mark.parametrize("restarts", [set(), {1}, {63, 64, 65}, {10, 70, 130}, set(range(0, 140, 7))])
async def test_a_sealed_log_has_the_age_of_each_of_its_many_flushes(restarts: set[int]) -> None:
    store = await open_store()
    ages: list[int] = []
    offsets: list[int] = []
    for entry in range(140):
        if entry in restarts:
            store = await store.restart()
        await store.put_ids(1, [entry])
        ages.append(store.storage._commits.next_age)
        writer = store.storage._logs.flushed._lanes[0].writer
        offsets.append(writer.offset if writer else 4096)
        await store.storage.flush()
    assert ages == sorted(set(ages))
    found = await ages_of_first_log(store)
    assert [found.at(offset) for offset in offsets] == ages
    await store.storage.close()
