"""Tokens of OpenID Connect issuers: which keys are used, and which tokens are refused."""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Iterator
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from quire_bookie.tokens.checks import TokenError
from quire_bookie.tokens.issued import IssuedRules, TokenOrigin, grant_of, origin_of, parse_keys
from tests.support.token_issuer import AUDIENCE, TokenIssuer, ec_key, jwk_of, rsa_key

RULES = IssuedRules(frozenset({AUDIENCE, "other"}))


@pytest.fixture(scope="module")
def issuer() -> Iterator[TokenIssuer]:
    found = TokenIssuer()
    yield found
    found.close()


def role_of(issuer: TokenIssuer, token: str, rules: IssuedRules = RULES) -> str:
    return grant_of(token, parse_keys({"keys": issuer.keys})["k1"], rules, int(time.time() * 1000)).role


def test_a_token_gives_its_role_and_end(issuer: TokenIssuer) -> None:
    token = issuer.token("app", exp=2_000_000_000)
    assert origin_of(token) == TokenOrigin(issuer.url, "k1")
    found = grant_of(token, parse_keys({"keys": issuer.keys})["k1"], RULES, 1_900_000_000_000)
    assert (found.role, found.end_ms) == ("app", 2_000_000_000_000)


def test_the_role_may_be_in_another_claim_and_the_first_of_a_list(issuer: TokenIssuer) -> None:
    rules = IssuedRules(RULES.audiences, "roles")
    assert role_of(issuer, issuer.token(roles=["first", "second"]), rules) == "first"
    assert role_of(issuer, issuer.token(roles="only"), rules) == "only"
    assert role_of(issuer, issuer.token(aud=["unknown", "other"])) == "app"


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"aud": "another"}, "another audience"),
        ({"aud": None}, "another audience"),
        ({"aud": []}, "another audience"),
        ({"aud": {AUDIENCE: 1}}, "another audience"),
        ({"aud": AUDIENCE[:-1]}, "another audience"),
        ({"exp": None}, "no claim 'exp'"),
        ({"iat": None}, "no claim 'iat'"),
        ({"sub": None}, "no claim 'sub'"),
        ({"exp": 1}, "expired"),
        ({"exp": "soon"}, "not a number"),
        ({"exp": True}, "not a number"),
        ({"nbf": 32_000_000_000}, "not valid yet"),
        ({"sub": ""}, "no role"),
        ({"sub": 7}, "no role"),
        ({"sub": ["a", "b"]}, None),
        ({"sub": []}, "no role"),
        ({"sub": "a\nb"}, "control characters"),
        ({"sub": "x" * 300}, "characters"),
    ],
)
def test_claims_are_required(issuer: TokenIssuer, claims: dict[str, Any], reason: str | None) -> None:
    # PyJWT checks the type of `sub` when it signs, so that this list is signed by hand.
    token = issuer.token(**claims) if not isinstance(claims.get("sub"), (list, int)) else signed(issuer, claims)
    if reason is None:
        assert role_of(issuer, token) == "a"
        return
    with pytest.raises(TokenError, match=reason) as refused:
        role_of(issuer, token)
    assert AUDIENCE not in str(refused.value)


def signed(issuer: TokenIssuer, claims: dict[str, Any]) -> str:
    body = jwt.decode(issuer.token(), options={"verify_signature": False}) | claims
    return jwt.api_jws.encode(json.dumps(body).encode(), issuer.key, "RS256", {"kid": "k1"})


def test_the_leeway_extends_both_ends(issuer: TokenIssuer) -> None:
    key, now_ms = parse_keys({"keys": issuer.keys})["k1"], 1_900_000_000_000
    lenient = IssuedRules(RULES.audiences, leeway_s=60)
    outside: list[dict[str, Any]] = [{"exp": 1_899_999_950}, {"nbf": 1_900_000_050, "exp": 2_000_000_000}]
    for claims in outside:
        with pytest.raises(TokenError):
            grant_of(issuer.token(**claims), key, RULES, now_ms)
        assert grant_of(issuer.token(**claims), key, lenient, now_ms).role == "app"
    assert grant_of(issuer.token(exp=1_899_999_950), key, lenient, now_ms).end_ms == 1_900_000_010_000


def test_a_signature_of_another_key_or_kind_is_refused(issuer: TokenIssuer) -> None:
    good = issuer.token()
    head, body, _ = good.split(".")
    public = issuer.key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    def forged(algorithm: str, signature: bytes) -> str:
        named = base64.urlsafe_b64encode(json.dumps({"alg": algorithm, "kid": "k1"}).encode()).rstrip(b"=").decode()
        return f"{named}.{body}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"

    named = forged("HS256", b"").rsplit(".", 1)[0]
    for token in (
        issuer.token(key=rsa_key()),
        issuer.token(key=ec_key()),
        f"{head}.{body}.",
        forged("none", b""),
        forged("HS256", hmac.digest(public, named.encode(), hashlib.sha256)),
    ):
        with pytest.raises(TokenError, match="invalid"):
            role_of(issuer, token)


def test_only_keys_for_signatures_are_used() -> None:
    good, curve = rsa_key(), ec_key()
    secret = {"kty": "oct", "k": "c2VjcmV0", "kid": "oct", "alg": "HS256"}
    found = parse_keys(
        {
            "keys": [
                jwk_of(good, "rsa"),
                jwk_of(good, "named", alg="RS512"),
                jwk_of(curve, "ec"),
                jwk_of(good, "encrypts", use="enc"),
                jwk_of(good, "secret-like", alg="HS256"),
                jwk_of(good, "other-kind", alg="ES256"),
                jwk_of(rsa_key(1024), "short"),
                {key: value for key, value in jwk_of(good, "x").items() if key != "kid"},
                jwk_of(good, "broken") | {"n": "!"},
                secret,
                "text",
                None,
            ]
        }
    )
    assert {name: key.algorithms for name, key in found.items()} == {
        "rsa": ("RS256", "RS384", "RS512"),
        "named": ("RS512",),
        "ec": ("ES256",),
    }


@pytest.mark.parametrize(
    "found", [None, [], {}, {"keys": None}, {"keys": {}}, {"keys": []}, {"keys": [{"kty": "oct"}]}]
)
def test_a_set_without_usable_keys_is_an_error(found: Any) -> None:
    with pytest.raises(ValueError, match="it "):
        parse_keys(found)


@pytest.mark.parametrize("token", ["", "a.b.c", "x", "e30.e30.", "\ud800", "." * 100])
def test_what_is_no_token_has_no_origin(token: str) -> None:
    with pytest.raises(TokenError):
        origin_of(token)


def test_a_token_without_an_issuer_or_a_key_is_refused(issuer: TokenIssuer) -> None:
    without_key = jwt.encode({"iss": issuer.url, "sub": "app"}, issuer.key, "RS256")
    for token in (issuer.token(iss=None), without_key):
        with pytest.raises(TokenError, match="no issuer"):
            origin_of(token)
