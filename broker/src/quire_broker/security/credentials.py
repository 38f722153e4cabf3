"""What all ways of authentication share: the client that a provider finds, and what a provider must do.

A provider answers at once if it can. If it needs the network or much processor time, it returns a `Check`, which the
caller awaits: nothing blocks the event loop, and a client whose credentials are known waits for nothing.
"""

from collections.abc import Awaitable, Callable
from dataclasses import field
from typing import Protocol

from quire_bookie.dataclass import dataclass

TOKEN = "token"
BASIC = "basic"
CERTIFICATE = "tls"
ANONYMOUS = "anonymous"
PASSED_ON = (TOKEN, BASIC)
"""Methods whose credentials a proxy can pass on to a broker."""


@dataclass(frozen=True, slots=True)
class Client:
    """An authenticated client: role, method, and expiry in ms since the epoch. None: as long as it is connected.

    `proof`: its token, or the stored hash of its password; the `provider` that accepted it can check it again.
    """

    role: str
    method: str
    end_ms: int | None = None
    proof: str = field(default="", repr=False)
    provider: "Provider | None" = field(default=None, repr=False, compare=False)


Check = Callable[[], Awaitable[Client]]
"""Finds the client later. AuthenticationError with the reason."""
Found = Client | Check


class Provider(Protocol):
    """Checks credentials of one method. Several providers may share a method."""

    @property
    def method(self) -> str:
        """The method that clients name."""
        ...

    def admit(self, shown: str) -> Found:
        """Return the client with these credentials. AuthenticationError with a reason that repeats none of them."""
        ...

    def is_good(self, client: Client) -> bool:
        """Return whether the client's proof is still accepted; True if that is not known."""
        ...

    async def refresh(self) -> bool:
        """Read changed files; return whether the accepted credentials may have changed since the last call."""
        ...


async def settled(found: Found) -> Client:
    """Return the client, after its check if it needs one. AuthenticationError."""
    return found if isinstance(found, Client) else await found()
