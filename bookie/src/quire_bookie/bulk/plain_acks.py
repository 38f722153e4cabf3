"""The step of a broker over the ACKs of one received buffer, in plain Python: the specification and the fallback.

Pure, with a native twin as in `plain`. An ACK is *plain* if it acknowledges whole entries one by one and has nothing
else: no answer is wanted, it is in no transaction, and names no message inside a batch.

    totalSize(4) commandSize(4) 08 0a 52 size  08 consumer 10 00  1a size 08 ledger 10 entry  1a size 08 ledger ...

Sizes and ids are varints, the first two sizes big-endian numbers. Every other form is left to the general parser.
"""

_HEAD = b"\x08\x0a\x52"
_ACK_BYTES_MIN = 8 + 4 + 4 + 6
_VARINT_BYTES_MAX = 9


class _OtherForm(Exception):
    """The bytes are not a plain ACK."""


def take_acks(data: bytes, position: int, frame_bytes_max: int) -> tuple[int, int, list[tuple[int, int]]]:
    """Decode consecutive plain ACKs of one consumer from `position` on.

    Returns the position after the last one, the consumer's id, and the (ledger, entry) ids in order. Ends before an
    incomplete frame and before one whose size is above `frame_bytes_max`. Without any the position is `position`.
    """
    ids: list[tuple[int, int]] = []
    consumer = -1
    while position + _ACK_BYTES_MIN <= len(data):
        total = int.from_bytes(data[position : position + 4], "big")
        end = position + 4 + total
        size = int.from_bytes(data[position + 4 : position + 8], "big")
        if end > len(data) or total != size + 4 or total > frame_bytes_max:
            break
        if not data.startswith(_HEAD, position + 8):
            break
        try:
            found, more = _read_ack(data, position + 11, end)
        except _OtherForm:
            break
        if ids and found != consumer:
            break
        consumer = found
        ids += more
        position = end
    return position, consumer, ids


def _read_ack(data: bytes, at: int, end: int) -> tuple[int, list[tuple[int, int]]]:
    size, at = _varint(data, at, end)
    if at + size != end or data[at : at + 1] != b"\x08":
        raise _OtherForm
    consumer, at = _varint(data, at + 1, end)
    if data[at : at + 2] != b"\x10\x00":
        raise _OtherForm
    at += 2
    ids = []
    while at < end:
        if data[at] != 0x1A:
            raise _OtherForm
        size, at = _varint(data, at + 1, end)
        stop = at + size
        if stop > end or at == stop or data[at] != 0x08:
            raise _OtherForm
        ledger, at = _varint(data, at + 1, stop)
        if at >= stop or data[at] != 0x10:
            raise _OtherForm
        entry, at = _varint(data, at + 1, stop)
        if at != stop:
            raise _OtherForm
        ids.append((ledger, entry))
    if not ids:
        raise _OtherForm
    return consumer, ids


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    for byte in data[at : min(end, at + _VARINT_BYTES_MAX)]:
        at += 1
        if byte < 0x80:
            return value | byte << shift, at
        value |= (byte & 0x7F) << shift
        shift += 7
    raise _OtherForm
