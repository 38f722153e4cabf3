"""Sessions of BookKeeper's protocols V3 and V2: requests with odd fields, in any order, some damaged.

Fields of V3 come from the descriptors; V2 is packed by its layouts. The master key of the ledger KEPT is never sent.
"""

import struct
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from hypothesis import strategies as st

from quire_bookie.model import LedgerId
from quire_bookie.wire import v2
from quire_bookie.wire.digest import master_key
from quire_bookie.wire.proto import bookkeeper_pb2 as pb
from tests.fuzz.values import damaged, fill, odd_texts

KEPT, KEPT_KEY = LedgerId(77), master_key(b"kept")
_KEYS = st.sampled_from((master_key(b""), master_key(b"other"), b"", bytes(20), bytes(3), bytes(300)))
_ledgers = st.sampled_from((0, 1, 2, 3, 77, 77, -1, -5, 2**31, 2**63 - 1, -(2**63), 2**40))
_entries = st.sampled_from((0, 0, 1, 2, 3, 4, 255, 256, -1, -2, 2**31, 2**40, 2**63 - 1, -(2**63)))
_short_times = st.sampled_from((0, 1, 10, -1, -(2**63), 2**63 - 1))


@st.composite
def stored(draw: st.DrawFn) -> bytes:
    """Return the bytes of an entry: a header of any ids, and a payload; sometimes less than a header."""
    ledger, entry = draw(_ledgers), draw(_entries)
    lac = draw(_entries)
    data = struct.pack(">qqqq", ledger, entry, lac, draw(_entries)) + draw(st.binary(max_size=40))
    return data if draw(st.integers(0, 7)) else data[: draw(st.integers(0, 40))]


POOLS: dict[str, st.SearchStrategy[Any]] = {
    "ledgerId": _ledgers,
    "entryId": _entries,
    "lac": _entries,
    "previousLAC": _entries,
    "timeOut": _short_times,
    "masterKey": _KEYS,
    "quireMasterKey": _KEYS,
    "quireLedger": _ledgers,
    "body": stored(),
    "quireToken": st.binary(max_size=80),
    "authPluginName": st.sampled_from(("token", "")) | odd_texts,
    "version": st.sampled_from((3, 3, 3, 3, 3, 3, 1, 2)),
}
_BODIES = {field.name: field for field in pb.Request.DESCRIPTOR.fields if field.type == FieldDescriptor.TYPE_MESSAGE}
_BODY_OF = {
    pb.READ_ENTRY: "readRequest",
    pb.ADD_ENTRY: "addRequest",
    pb.AUTH: "authRequest",
    pb.WRITE_LAC: "writeLacRequest",
    pb.READ_LAC: "readLacRequest",
    pb.GET_BOOKIE_INFO: "getBookieInfoRequest",
    pb.START_TLS: "startTLSRequest",
    pb.FORCE_LEDGER: "forceLedgerRequest",
    pb.GET_LIST_OF_ENTRIES_OF_LEDGER: "getListOfEntriesOfLedgerRequest",
}


@st.composite
def v3_frames(draw: st.DrawFn) -> bytes:
    """Return a request of V3, usually with the body of its operation."""
    request = pb.Request()
    draw(fill(request.header, POOLS))
    wanted = (
        _BODY_OF.get(request.header.operation, "")
        if draw(st.integers(0, 9))
        else draw(st.sampled_from(sorted(_BODIES)))
    )
    if wanted:
        body = getattr(request, wanted)
        if not _BODIES[wanted].is_repeated:
            body.SetInParent()
            draw(fill(body, POOLS))
    data = request.SerializeToString()
    return len(data).to_bytes(4, "big") + data


@st.composite
def v2_frames(draw: st.DrawFn) -> bytes:
    """Return a request of V2."""
    opcode = draw(st.sampled_from((v2.ADD, v2.ADD, v2.READ, v2.BATCH_READ, v2.AUTH)) | st.integers(0, 255))
    flags = draw(st.sampled_from((0, 0, v2.DO_FENCING, v2.RECOVERY_ADD, v2.HIGH_PRIORITY, 7, 0xFFFF)))
    version = draw(st.sampled_from((2, 2, 2, 2, 2, 0, 1, 3, 255)))
    key = draw(_KEYS)
    if opcode == v2.ADD:
        body = key[:20].ljust(20, b"\0") + draw(stored())
    elif opcode == v2.READ:
        body = struct.pack(">qq", draw(_ledgers), draw(_entries)) + (key if flags & 1 else b"")
    elif opcode == v2.BATCH_READ:
        limits = draw(st.sampled_from((-1, 0, 1, 10, 2**31 - 1))), draw(st.sampled_from((-1, 0, 1, 1000, 2**63 - 1)))
        body = struct.pack(">qqqiq", draw(_ledgers), draw(_entries), draw(_entries), *limits) + (
            key if flags & 1 else b""
        )
    else:
        body = draw(st.binary(max_size=60))
    head = (opcode if version == 0 else version << 24 | opcode << 16 | flags).to_bytes(4, "big")
    return (4 + len(body)).to_bytes(4, "big") + head + body


@st.composite
def sessions(draw: st.DrawFn) -> tuple[bytes, ...]:
    """Return the buffers that one client sends."""
    kinds = draw(st.sampled_from((v3_frames(), v2_frames(), v3_frames() | v2_frames())))
    sent = draw(st.lists(kinds, max_size=14))
    return tuple(frame if draw(st.integers(0, 9)) else draw(damaged(frame)) for frame in sent)
