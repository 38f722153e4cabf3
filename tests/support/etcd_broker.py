"""A broker of this process on a real etcd, with one bookie."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire_bookie.client import LedgerClient
from quire_bookie.env.chance import SystemChance
from quire_bookie.env.clock import SystemClock
from quire_bookie.env.local_disk import LocalDisk
from quire_bookie.metadata.opening import open_metadata_store
from quire_bookie.metadata.store import MetadataStore
from quire_bookie.server import BookieSettings, start_bookie
from quire_bookie.settings.disks import DiskRules
from quire_broker.broker_process import start_broker
from quire_broker.server.broker import BrokerSettings, RunningBroker
from quire_broker.settings.managed_ledger import ManagedLedgerSettings
from quire_broker.standalone import with_quorums
from quire_broker.topic.topics import TopicsSettings
from tests.support.broker_world import ASKED_TAKES
from tests.support.roomy_disk import NEVER_FULL


@dataclass
class EtcdBroker:
    """The running broker and its metadata session."""

    broker: RunningBroker
    session: MetadataStore


@asynccontextmanager
async def broker_on_etcd(
    folder: Path, etcd_url: str, broker_etcd_url: str | None = None, **settings: Any
) -> AsyncIterator[EtcdBroker]:
    """Run a bookie in the folder and a broker. `broker_etcd_url`: if the broker reaches etcd in another way."""
    clock, chance, disk = SystemClock(), SystemChance(), LocalDisk()
    async with AsyncExitStack() as undo:
        undo.callback(disk.close)
        of_bookie = await open_metadata_store(etcd_url)
        undo.push_async_callback(of_bookie.close)
        session = await open_metadata_store(broker_etcd_url or etcd_url)
        undo.push_async_callback(session.close)
        of_disk = BookieSettings(
            data_dir=str(folder / "bookie"),
            listen="127.0.0.1",
            advertise="127.0.0.1",
            port=0,
            disks=DiskRules(threshold=NEVER_FULL),
        )
        bookie = await start_bookie(of_disk, metadata=of_bookie, disk=disk, clock=clock, chance=chance)
        undo.push_async_callback(bookie.stop)
        client = await LedgerClient.open(session, clock=clock, chance=chance)
        undo.push_async_callback(client.close)
        of_broker = BrokerSettings(
            listen="127.0.0.1",
            advertise="127.0.0.1",
            port=0,
            http_port=None,
            topics=TopicsSettings(ledger=with_quorums(ManagedLedgerSettings(), 1)),
            balancing=ASKED_TAKES,
            **settings,
        )
        broker = await start_broker(of_broker, metadata=session, ledger_client=client, clock=clock, chance=chance)
        undo.push_async_callback(broker.stop)
        yield EtcdBroker(broker, session)
