"""Asks one bookie for the space of its disks: one V3 question on a connection of its own. Never retries."""

import asyncio
from typing import NamedTuple

from quire_bookie.errors import BookieProtocolError, BookieUnavailableError, PeerProtocolError
from quire_bookie.metadata.service_info import BookieAddress
from quire_bookie.wire import client_v3
from quire_bookie.wire.client_codec import ClientCodec
from quire_bookie.wire.messages import (
    FREE_DISK_SPACE,
    TOTAL_DISK_CAPACITY,
    BookieInfoResponse,
    Response,
    Status,
    error_of,
)

_READ_BYTES = 4096


class BookieSpace(NamedTuple):
    """Bytes over the ledger folders of a bookie."""

    free_bytes: int
    total_bytes: int


async def ask_space(address: BookieAddress, timeout_s: float) -> BookieSpace:
    """Free and total bytes. BookieUnavailableError within `timeout_s`; LedgerError for a refusal."""
    where = f"bookie at {address.host}:{address.port}"
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(address.host, address.port)
            try:
                writer.write(client_v3.bookie_info(1, FREE_DISK_SPACE | TOTAL_DISK_CAPACITY))
                answer = await _answer(reader)
            finally:
                writer.close()
    except (OSError, TimeoutError, PeerProtocolError) as error:
        raise BookieUnavailableError(f"{where} did not say how much space it has: {error}") from error
    if answer.status is not Status.OK:
        raise error_of(answer.status, where)
    if not isinstance(answer, BookieInfoResponse) or answer.free_bytes is None or answer.total_bytes is None:
        raise BookieProtocolError(f"{where} answered {type(answer).__name__} without the space of its disks")
    return BookieSpace(answer.free_bytes, answer.total_bytes)


async def _answer(reader: asyncio.StreamReader) -> Response:
    codec = ClientCodec(3)
    while True:
        data = await reader.read(_READ_BYTES)
        if not data:
            raise PeerProtocolError("the connection was closed without an answer")
        answers = codec.feed(data)
        if answers:
            return answers[0]
