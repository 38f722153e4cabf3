"""Redirects to the broker that owns a topic; a request over TLS is never redirected to a plaintext port."""

from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from quire_broker.admin.context import BROKER, require_owner
from quire_broker.errors import ServiceNotReadyError
from quire_broker.names import parse_topic
from quire_broker.ownership.owners import BrokerUrls, Owner

TOPIC = parse_topic("persistent://acme/orders/one")


class Lookups:
    def __init__(self, owner: Owner | None) -> None:
        self._owner = owner

    async def find(self, name: object) -> Owner | None:
        return self._owner


def _request(owner: Owner | None, *, secure: bool) -> Any:
    broker = SimpleNamespace(parts=SimpleNamespace(lookups=Lookups(owner)))
    return SimpleNamespace(app={BROKER: broker}, secure=secure, path_qs="/admin/x?force=true", headers={}, query={})


@pytest.mark.parametrize(
    ("http", "https", "secure", "there"),
    [
        ("http://b:1", "", False, "http://b:1"),
        ("http://b:1", "https://b:2", False, "http://b:1"),
        ("http://b:1", "https://b:2", True, "https://b:2"),
        ("", "https://b:2", False, "https://b:2"),
    ],
)
async def test_a_request_is_redirected_to_the_owner(http: str, https: str, secure: bool, there: str) -> None:
    owner = Owner(BrokerUrls("pulsar://b:3", http, http_tls=https), ours=False)
    with pytest.raises(web.HTTPTemporaryRedirect) as raised:
        await require_owner(_request(owner, secure=secure), TOPIC)
    assert raised.value.headers["Location"] == f"{there}/admin/x?force=true&authoritative=true"


@pytest.mark.parametrize(("http", "secure"), [("http://b:1", True), ("", True), ("", False)])
async def test_a_request_without_a_safe_redirect_is_refused(http: str, secure: bool) -> None:
    owner = Owner(BrokerUrls("pulsar://b:3", http), ours=False)
    with pytest.raises(ServiceNotReadyError, match="owns"):
        await require_owner(_request(owner, secure=secure), TOPIC)


@pytest.mark.parametrize("owner", [None, Owner(BrokerUrls("pulsar://a:3", ""), ours=True)])
async def test_a_request_for_an_owned_or_free_topic_is_not_redirected(owner: Owner | None) -> None:
    await require_owner(_request(owner, secure=True), TOPIC)
