"""Whose a token is, and until when. No socket, no file.

A token is a JWT signed with a secret (HS256 and kin) or a private key (RS256, ES256 and kin), with the claims that
Pulsar's token authentication uses, or one of a list of opaque tokens. Never logs a token, and no reason says anything
of one. The algorithm comes from our settings, never from the token.
"""

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_der_public_key, load_pem_public_key

from quire_bookie.env.clock import WallClock
from quire_bookie.errors import ConfigError

_SECRET_ALGORITHMS = ("HS256", "HS384", "HS512")
_PUBLIC_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512")
_SECRET_BYTES_MIN = 32  # RFC 7518, 3.2: as long as the hash
_TOKEN_BYTES_MIN = 16  # of an opaque token: shorter ones can be guessed
_END_S_MAX = 1e12  # so far ahead that it is for ever, infinity too
_OPTIONS: Any = {
    "verify_signature": True,
    # Times are checked here, against the clock that was given.
    **dict.fromkeys(("verify_exp", "verify_nbf", "verify_iat", "verify_aud", "verify_iss", "verify_sub"), False),
}


@dataclass(frozen=True, slots=True)
class TokenGrant:
    """What a good token gives: a role, and until when, in ms since the epoch. None: for ever."""

    role: str
    end_ms: int | None = None


class TokenCheck(Protocol):
    """Tells whose a token is."""

    def grant_of(self, token: str) -> TokenGrant:
        """What it gives. `TokenError` with a reason that holds nothing of the token."""
        ...

    def role_of(self, token: str) -> str:
        """The role. `TokenError` with a reason that holds nothing of the token."""
        ...


class TokenError(Exception):
    """A token that is not accepted, and why."""


@dataclass(frozen=True, slots=True)
class SignedTokens:
    """JSON web tokens. `key`: a secret, or a public key of cryptography's. `audience` empty: any."""

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
        try:
            claims = jwt.decode(token, self.key, algorithms=list(self.algorithms), options=_OPTIONS)
        except (jwt.exceptions.PyJWTError, ValueError) as error:  # ValueError: text that has no UTF-8
            # Only the kind: messages may quote what the client sent.
            raise TokenError(f"not a token of ours ({type(error).__name__})") from None
        self._check_time(claims)
        self._check_audience(claims)
        role = claims.get(self.claim)
        if not isinstance(role, str) or not role:
            raise TokenError(f"the token has no role in its claim {self.claim!r}")
        return TokenGrant(role, int(min(claims["exp"], _END_S_MAX) * 1000) if "exp" in claims else None)

    def _check_time(self, claims: Mapping[str, Any]) -> None:
        now_s = self.clock.now_ms() / 1000
        for claim in ("exp", "nbf"):
            value = claims.get(claim, 0)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise TokenError(f"the token's {claim} is no number")
        # Written so that a time that is not a number refuses.
        if "exp" in claims and not now_s < claims["exp"]:
            raise TokenError("the token has run out")
        if "nbf" in claims and not now_s >= claims["nbf"]:
            raise TokenError("the token is not valid yet")

    def _check_audience(self, claims: Mapping[str, Any]) -> None:
        if not self.audience:
            return
        found = claims.get(self.audience_claim)
        if self.audience not in (found if isinstance(found, list) else [found]):
            raise TokenError("the token is for another audience")


class OpaqueTokens:
    """Tokens from a list. Compared by their hashes, each with all, so that the time says nothing about any."""

    def __init__(self, roles_by_token: Mapping[str, str]) -> None:
        self._roles = [(hashlib.sha256(token.encode()).digest(), role) for token, role in roles_by_token.items()]

    def role_of(self, token: str) -> str:
        """See TokenCheck."""
        digest = hashlib.sha256(token.encode(errors="surrogatepass")).digest()  # header lines may hold such
        found = [role for known, role in self._roles if hmac.compare_digest(known, digest)]
        if not found:
            raise TokenError("an unknown token")
        return found[0]

    def grant_of(self, token: str) -> TokenGrant:
        """See TokenCheck."""
        return TokenGrant(self.role_of(token))


def secret_of(data: bytes) -> bytes:
    """The secret in a key file: the raw bytes. ConfigError when it is too short to be one."""
    if len(data) < _SECRET_BYTES_MIN:
        raise ConfigError(f"tokenSecretKey has {len(data)} bytes; a secret needs at least {_SECRET_BYTES_MIN}")
    return data


def public_key_of(data: bytes, algorithm: str) -> Any:
    """The public key in a key file, PEM or DER. ConfigError, also when it is none of that algorithm's keys."""
    try:
        key = load_pem_public_key(data) if data.lstrip().startswith(b"-----") else load_der_public_key(data)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError("tokenPublicKey is no public key in PEM or DER form") from error
    (name,) = public_algorithm(algorithm)
    try:
        return jwt.get_algorithm_by_name(name).prepare_key(key)
    except (jwt.exceptions.PyJWTError, TypeError) as error:  # else every token would be refused, without a word why
        raise ConfigError(f"tokenPublicKey is no key for {name}: see tokenPublicAlg") from error


def secret_algorithms() -> Sequence[str]:
    """The algorithms that a secret is good for."""
    return _SECRET_ALGORITHMS


def public_algorithm(name: str) -> Sequence[str]:
    """The one algorithm of a public key: one key must not be good for several. ConfigError."""
    if name not in _PUBLIC_ALGORITHMS:
        raise ConfigError(f"tokenPublicAlg {name!r} is not offered; choose from {', '.join(_PUBLIC_ALGORITHMS)}")
    return (name,)


def parse_tokens(text: str) -> dict[str, str]:
    """The roles by token of a file with lines `role token`; `#` begins a comment. ConfigError names the line."""
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
        raise ConfigError("tokenStaticFile holds no tokens")
    return roles
