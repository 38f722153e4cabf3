"""Reads roles from client certificates as BookKeeper's BookieAuthZFactory does. Pure.

The first organizational unit (OU) of the subject holds `code:values` parts joined by `;`. Code 0 has the role names,
joined by commas: `OU=0:broker,admin;1:cluster-a`. The first role name counts, and must be an authorized one.
There is no exchange of messages: the TLS handshake decides.
"""

import re
from collections.abc import Sequence

from quire_bookie.dataclass import dataclass
from quire_bookie.server.security.auth import Admitted, AuthExchange, Peer, Refused, Step, Subject

PLUGIN = "BookieAuthZFactory"
_PART = re.compile(r"^([0-9]+):(.*)$")
_ROLE_CODE = "0"
_ORGANIZATIONAL_UNIT = "organizationalUnitName"


def roles_of(subject: Subject) -> list[str]:
    """Return the role names in a certificate's subject, in their order."""
    unit = next((value for name, value in subject if name == _ORGANIZATIONAL_UNIT), "")
    parts = {match[1]: match[2] for match in map(_PART.match, unit.split(";")) if match}
    return [role.strip() for role in parts.get(_ROLE_CODE, "").split(",") if role.strip()]


@dataclass(frozen=True, slots=True)
class CertificateRoles:
    """Authenticates clients by certificate. `authorized`: the roles that may connect."""

    authorized: Sequence[str]
    plugin: str = PLUGIN

    def begin(self, peer: Peer) -> AuthExchange:
        """See AuthProvider."""
        return _Exchange(self.authorized)


@dataclass(slots=True)
class _Exchange:
    authorized: Sequence[str]

    def process(self, payload: bytes) -> Step:
        """Refuse: a message does not authenticate."""
        return Refused("roles come from the certificate of a TLS connection, not from a message")

    def secured(self, peer: Peer) -> Step | None:
        """Admit by the role of the certificate, which the handshake has verified."""
        if peer.subject is None:
            return Refused("no client certificate")
        roles = roles_of(peer.subject)
        if not roles:
            return Refused("the client certificate has no role: its OU must contain 0:<role>")
        if roles[0] not in self.authorized:
            return Refused(f"role {roles[0]!r} is not among authorizedRoles")
        return Admitted(roles[0])

    def is_withdrawn(self) -> bool:
        """Return False: a certificate counts until its connection ends."""
        return False
