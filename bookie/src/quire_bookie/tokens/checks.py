"""Verifies tokens: returns their role and end. Uses no socket and no file.

A token is a JWT signed with a secret (HS256 and kin) or a private key (RS256, ES256 and kin), with the claims that
Pulsar's token authentication uses, or one of a list of opaque tokens. Never logs a token, and no error text contains
part of one. The algorithm comes from our settings, never from the token.
"""

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, Protocol

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_der_public_key, load_pem_public_key

from quire_bookie.dataclass import dataclass
from quire_bookie.env.clock import WallClock
from quire_bookie.errors import ConfigError

_SECRET_ALGORITHMS = ("HS256", "HS384", "HS512")
_PUBLIC_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512")
_SECRET_BYTES_MIN = 32  # RFC 7518, 3.2: as long as the hash
_TOKEN_BYTES_MIN = 16  # of an opaque token: shorter ones can be guessed
_END_S_MAX = 1e12  # so far ahead that it never ends; also replaces infinity
_OPTIONS: Any = {
    "verify_signature": True,
    # Times are checked here, with the given clock.
    **dict.fromkeys(("verify_exp", "verify_nbf", "verify_iat", "verify_aud", "verify_iss", "verify_sub"), False),
}


@dataclass(frozen=True, slots=True)
class TokenGrant:
    """Result of a valid token: a role, and until when, in ms since the epoch. None: without end."""

    role: str
    end_ms: int | None = None


class TokenCheck(Protocol):
    """Verifies tokens."""

    def grant_of(self, token: str) -> TokenGrant:
        """Return the role and end. `TokenError` with a reason that contains nothing of the token."""
        ...

    def role_of(self, token: str) -> str:
        """Return the role. `TokenError` with a reason that contains nothing of the token."""
        ...


class TokenError(Exception):
    """A token is refused; the text is the reason."""


@dataclass(frozen=True, slots=True)
class SignedTokens:
    """Verifies JSON web tokens. `key`: a secret, or a public key of `cryptography`. `audience` empty: any."""

    key: Any = field(repr=False)
    algorithms: Sequence[str]
    clock: WallClock
    claim: str = "sub"
    audience_claim: str = "aud"
    audience: str = ""

    def role_of(self, token: str) -> str:
        """See TokenCheck."""
        return self.grant_of(token).role

    def grant_of(self, token: str) -> TokenGrant:
        """See TokenCheck."""
        claims = claims_of(token, self.key, self.algorithms)
        check_times(claims, self.clock.now_ms() / 1000)
        self._check_audience(claims)
        role = claims.get(self.claim)
        if not isinstance(role, str) or not role:
            raise TokenError(f"the token has no role in its claim {self.claim!r}")
        return TokenGrant(role, end_ms_of(claims))

    def _check_audience(self, claims: Mapping[str, Any]) -> None:
        if not self.audience:
            return
        found = claims.get(self.audience_claim)
        if self.audience not in (found if isinstance(found, list) else [found]):
            raise TokenError("the token is for another audience")


class OpaqueTokens:
    """Verifies tokens from a list. Compares hashes, each with all, so that the duration reveals nothing about any."""

    def __init__(self, roles_by_token: Mapping[str, str]) -> None:
        self._roles = [(hashlib.sha256(token.encode()).digest(), role) for token, role in roles_by_token.items()]

    def role_of(self, token: str) -> str:
        """See TokenCheck."""
        digest = hashlib.sha256(token.encode(errors="surrogatepass")).digest()  # header lines may contain surrogates
        found = [role for known, role in self._roles if hmac.compare_digest(known, digest)]
        if not found:
            raise TokenError("the token is unknown")
        return found[0]

    def grant_of(self, token: str) -> TokenGrant:
        """See TokenCheck."""
        return TokenGrant(self.role_of(token))


def claims_of(token: str, key: Any, algorithms: Sequence[str]) -> Mapping[str, Any]:
    """Return the claims of a token that was signed with this key. TokenError."""
    try:
        found: Mapping[str, Any] = jwt.decode(token, key, algorithms=list(algorithms), options=_OPTIONS)
    except (jwt.exceptions.PyJWTError, ValueError) as error:  # ValueError: text that cannot be encoded in UTF-8
        # Only the type of the error: messages may quote the client's data.
        raise TokenError(f"the token is invalid ({type(error).__name__})") from None
    return found


def check_times(claims: Mapping[str, Any], now_s: float, leeway_s: float = 0.0) -> None:
    """Raise TokenError unless the token is valid now. `leeway_s`: how far the clock of its signer may differ."""
    for claim in ("exp", "nbf"):
        value = claims.get(claim, 0)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TokenError(f"the token's {claim} is not a number")
    # Written so that NaN is refused.
    if "exp" in claims and not now_s - leeway_s < claims["exp"]:
        raise TokenError("the token has expired")
    if "nbf" in claims and not now_s + leeway_s >= claims["nbf"]:
        raise TokenError("the token is not valid yet")


def end_ms_of(claims: Mapping[str, Any], leeway_s: float = 0.0) -> int | None:
    """Return when a token with checked times ends, in ms since the epoch; None: never."""
    return int((min(claims["exp"], _END_S_MAX) + leeway_s) * 1000) if "exp" in claims else None


def secret_of(data: bytes) -> bytes:
    """Return the secret of a key file: the raw bytes. ConfigError if it is too short."""
    if len(data) < _SECRET_BYTES_MIN:
        raise ConfigError(f"tokenSecretKey has {len(data)} bytes; a secret needs at least {_SECRET_BYTES_MIN}")
    return data


def public_key_of(data: bytes, algorithm: str) -> Any:
    """Decode the public key of a key file, PEM or DER. ConfigError if it is invalid or not for the algorithm."""
    try:
        key = load_pem_public_key(data) if data.lstrip().startswith(b"-----") else load_der_public_key(data)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError("tokenPublicKey is not a public key in PEM or DER format") from error
    (name,) = public_algorithm(algorithm)
    try:
        return jwt.get_algorithm_by_name(name).prepare_key(key)
    except (jwt.exceptions.PyJWTError, TypeError) as error:  # otherwise every token would be refused silently
        raise ConfigError(f"tokenPublicKey is not a key for {name}: see tokenPublicAlg") from error


def secret_algorithms() -> Sequence[str]:
    """Return the algorithms that use a secret."""
    return _SECRET_ALGORITHMS


def public_algorithm(name: str) -> Sequence[str]:
    """Return the one algorithm of a public key: a key must not be valid for several. ConfigError."""
    if name not in _PUBLIC_ALGORITHMS:
        raise ConfigError(f"tokenPublicAlg {name!r}: unknown; give one of {', '.join(_PUBLIC_ALGORITHMS)}")
    return (name,)


def parse_tokens(text: str) -> dict[str, str]:
    """Parse a file with lines `role token` into roles by token; `#` starts a comment. ConfigError names the line."""
    roles: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        parts = line.split()
        if not parts or parts[0].startswith("#"):
            continue
        if len(parts) != 2:
            raise ConfigError(f"tokenStaticFile line {number}: expected a role and a token")
        role, token = parts
        if len(token.encode()) < _TOKEN_BYTES_MIN:
            raise ConfigError(f"tokenStaticFile line {number}: the token has fewer than {_TOKEN_BYTES_MIN} bytes")
        roles[token] = role
    if not roles:
        raise ConfigError("tokenStaticFile contains no tokens")
    return roles
