"""Authentication of clients: from credentials to a role, and checks whether they are still valid."""

import jwt
import pytest

from quire_bookie.tokens.checks import SignedTokens, secret_algorithms
from quire_broker.errors import AuthenticationError
from quire_broker.security.authentication import Authentication, Client
from quire_broker.security.settings import AuthenticationSettings

SECRET, OTHER = b"s" * 32, b"o" * 32
NOW_MS = 1_700_000_000_000


class Clock:
    def __init__(self) -> None:
        self.ms = NOW_MS

    def now_ms(self) -> int:
        return self.ms


def authentication(clock: Clock, *, certificates: bool = True, anonymous: str = "") -> Authentication:
    settings = AuthenticationSettings(certificates=certificates, anonymous_role=anonymous)
    return Authentication(settings, SignedTokens(SECRET, secret_algorithms(), clock), clock)


def token(role: str = "app", secret: bytes = SECRET, **claims: object) -> str:
    return jwt.encode({"sub": role, **claims}, secret)


def test_a_token_gives_its_role_until_it_expires() -> None:
    clock = Clock()
    found = authentication(clock).admit("token", token(exp=NOW_MS // 1000 + 5).encode(), "")
    assert (found.role, found.method, found.end_ms) == ("app", "token", NOW_MS + 5000)
    assert authentication(clock).is_good(found, keys_changed=False)
    clock.ms += 5000
    assert not authentication(clock).is_good(found, keys_changed=False)


def test_a_token_is_checked_again_when_keys_have_changed() -> None:
    clock = Clock()
    found = authentication(clock).admit("token", token().encode(), "")
    changed = Authentication(AuthenticationSettings(), SignedTokens(OTHER, secret_algorithms(), clock), clock)
    assert changed.is_good(found, keys_changed=False)
    assert not changed.is_good(found, keys_changed=True)
    assert authentication(clock).is_good(found, keys_changed=True)


@pytest.mark.parametrize(
    ("method", "data", "name"),
    [
        ("token", token(secret=OTHER).encode(), ""),
        ("token", b"\xff\xfe", ""),
        ("token", b"", "cn"),
        ("tls", b"", ""),
        ("", b"", "cn"),
        ("basic", b"user:password", ""),
    ],
)
def test_invalid_credentials_are_refused_without_repeating_them(method: str, data: bytes, name: str) -> None:
    with pytest.raises(AuthenticationError) as refused:
        authentication(Clock()).admit(method, data, name)
    assert "password" not in str(refused.value)
    assert "eyJ" not in str(refused.value)


def test_a_certificate_gives_a_role_if_certificates_are_enabled() -> None:
    assert authentication(Clock()).admit("tls", b"", "cn") == Client("cn", "tls")
    assert authentication(Clock()).admit_http("", "cn") == Client("cn", "tls")
    with pytest.raises(AuthenticationError):
        authentication(Clock(), certificates=False).admit("tls", b"", "cn")


def test_a_request_presents_its_token_in_its_header() -> None:
    assert authentication(Clock()).admit_http(f"Bearer {token()}", "cn").role == "app"
    for header in ("Basic dXNlcjpwYXNz", f"Bearer {token(secret=OTHER)}", "Bearer ", ""):
        with pytest.raises(AuthenticationError):
            authentication(Clock()).admit_http(header, "")


def test_a_client_without_credentials_gets_the_anonymous_role_but_one_with_a_bad_token_does_not() -> None:
    open_to_all = authentication(Clock(), anonymous="guest")
    assert open_to_all.admit("", b"", "").role == "guest"
    assert open_to_all.admit_http("", "").role == "guest"
    with pytest.raises(AuthenticationError):
        open_to_all.admit("token", token(secret=OTHER).encode(), "")


def test_the_text_of_a_client_contains_no_token() -> None:
    assert "eyJ" not in repr(authentication(Clock()).admit("token", token().encode(), ""))
