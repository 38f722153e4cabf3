"""Falsifies V3 responses of a bookie: no digest matches, and the LACs outside of entries are invented."""

from quire_bookie.wire.proto import bookkeeper_pb2 as pb

V3_FIRST_BYTE = b"\x0a"
_LENGTH_BYTES = 4
_BOASTED = 1000


def wrong_v3_responses(data: bytes) -> bytes:
    """Change the responses to reads and READ_LAC in frames; bytes that are no complete response stay unchanged."""
    frames: list[bytes] = []
    at = 0
    while at + _LENGTH_BYTES < len(data):
        end = at + _LENGTH_BYTES + int.from_bytes(data[at : at + _LENGTH_BYTES], "big")
        if end > len(data):
            break
        body = _wrong(data[at + _LENGTH_BYTES : end])
        frames.append(len(body).to_bytes(_LENGTH_BYTES, "big") + body)
        at = end
    return b"".join(frames) + data[at:]


def _wrong(body: bytes) -> bytes:
    answer = pb.Response()
    answer.ParseFromString(body)
    if answer.HasField("readResponse"):
        read = answer.readResponse
        if read.HasField("body"):
            read.body = _flipped(read.body)
        if read.HasField("maxLAC"):
            read.maxLAC += _BOASTED
    elif answer.HasField("readLacResponse"):
        lac = answer.readLacResponse
        if lac.HasField("lacBody"):
            lac.lacBody = _flipped(lac.lacBody)
        if lac.HasField("lastEntryBody"):
            lac.lastEntryBody = _flipped(lac.lastEntryBody)
    else:
        return body
    wrong: bytes = answer.SerializeToString()
    return wrong


def _flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 0x40]) if data else data
