"""The keys of the index store: one letter per kind, then big-endian numbers, so that keys sort by number.

    'b' ledger:u64 entry>>8:u56   block of entry positions    (see block_index)
    'l' log:u32                   state of an entry log       (see log_catalog)
    's' ledger:u64                state of a ledger           (see ledger_states)
    'd' ledger:u64                time of its deletion        (see tombstones)
    'q' ledger:u64                quarantine of a ledger      (see ledger_quarantine)
    'm' name                      facts about the whole store (see log_catalog, limbo, id_marks,
                                                               ledger_quarantine)

Ledger and entry ids are not negative, so their order is the unsigned order.
"""

import struct
from typing import Final

from quire_bookie.model import LedgerId

BLOCK_SHIFT: Final = 8
BLOCK_MASK: Final = 0xFF
STORE_KEY: Final = b"mstore"
LIMBO_KEY: Final = b"mlimbo"
AGES_KEY: Final = b"mages"
QUARANTINE_CLOCK_KEY: Final = b"mquarantine"
ID_MARKS_KEY: Final = b"mids"

_BLOCK = struct.Struct(">cQIHB")
_ONE = struct.Struct(">cQ")
_LOG = struct.Struct(">cI")
_BLOCKS_MAX = (1 << 56) - 1


def block_key(ledger: LedgerId, block: int) -> bytes:
    """Return the key of the block of the entries with id >> 8 == `block`."""
    return _BLOCK.pack(b"b", ledger, block >> 24, block >> 8 & 0xFFFF, block & 0xFF)


def block_of_key(key: bytes) -> int:
    """Return the block number in a block's key."""
    return int.from_bytes(key[9:], "big")


def ledger_of_block_key(key: bytes) -> LedgerId:
    """Return the ledger in a block's key."""
    return LedgerId(int.from_bytes(key[1:9], "big"))


def last_block_key(ledger: LedgerId) -> bytes:
    """Return the highest key that a block of this ledger can have."""
    return block_key(ledger, _BLOCKS_MAX)


def state_key(ledger: LedgerId) -> bytes:
    """Return the key of a ledger's state."""
    return _ONE.pack(b"s", ledger)


def ledger_of_state_key(key: bytes) -> LedgerId:
    """Return the ledger in a state's key."""
    return LedgerId(int.from_bytes(key[1:], "big"))


def deletion_key(ledger: LedgerId) -> bytes:
    """Return the key of the time at which a ledger was deleted."""
    return _ONE.pack(b"d", ledger)


def ledger_of_deletion_key(key: bytes) -> LedgerId:
    """Return the ledger in a deletion's key."""
    return LedgerId(int.from_bytes(key[1:], "big"))


def quarantine_key(ledger: LedgerId) -> bytes:
    """Return the key of a ledger's record in quarantine."""
    return _ONE.pack(b"q", ledger)


def ledger_of_quarantine_key(key: bytes) -> LedgerId:
    """Return the ledger in a quarantine record's key."""
    return LedgerId(int.from_bytes(key[1:], "big"))


def log_key(log: int) -> bytes:
    """Return the key of an entry log's state."""
    return _LOG.pack(b"l", log)


def log_of_key(key: bytes) -> int:
    """Return the log id in an entry log's key."""
    return int.from_bytes(key[1:], "big")


STATES_START: Final = b"s"
STATES_END: Final = b"t"
LOGS_START: Final = b"l"
LOGS_END: Final = b"m"
DELETIONS_START: Final = b"d"
DELETIONS_END: Final = b"e"
QUARANTINE_START: Final = b"q"
QUARANTINE_END: Final = b"r"
