"""Records about the entry logs and about the index itself. Pure codecs.

    log state    0  crc32c u32 over key and bytes 4..   4  version u8 = 1   5  flags u8 (1 sealed)   6  durable u64:
                 bytes that were synced before the commit   14  pointer u64: offset of the last footer, or of the map
                 once sealed (0 = none)   22  log uuid 16 bytes
    store state  0  crc32c u32 over key and bytes 4..   4  version u8 = 1   5  storage uuid 16 bytes   21  number of
                 this commit u64   29  id of the next log u32
    age floor    0  crc32c u32 over key and bytes 4..   4  version u8 = 1   5  floor u64: added to the numbers of the
                 commits for the ages of flushes (`log_ages`), because a rebuild restarted the numbers
    proof file   0  magic "QUIREIDX"   8  version u32 = 1 or 2   12  storage uuid 16 bytes   28  commit number u64
                 [version 2: 36  highest short ledger id i64   44  highest long one i64 (-1: none)
                 52  runs u32   56  unsealed logs u32   runs x { first log u32, last log u32 }
                 unsealed x { log u32, durable bytes u64 }]   and at the end crc32c of the bytes before

All integers are little-endian. The proof file is stored beside the logs and replaced after each commit: an index with a
lower number lost durable commits, so an absent key would prove nothing. The proof also names all logs and the durable
bytes of the unsealed ones, so that a rebuild of the index from the logs cannot overlook a log.
"""

import struct
from collections.abc import Iterable
from typing import Final

from quire_bookie.crc import crc32c
from quire_bookie.dataclass import dataclass
from quire_bookie.errors import DamagedError
from quire_bookie.model import LedgerId
from quire_bookie.storage.formats.index_keys import AGES_KEY, STORE_KEY, log_key

CATALOG_VERSION: Final = 1
_PROOF_MAGIC = b"QUIREIDX"
_CRC = struct.Struct("<I")
_LOG = struct.Struct("<BBQQ16s")
_STORE = struct.Struct("<B16sQI")
_FLOOR = struct.Struct("<BQ")
_PROOF = struct.Struct("<8sI16sQ")
_PROOF_MORE = struct.Struct("<qqII")
_RUN = struct.Struct("<II")
_UNSEALED = struct.Struct("<IQ")
PROOF_VERSION: Final = 2


@dataclass(frozen=True, slots=True)
class LogState:
    """The committed state of one log."""

    log: int
    uuid: bytes
    durable_bytes: int = 0
    pointer: int = 0
    sealed: bool = False


@dataclass(frozen=True, slots=True)
class StoreState:
    """The committed state of the store as a whole."""

    storage_uuid: bytes
    number: int
    next_log: int


@dataclass(frozen=True, slots=True)
class Proof:
    """The durable commits and logs. `runs` and `unsealed` are None in a file of version 1, which lacks them."""

    storage_uuid: bytes
    number: int
    short_top: LedgerId = LedgerId(-1)
    """Highest ledger id below 2^31 that ever had a state here, or -1."""
    long_top: LedgerId = LedgerId(-1)
    runs: tuple[tuple[int, int], ...] | None = None
    """The existing logs, as inclusive runs of ids."""
    unsealed: tuple[tuple[int, int], ...] | None = None
    """Logs that are not sealed, with their durable bytes."""

    def logs(self) -> set[int]:
        """Return the ids of the existing logs."""
        return {log for first, last in self.runs or () for log in range(first, last + 1)}


def runs_of(ids: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Return the ids as ascending inclusive runs."""
    runs: list[tuple[int, int]] = []
    for each in sorted(ids):
        if runs and each == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], each)
        else:
            runs.append((each, each))
    return tuple(runs)


def encode_log_state(state: LogState) -> bytes:
    """Encode the value under the log's key."""
    rest = _LOG.pack(CATALOG_VERSION, state.sealed, state.durable_bytes, state.pointer, state.uuid)
    return _CRC.pack(crc32c(rest, crc32c(log_key(state.log)))) + rest


def decode_log_state(log: int, value: bytes) -> LogState:
    """Check and decode the state. DamagedError if the value is damaged."""
    _check(log_key(log), value, _LOG.size)
    _version, sealed, durable, pointer, uuid = _LOG.unpack_from(value, 4)
    return LogState(log, uuid, durable, pointer, bool(sealed))


def encode_store_state(state: StoreState) -> bytes:
    """Encode the value under the store's key."""
    rest = _STORE.pack(CATALOG_VERSION, state.storage_uuid, state.number, state.next_log)
    return _CRC.pack(crc32c(rest, crc32c(STORE_KEY))) + rest


def decode_store_state(value: bytes) -> StoreState:
    """Check and decode the state. DamagedError if the value is damaged."""
    _check(STORE_KEY, value, _STORE.size)
    _version, uuid, number, next_log = _STORE.unpack_from(value, 4)
    return StoreState(uuid, number, next_log)


def encode_age_floor(floor: int) -> bytes:
    """Encode the value under the key of ages."""
    rest = _FLOOR.pack(CATALOG_VERSION, floor)
    return _CRC.pack(crc32c(rest, crc32c(AGES_KEY))) + rest


def decode_age_floor(value: bytes | None) -> int:
    """Decode the floor; 0 without a value. DamagedError if the value is damaged."""
    if value is None:
        return 0
    _check(AGES_KEY, value, _FLOOR.size)
    return int(_FLOOR.unpack_from(value, 4)[1])


def encode_proof(proof: Proof) -> bytes:
    """Encode the content of the proof file."""
    runs, unsealed = proof.runs or (), proof.unsealed or ()
    fixed = b"".join(
        (
            _PROOF.pack(_PROOF_MAGIC, PROOF_VERSION, proof.storage_uuid, proof.number),
            _PROOF_MORE.pack(proof.short_top, proof.long_top, len(runs), len(unsealed)),
            *(_RUN.pack(*run) for run in runs),
            *(_UNSEALED.pack(*log) for log in unsealed),
        )
    )
    return fixed + _CRC.pack(crc32c(fixed))


def decode_proof(data: bytes, path: str) -> Proof:
    """Check and decode the proof file, of either version. DamagedError if it is damaged."""
    if len(data) < _PROOF.size + 4 or crc32c(data[:-4]) != _CRC.unpack_from(data, len(data) - 4)[0]:
        raise DamagedError(path, 0, "the proof of the index's commits does not match its checksum")
    magic, version, uuid, number = _PROOF.unpack_from(data)
    if magic != _PROOF_MAGIC or version not in (CATALOG_VERSION, PROOF_VERSION):
        raise DamagedError(path, 0, f"version {version} of the format is not supported")
    if version == CATALOG_VERSION:
        return Proof(uuid, number)
    short_top, long_top, run_count, unsealed_count = _PROOF_MORE.unpack_from(data, _PROOF.size)
    at = _PROOF.size + _PROOF_MORE.size
    middle = at + run_count * _RUN.size
    end = middle + unsealed_count * _UNSEALED.size
    if end != len(data) - 4:
        raise DamagedError(path, 0, f"a proof with {run_count} runs of logs in {len(data)} bytes")
    runs = tuple(_RUN.iter_unpack(data[at:middle]))
    unsealed = tuple(_UNSEALED.iter_unpack(data[middle:end]))
    return Proof(uuid, number, LedgerId(short_top), LedgerId(long_top), runs, unsealed)


def _check(key: bytes, value: bytes, size: int) -> None:
    if len(value) != size + 4 or crc32c(value[4:], crc32c(key)) != _CRC.unpack_from(value)[0]:
        raise DamagedError(f"index key {key.hex()}", 0, "the checksum is wrong")
    if value[4] != CATALOG_VERSION:
        raise DamagedError(f"index key {key.hex()}", 0, f"version {value[4]} of the format is not supported")
