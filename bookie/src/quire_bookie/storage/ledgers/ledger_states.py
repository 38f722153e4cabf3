"""The state of each ledger apart from its entries: master key, fence, explicit LAC, deletion.

Owns the one `LedgerInfo` per ledger: every holder of it sees each fence, because an evicted object that is still
referenced is found again. Never evicts a state that is not in the index yet, and never invents a ledger: `create`
requires the proof that the index has none (`note_absent`). A deleted ledger leaves a tombstone that counts as fenced,
so that a late writer cannot create it again. A ledger that was deleted as a superfluous copy, while the cluster still
has the ledger, can be revived: see `deletion`. A ledger in limbo (see `limbo`) is fenced as well.

    state value   0  crc32c u32 over key and bytes 4..   4  version u8 = 1 to 4   5  flags u8 (1 fenced, 2 deleted,
                  4 has explicit LAC, 8 contents lost, 16 key unknown, 32 superfluous copy)   6  explicit LAC id i64
                  14  key size u16   16  packet size u32   [version 2 to 4: generation of limbo that ended for this
                  ledger u32   [version 3 and 4: number of revivals u32   [version 4: token size u8, token]]]
                   -  master key   then the explicit LAC packet                          (little-endian)

A version is written only if a lower one cannot represent the state: 2 for ledgers that were in limbo or lost entries or
the key, 3 for those that were ever deleted as a superfluous copy, 4 for those whose creator named a token.
"""

import struct
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Final

from quire_bookie.crc import crc32c
from quire_bookie.errors import DamagedError
from quire_bookie.model import NO_ENTRY, Buffer, EntryId, LedgerId
from quire_bookie.storage.formats.index_keys import state_key
from quire_bookie.storage.ledgers.limbo import Limbo

STATE_VERSION: Final = 1
STATE_VERSION_LIMBO: Final = 2
STATE_VERSION_COPY: Final = 3
STATE_VERSION_TOKEN: Final = 4
UNKNOWN_KEY_BYTES: Final = 32
_FENCED, _DELETED, _HAS_LAC, _CONTENTS_LOST, _KEY_UNKNOWN, _SUPERFLUOUS = 1, 2, 4, 8, 16, 32
_STATE = struct.Struct("<BBqHI")
_LIMBO_ENDED = struct.Struct("<I")
_LIMBO_ENDED_AND_REVIVALS = struct.Struct("<II")
_EVICTION_STEPS = 8
_ABSENT_KEPT_MIN = 1024  # more than one read proves absent at a time
_CRC = struct.Struct("<I")


class LedgerInfo:
    """The state of one ledger. Any code may read it; only `LedgerStorage` changes it.

    `lac` is the highest last-add-confirmed seen (a lower bound), `last_entry` the highest id held. `last_unproven`:
    damage hides the last entry in the index, so `last_entry` is only a lower bound. `deleted` implies `fenced`;
    `superfluous`: the cluster still had the ledger when it was deleted, so it may be revived. `limbo`: missing entries
    may have been lost, so a miss is *unknown*; implies `fenced`. `contents_lost`: the ledger is in limbo on its own,
    because a rebuild of the index found its records damaged. `key_unknown`: its master key was lost, and `master_key`
    is a value that no client can know. `token`: identifies the ledger among all that ever had this id, as named by its
    creator; empty if unknown.
    """

    __slots__ = (
        "__weakref__",
        "contents_lost",
        "deleted",
        "dirty",
        "explicit_lac",
        "explicit_lac_entry",
        "fenced",
        "key_unknown",
        "lac",
        "last_entry",
        "last_unproven",
        "ledger_id",
        "limbo",
        "limbo_ended",
        "master_key",
        "read_ahead_bytes",
        "read_ahead_entry",
        "revivals",
        "rewrites",
        "superfluous",
        "token",
        "touched",
    )

    def __init__(self, ledger_id: LedgerId, master_key: bytes) -> None:
        self.ledger_id = ledger_id
        self.master_key = master_key
        self.token = b""
        self.fenced = False
        self.deleted = False
        self.superfluous = False
        self.revivals = 0
        """How often the ledger was revived after it had been deleted as a superfluous copy."""
        self.limbo = False
        self.limbo_ended = 0
        """The generation of limbo that ended for this ledger; 0: none."""
        self.contents_lost = False
        self.key_unknown = False
        self.explicit_lac: bytes | None = None
        self.explicit_lac_entry = NO_ENTRY
        self.lac = NO_ENTRY
        self.last_entry = NO_ENTRY
        self.last_unproven = False
        self.dirty = False
        self.touched = False
        self.rewrites = 0
        """Incremented when an id is stored again and when the ledger is deleted, so that reads in flight do not cache
        outdated bytes."""
        self.read_ahead_entry = NO_ENTRY
        """The entry at which a sequential reader would continue."""
        self.read_ahead_bytes = 0


def encode_state(info: LedgerInfo) -> bytes:
    """Encode the value under the ledger's state key, which is also the body of a state record in an entry log."""
    packet = info.explicit_lac or b""
    flags = (
        (_FENCED if info.fenced else 0)
        | (_DELETED if info.deleted else 0)
        | (_HAS_LAC if info.explicit_lac is not None else 0)
        | (_CONTENTS_LOST if info.contents_lost else 0)
        | (_KEY_UNKNOWN if info.key_unknown else 0)
        | (_SUPERFLUOUS if info.superfluous else 0)
    )
    version, more = STATE_VERSION, b""
    if info.token:
        version = STATE_VERSION_TOKEN
        more = _LIMBO_ENDED_AND_REVIVALS.pack(info.limbo_ended, info.revivals) + bytes((len(info.token),)) + info.token
    elif info.superfluous or info.revivals:
        version, more = STATE_VERSION_COPY, _LIMBO_ENDED_AND_REVIVALS.pack(info.limbo_ended, info.revivals)
    elif info.limbo_ended or info.contents_lost or info.key_unknown:
        version, more = STATE_VERSION_LIMBO, _LIMBO_ENDED.pack(info.limbo_ended)
    rest = (
        _STATE.pack(version, flags, info.explicit_lac_entry, len(info.master_key), len(packet))
        + more
        + info.master_key
        + packet
    )
    return _CRC.pack(crc32c(rest, crc32c(state_key(info.ledger_id)))) + rest


def decode_state(ledger: LedgerId, value: Buffer, path: str = "index") -> LedgerInfo:
    """Check and decode the state. DamagedError if the value is damaged."""
    head = _CRC.size + _STATE.size
    if len(value) < head or crc32c(value[4:], crc32c(state_key(ledger))) != _CRC.unpack_from(value)[0]:
        raise DamagedError(path, 0, f"the state of ledger {ledger} does not match its checksum")
    version, flags, lac, key_size, packet_size = _STATE.unpack_from(value, _CRC.size)
    more = {STATE_VERSION: 0, STATE_VERSION_LIMBO: 4, STATE_VERSION_COPY: 8}.get(version)
    token = b""
    if version == STATE_VERSION_TOKEN and len(value) > head + 8:
        token = bytes(value[head + 9 : head + 9 + value[head + 8]])
        more = 9 + value[head + 8]
    if more is None or len(value) != head + more + key_size + packet_size:
        raise DamagedError(path, 0, f"the state of ledger {ledger} is of version {version}, {len(value)} bytes")
    limbo_ended = _LIMBO_ENDED.unpack_from(value, head)[0] if more else 0
    revivals = _LIMBO_ENDED_AND_REVIVALS.unpack_from(value, head)[1] if version >= STATE_VERSION_COPY else 0
    head += more
    info = LedgerInfo(ledger, bytes(value[head : head + key_size]))
    info.fenced = bool(flags & _FENCED)
    info.deleted = bool(flags & _DELETED)
    info.contents_lost = bool(flags & _CONTENTS_LOST)
    info.key_unknown = bool(flags & _KEY_UNKNOWN)
    info.superfluous = bool(flags & _SUPERFLUOUS)
    info.limbo_ended = limbo_ended
    info.revivals = revivals
    info.token = token
    if flags & _HAS_LAC:
        info.explicit_lac = bytes(value[head + key_size :])
        info.explicit_lac_entry = EntryId(lac)
    info.lac = info.explicit_lac_entry
    return info


def revived_state(info: LedgerInfo, master_key: bytes) -> LedgerInfo:
    """Return the state of a deleted superfluous copy after its revival: fenced, with its own key, without entries.

    `master_key` is used if the ledger's own key was lost: the bookie holds no entry that it could give access to.
    """
    assert info.deleted and info.superfluous, f"ledger {info.ledger_id} was not deleted as a copy"
    revived = LedgerInfo(info.ledger_id, bytes(master_key) if info.key_unknown else info.master_key)
    revived.fenced = True
    revived.revivals = info.revivals + 1
    revived.limbo_ended = info.limbo_ended
    revived.token = info.token
    return revived


def merge_states(older: LedgerInfo, newer: LedgerInfo) -> bytes:
    """Merge two records of a state: a fence or the end of limbo is never undone, and the LAC never decreases."""
    known = older if newer.key_unknown else newer
    merged = LedgerInfo(newer.ledger_id, known.master_key)
    merged.key_unknown = known.key_unknown
    merged.token = newer.token or older.token
    merged.fenced = older.fenced or newer.fenced
    merged.deleted = newer.deleted
    merged.revivals = max(older.revivals, newer.revivals)
    merged.limbo_ended = max(older.limbo_ended, newer.limbo_ended)
    merged.contents_lost = newer.contents_lost
    later = older if older.explicit_lac_entry > newer.explicit_lac_entry else newer
    merged.explicit_lac, merged.explicit_lac_entry = later.explicit_lac, later.explicit_lac_entry
    return encode_state(merged)


def is_deleted(ledger: LedgerId, value: Buffer) -> bool:
    """Return whether a state value is a tombstone. DamagedError if it is damaged."""
    return decode_state(ledger, value).deleted


class LedgerStates:
    """The bounded cache of states. `states_max` bounds the clean, unreferenced ones; dirty ones are pinned."""

    def __init__(self, states_max: int) -> None:
        self._states_max = states_max
        self._limbo = Limbo()
        self._recent: OrderedDict[LedgerId, LedgerInfo] = OrderedDict()  # a dict takes O(n) to drop its first item
        self._alive: weakref.WeakValueDictionary[LedgerId, LedgerInfo] = weakref.WeakValueDictionary()
        self._dirty: dict[LedgerId, LedgerInfo] = {}
        self._flushing: dict[LedgerId, LedgerInfo] = {}
        self._absent: OrderedDict[LedgerId, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._recent)

    def get(self, ledger: LedgerId) -> LedgerInfo | None:
        """Return the single object of this ledger, if it is in memory."""
        info = self._recent.get(ledger)
        if info is not None:
            info.touched = True
            return info
        info = self._alive.get(ledger)
        if info is not None:
            self._admit(info)
            info.touched = True
        return info

    def add_loaded(self, info: LedgerInfo) -> LedgerInfo:
        """Add a state read from the index, unless the ledger is in memory by now; return the one in memory."""
        known = self.get(info.ledger_id)
        if known is not None:
            return known
        self._settle_limbo(info)
        self._alive[info.ledger_id] = info
        self._admit(info)
        return info

    @property
    def limbo(self) -> Limbo:
        """Which ledgers may have lost entries."""
        return self._limbo

    def set_limbo(self, limbo: Limbo) -> None:
        """Set limbo and update every state in memory, in this loop step."""
        assert limbo.generation >= self._limbo.generation and limbo.number >= self._limbo.number
        self._limbo = limbo
        for info in list(self._alive.values()):
            self._settle_limbo(info)

    def end_limbo(self, info: LedgerInfo) -> None:
        """End the limbo of a ledger: its misses are proofs of absence again. It stays fenced."""
        info.limbo_ended = self._limbo.generation
        info.contents_lost = info.limbo = False
        self.mark_dirty(info)

    def revive(self, info: LedgerInfo, revived: LedgerInfo) -> None:
        """Hold the ledger again from now on: the result of `revived_state` is durable."""
        assert info.deleted and info.superfluous and revived.revivals == info.revivals + 1
        info.master_key, info.key_unknown = revived.master_key, revived.key_unknown
        info.deleted = info.superfluous = info.contents_lost = info.last_unproven = False
        info.revivals = revived.revivals
        info.rewrites += 1
        info.explicit_lac, info.explicit_lac_entry = None, NO_ENTRY
        info.lac = info.last_entry = NO_ENTRY
        info.read_ahead_entry, info.read_ahead_bytes = NO_ENTRY, 0
        self._settle_limbo(info)

    def _settle_limbo(self, info: LedgerInfo) -> None:
        covered = self._limbo.covers(info.ledger_id) and info.limbo_ended < self._limbo.generation
        # A deleted superfluous copy may have been revived, and the record of the revival lost.
        is_gone = info.deleted and not info.superfluous
        info.limbo = not is_gone and ((info.contents_lost and not info.deleted) or (covered and self._limbo.active))
        info.fenced = info.fenced or covered or info.contents_lost
        assert info.fenced or not info.limbo, "a ledger in limbo is fenced"

    def note_absent(self, ledger: LedgerId) -> None:
        """Record that the index proved the ledger absent."""
        self._absent[ledger] = None
        if len(self._absent) > max(self._states_max, _ABSENT_KEPT_MIN):
            self._absent.popitem(last=False)

    def create(self, ledger: LedgerId, master_key: bytes) -> LedgerInfo:
        """Create a ledger, or return one that was created since (compare its key)."""
        info = self.get(ledger)
        if info is not None:
            return info
        # Without this proof a fence or a tombstone in the index would be overwritten by an empty state.
        assert ledger in self._absent, f"load ledger {ledger} before creating it"
        del self._absent[ledger]
        info = LedgerInfo(ledger, master_key)
        if not self._limbo.active and self._limbo.covers(ledger):
            info.limbo_ended = self._limbo.generation  # created after limbo: it lost nothing here
        self._settle_limbo(info)
        self._alive[ledger] = info
        self._admit(info)
        self.mark_dirty(info)
        return info

    def mark_dirty(self, info: LedgerInfo) -> None:
        """Include the state in the next flush."""
        info.dirty = True
        self._dirty[info.ledger_id] = info

    def set_token(self, info: LedgerInfo, token: bytes) -> None:
        """Set the token of a ledger that has none."""
        assert not info.token, f"ledger {info.ledger_id} has a token"
        info.token = bytes(token)
        self.mark_dirty(info)

    def set_explicit_lac(self, info: LedgerInfo, packet: bytes, lac: EntryId) -> None:
        """Store the packet, replacing the previous one. The known LAC never decreases."""
        info.explicit_lac, info.explicit_lac_entry = bytes(packet), lac
        info.lac = max(info.lac, lac)
        self.mark_dirty(info)

    def begin_flush(self) -> dict[LedgerId, LedgerInfo]:
        """Return the states that became dirty since the last call; each stays in it, and pinned, until `end_flush`.

        They are encoded later: a state that changes before that reaches the index early, and again with the next flush.
        Encoding thousands of them here would stall the event loop in the middle of an add.
        """
        assert not self._flushing, "one flush at a time"
        self._flushing, self._dirty = self._dirty, {}
        return self._flushing

    def end_flush(self, ledgers: Iterable[LedgerId]) -> None:
        """Unpin those states of `begin_flush` that belong to `ledgers`: they are durable now."""
        for ledger in ledgers if self._flushing else ():
            info = self._flushing.pop(ledger, None)
            if info is not None:
                info.dirty = ledger in self._dirty

    def dirty_ledgers(self) -> Iterator[LedgerInfo]:
        """Yield the states whose current version the index may not have."""
        yield from self._dirty.values()
        yield from (info for ledger, info in self._flushing.items() if ledger not in self._dirty)

    def evict_unused(self, ledger: LedgerId) -> bool:
        """Drop a clean state from memory. False: it waits for a flush, or is still referenced."""
        info = self._alive.get(ledger)
        if info is None:
            return True
        if info.dirty:
            return False
        self._recent.pop(ledger, None)
        del info
        return ledger not in self._alive

    @property
    def dirty_count(self) -> int:
        """The number of states that wait for the next flush."""
        return len(self._dirty)

    @property
    def has_dirty(self) -> bool:
        """Whether a flush would write a state."""
        return bool(self._dirty)

    def _admit(self, info: LedgerInfo) -> None:
        """Add a state with second-chance eviction, in a bounded number of steps. Dirty states stay beyond the bound."""
        self._recent[info.ledger_id] = info
        for step in range(_EVICTION_STEPS):
            if len(self._recent) <= self._states_max:
                return
            ledger, oldest = self._recent.popitem(last=False)
            if oldest.dirty or (oldest.touched and step < _EVICTION_STEPS - 1):
                oldest.touched = False
                self._recent[ledger] = oldest
