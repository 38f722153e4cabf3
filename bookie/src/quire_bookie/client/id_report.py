"""Requests the ledger ids and counters that one bookie knows. Never retries."""

from quire_bookie.client.links.single_request import ask_once
from quire_bookie.client.security import ClientSecurity
from quire_bookie.errors import BookieProtocolError, BookieUnavailableError, PeerProtocolError
from quire_bookie.metadata.service_info import BookieAddress
from quire_bookie.model import IdReport
from quire_bookie.wire import client_v3
from quire_bookie.wire.messages import BookieInfoResponse, Status, error_of

_TRANSACTION = 1


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
