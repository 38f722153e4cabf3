"""Decodes adds of protocol V3 and encodes their responses without protobuf messages, because they are numerous.

Supports only the form that the stock encoders write (fields in order of their numbers, none repeated, a key of 20
bytes); all other forms are left to the general path, which must give the same results. Keeps no state between calls.

```
request   0a n (08 03  10 02  18 txn  [20 priority])  aa 06 n (08 ledger  10 entry  1a 14 key  22 n body
          [28 write flags]  [a0 06 flag])
answer    0a n (08 03  10 02  18 txn)  10 status  aa 06 n (08 status  10 ledger  18 entry)
```
All numbers are varints; requests and responses are preceded by their length as an int32.
"""

from collections.abc import Sequence
from struct import Struct

from quire_bookie.model import ENTRY_HEADER_BYTES, MASTER_KEY_BYTES, EntryId, LedgerId, Run
from quire_bookie.varints import SMALL, encode_varint
from quire_bookie.wire.messages import AddRequest, Request

_ENTRY_IDS = Struct(">qqq").unpack_from
_LENGTH = Struct(">i").pack
_HEADER = bytes.fromhex("0803100218")
_REQUEST_HEADER, _PRIORITY, _ADD_BODY = 0x0A, 0x20, bytes.fromhex("aa06")
_LEDGER, _ENTRY, _KEY, _BODY = 0x08, 0x10, bytes((0x1A, MASTER_KEY_BYTES)), 0x22
_WRITE_FLAGS, _RECOVERY_ADD = 0x28, bytes.fromhex("a00601")
_DEFERRED_SYNC = 1


def take_add(data: bytes, at: int, stop: int, requests: list[Request]) -> bool:
    """Append the add in `data[at:stop]` to `requests`, or to the run that it continues there.

    Returns False, without changes, if it is not an add or not in the form of the stock client.
    """
    try:
        return _take_add(data, at, stop, requests)
    except IndexError:
        return False


def _take_add(data: bytes, at: int, stop: int, requests: list[Request]) -> bool:
    header_end = at + 2 + data[at + 1]
    if data[at] != _REQUEST_HEADER or data[at + 2 : at + 7] != _HEADER:
        return False
    at += 2
    transaction, at = _varint(data, at + 5)
    priority = 0
    if at < header_end and data[at] == _PRIORITY:
        priority, at = _varint(data, at + 1)
    if at != header_end or data[at : at + 2] != _ADD_BODY:
        return False
    size, at = _varint(data, at + 2)
    if at + size != stop or data[at] != _LEDGER:
        return False
    reply_ledger, at = _varint(data, at + 1)
    if data[at] != _ENTRY:
        return False
    reply_entry, at = _varint(data, at + 1)
    if data[at : at + 2] != _KEY or data[at + 22] != _BODY:
        return False
    key = data[at + 2 : at + 22]
    size, body = _varint(data, at + 23)
    at = body + size
    flags = 0
    if at < stop and data[at] == _WRITE_FLAGS:
        flags, at = _varint(data, at + 1)
    recovery = data[at : at + 3] == _RECOVERY_ADD and at < stop
    if at + 3 * recovery != stop or size < ENTRY_HEADER_BYTES:
        return False
    ledger, entry, lac = _ENTRY_IDS(data, body)
    same = ledger == reply_ledger and entry == reply_entry
    entry_bytes = memoryview(data)[body : body + size]
    last = requests[-1] if requests else None
    if (
        same
        and type(last) is AddRequest
        and last.transactions is not None
        and not last.short
        and last.reply_ledger == last.run.ledger == ledger
        and last.reply_first == last.run.first
        and last.run.first + len(last.run.entries) == entry
        and last.master_key == key
        and (last.recovery, last.high_priority, last.deferred_sync)
        == (recovery, priority > 0, bool(flags & _DEFERRED_SYNC))
    ):
        run = last.run
        run.entries.append(entry_bytes)  # type: ignore[attr-defined]  # the entries of a V3 run are a list
        run.size_bytes += size
        if lac > run.lac:
            run.lac = lac
        last.transactions.append(transaction)
        return True
    requests.append(
        AddRequest(
            Run(ledger, entry, [entry_bytes], lac, size),
            key,
            recovery,
            priority > 0,
            bool(flags & _DEFERRED_SYNC),
            LedgerId(reply_ledger),
            EntryId(reply_entry),
            0,
            [transaction],
        )
    )
    return True


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number below 2^63 and the position after it. IndexError for longer ones, left to the general path."""
    byte = data[at]
    if byte < 0x80:
        return byte, at + 1
    value, shift = byte & 0x7F, 7
    while True:
        at += 1
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + 1
        shift += 7
        if shift > 56:
            raise IndexError("a number of more than 63 bits")


def encode_answers(transactions: Sequence[int], ledger: int, first: int, code: int) -> bytes:
    """Encode the responses to adds of consecutive ids, one frame each; `code` is the V3 code of the status."""
    status = encode_varint(code)
    body = b"\x08" + status + b"\x10" + encode_varint(ledger) + b"\x18"
    between = b"\x10" + status + _ADD_BODY
    fixed_bytes = 8 + len(between) + len(body)
    frames: list[bytes] = []
    for entry, transaction in enumerate(transactions, first):
        number, entry_id = encode_varint(transaction), encode_varint(entry)
        frames += (
            _LENGTH(fixed_bytes + len(number) + len(entry_id)),
            b"\x0a",
            SMALL[5 + len(number)],
            _HEADER,
            number,
            between,
            SMALL[len(body) + len(entry_id)],
            body,
            entry_id,
        )
    return b"".join(frames)
