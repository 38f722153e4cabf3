"""Warnings about ports at the start of a standalone and of a broker."""

import pytest

from quire_bookie.errors import ConfigError
from quire_broker.cli.open_ports import missing_bookie_credentials, open_port_warnings
from quire_broker.config.broker import BrokerConfig, StandaloneConfig

SECURED = {"authentication_enabled": True, "authentication_providers": "token", "token_secret_key": "file:///k"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, []),
        ({"listen": "0.0.0.0"}, ["may read and write all topics"]),
        ({"listen": "192.0.2.7"}, ["may read and write all topics"]),
        ({"listen": "0.0.0.0"} | SECURED, []),
        ({"listen": "", "bookie_host": "::"}, ["may read and write all topics", "may read all entries"]),
        ({"metadata": "etcd://h:1"}, ["only processes of this machine reach them"]),
        ({"metadata": "etcd://h:1", "bookie_host": "0.0.0.0"}, ["may read all entries"]),
    ],
)
def test_each_open_port_has_one_warning(given: dict[str, object], expected: list[str]) -> None:
    found = open_port_warnings(StandaloneConfig.model_validate(given))
    assert len(found) == len(expected)
    assert all(part in text for part, text in zip(expected, found, strict=True))


def test_bookies_of_a_standalone_with_authentication_stay_on_loopback() -> None:
    config = StandaloneConfig.model_validate({"bookie_host": "0.0.0.0"} | SECURED)
    with pytest.raises(ConfigError, match="bypasses authenticationEnabled"):
        open_port_warnings(config)


@pytest.mark.parametrize(
    ("given", "warned"),
    [
        ({}, False),
        (SECURED, True),
        (SECURED | {"bookkeeper_tls_trust_certs_file_path": "/ca.pem"}, True),
        (SECURED | {"bookkeeper_auth_plugin": "token", "bookkeeper_auth_parameters": "file:///t"}, False),
        (
            SECURED
            | {
                "bookkeeper_tls_client_authentication": True,
                "bookkeeper_tls_certificate_file_path": "/c",
                "bookkeeper_tls_key_file_path": "/k",
            },
            False,
        ),
    ],
)
def test_a_broker_without_credentials_for_bookies_gets_a_warning(given: dict[str, object], warned: bool) -> None:
    assert (missing_bookie_credentials(BrokerConfig.model_validate(given)) is not None) is warned
