"""The URL of the metadata store: accepted forms, and clear errors for the rest."""

import pytest

from quire_bookie.errors import ConfigError
from quire_bookie.metadata.url import EtcdLocation, LocalLocation, parse_metadata_url
from quire_bookie.settings.metadata import MetadataSettings


@pytest.mark.parametrize(
    ("url", "location"),
    [
        ("local:/data/metadata", LocalLocation("/data/metadata")),
        ("local:relative/folder", LocalLocation("relative/folder")),
        ("local:///data", LocalLocation("/data")),
        ("etcd://h1:2379", EtcdLocation(("h1:2379",), False)),
        ("etcd://h1", EtcdLocation(("h1:2379",), False)),
        ("etcd://h1:1,h2:2,h1:1", EtcdLocation(("h1:1", "h2:2"), False)),
        ("etcd://https://h1:1,https://h2:2", EtcdLocation(("h1:1", "h2:2"), True)),
        ("etcd:http://h1:2379,http://h2:2379", EtcdLocation(("h1:2379", "h2:2379"), False)),
        ("etcd:https://h1:2379/", EtcdLocation(("h1:2379",), True)),
        ("metadata-store:etcd:http://h1:2379;http://h2:2379", EtcdLocation(("h1:2379", "h2:2379"), False)),
        ("etcd://[::1]:2379", EtcdLocation(("[::1]:2379",), False)),
        (" etcd://h1:1 ", EtcdLocation(("h1:1",), False)),
    ],
)
def test_each_form_names_its_store(url: str, location: object) -> None:
    assert parse_metadata_url(url) == location


@pytest.mark.parametrize(
    "url",
    [
        "",
        "local",
        "local:",
        "local://",
        "etcd",
        "etcd:",
        "etcd://",
        "etcd://h1:1,",
        "etcd://h1:port",
        "etcd://h1:99999",
        "etcd://h1:1/path",
        "etcd://h1:1?x=y",
        "etcd:ftp://h1:1",
        "etcd:http://h1:1,https://h2:2",
        "zk://h1:2181",
        "/just/a/path",
        "metadata-store:",
    ],
)
def test_an_invalid_url_is_a_config_error_that_quotes_it(url: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_metadata_url(url)
    assert repr(url) in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"session_timeout_s": 0.5},
        {"operation_timeout_s": 0},
        {"connect_timeout_s": -1},
        {"username": "u"},
        {"password": "p"},
        {"cert_path": "c"},
        {"key_path": "k"},
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        MetadataSettings(**settings)  # type: ignore[arg-type]
