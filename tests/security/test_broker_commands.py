"""Every command of the broker's binary protocol, sent by each kind of client to a real process.

A new command type fails here until it stands in one of the groups.
"""

from collections.abc import AsyncIterator, Iterator

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from quire_broker.errors import ServerError
from quire_broker.wire.frames import MessageFrame
from quire_broker.wire.kinds import Kind
from quire_broker.wire.proto import pulsar_pb2 as pb
from tests.support.broker_wire import Wire
from tests.support.guarded import Guarded, token

pytestmark = pytest.mark.xdist_group("binary commands")  # of one process
NAMESPACE = "victim/ns"
TOPIC = f"persistent://{NAMESPACE}/topic"
ROLES = ("stranger", "writer", "reader", "keeper", "foreign", "root")
"""Nothing granted; produce; consume; admin of the namespace; admin of another tenant; super user."""
ADMINS = {"keeper", "root"}
GRANTED = {
    Kind.PRODUCER: {"writer"} | ADMINS,
    Kind.SUBSCRIBE: {"reader"} | ADMINS,
    Kind.PARTITIONED_METADATA: {"writer", "reader"} | ADMINS,
    Kind.LOOKUP: {"writer", "reader"} | ADMINS,
    Kind.GET_TOPICS_OF_NAMESPACE: {"reader"} | ADMINS,
    Kind.WATCH_TOPIC_LIST: {"reader"} | ADMINS,
    Kind.GET_SCHEMA: {"writer", "reader"} | ADMINS,
    Kind.GET_OR_CREATE_SCHEMA: {"writer"} | ADMINS,
}
"""Commands that name a topic or namespace, and who may send them."""
OF_THE_SESSION = {
    Kind.SEND: "closed",
    Kind.ACK: "nothing",
    Kind.FLOW: "nothing",
    Kind.REDELIVER: "nothing",
    Kind.UNSUBSCRIBE: "refused",
    Kind.SEEK: "refused",
    Kind.GET_LAST_MESSAGE_ID: "refused",
    Kind.CONSUMER_STATS: "refused",
    Kind.CLOSE_PRODUCER: "done",
    Kind.CLOSE_CONSUMER: "done",
}
"""Commands about a producer or consumer of the same connection, which has none here: they reach no other client's."""
FOR_EVERYONE = {
    Kind.PING: "pong",
    Kind.PONG: "nothing",
    Kind.AUTH_RESPONSE: "nothing",
    Kind.WATCH_TOPIC_LIST_CLOSE: "done",
}
"""The broker ignores a token that it did not request."""
NOT_SERVED = {
    Kind.NEW_TXN,
    Kind.ADD_PARTITION_TO_TXN,
    Kind.ADD_SUBSCRIPTION_TO_TXN,
    Kind.END_TXN,
    Kind.END_TXN_ON_PARTITION,
    Kind.END_TXN_ON_SUBSCRIPTION,
    Kind.TC_CLIENT_CONNECT_REQUEST,
}
"""Commands refused with an error."""
ENDS = {
    Kind.CONNECT,
    Kind.AUTH_CHALLENGE,
    Kind.CONNECTED,
    Kind.SEND_RECEIPT,
    Kind.SEND_ERROR,
    Kind.MESSAGE,
    Kind.SUCCESS,
    Kind.ERROR,
    Kind.PRODUCER_SUCCESS,
    Kind.REACHED_END_OF_TOPIC,
    Kind.ACTIVE_CONSUMER_CHANGE,
    Kind.TOPIC_MIGRATED,
    Kind.WATCH_TOPIC_LIST_SUCCESS,
    Kind.WATCH_TOPIC_UPDATE,
} | {kind for kind in Kind if kind.name.endswith("_RESPONSE") and kind is not Kind.AUTH_RESPONSE}
"""Commands of brokers, and commands allowed only once: the connection ends."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    found = Guarded(tmp_path_factory.mktemp("guarded"))
    for tenant, admins in (("victim", []), ("other", ["foreign"])):
        found.rest("PUT", f"/admin/v2/tenants/{tenant}", {"adminRoles": admins, "allowedClusters": ["standalone"]})
    found.rest("PUT", f"/admin/v2/namespaces/{NAMESPACE}")
    for role, actions in (("writer", ["produce"]), ("reader", ["consume"])):
        found.rest("POST", f"/admin/v2/namespaces/{NAMESPACE}/permissions/{role}", actions)
    found.rest("POST", f"/admin/quire/namespaces/{NAMESPACE}/admins", ["keeper"])
    found.rest("PUT", f"/admin/v2/{TOPIC.replace('://', '/')}")
    yield found
    found.process.close()


@pytest.fixture
async def wire(broker: Guarded) -> AsyncIterator[Wire]:
    """A connection without any command sent."""
    found = await Wire.reach(int(broker.process.url.rsplit(":", 1)[1]))
    yield found
    found.writer.close()


def fill(message: Message) -> None:
    """Give every required field a value."""
    for field in message.DESCRIPTOR.fields:
        if not field.is_required:
            continue
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            fill(getattr(message, field.name))
        elif field.type == FieldDescriptor.TYPE_STRING:
            setattr(message, field.name, {"topic": TOPIC, "namespace": NAMESPACE}.get(field.name, "x"))
        elif field.type != FieldDescriptor.TYPE_BYTES:
            setattr(message, field.name, 1)
        else:
            setattr(message, field.name, b"")


def command(kind: Kind) -> pb.BaseCommand:
    """Return a complete command of the type about TOPIC."""
    found = pb.BaseCommand(type=kind)
    inner = getattr(found, pb.BaseCommand.DESCRIPTOR.fields_by_number[kind].name)
    inner.SetInParent()
    fill(inner)
    if kind is Kind.SUBSCRIBE:
        found.subscribe.durable = False
    return found


async def said(wire: Wire, kind: Kind) -> tuple[list[pb.BaseCommand], bool]:
    """Send the command and a PING; return the answers before the PONG, and whether the connection ended."""
    pongs = 2 if kind is Kind.PING else 1
    wire.send(command(kind))
    wire.send(pb.BaseCommand(type=Kind.PING, ping=pb.CommandPing()))
    answers: list[pb.BaseCommand] = []
    try:
        while pongs or waits_for_answer(kind, answers):
            frame = await wire.next()
            assert not isinstance(frame, MessageFrame), "no message is delivered"
            if frame.type == Kind.PONG:
                pongs -= 1
            if frame.type != Kind.PONG or kind is Kind.PING:
                answers.append(frame)
    except (EOFError, ConnectionResetError):
        return answers, True
    return answers, False


def waits_for_answer(kind: Kind, answers: list[pb.BaseCommand]) -> bool:
    """Return whether a response is due that may arrive after the PONG."""
    return not answers and (kind in GRANTED or OF_THE_SESSION.get(kind) in ("refused", "done") or kind in NOT_SERVED)


def error_of(answer: pb.BaseCommand) -> int | None:
    """Return the code of an error, or None for other responses."""
    inner = getattr(answer, pb.BaseCommand.DESCRIPTOR.fields_by_number[answer.type].name)
    for name in ("error", "error_code"):
        if name in inner.DESCRIPTOR.fields_by_name and inner.HasField(name):
            return int(getattr(inner, name))
    return None


def test_every_command_is_in_one_group() -> None:
    groups = (set(GRANTED), set(OF_THE_SESSION), set(FOR_EVERYONE), NOT_SERVED, ENDS)
    assert set().union(*groups) == set(Kind)
    assert sum(map(len, groups)) == len(Kind)


@pytest.mark.parametrize("kind", list(Kind), ids=lambda kind: kind.name)
async def test_no_command_is_served_before_connect(wire: Wire, kind: Kind) -> None:
    if kind is Kind.CONNECT:
        refused = await wire.connect()
        assert (refused.type, refused.error.error) == (Kind.ERROR, ServerError.AUTHENTICATION)
    else:
        answers, ended = await said(wire, kind)
        assert ended and not answers


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("kind", GRANTED, ids=lambda kind: kind.name)
async def test_a_command_about_a_topic_needs_the_right_to_it(wire: Wire, kind: Kind, role: str) -> None:
    assert (await wire.connect(token(role))).type == Kind.CONNECTED
    answers, ended = await said(wire, kind)
    assert not ended
    refused = ServerError.AUTHORIZATION in [error_of(answer) for answer in answers]
    assert refused is (role not in GRANTED[kind])


@pytest.mark.parametrize("role", ["stranger", "root"])
@pytest.mark.parametrize("kind", OF_THE_SESSION | FOR_EVERYONE, ids=lambda kind: kind.name)
async def test_a_command_about_the_connection_reaches_no_other(wire: Wire, kind: Kind, role: str) -> None:
    assert (await wire.connect(token(role))).type == Kind.CONNECTED
    answers, ended = await said(wire, kind)
    expected = (OF_THE_SESSION | FOR_EVERYONE)[kind]
    found = {
        "closed": ended,
        "nothing": not ended and not answers,
        "refused": not ended and [error_of(answer) is not None for answer in answers] == [True],
        "done": not ended and [answer.type for answer in answers] == [Kind.SUCCESS],
        "pong": not ended and [answer.type for answer in answers] == [Kind.PONG, Kind.PONG],
    }
    assert found[expected], (answers, ended)


@pytest.mark.parametrize("role", ["stranger", "root"])
@pytest.mark.parametrize("kind", sorted(NOT_SERVED), ids=lambda kind: kind.name)
async def test_a_command_that_is_not_served_is_refused(wire: Wire, kind: Kind, role: str) -> None:
    assert (await wire.connect(token(role))).type == Kind.CONNECTED
    answers, ended = await said(wire, kind)
    assert not ended and [error_of(answer) is not None for answer in answers] == [True]


@pytest.mark.parametrize("kind", sorted(ENDS), ids=lambda kind: kind.name)
async def test_a_command_out_of_place_ends_the_connection_with_a_reason(wire: Wire, kind: Kind) -> None:
    assert (await wire.connect(token("root"))).type == Kind.CONNECTED
    answers, ended = await said(wire, kind)
    assert ended and [answer.type for answer in answers] == [Kind.ERROR]
