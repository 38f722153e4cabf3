"""Opens and closes the clients of a driver or task: metadata store, ledger client, buckets.

Ledgers are only opened without recovery: a recovery would fence their writer.
"""

import contextlib
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pydantic import Field

from quire_bookie.cli.client_security_settings import client_security_settings
from quire_bookie.cli.metadata_settings import metadata_settings
from quire_bookie.client import LedgerClient, LedgerReader
from quire_bookie.config.client_security import ClientSecurityConfig
from quire_bookie.config.ledger_client import LedgerClientConfig
from quire_bookie.config.metadata_access import MetadataAccessConfig
from quire_bookie.config.sources import SECRET, load
from quire_bookie.env.chance import SystemChance
from quire_bookie.env.clock import SystemClock
from quire_bookie.env.secret_file import secret_text
from quire_bookie.errors import (
    ConfigError,
    MetadataFormatError,
    NoSuchEntryError,
    NoSuchLedgerError,
    QuireError,
    StartupError,
    UnauthorizedError,
)
from quire_bookie.limits import METADATA_SESSION_TIMEOUT_S
from quire_bookie.metadata.opening import open_metadata_store
from quire_bookie.metadata.store import MetadataStore
from quire_bookie.metadata.url import EtcdLocation, parse_metadata_url
from quire_bookie.model import LedgerId
from quire_bookie.settings.client import ClientSettings
from quire_broker.managed_ledger.stored_passwords import to_read
from quire_broker.offload.tier import Tier
from quire_jobs.errors import JobOptionsError, NotFoundError, QuireJobError, SourceUnavailableError
from quire_jobs.source.broker_http import is_http_address
from quire_jobs.source.broker_metadata import open_broker_metadata


class SourceConfig(MetadataAccessConfig, ClientSecurityConfig, LedgerClientConfig):
    """Settings that are not options of the source: credentials, trusted certificates, behaviour of the ledger
    client."""

    managed_ledger_password: str = Field(
        "",
        alias="managedLedgerPassword",
        description="password of ledgers whose metadata name none, or file:///path",
        json_schema_extra=SECRET,
    )


class ClusterAddress(Protocol):
    """Address of a cluster, from options of the source or parameters of a job."""

    @property
    def metadata(self) -> str:
        """URL of the metadata store, etcd://host:port,host:port; or of a broker that reads it for us."""
        ...

    @property
    def config(self) -> str:
        """A file with more settings and credentials; empty for none."""
        ...


@dataclass(frozen=True, slots=True)
class Cluster:
    """The open clients of one cluster. Made by `open_cluster`."""

    metadata: MetadataStore
    client: LedgerClient
    tier: Tier
    password: bytes = field(repr=False)
    """Password of ledgers whose metadata contain none, as the oldest ledgers' do."""

    async def open_ledger(self, ledger_id: int) -> LedgerReader:
        """Return a reader that does not fence the ledger. Errors of the ledger client."""
        return await self.client.open_ledger(
            LedgerId(ledger_id), password=self.password, recover=False, accept_stored=to_read
        )


@asynccontextmanager
async def open_cluster(where: ClusterAddress, environment: Mapping[str, str] = os.environ) -> AsyncIterator[Cluster]:
    """Open the cluster at this address. Raises the errors that `as_job_errors` makes."""
    with as_job_errors():
        # One file may contain the settings of several kinds of processes.
        file = Path(where.config) if where.config else None
        config = load(SourceConfig, flags={}, environment=environment, file=file).config
        password = await secret_text(config.managed_ledger_password, config.key_of("managed_ledger_password"))
        async with contextlib.AsyncExitStack() as closing:
            metadata = await closing.enter_async_context(_open_metadata(where.metadata, config))
            client = await LedgerClient.open(
                metadata,
                config.part(ClientSettings, security=client_security_settings(config)),
                clock=SystemClock(),
                chance=SystemChance(),
            )
            await closing.enter_async_context(client)
            tier = Tier(environment=environment)
            closing.push_async_callback(tier.close)
            yield Cluster(metadata, client, tier, password)


@asynccontextmanager
async def _open_metadata(url: str, config: SourceConfig) -> AsyncIterator[MetadataStore]:
    if is_http_address(url):
        async with open_broker_metadata(url) as through_broker:
            yield through_broker
        return
    if not isinstance(parse_metadata_url(url), EtcdLocation):
        raise JobOptionsError(
            f"quire source: metadata = {url!r}: only one process can use the embedded store, and Spark runs several; "
            "give the HTTP address of its broker instead, http://host:8080"
        )
    metadata = await open_metadata_store(url, metadata_settings(int(METADATA_SESSION_TIMEOUT_S * 1000), config))
    try:
        yield metadata
    finally:
        await metadata.close()


@contextmanager
def as_job_errors() -> Iterator[None]:
    """Turn errors of Quire into errors that a job reports to its user."""
    try:
        yield
    except QuireJobError:
        raise
    except (ConfigError, StartupError) as error:
        raise JobOptionsError(f"quire source: {error}") from error
    except (NoSuchLedgerError, NoSuchEntryError) as error:
        raise NotFoundError(f"quire source: {error}") from error
    except (UnauthorizedError, MetadataFormatError) as error:
        raise QuireJobError(f"quire source: {error}") from error
    except QuireError as error:
        raise SourceUnavailableError(f"quire source: {error}") from error
