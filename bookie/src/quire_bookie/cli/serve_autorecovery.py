"""Runs `quire autorecovery`, and auto-recovery in a bookie's process. A failing part ends the process."""

import asyncio
import contextlib
import logging
import socket
from typing import TYPE_CHECKING

from quire_bookie.cli.client_security_settings import (
    client_security_settings,
    own_client_security_settings,
    require_own_token,
)
from quire_bookie.cli.commands import EXIT_FAILED
from quire_bookie.cli.metadata_settings import metadata_settings, shared_metadata_url
from quire_bookie.cli.process import unless_stopped
from quire_bookie.config.auto_recovery import AutoRecoveryProcessConfig
from quire_bookie.config.bookie import BookieConfig
from quire_bookie.env.chance import SystemChance
from quire_bookie.env.clock import SystemClock
from quire_bookie.env.tls import ServedContext
from quire_bookie.metadata.initialise import wait_until_initialised
from quire_bookie.metadata.opening import open_metadata_store
from quire_bookie.metadata.store import MetadataStore
from quire_bookie.recovery import RunningAutoRecovery, start_auto_recovery
from quire_bookie.settings.client import ClientSettings
from quire_bookie.settings.recovery import RecoverySettings

if TYPE_CHECKING:
    from quire_bookie.admin.access import AdminAccess

log = logging.getLogger("quire.autorecovery")


async def serve(config: AutoRecoveryProcessConfig, stop: asyncio.Event) -> int:
    """Run until `stop` is set, even during the start, or a part fails. The exit code. ConfigError or StartupError."""
    async with contextlib.AsyncExitStack() as undo:
        running = await unless_stopped(_start(config, undo), stop)
        if running is None:
            return 0
        asked = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait((asked, running.failed), return_when=asyncio.FIRST_COMPLETED)
        finally:
            asked.cancel()
        return EXIT_FAILED if running.failed.done() else 0


async def _start(config: AutoRecoveryProcessConfig, undo: contextlib.AsyncExitStack) -> RunningAutoRecovery:
    url = shared_metadata_url(config.metadata, AutoRecoveryProcessConfig.key_of("metadata"))
    name = config.name or socket.gethostname()
    listening = None
    tls: ServedContext | None = None
    access: AdminAccess | None = None
    if config.http_port >= 0:
        from quire_bookie.admin.listening import listen
        from quire_bookie.cli.admin_access import recovery_access
        from quire_bookie.cli.http_tls import http_tls
        from quire_bookie.cli.open_file_shares import fit_access

        tls = await http_tls(config)
        access = fit_access(await recovery_access(config, SystemClock(), undo))
        listening = listen(config.listen, config.http_port)
        undo.callback(listening.close)
    metadata = await open_metadata_store(url, metadata_settings(config.metadata_session_timeout_ms, config))
    undo.push_async_callback(metadata.close)
    await wait_until_initialised(metadata, log.warning)
    running = await start_auto_recovery(
        config.part(RecoverySettings),
        metadata=metadata,
        clock=SystemClock(),
        chance=SystemChance(),
        name=name,
        client_settings=config.part(ClientSettings, security=client_security_settings(config)),
    )
    undo.push_async_callback(running.stop)
    if listening is not None:
        from quire_bookie.admin.listening import port_of
        from quire_bookie.admin.recovery_web import RecoveryWeb

        assert access is not None, "created where the port was opened"
        web = RecoveryWeb(metadata, running, SystemClock(), access)
        await web.open(listening, tls)
        undo.push_async_callback(web.close)
        scheme = "http" if tls is None else "https"
        log.info("health, metrics and admin: %s://%s:%d/healthz, /api/v1", scheme, name, port_of(listening))
    log.info("auto-recovery of the cluster at %s runs as %s", url, name)
    return running


async def start_beside(config: BookieConfig, metadata: MetadataStore, name: str) -> RunningAutoRecovery:
    """Start auto-recovery in a bookie's process, using the bookie's own session."""
    require_own_token(config)
    log.info("auto-recovery runs in this process")
    return await start_auto_recovery(
        config.part(RecoverySettings),
        metadata=metadata,
        clock=SystemClock(),
        chance=SystemChance(),
        name=name,
        client_settings=config.part(ClientSettings, security=own_client_security_settings(config)),
    )
