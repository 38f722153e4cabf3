"""Codec of the ledger metadata value, versions 1 to 3. Owns the bytes; never talks to a store.

Format (Apache BookKeeper 4.x; golden values in tests/golden/etcd):

    "BookieMetadataFormatVersion" TAB version LF body

    version 1   text: write quorum LF, ensemble size LF, length LF, per segment `first entry TAB bookie TAB...` LF,
                then nothing (open), `-102 TAB CLOSED` (in recovery) or `last entry TAB CLOSED`.
                No ack quorum (= write quorum), no digest type, no password.
    version 2   LedgerMetadataFormat in protobuf's text format, without cToken
    version 3   varint size, then LedgerMetadataFormat in protobuf's binary format

New ledgers are written in version 3; an update keeps the version that was read. BookKeeper reads the digest type only
if a password is present, so both are always written together; without a password it is empty bytes.
"""

from collections.abc import Sequence
from dataclasses import replace

from google.protobuf import text_format
from google.protobuf.message import DecodeError

from quire_bookie.errors import MetadataFormatError
from quire_bookie.metadata.proto import nodes_pb2
from quire_bookie.model import NO_ENTRY, BookieId, DigestType, EntryId, LedgerMetadata, LedgerState, Segment
from quire_bookie.varints import encode_varint

_MAGIC = b"BookieMetadataFormatVersion\t"
_CLOSED_TAG = "CLOSED"
_IN_RECOVERY_MARK = -102
_VARINT_BYTES_MAX = 5
CURRENT_FORMAT_VERSION = 3


def encode_ledger_metadata(metadata: LedgerMetadata) -> bytes:
    """Encode in `metadata.format_version`. MetadataFormatError if that version cannot express the metadata."""
    _check(metadata)
    head = b"%s%d\n" % (_MAGIC, metadata.format_version)
    if metadata.format_version == 1:
        return head + _encode_lines(metadata)
    message = _to_message(metadata)
    if metadata.format_version == 2:
        message.ClearField("cToken")
        return head + text_format.MessageToString(message, as_utf8=True).encode()
    body = message.SerializeToString()
    return head + encode_varint(len(body)) + body


def decode_ledger_metadata(value: bytes) -> LedgerMetadata:
    """Decode a node's value of any version. MetadataFormatError if it is none of them."""
    if not value.startswith(_MAGIC):
        raise MetadataFormatError(f"not ledger metadata: the value starts with {value[:32]!r}")
    version, newline, body = value[len(_MAGIC) :].partition(b"\n")
    if not newline:
        raise MetadataFormatError("ledger metadata ends within its first line")
    if version == b"1":
        metadata = _decode_lines(body)
    elif version == b"2":
        metadata = _from_message(_parse_text(body), 2)
    elif version == b"3":
        metadata = _from_message(_parse_delimited(body), 3)
    else:
        raise MetadataFormatError(f"ledger metadata has unknown version {version[:16]!r}; supported are 1, 2 and 3")
    _check(metadata)
    return metadata


def encode_kept_metadata(metadata: LedgerMetadata) -> bytes:
    """Encode metadata of a closed ledger, stored beside a copy of its entries: protobuf, without password and token."""
    message = _to_message(replace(metadata, has_password=True))  # writes the digest type
    message.ClearField("password")
    message.ClearField("cToken")
    return message.SerializeToString()


def decode_kept_metadata(value: bytes) -> LedgerMetadata:
    """Decode the output of `encode_kept_metadata`, or of its counterpart in BookKeeper. MetadataFormatError."""
    message = nodes_pb2.LedgerMetadataFormat()
    try:
        message.ParseFromString(value)
    except DecodeError as error:
        raise MetadataFormatError(f"ledger metadata does not parse: {error}") from error
    _require_initialised(message)
    metadata = _from_message(message, CURRENT_FORMAT_VERSION)
    _check(metadata)
    return metadata


def _check(metadata: LedgerMetadata) -> None:
    """Check the invariants of every ledger, whichever client wrote it. MetadataFormatError names the violation."""
    if metadata.format_version not in (1, 2, 3):
        raise MetadataFormatError(f"ledger metadata has unknown version {metadata.format_version}")
    if not 1 <= metadata.ack_quorum <= metadata.write_quorum <= metadata.ensemble_size:
        sizes = f"{metadata.ensemble_size}/{metadata.write_quorum}/{metadata.ack_quorum}"
        raise MetadataFormatError(f"ensemble, write and ack quorum {sizes} are not descending, or the last is below 1")
    if not metadata.segments or metadata.segments[0].first_entry != 0:
        raise MetadataFormatError("the first segment of a ledger does not start at entry 0")
    previous = -1
    for segment in metadata.segments:
        if segment.first_entry <= previous:
            raise MetadataFormatError(f"segment at entry {segment.first_entry} comes after one at {previous}")
        if len(segment.ensemble) != metadata.ensemble_size:
            have = len(segment.ensemble)
            raise MetadataFormatError(
                f"segment at entry {segment.first_entry} names {have} bookies instead of {metadata.ensemble_size}"
            )
        previous = segment.first_entry


def _to_message(metadata: LedgerMetadata) -> nodes_pb2.LedgerMetadataFormat:
    closed = metadata.state is LedgerState.CLOSED
    return nodes_pb2.LedgerMetadataFormat(
        quorumSize=metadata.write_quorum,
        ensembleSize=metadata.ensemble_size,
        length=metadata.length if closed else 0,
        lastEntryId=metadata.last_entry if closed else NO_ENTRY,
        state=metadata.state.name,
        segment=[
            nodes_pb2.LedgerMetadataFormat.Segment(ensembleMember=segment.ensemble, firstEntryId=segment.first_entry)
            for segment in metadata.segments
        ],
        digestType=metadata.digest_type.name if metadata.has_password else None,
        password=metadata.password if metadata.has_password else None,
        ackQuorumSize=metadata.ack_quorum,
        ctime=metadata.ctime_ms,
        cToken=metadata.c_token,
        customMetadata=[
            nodes_pb2.LedgerMetadataFormat.CustomEntry(key=key, value=value) for key, value in metadata.custom.items()
        ],
    )


def _from_message(message: nodes_pb2.LedgerMetadataFormat, version: int) -> LedgerMetadata:
    state = LedgerState(message.state)
    closed = state is LedgerState.CLOSED
    return LedgerMetadata(
        ensemble_size=message.ensembleSize,
        write_quorum=message.quorumSize,
        ack_quorum=message.ackQuorumSize if message.HasField("ackQuorumSize") else message.quorumSize,
        segments=tuple(
            Segment(EntryId(segment.firstEntryId), tuple(BookieId(member) for member in segment.ensembleMember))
            for segment in message.segment
        ),
        state=state,
        last_entry=EntryId(message.lastEntryId) if closed and message.HasField("lastEntryId") else NO_ENTRY,
        length=message.length if closed else 0,
        digest_type=DigestType(message.digestType) if message.HasField("digestType") else DigestType.CRC32C,
        password=message.password,
        custom={entry.key: entry.value for entry in message.customMetadata},
        ctime_ms=message.ctime if message.HasField("ctime") else None,
        c_token=message.cToken if message.HasField("cToken") else None,
        format_version=version,
        has_password=message.HasField("password"),
    )


def _parse_text(body: bytes) -> nodes_pb2.LedgerMetadataFormat:
    message = nodes_pb2.LedgerMetadataFormat()
    try:
        text_format.Parse(body.decode(), message)
    except (UnicodeDecodeError, text_format.ParseError) as error:
        raise MetadataFormatError(f"ledger metadata of version 2 does not parse: {error}") from error
    _require_initialised(message)
    return message


def _parse_delimited(body: bytes) -> nodes_pb2.LedgerMetadataFormat:
    size, start = _read_varint(body)
    if start + size != len(body):
        raise MetadataFormatError(f"ledger metadata declares {size} bytes but has {len(body) - start}")
    message = nodes_pb2.LedgerMetadataFormat()
    try:
        message.ParseFromString(body[start:])
    except DecodeError as error:
        raise MetadataFormatError(f"ledger metadata of version 3 does not parse: {error}") from error
    _require_initialised(message)
    return message


def _require_initialised(message: nodes_pb2.LedgerMetadataFormat) -> None:
    if not message.IsInitialized():
        raise MetadataFormatError("ledger metadata has no quorum, ensemble size, length, state or start of a segment")


def _read_varint(body: bytes) -> tuple[int, int]:
    """Return the number at the start of `body`, and the offset after it."""
    number = 0
    for index, byte in enumerate(body[:_VARINT_BYTES_MAX]):
        number |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return number, index + 1
    raise MetadataFormatError("ledger metadata has no valid size before its body")


def _encode_lines(metadata: LedgerMetadata) -> bytes:
    if metadata.ack_quorum != metadata.write_quorum or metadata.custom or metadata.has_password:
        raise MetadataFormatError("version 1 of ledger metadata has no ack quorum, password or custom metadata")
    closed = metadata.state is LedgerState.CLOSED
    lines = [str(metadata.write_quorum), str(metadata.ensemble_size), str(metadata.length if closed else 0)]
    for segment in metadata.segments:
        lines.append("\t".join([str(segment.first_entry), *segment.ensemble]))
    if closed:
        lines.append(f"{metadata.last_entry}\t{_CLOSED_TAG}")
    elif metadata.state is LedgerState.IN_RECOVERY:
        lines.append(f"{_IN_RECOVERY_MARK}\t{_CLOSED_TAG}")
    return "".join(f"{line}\n" for line in lines).encode()


def _decode_lines(body: bytes) -> LedgerMetadata:
    try:
        lines = [line for line in body.decode().split("\n") if line]
        write_quorum, ensemble_size, length = (int(line) for line in lines[:3])
        return _from_lines(write_quorum, ensemble_size, length, [line.split("\t") for line in lines[3:]])
    except ValueError as error:
        raise MetadataFormatError(f"ledger metadata of version 1 does not parse: {error}") from error


def _from_lines(write_quorum: int, ensemble_size: int, length: int, rows: Sequence[list[str]]) -> LedgerMetadata:
    segments: list[Segment] = []
    state, last_entry = LedgerState.OPEN, NO_ENTRY
    for row in rows:
        first = int(row[0])
        if row[1:] == [_CLOSED_TAG]:
            recovering = first == _IN_RECOVERY_MARK
            state = LedgerState.IN_RECOVERY if recovering else LedgerState.CLOSED
            last_entry = NO_ENTRY if recovering else EntryId(first)
            break
        segments.append(Segment(EntryId(first), tuple(BookieId(member) for member in row[1:])))
    return LedgerMetadata(
        ensemble_size=ensemble_size,
        write_quorum=write_quorum,
        ack_quorum=write_quorum,
        segments=tuple(segments),
        state=state,
        last_entry=last_entry,
        length=length if state is LedgerState.CLOSED else 0,
        c_token=None,
        format_version=1,
        has_password=False,
    )
