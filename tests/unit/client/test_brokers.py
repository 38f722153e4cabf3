"""A client continues after a lookup over TLS only if it began with TLS, and a refusal has the code of its reason."""

import asyncio
from typing import Any

import pytest

from quire_bookie.cli.refusals import exit_code_of
from quire_bookie.errors import ConfigError
from quire_broker.errors import ServerError
from quire_broker.wire.kinds import LookupType
from quire_broker.wire.proto import pulsar_pb2 as pb
from quire_client.brokers import Brokers
from quire_client.errors import BrokerRefusedError, NoBrokerError
from quire_client.options import ClientOptions


class _Brokers(Brokers):
    """Answers its own lookups, and records where it connects to."""

    def __init__(self, url: str, reply: pb.CommandLookupTopicResponse) -> None:
        super().__init__(url)
        self.reached: list[tuple[str, str]] = []
        self.reply = reply

    async def connection(self, url: str, proxied_to: str = "") -> Any:
        self.reached.append((url, proxied_to))
        return self

    async def ask(self, *request: object) -> pb.CommandLookupTopicResponse:
        return self.reply


def brokers(url: str, plain: str, tls: str, kind: LookupType = LookupType.CONNECT) -> _Brokers:
    reply = pb.CommandLookupTopicResponse(response=kind, request_id=1)
    reply.brokerServiceUrl, reply.brokerServiceUrlTls = plain, tls
    return _Brokers(url, reply)


@pytest.mark.parametrize(
    ("began", "plain", "tls", "reached"),
    [
        ("pulsar://a:1", "pulsar://b:1", "pulsar+ssl://b:2", "pulsar://b:1"),
        ("pulsar://a:1", "", "pulsar+ssl://b:2", "pulsar+ssl://b:2"),
        ("pulsar+ssl://a:1", "pulsar://b:1", "pulsar+ssl://b:2", "pulsar+ssl://b:2"),
    ],
)
async def test_the_owner_is_reached_by_the_first_brokers_scheme(began: str, plain: str, tls: str, reached: str) -> None:
    found = brokers(began, plain, tls)
    await found.owner("t")
    assert found.reached == [(began, ""), (reached, "")]


async def test_behind_a_proxy_the_owner_is_reached_through_it() -> None:
    found = brokers("pulsar://proxy:1", "pulsar://b:1", "")
    found.reply.proxy_through_service_url = True
    await found.owner("t")
    assert found.reached == [("pulsar://proxy:1", ""), ("pulsar://proxy:1", "b:1")]


@pytest.mark.parametrize("kind", [LookupType.CONNECT, LookupType.REDIRECT])
@pytest.mark.parametrize("tls", ["", "pulsar://b:1"])
async def test_a_client_with_tls_never_continues_in_plaintext(kind: LookupType, tls: str) -> None:
    found = brokers("pulsar+ssl://a:1", "pulsar://b:1", tls, kind)
    with pytest.raises(BrokerRefusedError, match="no port with TLS"):
        await found.owner("t")
    assert found.reached == [("pulsar+ssl://a:1", "")]


async def test_redirects_without_an_end_are_refused() -> None:
    found = brokers("pulsar://a:1", "pulsar://b:1", "", LookupType.REDIRECT)
    with pytest.raises(BrokerRefusedError, match="redirected 20 times"):
        await found.owner("t")


@pytest.mark.parametrize(
    ("code", "exit_code"), [("TOPIC_NOT_FOUND", 3), ("AUTHENTICATION", 4), ("AUTHORIZATION", 4), ("METADATA", 1)]
)
async def test_a_refused_lookup_has_the_exit_code_of_its_reason(code: str, exit_code: int) -> None:
    found = brokers("pulsar://a:1", "", "", LookupType.FAILED)
    found.reply.error = ServerError[code].value
    with pytest.raises(BrokerRefusedError) as refused:
        await found.owner("t")
    assert exit_code_of(refused.value) == exit_code


@pytest.mark.parametrize(
    "url", ["pulsar://[::1", "pulsar://a:port", "pulsar://", "http://a:1", "a:1", f"pulsar://{'a' * 70}:1"]
)
async def test_what_is_no_address_is_refused_with_what_was_given(url: str) -> None:
    with pytest.raises(ConfigError, match="is not a broker address") as refused:
        await Brokers(url).connection(url)
    assert url in str(refused.value)


async def test_a_server_that_never_takes_the_connection_is_not_blamed_for_its_protocol(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def never(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", never)
    found = Brokers("pulsar://a:1", options=ClientOptions(answer_timeout_s=0.01))
    with pytest.raises(NoBrokerError, match="a:1 does not answer"):
        await found.connection("pulsar://a:1")
