"""Runs `quire standalone` and `quire broker start`: acquires resources, and releases them in reverse order."""

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from quire_bookie.cli.client_security_settings import client_security_settings
from quire_bookie.cli.data_folder import STANDALONE_FOLDER, claim_data_folder, warn_of_open_folders
from quire_bookie.cli.metadata_settings import metadata_settings, shared_metadata_url
from quire_bookie.cli.own_address import require_own_address
from quire_bookie.cli.process import unless_stopped
from quire_bookie.client import LedgerClient
from quire_bookie.env.chance import SystemChance
from quire_bookie.env.clock import SystemClock
from quire_bookie.env.local_disk import LocalDisk
from quire_bookie.env.span_export import SpanExport, open_span_export
from quire_bookie.errors import StartupError
from quire_bookie.metadata.initialise import wait_until_initialised
from quire_bookie.metadata.opening import open_metadata_store
from quire_bookie.metadata.restoration import read_restoration, wait_until_settled
from quire_bookie.settings.client import ClientSettings
from quire_broker.broker_process import start_broker
from quire_broker.cli.broker_settings import LOCAL, broker_settings, metadata_url, standalone_settings
from quire_broker.cli.ledger_password import configured_password, standalone_password
from quire_broker.cli.listeners_file import with_listeners_of_file
from quire_broker.cli.open_file_shares import fit_broker, fit_standalone
from quire_broker.cli.open_ports import missing_bookie_credentials, open_port_warnings
from quire_broker.cli.status_line import Sample, StatusLine, log_status, own_command, standalone_banner
from quire_broker.config.broker import BrokerConfig, StandaloneConfig
from quire_broker.dispatch.entry_filters import filters_with
from quire_broker.server.broker import RunningBroker
from quire_broker.standalone import RunningStandalone, run_standalone

if TYPE_CHECKING:
    from quire_bookie.exposition.rendering import Collector

LOOK_INTERVAL_S = 1.0
STORAGE_INTERVAL_S = 10.0
log = logging.getLogger("quire.process")


async def serve_standalone(config: StandaloneConfig, stop: asyncio.Event) -> int:
    """Serve until `stop` is set, which may happen during the start; return the exit code.

    ConfigError, StartupError, DamagedError: everything acquired is released.
    """
    require_own_address(config.listen, "--host (bindAddress)")
    require_own_address(config.bookie_host, "--bookie-host (bookieBindAddress)")
    for warning in open_port_warnings(config):
        log.warning("%s", warning)
    filters_with(config.entry_filters)  # before anything is opened
    settings = fit_standalone(standalone_settings(config))
    async with contextlib.AsyncExitStack() as undo, _plain_errors():
        disk = LocalDisk(journal_submit=config.journal_submit)
        undo.callback(disk.close)
        running = await unless_stopped(_start_standalone(config, settings.data, disk, undo), stop)
        if running is None:
            return 0
        where = f"{settings.data}/metadata" if config.metadata == LOCAL else config.metadata
        bookies = [(str(bookie.bookie_id), bookie.port) for bookie in running.bookies]
        banner = standalone_banner(
            running.broker.urls,
            bookies,
            settings.data,
            where,
            own_command(sys.argv[0]),
            has_console=running.broker.settings.console.enabled,
        )
        print(banner, flush=True)
        await _until_stopped(running.broker, stop, lambda: disk.folder_bytes(settings.data))
    return 0


async def _start_standalone(
    config: StandaloneConfig, data: str, disk: LocalDisk, undo: contextlib.AsyncExitStack
) -> RunningStandalone:
    """Start everything; `undo` releases it, even after an error or a cancellation."""
    undo.callback((await claim_data_folder(disk, data, STANDALONE_FOLDER)).release)
    warn_of_open_folders([data])
    chance = SystemChance()
    password = await standalone_password(config, data, chance)
    metadata = await open_metadata_store(
        metadata_url(config), metadata_settings(config.metadata_session_timeout_ms, config)
    )
    undo.push_async_callback(metadata.close)
    if config.metadata == LOCAL and (held := await read_restoration(metadata)) is not None:
        raise StartupError(
            f"the metadata in {data}/metadata lacks commits ({held.value.backup}): nothing is started before "
            f"`quire metadata orphans list --data {data}`, `orphans adopt` or `orphans drop`, and "
            "`release-hold` settle which ledgers the bookies hold beyond it"
        )
    settings = fit_standalone(standalone_settings(config, password))
    spans = open_span_export(settings.broker.traces, "quire-standalone")
    if spans is not None:
        undo.callback(spans.close)
    running = await run_standalone(
        settings, metadata=metadata, disk=disk, clock=SystemClock(), chance=chance, spans=spans
    )
    undo.push_async_callback(running.stop)
    return running


async def serve_broker(config: BrokerConfig, stop: asyncio.Event) -> int:
    """Serve until `stop` is set, which may happen during the start; return the exit code.

    ConfigError, StartupError, MetadataUnavailableError.
    """
    async with contextlib.AsyncExitStack() as undo, _plain_errors():
        broker = await unless_stopped(_start_broker(config, undo), stop)
        if broker is None:
            return 0
        print(f"Pulsar clients: {broker.urls.clients}\nREST, metrics:  {broker.urls.web}", flush=True)
        await _until_stopped(broker, stop, None)
    return 0


async def _start_broker(config: BrokerConfig, undo: contextlib.AsyncExitStack) -> RunningBroker:
    """Start everything; `undo` releases it, even after an error or a cancellation."""
    url = shared_metadata_url(config.metadata, BrokerConfig.key_of("metadata"))
    require_own_address(config.listen, BrokerConfig.key_of("listen"))
    if (warning := missing_bookie_credentials(config)) is not None:
        log.warning("%s", warning)
    filters_with(config.entry_filters)  # before anything is opened
    config = with_listeners_of_file(config, os.environ)
    settings = fit_broker(broker_settings(config, await configured_password(config)))
    clock, chance = SystemClock(), SystemChance()
    metadata = await open_metadata_store(url, metadata_settings(config.metadata_session_timeout_ms, config))
    undo.push_async_callback(metadata.close)
    await wait_until_initialised(metadata, log.warning)
    await wait_until_settled(metadata, log.warning)
    bookies = config.part(ClientSettings, security=client_security_settings(config))
    client = await LedgerClient.open(metadata, bookies, clock=clock, chance=chance)
    undo.push_async_callback(client.close)
    needed = settings.topics.ledger.ensemble_size
    if client.ensemble_max < needed:
        log.warning(
            "%d bookies are writable, an ensemble can have %d; topics need %d",
            len(client.writable_bookies),
            client.ensemble_max,
            needed,
        )
    spans = open_span_export(settings.traces, "quire-broker")
    if spans is not None:
        undo.callback(spans.close)
    broker = await start_broker(
        settings,
        metadata=metadata,
        ledger_client=client,
        clock=clock,
        chance=chance,
        more_collectors=partial(_span_collectors, spans),
        spans=spans,
    )
    undo.push_async_callback(broker.stop)
    return broker


def _span_collectors(spans: SpanExport | None) -> "list[Collector]":
    """Return the metrics of the spans. Imported late, as the HTTP server is."""
    from quire_bookie.exposition.spans import SpanCollector

    return [] if spans is None else [SpanCollector(spans)]


@contextlib.asynccontextmanager
async def _plain_errors() -> AsyncIterator[None]:
    """Report file system errors during the start in one line, like all other errors."""
    try:
        yield
    except OSError as error:
        raise StartupError(f"{error.filename or 'the file system'}: {error.strerror or error}") from error


async def _until_stopped(
    broker: RunningBroker, stop: asyncio.Event, storage_bytes: Callable[[], Awaitable[int]] | None
) -> None:
    """Show the progress until `stop` is set."""
    line = StatusLine() if sys.stdout.isatty() else None
    used: int | None = None
    before = _sample(broker, used)
    rounds = 0
    with line or contextlib.nullcontext():
        while not stop.is_set():
            if storage_bytes is not None and rounds % int(STORAGE_INTERVAL_S / LOOK_INTERVAL_S) == 0:
                used = await storage_bytes()
            rounds += 1
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), LOOK_INTERVAL_S)
            now = _sample(broker, used)
            if line is not None:
                line.show(before, now)
                before = now
            elif now.at_s - before.at_s >= STORAGE_INTERVAL_S:
                log_status(log, before, now)
                before = now
    log.info("stopping")


def _sample(broker: RunningBroker, storage_bytes: int | None) -> Sample:
    stats = broker.parts.stats
    return Sample(
        at_s=asyncio.get_running_loop().time(),
        messages_in=stats.messages_in,
        bytes_in=stats.bytes_in,
        messages_out=stats.messages_out,
        bytes_out=stats.bytes_out,
        connections=len(broker.sessions),
        topics=broker.topics.count,
        storage_bytes=storage_bytes,
    )
