"""Runs `quire bookie start`: acquires the process's resources in order and releases them in reverse."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from quire_bookie import bulk
from quire_bookie.cli.bookie_settings import bookie_settings
from quire_bookie.cli.commands import EXIT_FAILED
from quire_bookie.cli.data_folder import BOOKIE_FOLDER, claim_data_folder, warn_of_open_folders
from quire_bookie.cli.metadata_settings import shared_metadata_url
from quire_bookie.cli.open_file_shares import fit_access, fit_bookie
from quire_bookie.cli.own_address import require_own_address
from quire_bookie.cli.process import unless_stopped
from quire_bookie.config.bookie import BookieConfig
from quire_bookie.env.chance import SystemChance
from quire_bookie.env.clock import SystemClock
from quire_bookie.env.disk import Disk
from quire_bookie.env.local_disk import LocalDisk
from quire_bookie.env.machine import process_age_s
from quire_bookie.env.span_export import SpanExport, open_span_export
from quire_bookie.env.tls import ServedContext
from quire_bookie.metadata.opening import open_metadata_store
from quire_bookie.metadata.store import MetadataStore
from quire_bookie.server import start_bookie
from quire_bookie.server.process import RunningBookie
from quire_bookie.server.settings import BookieSettings
from quire_bookie.server.start.start_steps import StartSteps

log = logging.getLogger("quire.bookie")


async def serve(config: BookieConfig, stop: asyncio.Event) -> int:
    """Serve until `stop` is set, even during the start, or the bookie fails. Returns the exit code.

    ConfigError, StartupError, DamagedError.
    """
    async with contextlib.AsyncExitStack() as undo:
        running = await unless_stopped(_start(config, undo), stop)
        if running is None:
            return 0
        return await _until_end(running.failed, running.settings.poisoned_reads_s, stop)


async def _start(config: BookieConfig, undo: contextlib.AsyncExitStack) -> RunningBookie:
    """Start everything; `undo` releases it, also after an error or a cancellation."""
    steps = StartSteps()
    age_s = process_age_s()
    if age_s is not None:
        steps.note("process", age_s)
    began_s = asyncio.get_running_loop().time()
    url = shared_metadata_url(config.metadata, BookieConfig.key_of("metadata"))
    require_own_address(config.listen, BookieConfig.key_of("listen"))
    settings = fit_bookie(bookie_settings(config))
    disk = LocalDisk(journal_submit=config.journal_submit)
    undo.callback(disk.close)
    if not (config.journal_directories and config.ledger_directories):
        undo.callback((await claim_data_folder(disk, settings.data_dir, BOOKIE_FOLDER)).release)
        warn_of_open_folders([settings.data_dir, *_data_folders(settings)])
    else:
        warn_of_open_folders(_data_folders(settings))
    listening = None
    tls: ServedContext | None = None
    if config.http_port >= 0:
        from quire_bookie.admin.listening import listen, port_of
        from quire_bookie.cli.http_tls import http_tls

        tls = await http_tls(config)
        listening = listen(config.listen, config.http_port)
        undo.callback(listening.close)
        settings = replace(settings, http_port=port_of(listening))
    spans = open_span_export(settings.service.traces, "quire-bookie")
    if spans is not None:
        undo.callback(spans.close)
    with steps.step("metadata"):
        metadata = await open_metadata_store(url, settings.metadata)
    undo.push_async_callback(metadata.close)
    running = await start_bookie(
        settings, metadata=metadata, disk=disk, clock=SystemClock(), chance=SystemChance(), steps=steps, spans=spans
    )
    undo.push_async_callback(running.stop)
    if config.auto_recovery:
        from quire_bookie.cli.serve_autorecovery import start_beside

        recovery = await start_beside(config, metadata, str(running.bookie_id))
        undo.push_async_callback(recovery.stop)
        recovery.failed.add_done_callback(lambda failed: _recovery_died(failed, running))
    steps.note("total", asyncio.get_running_loop().time() - began_s + (age_s or 0.0))
    if listening is not None:
        undo.push_async_callback(await _serve_admin(config, running, metadata, disk, listening, tls, spans))
    log.info("steps over whole buffers: %s", "native" if bulk.IS_NATIVE else "plain Python (`make native` is faster)")
    log.info("started in %.2f s: %s", steps.seconds["total"], steps.text())
    where = ", ".join(_data_folders(settings))
    log.info("clients connect to %s:%d; data is in %s", settings.advertise, running.port, where)
    return running


def _recovery_died(failed: "asyncio.Future[BaseException]", running: RunningBookie) -> None:
    """End the bookie: without auto-recovery the process would look healthy although half of it has failed."""
    if not running.failed.done():
        running.failed.set_result(failed.result())


def _data_folders(settings: BookieSettings) -> list[str]:
    """Return every folder that contains data."""
    index = (settings.index_dir,) if settings.index_dir else ()
    return list(dict.fromkeys((*settings.journal_paths, *settings.ledger_paths, *index)))


async def _serve_admin(
    config: BookieConfig,
    running: RunningBookie,
    metadata: MetadataStore,
    disk: Disk,
    listening: socket.socket,
    tls: ServedContext | None,
    spans: SpanExport | None,
) -> Callable[[], Awaitable[None]]:
    """Start the admin server; return its stop function. Imported late: it would double the time to the first add."""
    from quire_bookie.admin.listening import port_of
    from quire_bookie.admin.web import BookieWeb
    from quire_bookie.cli.admin_access import admin_access
    from quire_bookie.cli.client_security_settings import own_client_security_settings
    from quire_bookie.exposition.spans import SpanCollector
    from quire_bookie.settings.client import ClientSettings

    client = config.part(ClientSettings, security=own_client_security_settings(config))
    web = BookieWeb(
        metadata,
        disk,
        config.shown(),
        clock=SystemClock(),
        chance=SystemChance(),
        client_settings=client,
        access=fit_access(admin_access(config, running.guard.provider, running.settings.advertise)),
        collectors=() if spans is None else (SpanCollector(spans),),
    )
    await web.open(listening, tls)
    web.serve(running)
    where = f"{'http' if tls is None else 'https'}://{running.settings.advertise}:{port_of(listening)}"
    log.info("health, metrics and admin: %s/healthz, /readyz, /metrics, /api/v1", where)
    return web.close


async def _until_end(failed: "asyncio.Future[BaseException]", reads_s: float, stop: asyncio.Event) -> int:
    asked = asyncio.ensure_future(stop.wait())
    ends: tuple[asyncio.Future[Any], ...] = (asked, failed)
    try:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if not failed.done():
            return 0
        # Durable entries can still be read for a while; a new process replays the journal and starts clean.
        log.error("this process ends in %.0f s: %s", reads_s, failed.result())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asked, reads_s)
        return EXIT_FAILED
    finally:
        asked.cancel()
