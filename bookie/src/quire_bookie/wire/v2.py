"""Layout of protocol V2: header word, opcodes, flags, fixed parts. Shared by both sides of the codec.

    request   length int32 | header int32 | ...
    ADD       masterKey 20 | entry (ledger int64, entry int64, LAC int64, length int64, digest, payload)
    READ      ledger int64 | entry int64 | masterKey 20 if DO_FENCING and version 2
    BATCH     ledger int64 | first int64 | request int64 | entries_max int32 | bytes_max int64 | masterKey if DO_FENCING
    AUTH      protobuf AuthMessage
    response  length int32 | header int32 | code int32 | ledger int64 | entry int64 | ...

header = version << 24 | opcode << 16 | flags; with version 0 the whole word is the opcode.
"""

import struct

VERSION = 2
ADD = 1
READ = 2
AUTH = 3
BATCH_READ = 7

DO_FENCING = 0x0001
RECOVERY_ADD = 0x0002
HIGH_PRIORITY = 0x0004

LENGTH_AND_HEADER = struct.Struct(">iI")
ADD_REQUEST = struct.Struct(">i32sqq")
"""Length, (header, master key, ledger) as one prefix, entry, LAC."""
ADD_REQUEST_FIXED_BYTES = 24
"""Header and master key, which precede the entry."""
ADD_ENTRY_OFFSET = 28
READ_REQUEST = struct.Struct(">iIqq")
BATCH_REQUEST = struct.Struct(">iIqqqiq")
RESPONSE = struct.Struct(">iIiqq")
"""Length, header, code, ledger, entry."""
ADD_RESPONSE_LENGTH = 24
ADD_RESPONSE_FRAME_BYTES = 28
BATCH_RESPONSE_FIXED_BYTES = 36
"""Bytes before the first entry, including the length field. They count towards the limit of a batch read."""


def header_word(opcode: int, flags: int = 0) -> int:
    """Return the header word of a request of this client."""
    return VERSION << 24 | opcode << 16 | flags


def parse_header(header: int) -> tuple[int, int, int]:
    """Return (version, opcode, flags) of a header word given as an unsigned int."""
    version = header >> 24
    if version == 0:
        return 0, header, 0
    return version, header >> 16 & 0xFF, header & 0xFFFF


def answer_header(version: int, opcode: int) -> int:
    """Return the header of a response: version and opcode of the request, no flags."""
    return opcode if version == 0 else version << 24 | opcode << 16
