"""Runs `quire proxy`: acquires resources, and releases them in reverse order."""

import asyncio
import contextlib
import logging

from quire_bookie.cli.metadata_settings import metadata_settings, shared_metadata_url
from quire_bookie.cli.own_address import reaches_others, require_own_address
from quire_bookie.cli.process import unless_stopped
from quire_bookie.env.clock import SystemClock
from quire_bookie.errors import ConfigError
from quire_bookie.metadata.opening import open_metadata_store
from quire_bookie.metadata.store import MetadataStore
from quire_broker.admin.web import WebServer
from quire_broker.cli.open_file_shares import fit_proxy
from quire_broker.cli.proxy_settings import proxy_settings
from quire_broker.config.proxy import ProxyConfig
from quire_broker.proxy.proxy import RunningProxy
from quire_broker.proxy.web import make_app

log = logging.getLogger("quire.proxy")


async def serve(config: ProxyConfig, stop: asyncio.Event) -> int:
    """Serve until `stop` is set, which may happen during the start; return the exit code.

    ConfigError, StartupError, MetadataUnavailableError.
    """
    async with contextlib.AsyncExitStack() as undo:
        proxy = await unless_stopped(_start(config, undo), stop)
        if proxy is None:
            return 0
        urls = proxy.ports.urls
        print(f"Pulsar clients: {urls.clients}\nREST, metrics:  {urls.web}", flush=True)
        await stop.wait()
        log.info("stopping")
    return 0


async def _start(config: ProxyConfig, undo: contextlib.AsyncExitStack) -> RunningProxy:
    """Start everything; `undo` releases it, even after an error or a cancellation."""
    require_own_address(config.listen, ProxyConfig.key_of("listen"))
    if not config.authentication_enabled and reaches_others(config.listen, ProxyConfig.key_of("listen")):
        log.warning(
            "the proxy listens on %s without authentication: every client that reaches its ports is connected to "
            "brokers; set authenticationEnabled",
            config.listen,
        )
    metadata: MetadataStore | None = None
    if not config.native_url:
        if not config.metadata:
            raise ConfigError(
                "--metadata (metadataStoreUrl) is missing: name the cluster's etcd, e.g. etcd://localhost:2379, or the "
                "brokers, in brokerServiceURL"
            )
        url = shared_metadata_url(config.metadata, ProxyConfig.key_of("metadata"))
        metadata = await open_metadata_store(url, metadata_settings(config.metadata_session_timeout_ms, config))
        undo.push_async_callback(metadata.close)
    proxy = RunningProxy(fit_proxy(proxy_settings(config)), metadata, SystemClock())
    undo.push_async_callback(proxy.stop)
    await proxy.start(WebServer(make_app(proxy), proxy.settings.access.http))
    return proxy
