"""Claims of this broker on managed ledgers of a bundle. A claim is only as good as the node that is read for it."""

from quire_bookie.metadata.store import Node
from quire_broker.errors import ServiceNotReadyError
from quire_broker.ownership.owners import Bundle, Owners


class BundleClaim:
    """A claim on a managed ledger of one bundle; see `managed_ledger.claim`."""

    def __init__(self, owners: Owners, bundle: Bundle) -> None:
        self._owners = owners
        self._bundle = bundle
        self.tenure = owners.tenure(bundle)
        """The tenure of the bundle when the claim was made; 0 if it is not ours beyond doubt."""
        self.is_confirmed = False
        """Whether the node was read, and showed that the bundle is ours in this tenure."""

    @property
    def key(self) -> str:
        """The node of the bundle."""
        return self._bundle.key

    def check(self, node: Node | None) -> None:
        """Compare the node, which was read after the claim was made. ServiceNotReadyError if it is not ours."""
        self._owners.compare(self._bundle, self.tenure, node)
        self.is_confirmed = self.tenure != 0 and self._owners.tenure(self._bundle) == self.tenure
        if not self.is_confirmed:
            raise ServiceNotReadyError(f"{self._bundle} is served by another broker; look it up again")
