"""Asks one bookie which entries of a ledger it holds. Never retries."""

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
    """The ids held. NoSuchLedgerError, UnknownLedgerStateError (limbo), other LedgerErrors for refusals.

    Within `timeout_s` BookieUnavailableError, which says nothing about the ledger; NoEntryListError is that of a bookie
    that leaves the request without an answer.
    """
    where = f"ledger {ledger} at the bookie at {address.host}:{address.port}"
    try:
        answer = await ask_once(address, v3_list_entries(_TRANSACTION, ledger), timeout_s, security)
    except TimeoutError as error:
        raise NoEntryListError(f"{where}: no list of its entries came within {timeout_s:g} s") from error
    except (OSError, PeerProtocolError) as error:
        raise BookieUnavailableError(f"{where}: its entries were not listed: {error}") from error
    if answer.status is not Status.OK:
        raise error_of(answer.status, where)
    if not isinstance(answer, ListEntriesResponse) or answer.availability is None:
        raise BookieProtocolError(f"{where}: answered {type(answer).__name__} without a list of entries")
    try:
        return availability.decode(answer.availability)
    except PeerProtocolError as error:
        raise BookieProtocolError(f"{where}: {error}") from error
