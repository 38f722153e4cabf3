"""Authentication of clients: from credentials to a role, and checks whether they are still valid."""

import base64

import jwt
import pytest

from quire_bookie.tokens.checks import SignedTokens, TokenGrant, secret_algorithms
from quire_broker.errors import AuthenticationError
from quire_broker.security.authentication import Authentication
from quire_broker.security.credentials import Client, Found, settled
from quire_broker.security.settings import AuthenticationSettings
from quire_broker.security.token_provider import TokenProvider

SECRET, OTHER = b"s" * 32, b"o" * 32
NOW_MS = 1_700_000_000_000


class Clock:
    def __init__(self) -> None:
        self.ms = NOW_MS

    def now_ms(self) -> int:
        return self.ms


def authentication(clock: Clock, *, certificates: bool = True, anonymous: str = "") -> Authentication:
    settings = AuthenticationSettings(certificates=certificates, anonymous_role=anonymous)
    return Authentication(settings, [TokenProvider(SignedTokens(SECRET, secret_algorithms(), clock))], clock)


def at_once(found: Found) -> Client:
    """Return the client, which needs no further check."""
    assert isinstance(found, Client)
    return found


def token(role: str = "app", secret: bytes = SECRET, **claims: object) -> str:
    return jwt.encode({"sub": role, **claims}, secret)


def test_a_token_gives_its_role_until_it_expires() -> None:
    clock = Clock()
    found = at_once(authentication(clock).admit("token", token(exp=NOW_MS // 1000 + 5).encode(), ""))
    assert (found.role, found.method, found.end_ms) == ("app", "token", NOW_MS + 5000)
    assert authentication(clock).is_good(found, keys_changed=False)
    clock.ms += 5000
    assert not authentication(clock).is_good(found, keys_changed=False)


def test_a_token_is_checked_again_when_keys_have_changed() -> None:
    clock = Clock()
    keys = {"s": SECRET}

    class Keys:
        """Tokens of the secret that is valid now."""

        def grant_of(self, token: str) -> TokenGrant:
            return SignedTokens(keys["s"], secret_algorithms(), clock).grant_of(token)

        def role_of(self, token: str) -> str:
            return self.grant_of(token).role

    checks = Authentication(AuthenticationSettings(), [TokenProvider(Keys())], clock)
    found = at_once(checks.admit("token", token().encode(), ""))
    assert checks.is_good(found, keys_changed=True)
    keys["s"] = OTHER
    assert checks.is_good(found, keys_changed=False)
    assert not checks.is_good(found, keys_changed=True)


def test_white_space_around_a_token_is_ignored() -> None:
    for shown in (f"{token()}\n", f" {token()}\r\n"):
        assert at_once(authentication(Clock()).admit("token", shown.encode(), "")).role == "app"


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
    assert at_once(authentication(Clock()).admit_http(f"Bearer {token()}", "cn")).role == "app"
    for header in ("Basic dXNlcjpwYXNz", f"Bearer {token(secret=OTHER)}", "Bearer ", ""):
        with pytest.raises(AuthenticationError):
            authentication(Clock()).admit_http(header, "")


def test_a_client_without_credentials_gets_the_anonymous_role_but_one_with_a_bad_token_does_not() -> None:
    open_to_all = authentication(Clock(), anonymous="guest")
    assert at_once(open_to_all.admit("", b"", "")).role == "guest"
    assert at_once(open_to_all.admit_http("", "")).role == "guest"
    with pytest.raises(AuthenticationError):
        open_to_all.admit("token", token(secret=OTHER).encode(), "")


def test_the_text_of_a_client_contains_no_token() -> None:
    assert "eyJ" not in repr(authentication(Clock()).admit("token", token().encode(), ""))


class Answering:
    """A provider with a fixed answer for `good`."""

    method = "token"

    def __init__(self, role: str, *, good: str, later: bool = False) -> None:
        self._role, self._good, self._later = role, good, later

    def admit(self, shown: str) -> Found:
        if not self._later:
            return self._answer(shown)

        async def check() -> Client:
            return self._answer(shown)

        return check

    def _answer(self, shown: str) -> Client:
        if shown != self._good:
            raise AuthenticationError(f"{self._role} refuses")
        return Client(self._role, self.method, provider=self)

    def is_good(self, client: Client) -> bool:
        return client.role == self._role

    async def refresh(self) -> bool:
        return False


@pytest.mark.parametrize("later", [(False, False), (True, False), (False, True), (True, True)])
async def test_providers_of_one_method_are_asked_in_their_order(later: tuple[bool, bool]) -> None:
    providers = [
        Answering("first", good="both", later=later[0]),
        Answering("second", good="both", later=later[1]),
        Answering("third", good="one", later=later[1]),
    ]
    checks = Authentication(AuthenticationSettings(), providers, Clock())
    assert (await settled(checks.admit("token", b"both", ""))).role == "first"
    assert (await settled(checks.admit_http("Bearer one", ""))).role == "third"
    with pytest.raises(AuthenticationError, match=r"^first refuses; second refuses; third refuses$"):
        await settled(checks.admit("token", b"none", ""))


def test_a_client_is_checked_again_by_the_provider_that_accepted_it() -> None:
    checks = Authentication(
        AuthenticationSettings(), [Answering("first", good="a"), Answering("second", good="b")], Clock()
    )
    found = at_once(checks.admit("token", b"b", ""))
    assert checks.is_good(found, keys_changed=True)


def test_a_request_names_its_method_by_the_scheme_of_its_header() -> None:
    basic = Answering("person", good="user:pa ss")
    basic.method = "basic"
    checks = Authentication(AuthenticationSettings(), [basic], Clock())
    header = "Basic " + base64.b64encode(b"user:pa ss").decode()
    assert at_once(checks.admit_http(header, "")).role == "person"
    assert at_once(checks.admit_http(header.replace("Basic", "bASIC"), "")).role == "person"
    assert at_once(checks.admit("basic", b"user:pa ss", "")).role == "person"
    assert checks.challenge() == 'Basic realm="quire"'
    for wrong in ("Basic", "Basic !", "Basic dXNlcg==", "Basic /w==", "Bearer user:pa ss", header.replace(" ", "")):
        with pytest.raises(AuthenticationError) as refused:
            checks.admit_http(wrong, "")
        assert "pa ss" not in str(refused.value)


def test_a_proxy_may_pass_on_a_password() -> None:
    basic = Answering("person", good="user:pass")
    basic.method = "basic"
    checks = Authentication(AuthenticationSettings(authenticate_original=True), [basic], Clock())
    found = checks.admit_original("basic", "user:pass")
    assert isinstance(found, Client) and found.role == "person"
    with pytest.raises(AuthenticationError, match="forwardAuthorizationCredentials"):
        checks.admit_original("token", "user:pass")
