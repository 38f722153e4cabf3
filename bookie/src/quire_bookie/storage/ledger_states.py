"""What a bookie knows of each ledger beside its entries: master key, fence, explicit LAC, deletion.

Owns the one `LedgerInfo` per ledger: whoever holds one sees every fence, because an evicted object that somebody still
holds is found again. Never evicts a state that is not in the index yet, and never makes up a ledger: `create` wants
the proof that the index has none (`note_absent`). A deleted ledger leaves a tombstone that counts as fenced, so that
a late writer cannot bring it back to life.

    state value   0  crc32c u32 over key and bytes 4..   4  version u8 = 1   5  flags u8 (1 fenced, 2 deleted,
                  4 has explicit LAC)   6  explicit LAC id i64   14  key size u16   16  packet size u32
                  20  master key   then the explicit LAC packet                          (little-endian)
"""

import struct
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from crc32c import crc32c

from quire_bookie.errors import DamagedError
from quire_bookie.model import NO_ENTRY, Buffer, EntryId, LedgerId
from quire_bookie.storage.index_keys import state_key

STATE_VERSION: Final = 1
_FENCED, _DELETED, _HAS_LAC = 1, 2, 4
_STATE = struct.Struct("<BBqHI")
_LOOKS_PER_ADMISSION = 8
_CRC = struct.Struct("<I")


class LedgerInfo:
    """The state of one ledger. Read it freely; change it only through `LedgerStorage`.

    `lac` is the highest last-add-confirmed seen (a lower bound), `last_entry` the highest id held. `last_unproven`:
    damage hides what the index held last, so that `last_entry` is only a lower bound. `deleted` implies `fenced`.
    """

    __slots__ = (
        "__weakref__",
        "deleted",
        "dirty",
        "explicit_lac",
        "explicit_lac_entry",
        "fenced",
        "lac",
        "last_entry",
        "last_unproven",
        "ledger_id",
        "master_key",
        "read_ahead_bytes",
        "read_ahead_entry",
        "rewrites",
        "touched",
    )

    def __init__(self, ledger_id: LedgerId, master_key: bytes) -> None:
        self.ledger_id = ledger_id
        self.master_key = master_key
        self.fenced = False
        self.deleted = False
        self.explicit_lac: bytes | None = None
        self.explicit_lac_entry = NO_ENTRY
        self.lac = NO_ENTRY
        self.last_entry = NO_ENTRY
        self.last_unproven = False
        self.dirty = False
        self.touched = False
        self.rewrites = 0
        """Grows when an id is stored again, so that a read in flight does not cache the older bytes."""
        self.read_ahead_entry = NO_ENTRY
        """The entry at which a sequential reader would go on."""
        self.read_ahead_bytes = 0


def encode_state(info: LedgerInfo) -> bytes:
    """The value under the ledger's state key; also the body of a state record in an entry log."""
    packet = info.explicit_lac or b""
    flags = (
        (_FENCED if info.fenced else 0)
        | (_DELETED if info.deleted else 0)
        | (_HAS_LAC if info.explicit_lac is not None else 0)
    )
    rest = (
        _STATE.pack(STATE_VERSION, flags, info.explicit_lac_entry, len(info.master_key), len(packet))
        + info.master_key
        + packet
    )
    return _CRC.pack(crc32c(rest, crc32c(state_key(info.ledger_id)))) + rest


def decode_state(ledger: LedgerId, value: Buffer, path: str = "index") -> LedgerInfo:
    """The state in a value; DamagedError when it is not intact."""
    head = _CRC.size + _STATE.size
    if len(value) < head or crc32c(value[4:], crc32c(state_key(ledger))) != _CRC.unpack_from(value)[0]:
        raise DamagedError(path, 0, f"the state of ledger {ledger} does not match its checksum")
    version, flags, lac, key_size, packet_size = _STATE.unpack_from(value, _CRC.size)
    if version != STATE_VERSION or len(value) != head + key_size + packet_size:
        raise DamagedError(path, 0, f"the state of ledger {ledger} is of version {version}, {len(value)} bytes")
    info = LedgerInfo(ledger, bytes(value[head : head + key_size]))
    info.fenced = bool(flags & _FENCED)
    info.deleted = bool(flags & _DELETED)
    if flags & _HAS_LAC:
        info.explicit_lac = bytes(value[head + key_size :])
        info.explicit_lac_entry = EntryId(lac)
    info.lac = info.explicit_lac_entry
    return info


def is_deleted(ledger: LedgerId, value: Buffer) -> bool:
    """Whether a state value is a tombstone. DamagedError when it is not intact."""
    return decode_state(ledger, value).deleted


class LedgerStates:
    """The bounded cache of states. `states_max` counts the clean ones that nobody holds; dirty ones are pinned."""

    def __init__(self, states_max: int) -> None:
        self._states_max = states_max
        self._recent: dict[LedgerId, LedgerInfo] = {}
        self._alive: weakref.WeakValueDictionary[LedgerId, LedgerInfo] = weakref.WeakValueDictionary()
        self._dirty: dict[LedgerId, LedgerInfo] = {}
        self._flushing: dict[LedgerId, LedgerInfo] = {}
        self._absent: OrderedDict[LedgerId, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._recent)

    def get(self, ledger: LedgerId) -> LedgerInfo | None:
        """The one object of this ledger, if it is in memory."""
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
        """Take over a state read from the index, unless the ledger came to memory meanwhile."""
        known = self.get(info.ledger_id)
        if known is not None:
            return known
        self._alive[info.ledger_id] = info
        self._admit(info)
        return info

    def note_absent(self, ledger: LedgerId) -> None:
        """The index proved that it has no such ledger."""
        self._absent[ledger] = None
        if len(self._absent) > self._states_max:
            self._absent.popitem(last=False)

    def create(self, ledger: LedgerId, master_key: bytes) -> LedgerInfo:
        """A new ledger, or the one that was created meanwhile (compare its key)."""
        info = self.get(ledger)
        if info is not None:
            return info
        # Without this proof a fence or a tombstone in the index would be overwritten by an empty state.
        assert ledger in self._absent, f"load ledger {ledger} before creating it"
        del self._absent[ledger]
        info = LedgerInfo(ledger, master_key)
        self._alive[ledger] = info
        self._admit(info)
        self.mark_dirty(info)
        return info

    def mark_dirty(self, info: LedgerInfo) -> None:
        """The state must reach the index with the next flush."""
        info.dirty = True
        self._dirty[info.ledger_id] = info

    def begin_flush(self) -> dict[LedgerId, LedgerInfo]:
        """The states that became dirty since the last call; they stay pinned until `end_flush`.

        They are encoded later: a state that changes until then reaches the index early, and once more with the next
        flush. Encoding thousands of them here would stall the loop in the middle of an add.
        """
        assert not self._flushing, "one flush at a time"
        self._flushing, self._dirty = self._dirty, {}
        return self._flushing

    def end_flush(self) -> None:
        """The states of `begin_flush` are durable."""
        for ledger, info in self._flushing.items():
            info.dirty = ledger in self._dirty
        self._flushing = {}

    def dirty_ledgers(self) -> Iterator[LedgerInfo]:
        """States whose present form the index may not have."""
        yield from self._dirty.values()
        yield from (info for ledger, info in self._flushing.items() if ledger not in self._dirty)

    @property
    def has_dirty(self) -> bool:
        """Whether a flush would write a state."""
        return bool(self._dirty)

    def _admit(self, info: LedgerInfo) -> None:
        """Second chance, with a bounded number of looks per admission. Dirty ones stay, whatever the bound."""
        self._recent[info.ledger_id] = info
        for look in range(_LOOKS_PER_ADMISSION):
            if len(self._recent) <= self._states_max:
                return
            ledger = next(iter(self._recent))
            oldest = self._recent.pop(ledger)
            if oldest.dirty or (oldest.touched and look < _LOOKS_PER_ADMISSION - 1):
                oldest.touched = False
                self._recent[ledger] = oldest
