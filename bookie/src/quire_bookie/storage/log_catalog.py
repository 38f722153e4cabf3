"""What the index knows of the entry logs and of itself. Pure codecs.

    log state    0  crc32c u32 over key and bytes 4..   4  version u8 = 1   5  flags u8 (1 sealed)   6  durable u64:
                 bytes that were synced before the commit   14  pointer u64: offset of the last footer, or of the map
                 once sealed (0 = none)   22  log uuid 16 bytes
    store state  0  crc32c u32 over key and bytes 4..   4  version u8 = 1   5  storage uuid 16 bytes   21  number of
                 this commit u64   29  id of the next log u32
    proof file   0  magic "QUIREIDX"   8  version u32 = 1   12  storage uuid 16 bytes   28  commit number u64
                 36  crc32c of the bytes before

All integers little-endian. The proof file lies beside the logs and is replaced after each commit: an index with a lower
number lost commits that had been durable, and then an absent key would prove nothing.
"""

import struct
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from quire_bookie.errors import DamagedError
from quire_bookie.storage.index_keys import STORE_KEY, log_key

CATALOG_VERSION: Final = 1
_PROOF_MAGIC = b"QUIREIDX"
_CRC = struct.Struct("<I")
_LOG = struct.Struct("<BBQQ16s")
_STORE = struct.Struct("<B16sQI")
_PROOF = struct.Struct("<8sI16sQ")


@dataclass(frozen=True, slots=True)
class LogState:
    """What is committed of one log."""

    log: int
    uuid: bytes
    durable_bytes: int = 0
    pointer: int = 0
    sealed: bool = False


@dataclass(frozen=True, slots=True)
class StoreState:
    """What is committed of the store as a whole."""

    storage_uuid: bytes
    number: int
    next_log: int


def encode_log_state(state: LogState) -> bytes:
    """The value under the log's key."""
    rest = _LOG.pack(CATALOG_VERSION, state.sealed, state.durable_bytes, state.pointer, state.uuid)
    return _CRC.pack(crc32c(rest, crc32c(log_key(state.log)))) + rest


def decode_log_state(log: int, value: bytes) -> LogState:
    """The state in a value; DamagedError when it is not intact."""
    _check(log_key(log), value, _LOG.size)
    _version, sealed, durable, pointer, uuid = _LOG.unpack_from(value, 4)
    return LogState(log, uuid, durable, pointer, bool(sealed))


def encode_store_state(state: StoreState) -> bytes:
    """The value under the store's key."""
    rest = _STORE.pack(CATALOG_VERSION, state.storage_uuid, state.number, state.next_log)
    return _CRC.pack(crc32c(rest, crc32c(STORE_KEY))) + rest


def decode_store_state(value: bytes) -> StoreState:
    """The state in a value; DamagedError when it is not intact."""
    _check(STORE_KEY, value, _STORE.size)
    _version, uuid, number, next_log = _STORE.unpack_from(value, 4)
    return StoreState(uuid, number, next_log)


def encode_proof(state: StoreState) -> bytes:
    """Content of the proof file."""
    fixed = _PROOF.pack(_PROOF_MAGIC, CATALOG_VERSION, state.storage_uuid, state.number)
    return fixed + _CRC.pack(crc32c(fixed))


def decode_proof(data: bytes, path: str) -> tuple[bytes, int]:
    """Storage uuid and commit number; DamagedError when the file is not intact."""
    if len(data) != _PROOF.size + 4 or crc32c(data[: _PROOF.size]) != _CRC.unpack_from(data, _PROOF.size)[0]:
        raise DamagedError(path, 0, "the proof of the index's commits does not match its checksum")
    magic, version, uuid, number = _PROOF.unpack_from(data)
    if magic != _PROOF_MAGIC or version != CATALOG_VERSION:
        raise DamagedError(path, 0, f"version {version} of the format is not known here")
    return uuid, int(number)


def _check(key: bytes, value: bytes, size: int) -> None:
    if len(value) != size + 4 or crc32c(value[4:], crc32c(key)) != _CRC.unpack_from(value)[0]:
        raise DamagedError(f"index key {key.hex()}", 0, "the checksum is wrong")
    if value[4] != CATALOG_VERSION:
        raise DamagedError(f"index key {key.hex()}", 0, f"version {value[4]} of the format is not known here")
