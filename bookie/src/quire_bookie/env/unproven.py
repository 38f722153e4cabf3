"""Tracks open connections that have not authenticated yet, for the moment when a limit of connections is reached.

Then the oldest of them is closed for the newest connection, so that they cannot keep out clients that authenticate.
Owns the order; must never return an authenticated connection. Each step is O(1): a flood causes one per connection.
"""

from typing import Generic, TypeVar

T = TypeVar("T")


class Unproven(Generic[T]):
    """Owns the order of the connections; see the module's docstring."""

    def __init__(self) -> None:
        self._all: dict[T, str] = {}
        self._of_address: dict[str, dict[T, None]] = {}

    def add(self, connection: T, address: str) -> None:
        """Record an opened connection."""
        self._all[connection] = address
        self._of_address.setdefault(address, {})[connection] = None

    def discard(self, connection: T) -> None:
        """Forget a connection that has authenticated or ended. A second call does nothing."""
        address = self._all.pop(connection, None)
        if address is not None:
            same = self._of_address[address]
            del same[connection]
            if not same:
                del self._of_address[address]

    def pop_oldest(self, address: str | None = None) -> T | None:
        """Remove and return the oldest connection, optionally of one address, or None."""
        found = self._all if address is None else self._of_address.get(address, {})
        oldest = next(iter(found), None)
        if oldest is not None:
            self.discard(oldest)
        return oldest
