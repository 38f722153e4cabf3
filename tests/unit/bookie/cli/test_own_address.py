"""Hosts to listen on: those of this machine are accepted, others are refused with the value and the remedy."""

import pytest

from quire_bookie.cli.own_address import reaches_others, require_own_address
from quire_bookie.errors import ConfigError


@pytest.mark.parametrize("host", ["", "0.0.0.0", "127.0.0.1", "127.0.0.9", "localhost"])
def test_an_address_of_this_machine_is_accepted(host: str) -> None:
    require_own_address(host, "bindAddress")


@pytest.mark.parametrize(
    ("host", "said"),
    [
        ("203.0.113.9", "bindAddress 203.0.113.9 is not an address of this machine"),
        ("no-such-host.invalid", "bindAddress 'no-such-host.invalid' does not resolve"),
        ("a..b", "bindAddress 'a..b' does not resolve"),
        ("300.1.1.1", "bindAddress '300.1.1.1' does not resolve"),
    ],
)
def test_another_host_is_refused(host: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        require_own_address(host, "bindAddress")
    assert str(refused.value).startswith(said)
    assert "give an address of this machine" in str(refused.value)


def test_only_loopback_is_unreachable_for_other_machines() -> None:
    assert not any(reaches_others(host, "k") for host in ("127.0.0.1", "127.1.2.3", "::1", "localhost"))
    assert all(reaches_others(host, "k") for host in ("0.0.0.0", "", "::", "192.0.2.7"))
