"""Targets by driver and properties and by URL."""

import pytest

from quire_bookie.errors import ConfigError
from quire_broker.offload.target import OffloadTarget, open_target


def test_a_url_and_its_properties_name_the_same_target() -> None:
    target = OffloadTarget.from_url("s3://ledgers", region="eu-north-1", endpoint="http://s3:9000")
    assert target.driver == "aws-s3" and target.url == "s3://ledgers"
    assert list(target.properties.items()) == [
        ("managedLedgerOffloadDriver", "AWS_S3"),
        ("bucket", "ledgers"),
        ("region", "eu-north-1"),
        ("serviceEndpoint", "http://s3:9000"),
    ]
    assert OffloadTarget.from_properties("AWS-S3", target.properties) == target
    assert open_target(target, {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}).url == "s3://ledgers"


@pytest.mark.parametrize(
    ("url", "driver"),
    [("gs://b", "google-cloud-storage"), ("az://c", "azureblob"), ("file:///data/old", "quire-folder")],
)
def test_each_kind_of_url_has_its_driver(url: str, driver: str) -> None:
    target = OffloadTarget.from_url(url)
    assert (target.driver, target.url) == (driver, url)
    assert OffloadTarget.from_properties(driver, target.properties) == target


@pytest.mark.parametrize(
    ("url", "says"), [("s3://b/folder", "root of a bucket"), ("http://x", "use s3://"), ("ftp://x", "use s3://")]
)
def test_a_url_that_stock_brokers_could_not_read_is_refused(url: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        OffloadTarget.from_url(url)


def test_unknown_drivers_and_missing_buckets_are_named() -> None:
    with pytest.raises(ConfigError, match="offload driver 'filesystem': use one of aws-s3"):
        OffloadTarget.from_properties("filesystem", {})
    with pytest.raises(ConfigError, match="aws-s3 without a bucket"):
        OffloadTarget.from_properties("aws-s3", {"region": "x"})
