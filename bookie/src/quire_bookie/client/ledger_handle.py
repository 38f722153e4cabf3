"""The value that the writer, the readers and the recovery of one ledger share."""

from dataclasses import field

from quire_bookie.client.bookie_choice import Replacements
from quire_bookie.client.entry_read import ReadWay
from quire_bookie.client.hole_marks import Marks
from quire_bookie.client.links.bookie_link import Links, Purpose
from quire_bookie.client.links.bound_links import BoundLinks
from quire_bookie.dataclass import dataclass
from quire_bookie.metadata.ledgers import LedgerNodes
from quire_bookie.model import DigestType, LedgerId
from quire_bookie.settings.client import ClientSettings
from quire_bookie.wire.digest import Digest, master_key


@dataclass(frozen=True, slots=True)
class LedgerHandle:
    """One ledger with its keys and access to its bookies and metadata."""

    ledger: LedgerId
    digest: Digest
    master_key: bytes = field(repr=False)
    links: BoundLinks
    nodes: LedgerNodes
    settings: ClientSettings
    bookies: Replacements
    marks: Marks

    @classmethod
    def of(
        cls,
        ledger: LedgerId,
        digest_type: DigestType,
        password: bytes,
        token: bytes,
        *,
        links: Links,
        nodes: LedgerNodes,
        settings: ClientSettings,
        bookies: Replacements,
        marks: Marks,
    ) -> "LedgerHandle":
        """Create a handle and derive its keys. `token`: the ledger's token from its metadata."""
        digest, key = Digest(digest_type, password), master_key(password)
        return cls(ledger, digest, key, BoundLinks(links, ledger, token, key), nodes, settings, bookies, marks)

    @property
    def read_way(self) -> ReadWay:
        """Parameters of reads outside a recovery."""
        return ReadWay(self.ledger, self.digest, self.links)

    @property
    def recovery_way(self) -> ReadWay:
        """Parameters of reads in a recovery: every read fences."""
        return ReadWay(
            self.ledger,
            self.digest,
            self.links,
            purpose=Purpose.RECOVERY,
            fence_key=self.master_key,
            high_priority=True,
        )
