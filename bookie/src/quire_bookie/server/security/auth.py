"""The port of authentication: the interface of providers. Pure: payloads in, payloads out, no socket, no wait.

A connection gets an exchange from its provider when it opens. The exchange receives each payload that the client sends,
and one call of `secured` once the connection uses TLS. It returns a step: challenge, admit, or refuse.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from quire_bookie.dataclass import dataclass

Subject: TypeAlias = Sequence[tuple[str, str]]
"""The names in a certificate's subject, in their order: (attribute, value)."""


@dataclass(frozen=True, slots=True)
class Peer:
    """The other end of a connection. `subject`: that of its verified certificate; None without one."""

    address: str
    secure: bool = False
    subject: Subject | None = None


@dataclass(frozen=True, slots=True)
class Challenge:
    """Send `payload`; the client must respond."""

    payload: bytes


@dataclass(frozen=True, slots=True)
class Admitted:
    """The client is authenticated as `role`; `payload` is sent if a response is due."""

    role: str
    payload: bytes = b""


@dataclass(frozen=True, slots=True)
class Refused:
    """The client is refused. `reason` is for the log: it must not contain secrets, and is never sent."""

    reason: str


Step: TypeAlias = Challenge | Admitted | Refused


class AuthExchange(Protocol):
    """Authenticates one connection."""

    def process(self, payload: bytes) -> Step:
        """Handle a payload of the client."""
        ...

    def secured(self, peer: Peer) -> Step | None:
        """Handle the change of the connection to TLS. None: that decides nothing."""
        ...

    def is_withdrawn(self) -> bool:
        """Whether the client's credential is no longer valid. Called when keys or lists have changed."""
        ...


class AuthProvider(Protocol):
    """Creates the exchanges that authenticate clients."""

    @property
    def plugin(self) -> str:
        """The name that both sides send in every message of the exchange."""
        ...

    def begin(self, peer: Peer) -> AuthExchange:
        """Return the exchange of a new connection."""
        ...


def subject_of(certificate: Mapping[str, Any] | None) -> Subject | None:
    """Return the subject of a certificate as returned by Python's ssl module; None without a certificate."""
    if not certificate:
        return None
    return [(str(name), str(value)) for part in certificate.get("subject", ()) for name, value in part]
