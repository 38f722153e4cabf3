"""Tokens of an issuer over HTTP: discovery, caching, rotation of keys, outages of the issuer, bounds."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from quire_bookie.env.clock import SystemClock
from quire_bookie.errors import ConfigError
from quire_bookie.tokens.issued import IssuedRules
from quire_broker import limits
from quire_broker.errors import AuthenticationError
from quire_broker.security import issuers as module
from quire_broker.security.credentials import Client, settled
from quire_broker.security.issuers import Issuers
from quire_broker.security.open_id_provider import OpenIdProvider
from quire_broker.security.settings import OpenIdSettings
from tests.support.token_issuer import AUDIENCE, DISCOVERY, TokenIssuer


class Time:
    """Replaces the time of the event loop that `Issuers` sees; a test moves it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.moved_s = 0.0
        loop = asyncio.get_running_loop()
        real = loop.time
        monkeypatch.setattr(loop, "time", lambda: real() + self.moved_s)


@pytest.fixture
async def issuer() -> AsyncIterator[TokenIssuer]:
    found = TokenIssuer()
    yield found
    await asyncio.to_thread(found.close)


async def opened(*issuers: TokenIssuer, **changes: Any) -> OpenIdProvider:
    settings = OpenIdSettings(tuple(one.url for one in issuers), frozenset({AUDIENCE}), https_only=False)
    found = Issuers(replace(settings, **changes), SystemClock())
    await found.open()
    return OpenIdProvider(found, IssuedRules(settings.audiences), SystemClock())


async def role_of(provider: OpenIdProvider, token: str) -> str:
    return (await settled(provider.admit(token))).role


async def test_the_keys_are_read_once_and_then_tokens_are_answered_at_once(issuer: TokenIssuer) -> None:
    provider = await opened(issuer)
    assert await asyncio.gather(*(role_of(provider, issuer.token(f"r{n}")) for n in range(20))) == [
        f"r{n}" for n in range(20)
    ]
    found = provider.admit(issuer.token("late") + "\n")
    assert isinstance(found, Client) and found.role == "late"
    assert "eyJ" not in repr(found)
    assert issuer.asked == {DISCOVERY: 1, "/keys": 1}


async def test_a_token_of_another_issuer_causes_no_request(issuer: TokenIssuer) -> None:
    provider = await opened(issuer)
    for other in ("http://127.0.0.1:1", issuer.url.upper()):
        with pytest.raises(
            AuthenticationError, match="an issuer that openIDAllowedTokenIssuers does not name"
        ) as unknown:
            provider.admit(issuer.token(iss=other))
        assert other not in str(unknown.value)
    with pytest.raises(AuthenticationError, match=f"issuer '{issuer.url}/', .* names '{issuer.url}': write the /"):
        provider.admit(issuer.token(iss=f"{issuer.url}/"))
    for text in ("", "not.a.token", "user:password"):
        with pytest.raises(AuthenticationError):
            provider.admit(text)
    assert not issuer.asked


async def test_a_refusal_after_the_keys_are_known_needs_no_request(issuer: TokenIssuer) -> None:
    provider = await opened(issuer)
    await role_of(provider, issuer.token())
    for bad in (issuer.token(aud="another"), issuer.token(exp=1), issuer.token()[:-8]):
        with pytest.raises(AuthenticationError):
            provider.admit(bad)
    assert issuer.asked["/keys"] == 1


async def test_new_keys_are_found_when_a_token_names_one_and_old_ones_are_withdrawn(
    issuer: TokenIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider, time = await opened(issuer, unknown_key_s=300.0), Time(monkeypatch)
    old = await settled(provider.admit(issuer.token("old")))
    issuer.rotate()
    for _ in range(3):  # each token could cause a request otherwise
        with pytest.raises(AuthenticationError, match="does not publish"):
            provider.admit(issuer.token())
    assert issuer.asked["/keys"] == 1
    assert provider.is_good(old)
    time.moved_s = 301
    new = await settled(provider.admit(issuer.token("new")))
    assert (issuer.asked["/keys"], await provider.refresh(), await provider.refresh()) == (2, True, False)
    assert (provider.is_good(new), provider.is_good(old)) == (True, False)
    with pytest.raises(AuthenticationError, match="does not publish"):
        provider.admit(old.proof)


async def test_keys_are_renewed_before_they_expire_and_stay_in_use_if_that_fails(
    issuer: TokenIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = await opened(issuer, refresh_s=0.02, expiry_s=3600.0)
    client = await settled(provider.admit(issuer.token()))
    following = asyncio.ensure_future(provider._issuers.follow())
    monkeypatch.setattr(module, "ISSUER_RETRY_S", 0.0)
    issuer.answers["/keys"] = (500, b"")
    async with asyncio.timeout(20):
        while issuer.asked["/keys"] < 3:  # noqa: ASYNC110  the issuer is another thread
            await asyncio.sleep(0.01)
    assert provider.is_good(client)
    assert isinstance(provider.admit(issuer.token()), Client)
    issuer.rotate()
    del issuer.answers["/keys"]
    async with asyncio.timeout(20):
        while not await provider.refresh():  # noqa: ASYNC110  the issuer is another thread
            await asyncio.sleep(0.01)
    assert not provider.is_good(client)
    following.cancel()


async def test_keys_that_could_not_be_read_for_long_are_dropped_but_clients_stay(
    issuer: TokenIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider, time = await opened(issuer, expiry_s=100.0), Time(monkeypatch)
    client = await settled(provider.admit(issuer.token()))
    issuer.answers["/keys"] = (500, b"")
    time.moved_s = 101
    with pytest.raises(AuthenticationError, match="cannot be read"):
        await settled(provider.admit(issuer.token()))
    assert provider.is_good(client)


async def test_an_issuer_that_fails_is_asked_again_only_after_a_pause(
    issuer: TokenIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider, time = await opened(issuer), Time(monkeypatch)
    issuer.answers[DISCOVERY] = (503, b"")
    results = await asyncio.gather(*(role_of(provider, issuer.token()) for _ in range(20)), return_exceptions=True)
    assert {type(result) for result in results} == {AuthenticationError}
    with pytest.raises(AuthenticationError, match="cannot be read"):
        provider.admit(issuer.token())
    assert issuer.asked == {DISCOVERY: 1}
    issuer.answers.clear()
    time.moved_s = limits.ISSUER_RETRY_S + 1
    assert await role_of(provider, issuer.token()) == "app"


@pytest.mark.parametrize(
    ("path", "status", "body"),
    [
        (DISCOVERY, 302, b""),
        (DISCOVERY, 200, b"no json"),
        (DISCOVERY, 200, b"[]"),
        (DISCOVERY, 200, b'{"issuer": "https://another.example", "jwks_uri": "https://another.example/keys"}'),
        (DISCOVERY, 200, b" " * (limits.ISSUER_ANSWER_BYTES_MAX + 1)),
        (DISCOVERY, 200, b"[" * 100_000),
        ("/keys", 404, b""),
        ("/keys", 200, b"{}"),
        ("/keys", 200, b'{"keys": [{"kty": "oct", "kid": "k1", "k": "c2VjcmV0"}]}'),
    ],
)
async def test_an_answer_that_is_no_key_set_is_refused(
    issuer: TokenIssuer, path: str, status: int, body: bytes
) -> None:
    provider = await opened(issuer)
    issuer.answers[path] = (status, body)
    with pytest.raises(AuthenticationError, match="cannot be read; the broker's log has the reason"):
        await settled(provider.admit(issuer.token()))


@pytest.mark.parametrize("where", ["file:///etc/passwd", "", 7, None])
async def test_keys_are_read_from_urls_only(issuer: TokenIssuer, where: Any) -> None:
    provider = await opened(issuer)
    issuer.answers[DISCOVERY] = (200, json.dumps({"issuer": issuer.url, "jwks_uri": where}).encode())
    with pytest.raises(AuthenticationError, match="cannot be read"):
        await settled(provider.admit(issuer.token()))


async def test_a_silent_issuer_holds_only_its_own_clients_and_few_of_them(
    issuer: TokenIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = TokenIssuer()
    provider = await opened(issuer, other, read_s=0.5)
    monkeypatch.setattr(module, "ISSUER_WAITING_MAX", 3)
    issuer.may_answer.clear()
    waiting = [asyncio.ensure_future(role_of(provider, issuer.token())) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(AuthenticationError, match="too many clients"):
        await settled(provider.admit(issuer.token()))
    assert await role_of(provider, other.token("free")) == "free"
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert {type(result) for result in results} == {AuthenticationError}
    await asyncio.to_thread(other.close)


async def test_the_keys_of_few_issuers_are_kept(issuer: TokenIssuer) -> None:
    other = TokenIssuer()
    provider = await opened(issuer, other, issuers_max=1)
    await role_of(provider, issuer.token())
    await role_of(provider, other.token())
    assert isinstance(provider.admit(other.token()), Client)
    assert not isinstance(provider.admit(issuer.token()), Client)
    assert await role_of(provider, issuer.token()) == "app"
    await asyncio.to_thread(other.close)


async def test_plain_http_of_keys_is_refused_if_https_is_required(issuer: TokenIssuer) -> None:
    provider = await opened(issuer, https_only=True)
    with pytest.raises(AuthenticationError, match="cannot be read"):
        await settled(provider.admit(issuer.token()))
    assert "/keys" not in issuer.asked


async def test_a_file_of_authorities_that_cannot_be_read_is_named_with_its_key() -> None:
    with pytest.raises(ConfigError, match="openIDTokenIssuerTrustCertsFilePath: TLS file /none"):
        await opened(trust_path="/none.pem")


async def test_the_log_says_how_the_issuer_names_itself(issuer: TokenIssuer, caplog: pytest.LogCaptureFixture) -> None:
    issuer.answers[DISCOVERY] = (200, json.dumps({"issuer": f"{issuer.url}/"}).encode())
    provider = await opened(issuer)
    with pytest.raises(AuthenticationError, match="cannot be read"):
        await settled(provider.admit(issuer.token()))
    assert f"names the issuer '{issuer.url}/': openIDAllowedTokenIssuers must have it so" in caplog.text
