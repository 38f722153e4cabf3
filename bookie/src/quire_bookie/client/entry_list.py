"""Asks one bookie which entries of a ledger it holds: one V3 question on a connection of its own. Never retries.

With TLS or a token the connection goes through the same greeting as the client's other ones.
"""

import asyncio

from quire_bookie.client.security import ClientSecurity, Greeting
from quire_bookie.errors import BookieProtocolError, BookieUnavailableError, PeerProtocolError
from quire_bookie.metadata.service_info import BookieAddress
from quire_bookie.model import LedgerId
from quire_bookie.wire import availability
from quire_bookie.wire.availability import Availability
from quire_bookie.wire.client_codec import v3_list_entries
from quire_bookie.wire.messages import ListEntriesResponse, Response, Status, error_of

_TRANSACTION = 1


async def ask_entries(
    address: BookieAddress, ledger: LedgerId, timeout_s: float, security: ClientSecurity | None = None
) -> Availability:
    """The ids held. NoSuchLedgerError, UnknownLedgerStateError (limbo), other LedgerErrors for refusals.

    BookieUnavailableError within `timeout_s`: says nothing about the ledger.
    """
    where = f"ledger {ledger} at the bookie at {address.host}:{address.port}"
    try:
        async with asyncio.timeout(timeout_s):
            answer = await _ask(address, ledger, timeout_s, security)
    except (OSError, TimeoutError, PeerProtocolError) as error:
        reason = str(error) or "timed out"
        raise BookieUnavailableError(f"{where}: its entries were not listed: {reason}") from error
    if answer.status is not Status.OK:
        raise error_of(answer.status, where)
    if not isinstance(answer, ListEntriesResponse) or answer.availability is None:
        raise BookieProtocolError(f"{where}: answered {type(answer).__name__} without a list of entries")
    try:
        return availability.decode(answer.availability)
    except PeerProtocolError as error:
        raise BookieProtocolError(f"{where}: {error}") from error


class _Wire(asyncio.Protocol):
    """One socket; everything it brings goes to the greeting, which hands answers out one at a time."""

    def __init__(self, greeting: Greeting) -> None:
        self._greeting = greeting

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        self._greeting.received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self._greeting.lost(exc)


async def _ask(address: BookieAddress, ledger: LedgerId, timeout_s: float, security: ClientSecurity | None) -> Response:
    greeting = Greeting()
    wire = _Wire(greeting)
    transport, _ = await asyncio.get_running_loop().create_connection(lambda: wire, address.host, address.port)
    try:
        if security is not None:
            transport = await security.secure(transport, wire, greeting, address.host, timeout_s, generation=3)
        transport.write(v3_list_entries(_TRANSACTION, ledger))
        return await greeting.answer()
    finally:
        transport.abort()
