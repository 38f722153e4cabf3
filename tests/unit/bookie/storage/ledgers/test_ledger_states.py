"""Ledger states: one object per ledger, bounded, and never invented."""

import gc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire_bookie.errors import DamagedError
from quire_bookie.model import EntryId, LedgerId
from quire_bookie.storage.ledgers.ledger_states import (
    LedgerInfo,
    LedgerStates,
    decode_state,
    encode_state,
    is_deleted,
    merge_states,
    revived_state,
)


def add(states: LedgerStates, ledger: int) -> LedgerInfo:
    return states.add_loaded(LedgerInfo(LedgerId(ledger), b"k" * 20))


@settings(deadline=None)
@given(
    st.integers(0, 2**63 - 1), st.binary(max_size=40), st.booleans(), st.booleans(), st.none() | st.binary(max_size=99)
)
def test_a_state_round_trips(ledger: int, key: bytes, fenced: bool, deleted: bool, packet: bytes | None) -> None:
    info = LedgerInfo(LedgerId(ledger), key)
    info.fenced, info.deleted, info.explicit_lac = fenced, deleted, packet
    if packet is not None:
        info.explicit_lac_entry = EntryId(77)
    found = decode_state(LedgerId(ledger), encode_state(info))
    assert (found.master_key, found.fenced, found.deleted, found.explicit_lac) == (key, fenced, deleted, packet)
    assert found.lac == (77 if packet is not None else -1)
    assert is_deleted(LedgerId(ledger), encode_state(info)) == deleted


def test_any_flipped_bit_of_a_state_or_the_state_of_another_ledger_is_damage() -> None:
    value = encode_state(LedgerInfo(LedgerId(5), b"k" * 20))
    for at in range(len(value)):
        bad = bytearray(value)
        bad[at] ^= 1
        with pytest.raises(DamagedError):
            decode_state(LedgerId(5), bad)
    with pytest.raises(DamagedError):
        decode_state(LedgerId(6), value)
    with pytest.raises(DamagedError):
        decode_state(LedgerId(5), value[:10])


def test_the_cache_is_bounded_and_evicts_unused_states_first() -> None:
    states = LedgerStates(10)
    for ledger in range(10):
        add(states, ledger)
    for ledger in range(10, 200):
        assert states.get(LedgerId(3)) is not None
        add(states, ledger)
        assert len(states) <= 11
    assert states.get(LedgerId(3)) is not None
    gc.collect()
    assert states.get(LedgerId(50)) is None


def test_an_evicted_state_that_is_still_referenced_is_the_same_object() -> None:
    states = LedgerStates(2)
    held = add(states, 1)
    for ledger in range(2, 50):
        add(states, ledger)
    held.fenced = True
    assert states.get(LedgerId(1)) is held
    assert add(states, 1) is held


def test_dirty_states_are_pinned_until_their_flush_ends() -> None:
    states = LedgerStates(2)
    states.note_absent(LedgerId(1))
    states.create(LedgerId(1), b"key")
    for ledger in range(2, 50):
        add(states, ledger)
    gc.collect()
    assert states.get(LedgerId(1)) is not None
    assert set(states.begin_flush()) == {1}
    for ledger in range(50, 90):
        add(states, ledger)
    gc.collect()
    info = states.get(LedgerId(1))
    assert info is not None and info.dirty
    states.end_flush([LedgerId(1)])
    assert not info.dirty and not states.has_dirty
    del info
    for ledger in range(90, 200):
        add(states, ledger)
    gc.collect()
    assert states.get(LedgerId(1)) is None


def test_a_change_during_a_flush_stays_dirty() -> None:
    states = LedgerStates(10)
    states.note_absent(LedgerId(1))
    info = states.create(LedgerId(1), b"key")
    states.begin_flush()
    info.fenced = True
    states.mark_dirty(info)
    states.end_flush([LedgerId(1)])
    assert info.dirty
    assert states.begin_flush()[LedgerId(1)].fenced


def test_a_ledger_is_created_only_after_its_absence_was_proved() -> None:
    states = LedgerStates(10)
    with pytest.raises(AssertionError):
        states.create(LedgerId(1), b"key")
    states.note_absent(LedgerId(1))
    first = states.create(LedgerId(1), b"key")
    assert states.create(LedgerId(1), b"other") is first and first.master_key == b"key"


def state(
    *, fenced: bool = False, deleted: bool = False, lac: int = -1, key: bytes = b"k", ended: int = 0
) -> LedgerInfo:
    info = LedgerInfo(LedgerId(5), key)
    info.fenced, info.deleted, info.limbo_ended, info.key_unknown = fenced, deleted, ended, key == b"?"
    if lac >= 0:
        info.explicit_lac, info.explicit_lac_entry = b"lac%d" % lac, EntryId(lac)
    return info


@given(st.booleans(), st.integers(-1, 5), st.integers(-1, 5), st.integers(0, 3), st.integers(0, 3))
def test_merged_states_keep_fences_and_the_higher_lac_in_either_order(
    fenced: bool, lac: int, other: int, ended: int, other_ended: int
) -> None:
    one, two = state(fenced=fenced, lac=lac, ended=ended), state(lac=other, ended=other_ended)
    for pair in ((one, two), (two, one)):
        merged = decode_state(LedgerId(5), merge_states(*pair))
        assert merged.fenced == fenced and not merged.deleted
        assert merged.explicit_lac_entry == max(lac, other) and merged.limbo_ended == max(ended, other_ended)
        assert merged.explicit_lac == (None if max(lac, other) < 0 else b"lac%d" % max(lac, other))


def test_a_known_key_wins_over_an_unknown_one_in_either_order() -> None:
    for pair in ((state(key=b"?"), state(key=b"known")), (state(key=b"known"), state(key=b"?"))):
        merged = decode_state(LedgerId(5), merge_states(*pair))
        assert merged.master_key == b"known" and not merged.key_unknown


def test_states_that_version_1_can_represent_use_version_1_and_others_round_trip() -> None:
    assert encode_state(state(fenced=True, lac=3))[4] == 1
    for name in ("contents_lost", "key_unknown", "limbo_ended"):
        info = state(lac=3, key=b"key")
        setattr(info, name, 7 if name == "limbo_ended" else True)
        value = encode_state(info)
        found = decode_state(LedgerId(5), value)
        assert value[4] == 2 and getattr(found, name) == getattr(info, name)
        assert (found.master_key, found.explicit_lac, found.explicit_lac_entry) == (b"key", b"lac3", 3)


def test_deletion_as_a_copy_and_revival_round_trip_and_older_versions_stay_readable() -> None:
    copy = LedgerInfo(LedgerId(5), b"key")
    copy.deleted = copy.fenced = copy.superfluous = True
    copy.limbo_ended, copy.revivals = 3, 2
    found = decode_state(LedgerId(5), encode_state(copy))
    assert (found.deleted, found.superfluous, found.limbo_ended, found.revivals) == (True, True, 3, 2)
    assert encode_state(copy)[4] == 3
    revived = decode_state(LedgerId(5), encode_state(revived_state(found, b"other")))
    assert (revived.deleted, revived.superfluous, revived.fenced, revived.revivals) == (False, False, True, 3)
    assert revived.master_key == b"key" and revived.limbo_ended == 3
    found.key_unknown = True
    assert revived_state(found, b"other").master_key == b"other"
    gone = LedgerInfo(LedgerId(5), b"key")
    gone.deleted = gone.fenced = True
    assert encode_state(gone)[4] == 1
    assert not decode_state(LedgerId(5), encode_state(gone)).superfluous


def test_a_token_round_trips_with_all_other_fields_and_older_versions_have_none() -> None:
    info = state(fenced=True, lac=3, key=b"key", ended=7)
    info.token = b"0123456789abcdef"
    info.revivals = 2
    value = encode_state(info)
    found = decode_state(LedgerId(5), value)
    assert value[4] == 4
    assert (found.token, found.master_key, found.explicit_lac) == (b"0123456789abcdef", b"key", b"lac3")
    assert (found.fenced, found.limbo_ended, found.revivals, found.superfluous) == (True, 7, 2, False)
    assert decode_state(LedgerId(5), encode_state(state(lac=3))).token == b""
    for at in range(len(value)):
        with pytest.raises(DamagedError):
            decode_state(LedgerId(5), value[:at] + bytes((value[at] ^ 1,)) + value[at + 1 :])


def test_a_token_survives_a_merge_a_deletion_and_a_revival() -> None:
    bound, unbound = state(), state(fenced=True)
    bound.token = b"token"
    for pair in ((bound, unbound), (unbound, bound)):
        assert decode_state(LedgerId(5), merge_states(*pair)).token == b"token"
    bound.deleted = bound.fenced = bound.superfluous = True
    assert revived_state(decode_state(LedgerId(5), encode_state(bound)), b"k").token == b"token"
