"""The command-line client continues after a lookup over TLS only if it began with TLS."""

from typing import Any

import pytest

from quire_bookie.cli.refusals import exit_code_of
from quire_broker.cli.client import BrokerRefusedError, Client, received_of
from quire_broker.errors import ServerError
from quire_broker.wire.entry import seal
from quire_broker.wire.kinds import LookupType
from quire_broker.wire.payload import batch_of
from quire_broker.wire.proto import pulsar_pb2 as pb


class _Client(Client):
    """Answers its own lookups, and records where it connects to."""

    def __init__(self, url: str, reply: pb.CommandLookupTopicResponse) -> None:
        super().__init__(url)
        self.reached: list[str] = []
        self.reply = reply

    async def connection(self, url: str) -> Any:
        self.reached.append(url)
        return self

    async def ask(self, *request: object) -> pb.CommandLookupTopicResponse:
        return self.reply


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


def test_only_the_last_unacknowledged_message_of_a_batch_ends_its_entry() -> None:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, num_messages_in_batch=4)
    entry = seal(metadata, batch_of([b"0", b"1", b"2", b"3"], key=None, properties={}))
    for ack_set, expected in (([], "0123"), ([0b0110], "12"), ([0b1000], "3"), ([-1], "0123")):
        found = received_of(7, 8, 0, entry, ack_set)
        assert "".join(one.message.payload.decode() for one in found) == expected
        assert [one.ends_entry for one in found] == [False] * (len(expected) - 1) + [True]


@pytest.mark.parametrize(
    ("code", "exit_code"), [("TOPIC_NOT_FOUND", 3), ("AUTHENTICATION", 4), ("AUTHORIZATION", 4), ("METADATA", 1)]
)
async def test_a_refused_lookup_has_the_exit_code_of_its_reason(code: str, exit_code: int) -> None:
    client = _client("pulsar://a:1", "", "", LookupType.FAILED)
    client.reply.error = ServerError[code].value
    with pytest.raises(BrokerRefusedError) as refused:
        await client.owner("t")
    assert exit_code_of(refused.value) == exit_code
