"""Encodes and decodes the objects of an offloaded ledger: blocks, entries and index, and the objects' names. Pure.

    <uuid>-ledger-<ledger id>         data: consecutive blocks
    <uuid>-ledger-<ledger id>-index   index, written when the data is complete

    block   magic FBDBABCB, i64 header length (128), i64 block length, i64 first entry id, zeros up to 128,
            entries {i32 payload length, i64 entry id, payload}, then FE DC DE AD repeated up to the block length
    index   magic DE47DE47, i32 length of the index, i64 length of the data object, i64 header length (128),
            i32 number of blocks, i32 length of the ledger metadata, ledger metadata (LedgerMetadataFormat, protobuf),
            per block {i64 first entry id, i32 part number from 1, i64 offset of the block in the data object}

All integers are big-endian. A block has the largest allowed length, or the remaining length if that is less; an entry
is never split over blocks. A part is one of a multipart upload; readers use offsets. The user metadata of both objects
names the format's version. It is the format of Apache Pulsar's offloaders for S3, Google's and Azure's stores (4.x).
"""

from collections.abc import Callable, Mapping, Sequence
from struct import Struct
from typing import Final, NamedTuple

from quire_bookie.dataclass import dataclass
from quire_bookie.errors import MetadataFormatError
from quire_bookie.metadata.ledger_metadata import decode_kept_metadata, encode_kept_metadata
from quire_bookie.model import Buffer, LedgerMetadata, LedgerState
from quire_broker.errors import OffloadError, SegmentDamagedError

HEADER_BYTES: Final = 128
ENTRY_HEAD_BYTES: Final = 12
BLOCK_BYTES_MAX_DEFAULT: Final = 64 * 1024 * 1024
BLOCK_BYTES_MIN: Final = 5 * 1024 * 1024
"""The minimum of a service for parts other than the last, and so Pulsar's minimum for its largest block."""
BLOCK_BYTES_LIMIT: Final = (1 << 31) - 1
ATTRIBUTES: Final[Mapping[str, str]] = {"s3managedledgeroffloaderformatversion": "1"}
"""User metadata of both objects; stock Pulsar refuses to read an object without it."""

_BLOCK_MAGIC = 0xFBDBABCB
_INDEX_MAGIC = 0xDE47DE47
_PADDING = b"\xfe\xdc\xde\xad"
_BLOCK_HEAD = Struct(">Iqqq")
_ENTRY_HEAD = Struct(">iq")
_INDEX_HEAD = Struct(">Iiqqii")
_INDEX_ROW = Struct(">qiq")
_HEX = frozenset("0123456789abcdef")
_INDEX_SUFFIX = "-index"
_LEDGER_MARK = "-ledger-"
_UUID_CHARACTERS = 36


class Block(NamedTuple):
    """One block according to the index."""

    first_entry: int
    part: int
    offset: int


@dataclass(frozen=True, slots=True)
class SegmentIndex:
    """An index object. `blocks` ascend by first entry and by offset, from 0."""

    data_bytes: int
    metadata: LedgerMetadata
    blocks: tuple[Block, ...]
    header_bytes: int = HEADER_BYTES

    def end_of(self, block: int) -> int:
        """Return the offset after block number `block` of `blocks`."""
        return self.blocks[block + 1].offset if block + 1 < len(self.blocks) else self.data_bytes


# ---- names
def new_uuid(token: bytes) -> str:
    """Return a random (version 4) uuid from 16 random bytes."""
    raw = bytearray(token)
    raw[6] = raw[6] & 0x0F | 0x40
    raw[8] = raw[8] & 0x3F | 0x80
    return _hyphened(raw.hex())


def uuid_text(msb: int, lsb: int) -> str:
    """Return the text of a uuid stored as two signed halves."""
    return _hyphened((((msb & (1 << 64) - 1) << 64) | lsb & (1 << 64) - 1).to_bytes(16, "big").hex())


def uuid_halves(uuid: str) -> tuple[int, int]:
    """Return the two signed halves of a uuid. ValueError if it is not a uuid."""
    if not _is_uuid(uuid):
        raise ValueError(f"{uuid[:80]!r}: not a uuid")
    raw = bytes.fromhex(uuid.replace("-", ""))
    return int.from_bytes(raw[:8], "big", signed=True), int.from_bytes(raw[8:], "big", signed=True)


def _hyphened(text: str) -> str:
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def _is_uuid(text: str) -> bool:
    plain = text.replace("-", "")
    return len(plain) == 32 and _HEX.issuperset(plain) and _hyphened(plain) == text


def data_key(uuid: str, ledger_id: int) -> str:
    """Return the name of the data object."""
    return f"{uuid}{_LEDGER_MARK}{ledger_id}"


def index_key(uuid: str, ledger_id: int) -> str:
    """Return the name of the index object."""
    return data_key(uuid, ledger_id) + _INDEX_SUFFIX


class SegmentName(NamedTuple):
    """The parts of an object's name."""

    uuid: str
    ledger_id: int
    is_index: bool


def parse_key(name: str) -> SegmentName | None:
    """Return the segment that an object belongs to, or None if it belongs to none."""
    body = name.removesuffix(_INDEX_SUFFIX)
    uuid, mark, ledger = body[:_UUID_CHARACTERS], body[_UUID_CHARACTERS:][: len(_LEDGER_MARK)], body[44:]
    if mark != _LEDGER_MARK or not _is_uuid(uuid) or not (ledger.isascii() and ledger.isdecimal()):
        return None
    return SegmentName(uuid, int(ledger), body != name)


# ---- data
class SegmentEncoder:
    """Encodes the entries of a ledger, in order, into its data object. `blocks` grows as they begin."""

    def __init__(self, last_entry: int, payload_bytes: int, block_bytes_max: int = BLOCK_BYTES_MAX_DEFAULT) -> None:
        """For a closed ledger with entries 0 to `last_entry`, `payload_bytes` in all."""
        self.blocks: list[Block] = []
        self.data_bytes = 0
        self._last_entry = last_entry
        self._payload_bytes = payload_bytes
        self._block_bytes_max = block_bytes_max
        self._written_bytes = 0
        self._next = 0
        self._space = 0  # in the present block
        self._end = 0  # of the present block

    def encode(self, first: int, payloads: Sequence[Buffer]) -> bytes:
        """Return the bytes for these entries. OffloadError if they do not match each other or the ledger's length."""
        if first != self._next:
            raise OffloadError(f"got entry {first} instead of entry {self._next}")
        whole = self._whole(payloads)
        if whole is not None:
            return whole
        pieces: list[Buffer] = []
        for payload in payloads:
            size = ENTRY_HEAD_BYTES + len(payload)
            if size > self._space:
                pieces.append(self._pad())
                pieces.append(self._begin_block(size))
            pieces.append(_ENTRY_HEAD.pack(len(payload), self._next))
            pieces.append(payload)
            self._space -= size
            self._written_bytes += len(payload)
            self._next += 1
        encoded = b"".join(pieces)
        self.data_bytes += len(encoded)
        return encoded

    def _whole(self, payloads: Sequence[Buffer]) -> bytes | None:
        """Encode the entries if all of them fit the present block, the common case, without other work per entry."""
        sizes = list(map(len, payloads))
        payload_bytes = sum(sizes)
        size = payload_bytes + ENTRY_HEAD_BYTES * len(sizes)
        if size > self._space:
            return None
        pieces: list[Buffer] = [b""] * (2 * len(sizes))
        pieces[::2] = map(_ENTRY_HEAD.pack, sizes, range(self._next, self._next + len(sizes)))
        pieces[1::2] = payloads
        self._space -= size
        self._written_bytes += payload_bytes
        self._next += len(sizes)
        self.data_bytes += size
        return b"".join(pieces)

    def _pad(self) -> bytes:
        padding = (_PADDING * (self._space // 4 + 1))[: self._space]
        self._space = 0
        return padding

    def _begin_block(self, entry_bytes: int) -> bytes:
        left = self._last_entry - self._next + 1
        remaining = left * ENTRY_HEAD_BYTES + self._payload_bytes - self._written_bytes + HEADER_BYTES
        if left <= 0 or entry_bytes + HEADER_BYTES > remaining:
            raise OffloadError(
                f"the metadata of the ledger says {self._last_entry + 1} entries of {self._payload_bytes} bytes; "
                f"there are more at entry {self._next}"
            )
        size = min(self._block_bytes_max, remaining)
        if entry_bytes + HEADER_BYTES > size:
            raise OffloadError(
                f"entry {self._next} of {entry_bytes - ENTRY_HEAD_BYTES} bytes does not fit a block of "
                f"{self._block_bytes_max} bytes: set a larger block"
            )
        offset = self._end
        self._end = offset + size
        self.blocks.append(Block(self._next, len(self.blocks) + 1, offset))
        self._space = size - HEADER_BYTES
        return _BLOCK_HEAD.pack(_BLOCK_MAGIC, HEADER_BYTES, size, self._next).ljust(HEADER_BYTES, b"\0")

    def finish(self) -> None:
        """Finish after all entries. OffloadError if some are missing, or had fewer bytes than the ledger's length."""
        if self._next != self._last_entry + 1 or self._written_bytes != self._payload_bytes:
            raise OffloadError(
                f"the metadata of the ledger says {self._last_entry + 1} entries of {self._payload_bytes} bytes; "
                f"there are {self._next} of {self._written_bytes}"
            )
        assert self._space == 0 and self.data_bytes == self._end


def check_block(head: Buffer, first_entry: int, size: int) -> None:
    """Check that `head`, 128 bytes, begins a block of `size` bytes with this first entry. SegmentDamagedError."""
    magic, header_bytes, block_bytes, first = _BLOCK_HEAD.unpack_from(head)
    if (magic, header_bytes, block_bytes, first) != (_BLOCK_MAGIC, HEADER_BYTES, size, first_entry):
        raise SegmentDamagedError(f"no block of {size} bytes from entry {first_entry} on where the index has one")


entry_head: Final[Callable[[Buffer, int], tuple[int, int]]] = _ENTRY_HEAD.unpack_from
"""`entry_head(view, at)`: payload length and entry id; a negative length: the rest of the block is padding."""


# ---- index
def encode_index(index: SegmentIndex) -> bytes:
    """Encode an index object."""
    metadata = encode_kept_metadata(index.metadata)
    size = _INDEX_HEAD.size + len(metadata) + _INDEX_ROW.size * len(index.blocks)
    head = _INDEX_HEAD.pack(_INDEX_MAGIC, size, index.data_bytes, index.header_bytes, len(index.blocks), len(metadata))
    return b"".join([head, metadata, *(_INDEX_ROW.pack(*block) for block in index.blocks)])


def decode_index(value: bytes) -> SegmentIndex:
    """Decode an index object. SegmentDamagedError with the reason."""
    if len(value) < _INDEX_HEAD.size:
        raise SegmentDamagedError(f"an index of {len(value)} bytes")
    magic, size, data_bytes, header_bytes, count, metadata_bytes = _INDEX_HEAD.unpack_from(value)
    if magic != _INDEX_MAGIC:
        raise SegmentDamagedError(f"an index that begins with {magic:08x} instead of {_INDEX_MAGIC:08x}")
    rows = _INDEX_HEAD.size + metadata_bytes
    if size != len(value) or count < 1 or metadata_bytes < 0 or rows + _INDEX_ROW.size * count != size:
        raise SegmentDamagedError(f"an index of {len(value)} bytes says {size}, {count} blocks")
    try:
        metadata = decode_kept_metadata(value[_INDEX_HEAD.size : rows])
    except MetadataFormatError as error:
        raise SegmentDamagedError(f"the index's ledger metadata: {error}") from error
    blocks = tuple(Block(*row) for row in _INDEX_ROW.iter_unpack(value[rows:]))
    index = SegmentIndex(data_bytes, metadata, blocks, header_bytes)
    _check_index(index)
    return index


def _check_index(index: SegmentIndex) -> None:
    if index.header_bytes != HEADER_BYTES or index.metadata.state is not LedgerState.CLOSED:
        raise SegmentDamagedError(f"an index with headers of {index.header_bytes} bytes, {index.metadata.state.name}")
    if index.blocks[0].first_entry != 0 or index.blocks[0].offset != 0:
        raise SegmentDamagedError("the first block of an index does not begin with entry 0")
    ends = [*index.blocks[1:], Block(index.metadata.last_entry + 1, 0, index.data_bytes)]
    for block, after in zip(index.blocks, ends, strict=True):
        if after.first_entry <= block.first_entry or after.offset - block.offset <= HEADER_BYTES:
            raise SegmentDamagedError(f"the blocks of an index do not ascend at entry {block.first_entry}")
