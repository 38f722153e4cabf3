"""Credentials that attackers send to a broker with every provider: forged, borrowed, damaged, oversized, many.

Each is refused, over both protocols, and no refusal and no line of the log repeats a part of it.
"""

import base64
import hashlib
import hmac
import json
import logging
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import bcrypt
import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from quire_bookie.env.clock import SystemClock
from quire_bookie.settings.tokens import TokenSettings
from quire_broker.errors import AuthenticationError
from quire_broker.security.authentication import Authentication
from quire_broker.security.credentials import settled
from quire_broker.security.opening import Access
from quire_broker.security.settings import AccessSettings, AuthenticationSettings, OpenIdSettings
from tests.support.token_issuer import AUDIENCE, TokenIssuer, rsa_key

SECRET = b"a secret of tests that is long enough for HS256"
MARK = "not-to-be-repeated"


@pytest.fixture(scope="module")
def issuer() -> Iterator[TokenIssuer]:
    found = TokenIssuer()
    yield found
    found.close()


async def authentication(folder: Path, issuer: TokenIssuer, **changes: Any) -> Authentication:
    """Return that of a broker with tokens, an issuer, passwords and certificates."""
    (folder / "key").write_bytes(SECRET)
    (folder / "users").write_bytes(b"app:" + bcrypt.hashpw(b"password", bcrypt.gensalt(4)) + b"\n")
    settings = AuthenticationSettings(
        token=TokenSettings(secret_key=f"file://{folder / 'key'}"),
        passwords=str(folder / "users"),
        open_id=OpenIdSettings((issuer.url,), frozenset({AUDIENCE}), https_only=False),
        certificates=True,
        **changes,
    )
    access = Access(AccessSettings(authentication=settings), SystemClock())
    await access.open()
    assert access.authentication is not None
    return access.authentication


def part(value: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def signed_with_text(header: dict[str, Any], claims: dict[str, Any], secret: bytes) -> str:
    """A token that is signed by HMAC with any bytes, which libraries refuse to do with a public key."""
    text = f"{part(header)}.{part(claims)}"
    return (
        f"{text}.{base64.urlsafe_b64encode(hmac.digest(secret, text.encode(), hashlib.sha256)).rstrip(b'=').decode()}"
    )


def hostile_tokens(issuer: TokenIssuer) -> Iterator[str]:
    now_s = int(time.time())
    claims = {"iss": issuer.url, "sub": MARK, "aud": AUDIENCE, "iat": now_s, "exp": now_s + 3600}
    public = issuer.key.public_key()
    for form in (PublicFormat.SubjectPublicKeyInfo, PublicFormat.PKCS1):
        for encoding in (Encoding.PEM, Encoding.DER):
            yield signed_with_text({"alg": "HS256", "kid": "k1"}, claims, public.public_bytes(encoding, form))
    for algorithm in ("none", "None", "NONE", "", "HS256", "RS256"):
        yield f"{part({'alg': algorithm, 'kid': 'k1'})}.{part(claims)}."
    another = rsa_key()
    # A token brings its own key, or names where to find one.
    embedded = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(another.public_key()))
    for header in (
        {"jwk": embedded},
        {"jku": f"{issuer.url}/{MARK}"},
        {"x5u": f"{issuer.url}/{MARK}"},
        {"x5c": [MARK]},
        {"crit": ["exp"]},
    ):
        yield issuer.token(MARK, key=another, headers=header)
    for key_id in ("../../etc/passwd", f"{MARK}' OR 1=1", "", "\x00", "k" * 10_000, "\ud800"):
        yield issuer.token(MARK, headers={"kid": key_id.encode(errors="ignore").decode()})
    for iss in (
        f"{issuer.url}/",
        f"{issuer.url}#{MARK}",
        f"{issuer.url}@{MARK}.example",
        f"http://{MARK}",
        "file:///etc",
    ):
        yield issuer.token(MARK, iss=iss)
    yield issuer.token(MARK, aud=f"{AUDIENCE} {MARK}")
    yield issuer.token(MARK, exp=now_s - 1)
    yield jwt.encode({"sub": MARK}, b"another secret of an attacker 1234", "HS256")
    yield jwt.encode({"sub": MARK, "exp": 1}, SECRET, "HS256")
    good = issuer.token(MARK)
    yield from (
        good[:-3],
        good + good,
        good.replace(".", ".."),
        MARK,
        "." * 60_000,
        "[" * 60_000,
        f"{part({})}.{MARK}.",
    )


async def test_no_forged_token_is_accepted_or_repeated(
    tmp_path: Path, issuer: TokenIssuer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    checks = await authentication(tmp_path, issuer, anonymous_role="guest", authenticate_original=True)
    assert (await settled(checks.admit("token", issuer.token("app").encode(), ""))).role == "app"
    for token in hostile_tokens(issuer):
        asked = (
            partial(checks.admit, "token", token.encode(), "cn"),
            partial(checks.admit_http, f"Bearer {token}", "cn"),
            partial(checks.admit_original, "token", token),
        )
        for ask in asked:
            with pytest.raises(AuthenticationError) as refused:
                found = ask()
                assert found is not None
                await settled(found)
            assert MARK not in str(refused.value) and token[:40] not in str(refused.value)
    assert MARK not in caplog.text and "eyJ" not in caplog.text
    assert set(issuer.asked) == {"/.well-known/openid-configuration", "/keys"}
    assert issuer.asked["/keys"] == 1, "unknown keys cause no requests within the pause"


@pytest.mark.parametrize(
    "shown",
    [
        f"app:{MARK}",
        f"{MARK}:password",
        f"app:password:{MARK}",
        "app:password\n" + MARK,
        "app:" + MARK * 10_000,
        "app:",
        ":password",
        "app",
        "",
        "app\x00:password",
        "APP:password",
        " app:password",
    ],
)
async def test_no_wrong_password_is_accepted_or_repeated(
    tmp_path: Path, issuer: TokenIssuer, shown: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    checks = await authentication(tmp_path, issuer, anonymous_role="guest", authenticate_original=True)
    assert (await settled(checks.admit("basic", b"app:password", ""))).role == "app"
    header = "Basic " + base64.b64encode(shown.encode()).decode()
    asked = (
        partial(checks.admit, "basic", shown.encode(), "cn"),
        partial(checks.admit_http, header, "cn"),
        partial(checks.admit_original, "basic", shown),
    )
    for ask in asked:
        with pytest.raises(AuthenticationError) as refused:
            found = ask()
            assert found is not None
            await settled(found)
        assert MARK not in str(refused.value)
    assert MARK not in caplog.text and "$2b$" not in caplog.text


async def test_credentials_of_one_method_are_none_of_another(tmp_path: Path, issuer: TokenIssuer) -> None:
    checks = await authentication(tmp_path, issuer)
    token = issuer.token("app")
    for method, data in (
        ("basic", token),
        ("token", "app:password"),
        ("oauth2", token),
        ("anonymous", ""),
        ("none", token),
        ("tls", token),
        ("", token),
    ):
        with pytest.raises(AuthenticationError):
            await settled(checks.admit(method, data.encode(), ""))
    for header in (f"Basic {token}", "Bearer app:password", f"Digest {token}", token, f"bearer{token}"):
        with pytest.raises(AuthenticationError):
            await settled(checks.admit_http(header, "cn"))
