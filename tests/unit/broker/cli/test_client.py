"""The command-line client continues after a lookup over TLS only if it began with TLS."""

from typing import Any

import pytest

from quire_broker.cli.client import BrokerRefusedError, Client
from quire_broker.wire.kinds import LookupType
from quire_broker.wire.proto import pulsar_pb2 as pb


class _Client(Client):
    """Answers its own lookups, and records where it connects to."""

    def __init__(self, url: str, reply: pb.CommandLookupTopicResponse) -> None:
        super().__init__(url)
        self.reached: list[str] = []
        self._reply = reply

    async def connection(self, url: str) -> Any:
        self.reached.append(url)
        return self

    async def ask(self, *request: object) -> pb.CommandLookupTopicResponse:
        return self._reply


def _client(url: str, plain: str, tls: str, kind: LookupType = LookupType.CONNECT) -> _Client:
    reply = pb.CommandLookupTopicResponse(response=kind, request_id=1)
    reply.brokerServiceUrl, reply.brokerServiceUrlTls = plain, tls
    return _Client(url, reply)


@pytest.mark.parametrize(
    ("began", "plain", "tls", "reached"),
    [
        ("pulsar://a:1", "pulsar://b:1", "pulsar+ssl://b:2", "pulsar://b:1"),
        ("pulsar://a:1", "", "pulsar+ssl://b:2", "pulsar+ssl://b:2"),
        ("pulsar+ssl://a:1", "pulsar://b:1", "pulsar+ssl://b:2", "pulsar+ssl://b:2"),
    ],
)
async def test_the_owner_is_reached_by_the_first_brokers_scheme(began: str, plain: str, tls: str, reached: str) -> None:
    client = _client(began, plain, tls)
    await client.owner("t")
    assert client.reached == [began, reached]


@pytest.mark.parametrize("kind", [LookupType.CONNECT, LookupType.REDIRECT])
@pytest.mark.parametrize("tls", ["", "pulsar://b:1"])
async def test_a_client_with_tls_never_continues_in_plaintext(kind: LookupType, tls: str) -> None:
    client = _client("pulsar+ssl://a:1", "pulsar://b:1", tls, kind)
    with pytest.raises(BrokerRefusedError, match="no port with TLS"):
        await client.owner("t")
    assert client.reached == ["pulsar+ssl://a:1"]
