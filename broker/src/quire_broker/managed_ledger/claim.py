"""Describes what permits a broker to open a managed ledger: a node that is read together with the list of ledgers."""

from typing import Protocol

from quire_bookie.metadata.store import Node


class Claim(Protocol):
    """A claim of one broker on one managed ledger."""

    @property
    def key(self) -> str:
        """The node that shows who owns the managed ledger."""
        ...

    def check(self, node: Node | None) -> None:
        """Raise an error unless the node shows that the ledger is ours. It was not read before the list of ledgers.

        The opening fails if another client has written the list since, so no other owner has opened the ledger before.
        """
        ...
