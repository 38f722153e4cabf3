"""Further addresses of brokers: in the configuration, in nodes, and in answers to clients."""

import random

import pytest

from quire_broker.errors import ServiceNotReadyError
from quire_broker.names import NamespaceName
from quire_broker.ownership.listeners import (
    Binding,
    Listener,
    listener_of_other_ports,
    listeners_json,
    listeners_of,
    parse_bindings,
    parse_listeners,
)
from quire_broker.ownership.owners import BrokerUrls, Bundle, Owners
from quire_broker.policies.store import PolicyStore
from quire_broker.server.handover import moved_to
from quire_broker.wire.kinds import Moved
from tests.sim.metadata import SimMetadata, SimMetadataStore

TEXT = "external:pulsar://broker.shop.com:6650, external:pulsar+ssl://broker.shop.com:6651,vpn:pulsar://10.0.0.1:1"
LISTENERS = (
    Listener("external", "pulsar://broker.shop.com:6650", "pulsar+ssl://broker.shop.com:6651"),
    Listener("vpn", "pulsar://10.0.0.1:1"),
)


def test_listeners_are_parsed_and_read_back_from_nodes() -> None:
    assert parse_listeners(TEXT) == LISTENERS
    assert parse_listeners("") == ()
    assert listeners_of(listeners_json(LISTENERS)) == LISTENERS
    assert listeners_json(LISTENERS)["vpn"] == {"brokerServiceUrl": "pulsar://10.0.0.1:1"}
    assert listeners_of({"old": None}) == listeners_of(None) == ()


@pytest.mark.parametrize(
    "wrong", ["pulsar://h:1", "a:http://h:1", "a:pulsar://h", "a:pulsar://h:x", "a:pulsar://h:1,a:pulsar://i:1"]
)
def test_invalid_listeners_are_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"listener|[Pp]ort"):
        parse_listeners(wrong)


async def test_other_brokers_read_the_listeners_of_an_owner() -> None:
    server = SimMetadata(random.Random(1), delay_s=(0.0, 0.0))
    ours = BrokerUrls("pulsar://a:1", "http://a:2", listeners=LISTENERS)
    bundle = Bundle(NamespaceName("public", "default"), "0x00000000_0xffffffff")
    told = []
    for urls in (ours, BrokerUrls("pulsar://b:1", "http://b:2")):
        session = SimMetadataStore(server)
        owner = await Owners(session, PolicyStore(session, "c1"), urls).owner_of(bundle)
        assert owner is not None
        told.append(owner.urls)
    assert told == [ours, ours]
    assert told[1].of_listener("external").clients == "pulsar://broker.shop.com:6650"
    assert told[1].of_listener("") == ours
    with pytest.raises(ServiceNotReadyError, match="other"):
        told[1].of_listener("other")


def test_ports_of_listeners_are_parsed() -> None:
    assert parse_bindings("") == ()
    assert parse_bindings("a:pulsar://0.0.0.0:6652,a:pulsar+ssl://[::]:6653,b:pulsar://h:0") == (
        Binding("a", "0.0.0.0", 6652, tls=False),
        Binding("a", "::", 6653, tls=True),
        Binding("b", "h", 0, tls=False),
    )


def test_other_ports_have_no_clients_of_listeners_once_each_listener_has_its_own() -> None:
    both = (Listener("a"), Listener("b"))
    first, second = (Binding(name, "", 0, tls=False) for name in "ab")
    assert listener_of_other_ports((), ()) == ""
    assert listener_of_other_ports(both, (first,)) is None
    assert listener_of_other_ports(both, (first, second)) == ""


def test_a_client_is_sent_to_the_addresses_that_it_can_reach() -> None:
    there = moved_to(BrokerUrls("pulsar://in:1", "http://in:2", "", "", (Listener("a", "pulsar://out:1", "s"),)))
    assert there.seen_from("a") == Moved("pulsar://out:1", "s")
    assert there.seen_from("") is there and there.url == "pulsar://in:1"
    assert there.seen_from("b") is None, "the new owner does not have this listener"
    assert there.seen_from(None) is None
    plain = Moved("pulsar://in:1", "")
    assert plain.seen_from(None) is plain and plain.seen_from("a") is None
