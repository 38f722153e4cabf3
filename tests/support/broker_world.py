"""Brokers of this process on one metadata store and one bookie with a real disk, for tests of their ports."""

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from quire_bookie.client import LedgerClient
from quire_bookie.env.chance import SystemChance
from quire_bookie.env.clock import SystemClock
from quire_bookie.env.local_disk import LocalDisk
from quire_bookie.server import BookieSettings, start_bookie
from quire_bookie.settings.disks import DiskRules
from quire_broker.broker_process import start_broker
from quire_broker.server.broker import BrokerSettings, RunningBroker
from quire_broker.settings.balancing import BalancingSettings
from quire_broker.settings.console import ConsoleSettings
from quire_broker.settings.managed_ledger import ManagedLedgerSettings
from quire_broker.settings.metrics import MetricsSettings
from quire_broker.settings.websocket import WebSocketSettings
from quire_broker.standalone import with_quorums
from quire_broker.topic.topics import TopicsSettings
from tests.sim.metadata import SimMetadata, SimMetadataStore
from tests.support.roomy_disk import NEVER_FULL

ASKED_TAKES = BalancingSettings(enabled=False)
"""The broker that is asked first takes a bundle: a test knows the owner."""


@dataclass
class BrokerWorld:
    """The running brokers, and the metadata session and ledger client of each."""

    server: SimMetadata
    sessions: list[SimMetadataStore] = field(default_factory=list)
    clients: list[LedgerClient] = field(default_factory=list)
    brokers: list[RunningBroker] = field(default_factory=list)


@asynccontextmanager
async def running_brokers(
    folder: Path,
    count: int,
    balancing: BalancingSettings = ASKED_TAKES,
    metrics: MetricsSettings | None = None,
    of_broker: Callable[[int, BrokerSettings], BrokerSettings] = lambda _, common: common,
    console: ConsoleSettings | None = None,
    websocket: WebSocketSettings | None = None,
) -> AsyncIterator[BrokerWorld]:
    """Run a bookie in the folder and `count` brokers; stop them at the end. `of_broker`: settings of one."""
    clock, chance, disk = SystemClock(), SystemChance(), LocalDisk()
    world = BrokerWorld(SimMetadata(random.Random(1), delay_s=(0.0, 0.001)))
    bookie_settings = BookieSettings(
        data_dir=str(folder), listen="127.0.0.1", advertise="127.0.0.1", port=0, disks=DiskRules(threshold=NEVER_FULL)
    )
    store = SimMetadataStore(world.server)
    bookie = await start_bookie(bookie_settings, metadata=store, disk=disk, clock=clock, chance=chance)
    topics = TopicsSettings(ledger=with_quorums(ManagedLedgerSettings(), 1))
    settings = BrokerSettings(
        listen="127.0.0.1",
        advertise="127.0.0.1",
        port=0,
        http_port=0,
        topics=topics,
        balancing=balancing,
        metrics=metrics or MetricsSettings(),
        console=console or ConsoleSettings(),
        websocket=websocket or WebSocketSettings(),
    )
    try:
        for number in range(count):
            session = SimMetadataStore(world.server)
            client = await LedgerClient.open(session, clock=clock, chance=chance)
            world.sessions.append(session)
            world.clients.append(client)
            world.brokers.append(
                await start_broker(
                    of_broker(number, settings), metadata=session, ledger_client=client, clock=clock, chance=chance
                )
            )
        yield world
    finally:
        for broker in world.brokers:
            await broker.stop()
        for client in world.clients:
            await client.close()
        await bookie.stop()
        disk.close()
