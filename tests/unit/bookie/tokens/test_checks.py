"""Verification of tokens, and errors that reveal nothing of a token."""

import base64
import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given
from hypothesis import strategies as st

from quire_bookie.errors import ConfigError
from quire_bookie.server.security.auth import Admitted, Peer, Refused
from quire_bookie.server.security.tokens import TokenAuthentication
from quire_bookie.tokens.checks import (
    OpaqueTokens,
    SignedTokens,
    TokenCheck,
    TokenError,
    parse_tokens,
    public_algorithm,
    public_key_of,
    secret_algorithms,
    secret_of,
)
from quire_bookie.tokens.key_urls import file_path, inline_data

SECRET = bytes(range(32))
NOW_S = 1_700_000_000
KEY = rsa.generate_private_key(65537, 2048)
PUBLIC_PEM = KEY.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
PUBLIC_DER = KEY.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


class Clock:
    """A clock that stands still."""

    def now_ms(self) -> int:
        """Return the fixed time."""
        return NOW_S * 1000


def signed(claims: dict[str, Any], key: Any = SECRET, algorithm: str = "HS256") -> str:
    """Return a signed token."""
    return jwt.encode(claims, key, algorithm)


def check(**more: str) -> SignedTokens:
    """Return a verifier with the secret."""
    return SignedTokens(SECRET, secret_algorithms(), Clock(), **more)


def unsigned(claims: dict[str, Any]) -> str:
    """Return a token of algorithm `none`."""
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in ({"alg": "none"}, claims)]
    return b".".join(parts).decode() + "."


def test_the_subject_of_a_signed_token_is_the_role() -> None:
    assert check().role_of(signed({"sub": "broker"})) == "broker"
    assert (
        SignedTokens(SECRET * 2, secret_algorithms(), Clock()).role_of(signed({"sub": "a"}, SECRET * 2, "HS512")) == "a"
    )
    assert check(claim="role").role_of(signed({"sub": "no", "role": "admin"})) == "admin"


@pytest.mark.parametrize(
    "claims",
    [
        {},
        {"sub": ""},
        {"sub": 7},
        {"sub": "broker", "exp": NOW_S},
        {"sub": "broker", "exp": NOW_S - 1},
        {"sub": "broker", "exp": "never"},
        {"sub": "broker", "exp": None},
        {"sub": "broker", "exp": True},
        {"sub": "broker", "exp": float("nan")},
        {"sub": "broker", "nbf": NOW_S + 1},
        {"sub": "broker", "nbf": None},
    ],
)
def test_a_token_without_a_role_or_out_of_its_time_is_refused(claims: dict[str, Any]) -> None:
    with pytest.raises(TokenError):
        check().role_of(jwt.api_jws.encode(json.dumps(claims).encode(), SECRET, "HS256"))


def test_a_token_within_its_time_is_accepted() -> None:
    assert check().role_of(signed({"sub": "a", "exp": NOW_S + 1, "nbf": NOW_S, "iat": NOW_S + 99})) == "a"


def test_the_algorithm_comes_from_the_settings() -> None:
    public = SignedTokens(public_key_of(PUBLIC_PEM, "RS256"), public_algorithm("RS256"), Clock())
    assert public.role_of(signed({"sub": "a"}, KEY, "RS256")) == "a"
    for token in (
        signed({"sub": "a"}, KEY, "RS512"),
        signed({"sub": "a"}),
        unsigned({"sub": "a"}),
        # The public key used as a secret: a server that trusts the token's header would accept it.
        jwt.api_jws.PyJWS().encode(b'{"sub":"a"}', base64.b64encode(PUBLIC_DER), "HS256"),
    ):
        with pytest.raises(TokenError):
            public.role_of(token)
    with pytest.raises(TokenError):
        check().role_of(unsigned({"sub": "a"}))


def test_a_token_signed_with_another_key_is_refused() -> None:
    with pytest.raises(TokenError, match="InvalidSignatureError"):
        check().role_of(signed({"sub": "a"}, bytes(32)))
    other = rsa.generate_private_key(65537, 2048)
    public = SignedTokens(public_key_of(PUBLIC_DER, "RS256"), public_algorithm("RS256"), Clock())
    with pytest.raises(TokenError):
        public.role_of(signed({"sub": "a"}, other, "RS256"))


def test_an_elliptic_curve_key_works() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    public = SignedTokens(public_key_of(pem, "ES256"), public_algorithm("ES256"), Clock())
    assert public.role_of(signed({"sub": "a"}, key, "ES256")) == "a"


@pytest.mark.parametrize(
    ("audience", "taken"), [("bookies", True), (["x", "bookies"], True), ("others", False), ([], False), (None, False)]
)
def test_a_token_for_another_audience_is_refused(audience: object, taken: bool) -> None:
    token = signed({"sub": "a", "for": audience})
    checking = check(audience_claim="for", audience="bookies")
    if taken:
        assert checking.role_of(token) == "a"
    else:
        with pytest.raises(TokenError, match="audience"):
            checking.role_of(token)


def test_an_opaque_token_is_looked_up() -> None:
    tokens = OpaqueTokens(parse_tokens("# who\nbroker  0123456789abcdef\n\nother fedcba9876543210\n"))
    assert tokens.role_of("fedcba9876543210") == "other"
    for wrong in ("", "0123456789abcde", "0123456789abcdef0"):
        with pytest.raises(TokenError):
            tokens.role_of(wrong)


@pytest.mark.parametrize("text", ["", "# nothing", "broker", "broker short", "a b c"])
def test_a_file_of_tokens_that_cannot_be_read_is_refused_without_quoting_it(text: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        parse_tokens(text)
    assert "short" not in str(refusal.value)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused_without_another_error(payload: bytes) -> None:
    for checking in (check(), OpaqueTokens({"0123456789abcdef": "a"})):
        step = TokenAuthentication(checking).begin(Peer("a")).process(payload)
        assert isinstance(step, Refused)


@pytest.mark.parametrize("checking", [check(), OpaqueTokens({"0123456789abcdef": "a"})], ids=["signed", "opaque"])
def test_an_error_reveals_nothing_of_a_token(checking: TokenCheck) -> None:
    secret = "eyJhbGciOiJIUzI1NiJ9.c2VjcmV0c2VjcmV0.c2VjcmV0"
    step = TokenAuthentication(checking).begin(Peer("a")).process(secret.encode())
    assert isinstance(step, Refused)
    assert not any(part in step.reason for part in secret.split("."))
    assert "000102" not in repr(checking)
    assert repr(SECRET) not in repr(checking)


def test_roles_may_be_restricted() -> None:
    provider = TokenAuthentication(check(), ("broker",))
    assert provider.begin(Peer("a")).process(signed({"sub": "broker"}).encode() + b"\n") == Admitted("broker")
    assert isinstance(provider.begin(Peer("a")).process(signed({"sub": "guest"}).encode()), Refused)
    assert provider.begin(Peer("a")).secured(Peer("a", True)) is None


def test_invalid_keys_are_refused_without_quoting_them() -> None:
    with pytest.raises(ConfigError, match="5 bytes"):
        secret_of(b"short")
    for none in (b"", b"nonsense", b"-----BEGIN PUBLIC KEY-----\nnonsense\n-----END PUBLIC KEY-----"):
        with pytest.raises(ConfigError) as refusal:
            public_key_of(none, "RS256")
        assert "nonsense" not in str(refusal.value)
    with pytest.raises(ConfigError, match="HS256"):
        public_algorithm("HS256")


def test_a_key_is_given_as_data_or_as_a_path() -> None:
    assert inline_data("data:;base64," + base64.b64encode(SECRET).decode()) == SECRET
    assert inline_data("data:,plain") == b"plain"
    assert inline_data("/a/path") is None
    with pytest.raises(ConfigError) as refusal:
        inline_data("data:;base64,secret!")
    assert "secret!" not in str(refusal.value)
    assert [file_path(url) for url in ("file:///a/b", "file:/a/b", "/a/b")] == ["/a/b"] * 3


@pytest.mark.parametrize("end", [float("inf"), 1e308, 10**400])
def test_an_end_in_the_far_future_is_accepted(end: float) -> None:
    found = check().grant_of(signed({"sub": "a", "exp": end}))
    assert found.role == "a"
    assert found.end_ms is not None
    assert found.end_ms > NOW_S * 1000


@pytest.mark.parametrize("checking", [check(), OpaqueTokens({"0123456789abcdef": "a"})], ids=["signed", "opaque"])
def test_text_that_cannot_be_encoded_is_refused(checking: TokenCheck) -> None:
    # Lines of an HTTP header are decoded so that they can contain any byte.
    with pytest.raises(TokenError):
        checking.grant_of("a\udcff.b.c")


def test_a_key_of_another_algorithm_is_refused_before_it_is_used() -> None:
    key = ec.generate_private_key(ec.SECP384R1()).public_key()
    pem = key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    for data, algorithm in ((pem, "RS256"), (pem, "ES256"), (PUBLIC_PEM, "ES256")):
        with pytest.raises(ConfigError, match=f"not a key for {algorithm}"):
            public_key_of(data, algorithm)
    assert public_key_of(pem, "ES384") is not None
