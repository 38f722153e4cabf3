"""Open connections that have not proved yet who they are, for the moment when a limit of connections is reached.

Then the oldest of them gives way to the newest connection, so that they cannot keep clients out that can prove it. Owns
the order; must never name a connection that was let in. Each step is O(1): a flood asks for one at each connection.
"""

from typing import Generic, TypeVar

T = TypeVar("T")


class Unproven(Generic[T]):
    """See the module's text."""

    def __init__(self) -> None:
        self._all: dict[T, str] = {}
        self._of_address: dict[str, dict[T, None]] = {}

    def add(self, connection: T, address: str) -> None:
        """A connection was opened."""
        self._all[connection] = address
        self._of_address.setdefault(address, {})[connection] = None

    def discard(self, connection: T) -> None:
        """It was let in, or has ended. Called again it does nothing."""
        address = self._all.pop(connection, None)
        if address is not None:
            same = self._of_address[address]
            del same[connection]
            if not same:
                del self._of_address[address]

    def pop_oldest(self, address: str | None = None) -> T | None:
        """Take the oldest out, with `address` of that address; None: there is none."""
        found = self._all if address is None else self._of_address.get(address, {})
        oldest = next(iter(found), None)
        if oldest is not None:
            self.discard(oldest)
        return oldest
