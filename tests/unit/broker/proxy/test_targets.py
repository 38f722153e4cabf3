"""Addresses to which a proxy connects."""

import pytest

from quire_broker.errors import ServiceNotReadyError
from quire_broker.proxy.targets import Address, Targets, address_of, addresses_of

KNOWN = {Address("broker-1", 6650), Address("fd00::1", 6651), Address("broker-2", 7000)}
REFUSED = [
    "",
    "broker-1",
    "broker-1:",
    "broker-1:0",
    "broker-1:99999",
    "broker-1:6650:6650",
    "broker-1:66 50",
    "user@broker-1:6650",
    "broker-1:6650/path",
    "broker-1:6650?a=b",
    "ftp://broker-1:6650",
    "//broker-1:6650",
    "[fd00::1:6651",
    "broker-1.example.org:6650",
    "broker-11:6650",
    "localhost:2379",
    "127.0.0.1:22",
    "169.254.169.254:80",
    "broker-1:22",
    "\x00broker-1:6650",
    "broker-1:6650\r\n",
    "x" * 100_000,
]


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("broker-1:6650", Address("broker-1", 6650)),
        ("Broker-1:6650", Address("broker-1", 6650)),
        ("pulsar://broker-1:6650", Address("broker-1", 6650)),
        ("pulsar+ssl://broker-1:6650/", Address("broker-1", 6650)),
        ("[fd00::1]:6651", Address("fd00::1", 6651)),
    ],
)
def test_addresses_of_brokers_are_permitted_in_each_spelling(url: str, address: Address) -> None:
    assert Targets(KNOWN.__contains__).check(url) == address
    assert address_of(str(address)) == address


@pytest.mark.parametrize("url", REFUSED)
def test_everything_else_is_refused_with_a_short_reason(url: str) -> None:
    with pytest.raises(ServiceNotReadyError) as refused:
        Targets(KNOWN.__contains__).check(url)
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize("url", REFUSED)
def test_no_spelling_gets_around_permitted_hosts(url: str) -> None:
    targets = Targets(lambda _: False, ("broker-1", "*.brokers.example"), ("6650",))
    with pytest.raises(ServiceNotReadyError):
        targets.check(url)
    assert targets.check("broker-1:6650").port == 6650
    assert targets.check("a.brokers.example:6650").host == "a.brokers.example"
    for other in ("brokers.example:6650", "abrokers.example:6650", "a.brokers.example.org:6650", "broker-1:6651"):
        with pytest.raises(ServiceNotReadyError):
            targets.check(other)


def test_ports_bind_registered_brokers_too() -> None:
    targets = Targets(KNOWN.__contains__, (), ("6650", "6651"))
    assert targets.check("broker-1:6650").port == 6650
    with pytest.raises(ServiceNotReadyError, match="brokerProxyAllowedTargetPorts"):
        targets.check("broker-2:7000")


def test_lists_of_addresses() -> None:
    assert addresses_of("") == []
    assert addresses_of("pulsar://a:1, b:2") == [Address("a", 1), Address("b", 2)]
    for wrong in ("a:1", "pulsar://", "pulsar://a", "pulsar://a:1,,b:2"):
        with pytest.raises(ValueError, match="use pulsar://host:port"):
            addresses_of(wrong)
