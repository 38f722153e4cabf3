"""Limits of connections fit the limit of open files."""

import resource
from dataclasses import replace

import pytest

from quire_bookie.cli.open_file_shares import fit_bookie, fit_http
from quire_bookie.server.settings import BookieSettings
from quire_bookie.settings.http import HttpLimits
from quire_broker.cli.open_file_shares import fit_broker, fit_standalone
from quire_broker.server.broker import BrokerSettings
from quire_broker.settings.clients import ClientLimits
from quire_broker.standalone import StandaloneSettings


@pytest.fixture(autouse=True)
def open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1024))


def test_a_bookie_uses_at_most_the_share_of_clients() -> None:
    settings = BookieSettings(data_dir="")
    assert fit_bookie(settings).security.limits.connections_max == 384
    few = replace(settings.security, limits=replace(settings.security.limits, connections_max=7))
    assert fit_bookie(replace(settings, security=few)).security.limits.connections_max == 7


def test_http_uses_an_eighth_and_one_address_half_of_that() -> None:
    assert fit_http(HttpLimits(3.0)) == HttpLimits(3.0, 64, 128)
    assert fit_http(HttpLimits(3.0, 0)) == HttpLimits(3.0, 64, 128)
    assert fit_http(HttpLimits(3.0, 5)) == HttpLimits(3.0, 5, 128)


def test_broker_and_bookies_of_a_standalone_share() -> None:
    assert fit_broker(BrokerSettings()).clients.connections_max == 384
    assert fit_broker(BrokerSettings(clients=ClientLimits(connections_max=5))).clients.connections_max == 5
    fitted = fit_standalone(StandaloneSettings("", bookies=3))
    assert (fitted.broker.clients.connections_max, fitted.bookie_connections_max) == (288, 32)
    assert fitted.broker.access.http.connections_max == 128
