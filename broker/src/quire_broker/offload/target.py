"""The target of offloaded ledgers: driver and properties as in a managed ledger's metadata, and its URL.

    driver                  URL                         properties
    aws-s3, S3, aliyun-oss  s3://<bucket>               bucket, region, serviceEndpoint
    google-cloud-storage    gs://<bucket>               bucket, region
    azureblob               az://<container>            bucket
    quire-folder            file://<folder>             bucket: the folder's whole path

The names are Pulsar's, except `quire-folder`, which Pulsar does not know. Objects are at the root of the
bucket. Credentials are never part of it: they come from the usual chain of the process that opens the target.
"""

from collections.abc import Mapping
from dataclasses import field
from typing import Final
from urllib.parse import urlsplit

from quire_bookie.dataclass import dataclass
from quire_bookie.errors import ConfigError
from quire_bookie.object_store.store import ObjectStore

FOLDER_DRIVER: Final = "quire-folder"
_SCHEMES: Final = {
    "aws-s3": "s3",
    "S3": "s3",
    "aliyun-oss": "s3",
    "google-cloud-storage": "gs",
    "azureblob": "az",
    FOLDER_DRIVER: "file",
}
_PROVIDERS: Final = {
    "aws-s3": "AWS_S3",
    "S3": "S3",
    "aliyun-oss": "ALIYUN_OSS",
    "google-cloud-storage": "GOOGLE_CLOUD_STORAGE",
    "azureblob": "AZURE_BLOB",
    FOLDER_DRIVER: FOLDER_DRIVER,
}
_DRIVERS_OF_SCHEMES: Final = {
    "s3": "aws-s3",
    "gs": "google-cloud-storage",
    "az": "azureblob",
    "file": FOLDER_DRIVER,
}
DRIVERS: Final = tuple(_SCHEMES)


@dataclass(frozen=True, slots=True)
class OffloadTarget:
    """A bucket or folder. `bucket` of a folder is its whole path. Empty `region`, `endpoint` mean the process's."""

    driver: str
    bucket: str
    region: str = ""
    endpoint: str = field(default="")

    @classmethod
    def from_properties(cls, driver: str, properties: Mapping[str, str]) -> "OffloadTarget":
        """Return the target of a managed ledger's metadata, or of a request. ConfigError if it is invalid."""
        known = next((name for name in DRIVERS if name.lower() == driver.lower()), None)
        if known is None:
            raise ConfigError(f"offload driver {driver!r}: use one of {', '.join(DRIVERS)}")
        target = cls(
            known,
            properties.get("bucket", ""),
            properties.get("region", ""),
            properties.get("serviceEndpoint", ""),
        )
        if not target.bucket:
            raise ConfigError(f"offload driver {known} without a bucket: give the property bucket")
        return target

    @classmethod
    def from_url(cls, url: str, *, region: str = "", endpoint: str = "") -> "OffloadTarget":
        """Return the target of s3://bucket, gs://bucket, az://container or file:///folder. ConfigError."""
        parts = urlsplit(url)
        driver = _DRIVERS_OF_SCHEMES.get(parts.scheme)
        if driver is None:
            raise ConfigError(f"{url}: use s3://bucket, gs://bucket, az://container or file:///folder")
        if driver == FOLDER_DRIVER:
            return cls(driver, parts.path)
        if parts.path.strip("/"):
            raise ConfigError(
                f"{url}: offloaded ledgers are at the root of a bucket, where stock brokers expect them; "
                "name a separate bucket, without a folder"
            )
        return cls(driver, parts.netloc, region, endpoint)

    @property
    def url(self) -> str:
        """The URL, for messages."""
        return f"{_SCHEMES[self.driver]}://{self.bucket}"

    @property
    def described(self) -> str:
        """All fields, for messages."""
        return f"{self.driver} {self.url}, region {self.region or '-'}, endpoint {self.endpoint or '-'}"

    @property
    def properties(self) -> dict[str, str]:
        """The properties for the managed ledger's metadata, in Pulsar's order."""
        return {
            "managedLedgerOffloadDriver": _PROVIDERS[self.driver],
            "bucket": self.bucket,
            "region": self.region,
            "serviceEndpoint": self.endpoint,
        }


def open_target(target: OffloadTarget, environment: Mapping[str, str]) -> ObjectStore:
    """Return the object store of a target without contacting it. `environment`: source of credentials. ConfigError."""
    # Imported here so that its library is loaded only by processes that offload.
    from quire_bookie.object_store.opening import open_object_store

    given = dict(environment)
    if target.region:
        given["AWS_REGION"] = target.region
    return open_object_store(target.url, given, target.endpoint or None)
