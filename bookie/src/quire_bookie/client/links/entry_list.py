"""Requests the ids of a ledger's entries that one bookie holds. Never retries."""

from quire_bookie.client.links.single_request import ask_once
from quire_bookie.client.security import ClientSecurity
from quire_bookie.errors import BookieProtocolError, BookieUnavailableError, NoEntryListError, PeerProtocolError
from quire_bookie.metadata.service_info import BookieAddress
from quire_bookie.model import LedgerId
from quire_bookie.wire import availability
from quire_bookie.wire.availability import Availability
from quire_bookie.wire.client_codec import v3_list_entries
from quire_bookie.wire.messages import ListEntriesResponse, Status, error_of

_TRANSACTION = 1


async def ask_entries(
    address: BookieAddress, ledger: LedgerId, timeout_s: float, security: ClientSecurity | None = None
) -> Availability:
    """Return the ids held. NoSuchLedgerError, UnknownLedgerStateError (limbo), other LedgerErrors for refusals.

    BookieUnavailableError within `timeout_s`, which implies nothing about the ledger. Its subclass NoEntryListError
    means that the bookie did not respond to the request.
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
