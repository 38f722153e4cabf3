"""The warnings of a standalone's start about who reaches its ports."""

import pytest

from quire_broker.cli.open_doors import open_doors
from quire_broker.config import StandaloneConfig

SECURED = {"authentication_enabled": True, "authentication_providers": "token", "token_secret_key": "file:///k"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, []),
        ({"listen": "0.0.0.0"}, ["may read and write all topics"]),
        ({"listen": "192.0.2.7"}, ["may read and write all topics"]),
        ({"listen": "0.0.0.0"} | SECURED, []),
        ({"bookie_host": "0.0.0.0"} | SECURED, ["may read all entries"]),
        ({"listen": "", "bookie_host": "::"}, ["may read and write all topics", "may read all entries"]),
        ({"metadata": "etcd://h:1"}, ["only processes of this machine reach them"]),
        ({"metadata": "etcd://h:1", "bookie_host": "0.0.0.0"}, ["may read all entries"]),
    ],
)
def test_each_open_door_has_one_warning(given: dict[str, object], expected: list[str]) -> None:
    found = open_doors(StandaloneConfig.model_validate(given))
    assert len(found) == len(expected)
    assert all(part in text for part, text in zip(expected, found, strict=True))
