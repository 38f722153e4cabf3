"""Makes our client create, write and read as stock clients do: without tokens of ledgers."""

from collections.abc import Iterable
from dataclasses import replace

from quire_bookie.client import LedgerClient
from quire_bookie.client.ledger_handle import LedgerHandle
from quire_bookie.client.links.bookie_link import BookieLink, Purpose, V3Link
from quire_bookie.client.links.bound_links import BoundLinks
from quire_bookie.model import BookieId, DigestType, LedgerId, LedgerMetadata


class UnboundLinks(BoundLinks):
    """Links that do not ask bookies which ledger they hold."""

    async def declare(self, bookies: Iterable[BookieId]) -> BookieId | None:
        """See BoundLinks."""
        return None

    def link(self, bookie: BookieId, purpose: Purpose) -> BookieLink:
        """See Links."""
        return self._links.link(bookie, purpose)

    def v3_link(self, bookie: BookieId, purpose: Purpose = Purpose.V3) -> V3Link:
        """See Links."""
        return self._links.v3_link(bookie, purpose)


def without_tokens(client: LedgerClient) -> None:
    """Let `client` send no token and request none from now on."""
    bound = client._handle

    def handle(ledger: LedgerId, digest_type: DigestType, password: bytes, metadata: LedgerMetadata) -> LedgerHandle:
        made = bound(ledger, digest_type, password, metadata)
        return replace(made, links=UnboundLinks(client._pool, ledger, metadata.token, made.master_key))

    client._new_token = dict  # type: ignore[method-assign]
    client._handle = handle  # type: ignore[method-assign]
