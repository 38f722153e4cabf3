"""Verifies tokens that an OpenID Connect issuer signed, with the public keys that it publishes. Pure.

The issuer and the key that a token names only choose among trusted keys. The algorithm must fit the key: a secret
(HS256 and kin), `none`, and an algorithm of another kind of key are refused. No error contains a part of a token.
"""

from collections.abc import Mapping
from dataclasses import field
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from quire_bookie.control_characters import is_role
from quire_bookie.dataclass import dataclass
from quire_bookie.limits import ROLE_CHARACTERS_MAX
from quire_bookie.tokens.checks import TokenError, TokenGrant, check_times, claims_of, end_ms_of

_RSA = ("RS256", "RS384", "RS512")
_CURVES = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"}
_RSA_BITS_MIN = 2048
_KEYS_MAX = 100
"""Of one issuer; further ones are ignored."""


@dataclass(frozen=True, slots=True)
class IssuerKey:
    """A public key, and the algorithms that tokens signed with it may have."""

    key: Any = field(repr=False)
    algorithms: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TokenOrigin:
    """What a token that is not verified yet claims: its issuer, and the name of the key that signed it."""

    issuer: str
    key_id: str


@dataclass(frozen=True, slots=True)
class IssuedRules:
    """What the claims of a token must hold. A token must name one of the `audiences`."""

    audiences: frozenset[str]
    role_claim: str = "sub"
    leeway_s: float = 0.0


def origin_of(token: str) -> TokenOrigin:
    """Return the origin that a token claims. TokenError."""
    try:
        found = jwt.decode_complete(token, options={"verify_signature": False})
    except (jwt.exceptions.PyJWTError, ValueError, RecursionError) as error:
        raise TokenError(f"the token is invalid ({type(error).__name__})") from None
    issuer, key_id = found["payload"].get("iss"), found["header"].get("kid")
    if not isinstance(issuer, str) or not isinstance(key_id, str):
        raise TokenError("the token names no issuer (iss) or no key (kid)")
    return TokenOrigin(issuer, key_id)


def parse_keys(found: Any) -> dict[str, IssuerKey]:
    """Return the keys for signatures of a JSON Web Key Set, by their ids. Others are ignored. ValueError."""
    listed = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(listed, list):
        raise ValueError("it is not a JSON Web Key Set: an object with a list `keys`")
    keys: dict[str, IssuerKey] = {}
    for one in listed[:_KEYS_MAX]:
        if isinstance(one, dict) and isinstance(one.get("kid"), str) and (key := _key_of(one)) is not None:
            keys[one["kid"]] = key
    if not keys:
        raise ValueError("it has no key that verifies signatures: RSA of 2,048 bits or more, or EC, with a kid")
    return keys


def _key_of(found: Mapping[str, Any]) -> IssuerKey | None:
    """Return the key, or None if no token may be signed with it."""
    fitting = _RSA if found.get("kty") == "RSA" else (_CURVES.get(str(found.get("crv")), ""),)
    named = found.get("alg", fitting[0])
    if found.get("kty") not in ("RSA", "EC") or found.get("use", "sig") != "sig" or named not in fitting or not named:
        return None
    try:
        key = jwt.PyJWK(dict(found), named).key
    except (jwt.exceptions.PyJWTError, ValueError, TypeError):
        return None
    if isinstance(key, RSAPublicKey) and key.key_size < _RSA_BITS_MIN:
        return None
    return IssuerKey(key, (named,) if "alg" in found else fitting)


def grant_of(token: str, key: IssuerKey, rules: IssuedRules, now_ms: int) -> TokenGrant:
    """Return the role and end of a token that this key signed. TokenError."""
    claims = claims_of(token, key.key, key.algorithms)
    missing = [name for name in ("exp", "iat", "sub") if name not in claims]
    if missing:
        raise TokenError(f"the token has no claim {missing[0]!r}")
    check_times(claims, now_ms / 1000, rules.leeway_s)
    audience = claims.get("aud")
    named = audience if isinstance(audience, list) else [audience]
    if not any(isinstance(one, str) and one in rules.audiences for one in named):
        raise TokenError("the token is for another audience")
    return TokenGrant(_role_of(claims.get(rules.role_claim), rules.role_claim), end_ms_of(claims, rules.leeway_s))


def _role_of(value: Any, claim: str) -> str:
    """Return the role; of a list the first one, as in Pulsar. TokenError."""
    role = value[0] if isinstance(value, list) and value else value
    if not isinstance(role, str) or not role:
        raise TokenError(f"the token has no role in its claim {claim!r}")
    if not is_role(role):
        raise TokenError(f"a role has at most {ROLE_CHARACTERS_MAX} characters and no control characters")
    return role
