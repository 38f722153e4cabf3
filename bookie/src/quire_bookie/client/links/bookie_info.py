"""Requests the disk space of one bookie, or its token of a ledger. Never retries."""

from typing import NamedTuple

from quire_bookie.client.links.single_request import ask_once
from quire_bookie.client.security import ClientSecurity
from quire_bookie.errors import BookieProtocolError, BookieUnavailableError, PeerProtocolError
from quire_bookie.metadata.service_info import BookieAddress
from quire_bookie.model import LedgerId
from quire_bookie.wire import client_v3
from quire_bookie.wire.messages import (
    FREE_DISK_SPACE,
    TOTAL_DISK_CAPACITY,
    BookieInfoResponse,
    Status,
    error_of,
)

_TRANSACTION = 1


class BookieSpace(NamedTuple):
    """Bytes of all ledger folders of a bookie together."""

    free_bytes: int
    total_bytes: int


async def ask_space(address: BookieAddress, timeout_s: float, security: ClientSecurity | None = None) -> BookieSpace:
    """Return free and total bytes. BookieUnavailableError within `timeout_s`; LedgerError for a refusal."""
    where = f"bookie at {address.host}:{address.port}"
    request = client_v3.bookie_info(_TRANSACTION, FREE_DISK_SPACE | TOTAL_DISK_CAPACITY)
    try:
        answer = await ask_once(address, request, timeout_s, security)
    except (OSError, TimeoutError, PeerProtocolError) as error:
        reason = str(error) or "timed out"
        raise BookieUnavailableError(f"{where} did not say how much space it has: {reason}") from error
    if answer.status is not Status.OK:
        raise error_of(answer.status, where)
    if not isinstance(answer, BookieInfoResponse) or answer.free_bytes is None or answer.total_bytes is None:
        raise BookieProtocolError(f"{where} answered a request for its disk space with {type(answer).__name__}")
    return BookieSpace(answer.free_bytes, answer.total_bytes)


async def ask_token(
    address: BookieAddress, ledger: LedgerId, timeout_s: float, security: ClientSecurity | None = None
) -> bytes:
    """Return the token of a ledger at a bookie; empty if the bookie has none. Errors as `ask_space`."""
    where = f"bookie at {address.host}:{address.port}"
    try:
        answer = await ask_once(address, client_v3.id_marks(_TRANSACTION, ledger), timeout_s, security)
    except (OSError, TimeoutError, PeerProtocolError) as error:
        reason = str(error) or "timed out"
        raise BookieUnavailableError(f"{where} did not report its token of ledger {ledger}: {reason}") from error
    if answer.status is not Status.OK:
        raise error_of(answer.status, where)
    return (answer.token or b"") if isinstance(answer, BookieInfoResponse) else b""
