"""An address under which this machine reaches itself and that is not loopback."""

import ipaddress
import socket

import pytest


def own_address() -> str:
    """The address of the route to other networks; no packet is sent. Skips the test where there is only loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no address but loopback")
        address = str(probe.getsockname()[0])
    if ipaddress.ip_address(address).is_loopback:
        pytest.skip("this machine has no address but loopback")
    return address
