"""Asks one bookie for its space, a token, its entries of a ledger, or the ledger ids that it knows. Never retries.

Each is one V3 request on a separate connection, which is secured like the others of the client.
"""

import asyncio
from typing import NamedTuple

from quire_bookie.client.security import ClientSecurity, Greeting
from quire_bookie.errors import BookieProtocolError, BookieUnavailableError, NoEntryListError, PeerProtocolError
from quire_bookie.metadata.service_info import BookieAddress
from quire_bookie.model import IdReport, LedgerId
from quire_bookie.wire import availability, client_v3
from quire_bookie.wire.availability import Availability
from quire_bookie.wire.client_codec import v3_list_entries
from quire_bookie.wire.messages import (
    FREE_DISK_SPACE,
    TOTAL_DISK_CAPACITY,
    BookieInfoResponse,
    ListEntriesResponse,
    Response,
    Status,
    error_of,
)

_TRANSACTION = 1


class _Wire(asyncio.Protocol):
    """Passes the bytes of one socket to the greeting, which returns responses one at a time."""

    def __init__(self, greeting: Greeting) -> None:
        self._greeting = greeting

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        self._greeting.received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self._greeting.lost(exc)


async def ask_once(
    address: BookieAddress, request: bytes, timeout_s: float, security: ClientSecurity | None
) -> Response:
    """Return the response to `request` with any status. OSError, PeerProtocolError.

    TimeoutError only if the request was sent and not answered.
    """
    is_sent = False
    try:
        async with asyncio.timeout(timeout_s):
            greeting = Greeting()
            wire = _Wire(greeting)
            transport, _ = await asyncio.get_running_loop().create_connection(lambda: wire, address.host, address.port)
            try:
                if security is not None:
                    transport = await security.secure(transport, wire, greeting, address.host, timeout_s, generation=3)
                transport.write(request)
                is_sent = True
                return await greeting.answer()
            finally:
                transport.abort()
    except TimeoutError as error:
        if is_sent:
            raise
        raise OSError(f"no connection within {timeout_s:g} s") from error
    except RuntimeError as error:  # from uvloop, for a socket that was closed meanwhile
        raise OSError(str(error)) from error


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


async def ask_entries(
    address: BookieAddress, ledger: LedgerId, timeout_s: float, security: ClientSecurity | None = None
) -> Availability:
    """Return the ids held. NoSuchLedgerError, UnknownLedgerStateError (limbo), other LedgerErrors for refusals.

    BookieUnavailableError within `timeout_s`, which implies nothing about the ledger. Its subclass NoEntryListError
    means that the bookie accepted the connection and did not respond to the request.
    """
    where = f"ledger {ledger} at the bookie at {address.host}:{address.port}"
    try:
        answer = await ask_once(address, v3_list_entries(_TRANSACTION, ledger), timeout_s, security)
    except TimeoutError as error:
        raise NoEntryListError(f"{where}: no entry list received within {timeout_s:g} s") from error
    except (OSError, PeerProtocolError) as error:
        raise BookieUnavailableError(f"{where}: listing its entries failed: {error}") from error
    if answer.status is not Status.OK:
        raise error_of(answer.status, where)
    if not isinstance(answer, ListEntriesResponse) or answer.availability is None:
        raise BookieProtocolError(f"{where}: answered a request for the entry list with {type(answer).__name__}")
    try:
        return availability.decode(answer.availability)
    except PeerProtocolError as error:
        raise BookieProtocolError(f"{where}: {error}") from error


async def ask_id_report(
    address: BookieAddress, timeout_s: float, security: ClientSecurity | None = None
) -> IdReport | None:
    """Return the bookie's report; None from a Java bookie, which has none.

    BookieUnavailableError within `timeout_s`; LedgerError for a refusal.
    """
    where = f"bookie at {address.host}:{address.port}"
    try:
        answer = await ask_once(address, client_v3.id_marks(_TRANSACTION), timeout_s, security)
    except (OSError, TimeoutError, PeerProtocolError) as error:
        reason = str(error) or "timed out"
        raise BookieUnavailableError(f"{where} did not report which ledger ids it knows: {reason}") from error
    if answer.status is not Status.OK:
        raise error_of(answer.status, where)
    if not isinstance(answer, BookieInfoResponse):
        raise BookieProtocolError(f"{where} answered a request for its ledger ids with {type(answer).__name__}")
    return answer.ids
