"""The port of authentication: what a provider sees and says. Pure: payloads in, payloads out, no socket, no wait.

A connection asks its provider for an exchange when it opens. The exchange gets each payload that the client sends, and
is told once when the connection has become a TLS one. It answers with a step: go on, let in, or refuse.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

Subject: TypeAlias = Sequence[tuple[str, str]]
"""The names in a certificate's subject, in their order: (attribute, value)."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Who is at the other end. `subject`: of its certificate, which was checked; None without one."""

    address: str
    secure: bool = False
    subject: Subject | None = None


@dataclass(frozen=True, slots=True)
class Challenge:
    """Send `payload`; the client has to answer."""

    payload: bytes


@dataclass(frozen=True, slots=True)
class Admitted:
    """The client is in, as `role`; `payload` goes out where an answer is due."""

    role: str
    payload: bytes = b""


@dataclass(frozen=True, slots=True)
class Refused:
    """The client stays out. `reason` is for the log: it must hold nothing secret, and is never sent."""

    reason: str


Step: TypeAlias = Challenge | Admitted | Refused


class AuthExchange(Protocol):
    """The exchange of one connection."""

    def process(self, payload: bytes) -> Step:
        """The client sent `payload`."""
        ...

    def secured(self, peer: Peer) -> Step | None:
        """The connection is a TLS one now. None: that decides nothing."""
        ...

    def is_withdrawn(self) -> bool:
        """Whether what the client was let in for is no longer good. Asked when keys or lists have changed."""
        ...


class AuthProvider(Protocol):
    """How clients prove who they are."""

    @property
    def plugin(self) -> str:
        """The name that both sides give in every message of the exchange."""
        ...

    def begin(self, peer: Peer) -> AuthExchange:
        """A connection was opened."""
        ...


def subject_of(certificate: Mapping[str, Any] | None) -> Subject | None:
    """The subject in the form in which Python's ssl module gives a certificate; None for none."""
    if not certificate:
        return None
    return [(str(name), str(value)) for part in certificate.get("subject", ()) for name, value in part]
