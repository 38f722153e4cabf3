"""Which messages compaction keeps: rules for keys, deletions, batches, chunks and encrypted entries; bounded memory."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire_broker.compaction.latest_messages import KEY_BYTES, LatestMessages, summary_of, weight
from quire_broker.compression import Codec
from quire_broker.errors import CompactionError
from quire_broker.managed_ledger.cursors.ack_set import unacked_mask
from quire_broker.managed_ledger.position import Position
from quire_broker.wire.entry import checksum_matches, peek
from quire_broker.wire.proto.pulsar_pb2 import EncryptionKeys
from tests.unit.broker.compaction.messages import Keyed, batch, entry, unpacked

MIB = 1 << 20
KEYS = [EncryptionKeys(key="k", value=b"v")]


def compacted(entries: Sequence[bytes], *, keyless: bool = False) -> list[bytes | None]:
    """Return each entry as it is after both phases; None: dropped."""
    latest = LatestMessages(keyless=keyless, bytes_max=MIB)
    positions = [Position(number // 3, number % 3) for number in range(len(entries))]
    for position, data in zip(positions, entries, strict=True):
        latest.note(position, data, summary_of(data))
    kept = [latest.kept(position, data, summary_of(data)) for position, data in zip(positions, entries, strict=True)]
    for one in kept:
        if one is not None and one.live is not None:
            assert unacked_mask(one.live).bit_count() == len(unpacked(bytes(one.data)))
    return [None if one is None else bytes(one.data) for one in kept]


def test_the_latest_message_of_a_key_is_kept_unchanged() -> None:
    entries = [entry("a", b"1"), entry("b", b"1"), entry("a", b"2")]
    assert compacted(entries) == [None, *entries[1:]]


@pytest.mark.parametrize("metadata", [{}, {"uncompressed_size": 0, "null_value": True}])
def test_an_empty_message_deletes_its_key(metadata: dict[str, object]) -> None:
    entries = [entry("a", b"1"), entry("b", b"1"), entry("a", b"", **metadata)]
    assert compacted(entries) == [None, entries[1], None]
    assert compacted([*entries, entries[0]]) == [None, entries[1], None, entries[0]]


def test_messages_without_a_key_are_dropped_unless_they_are_to_be_kept() -> None:
    entries = [entry(None, b"1"), batch([(None, b"1"), ("a", b"1")]), batch([(None, b"1")])]
    assert [data and unpacked(data) for data in compacted(entries)] == [None, [("a", b"1")], None]
    assert compacted(entries, keyless=True) == entries


@pytest.mark.parametrize("codec", Codec)
def test_a_batch_keeps_its_live_messages_with_their_indexes(codec: Codec) -> None:
    entries = [
        batch([("a", b"1" * 99), ("b", b"1"), ("a", b"2"), ("c", b""), ("d", b"1")], codec=codec),
        entry("b", b"2"),
    ]
    first, second = compacted(entries)
    assert first is not None and unpacked(first) == [("a", b"2"), ("d", b"1")]
    assert checksum_matches(first) and peek(first).num_messages == 5
    assert peek(first).metadata.compression == codec and second == entries[1]


def test_a_batch_that_was_compacted_before_is_compacted_again() -> None:
    once = compacted([batch([("a", b"1"), ("b", b"1"), ("a", b"2"), ("c", b"1")])])[0]
    assert once is not None
    assert compacted([once]) == [once], "nothing changed: it is not written again"
    twice = compacted([once, entry("c", b"2")])[0]
    assert twice is not None and unpacked(twice) == [("b", b"1"), ("a", b"2")]
    assert compacted([once, batch([("a", b""), ("b", b""), ("c", b"")])]) == [None, None]


def test_what_the_broker_added_before_a_batch_stays() -> None:
    added = b"\x0e\x02\x00\x00\x00\x02\x08\x07"
    kept = compacted([added + batch([("a", b"1"), ("a", b"2")])])[0]
    assert kept is not None and kept.startswith(added) and unpacked(kept) == [("a", b"2")]


def test_encrypted_batches_and_unreadable_entries_are_kept_whole() -> None:
    sealed = batch([("a", b"1"), ("a", b"2")], encryption_keys=KEYS)
    broken = batch([("a", b"1"), ("b", b"1")], codec=Codec.ZLIB)[:-3]
    entries = [sealed, b"not an entry", broken, entry("a", b"3")]
    assert compacted(entries) == entries


def test_an_encrypted_message_has_its_key_in_plain_text() -> None:
    entries = [entry("a", b"secret", encryption_keys=KEYS), entry("a", b"later", encryption_keys=KEYS)]
    assert compacted(entries) == [None, entries[1]]


def test_markers_of_brokers_are_dropped() -> None:
    assert compacted([entry("a", b"1", marker_type=10), entry("a", b"1")], keyless=True)[0] is None


def chunk(key: str | None, uuid: str, number: int, count: int = 3) -> bytes:
    return entry(key, b"part", uuid=uuid, chunk_id=number, num_chunks_from_msg=count, total_chunk_msg_size=4 * count)


def test_all_chunks_of_a_message_are_kept_or_none() -> None:
    old = [chunk("a", "u1", number) for number in range(3)]
    new = [chunk("a", "u2", number) for number in range(3)]
    assert compacted([*old, *new]) == [None] * 3 + new
    assert compacted([old[0], new[0], old[1], new[1], new[2], old[2]]) == [old[0], None, old[1], None, None, old[2]]
    assert compacted([*old, entry("a", b"")]) == [None] * 4
    assert compacted([chunk(None, "u", number) for number in range(3)]) == [None] * 3


def test_a_message_whose_last_chunk_is_missing_is_kept_with_its_predecessor() -> None:
    entries = [entry("a", b"1"), chunk("a", "u", 0), chunk("a", "u", 1)]
    assert compacted(entries) == entries
    assert compacted([entry("a", b"1"), chunk("a", "u", 1), chunk("a", "u", 2)]) == [entry("a", b"1"), None, None]


def test_more_keys_than_the_memory_holds_are_refused_with_the_remedy() -> None:
    latest = LatestMessages(keyless=False, bytes_max=10 * (KEY_BYTES + 2))

    def note(number: int, data: bytes) -> None:
        latest.note(Position(1, number), data, summary_of(data))

    for number in range(10):
        note(number, entry(f"k{number}", b"1"))
        note(number, entry(f"k{number}", b"2"))
    note(10, entry("k0", b""))
    note(11, entry("k0", b"1"))
    with pytest.raises(CompactionError, match="topicCompactionKeysMaxMb"):
        note(12, entry("kx", b"1"))


def test_a_large_batch_weighs_more_than_a_message() -> None:
    def of(data: bytes) -> int:
        return weight(data, summary_of(data))

    assert of(entry("a", b"1")) == of(b"not an entry") < 20 < 1000 < of(batch([("a", b"1")] * 1000))
    assert of(batch([("a", bytes(1 << 20))], codec=Codec.ZSTD)) > 1000


MESSAGE = st.tuples(st.sampled_from(["a", "b", "c", None]), st.sampled_from([b"", b"1", b"22"]))


@given(st.lists(st.one_of(MESSAGE, st.lists(MESSAGE, min_size=1, max_size=6)), max_size=12), st.integers(0, 12))
def test_compacting_twice_keeps_what_compacting_once_does(groups: list[Keyed | list[Keyed]], first: int) -> None:
    entries = [entry(*group) if isinstance(group, tuple) else batch(group) for group in groups]
    plain = [message for group in groups for message in ([group] if isinstance(group, tuple) else group)]
    latest = {key: number for number, (key, _) in enumerate(plain)}
    expected = [one for number, one in enumerate(plain) if one[0] and one[1] and latest[one[0]] == number]
    kept = [data for data in compacted(entries) if data is not None]
    assert [message for data in kept for message in unpacked(data)] == expected
    before = [data for data in compacted(entries[:first]) if data is not None]
    again = [data for data in compacted([*before, *entries[first:]]) if data is not None]
    assert [message for data in again for message in unpacked(data)] == expected
