"""Connects a proxy to brokers, with the proxy's credentials in the CONNECT of a client.

A link serves one client: the broker knows it by the original principal of its CONNECT. Must never be shared by clients.
"""

import ssl
from base64 import b64encode
from functools import partial

from quire_bookie.env.clock import WallClock
from quire_bookie.env.connection_memory import ConnectionMemory
from quire_bookie.env.secret_file import read_secret
from quire_bookie.env.tls import TlsContext, client_context
from quire_broker.errors import ServiceNotReadyError
from quire_broker.proxy.targets import Address
from quire_broker.proxy.towards_brokers import TowardsBrokers, credentials_in
from quire_broker.security.credentials import PASSED_ON, TOKEN
from quire_broker.server.broker_link import BrokerLink, LinkTarget, open_link
from quire_broker.settings.proxy import ProxyLimits
from quire_broker.wire.proto import pulsar_pb2 as pb


class BrokerConnector:
    """Opens links. Call `open` before use."""

    def __init__(
        self, towards: TowardsBrokers, bounds: ProxyLimits, memory: ConnectionMemory, clock: WallClock
    ) -> None:
        self._towards = towards
        self._limits = bounds
        self._memory = memory
        self._clock = clock
        self._tls: TlsContext | None = None

    async def open(self) -> None:
        """Read the certificates. ConfigError."""
        if self._towards.tls is not None:
            make = partial(client_context, check_host_name=self._towards.check_host_name)
            self._tls = TlsContext(self._towards.tls, make, self._towards.refresh_s, self._clock)
            await self._tls.open()

    @property
    def uses_tls(self) -> bool:
        """Whether brokers are reached over TLS."""
        return self._towards.tls is not None

    async def tls_context(self) -> ssl.SSLContext | None:
        """Return the context for a connection to a broker; None for plaintext."""
        return None if self._tls is None else await self._tls.current()

    async def _credentials(self) -> bytes:
        """Return the token of the proxy, or its user and password; empty if it has none.

        ServiceNotReadyError if their file cannot be used.
        """
        own = self._towards
        if own.method not in PASSED_ON:
            return b""
        try:
            shown = await read_secret(own.secret_path) if own.secret_path else own.secret.encode()
            return shown if own.method == TOKEN else credentials_in(shown.decode()).encode()
        except OSError as error:
            raise ServiceNotReadyError(f"the proxy cannot read its credentials: {error.strerror}") from error
        except ValueError as error:
            raise ServiceNotReadyError(f"the proxy cannot use {own.secret_path}: {error}") from error

    async def authorization(self) -> str:
        """Return the header with which the proxy proves itself to brokers; empty if it has no credentials.

        ServiceNotReadyError.
        """
        shown = await self._credentials()
        if not shown:
            return ""
        return f"Bearer {shown.decode()}" if self._towards.method == TOKEN else f"Basic {b64encode(shown).decode()}"

    async def connect(self, address: Address, hello: pb.CommandConnect) -> BrokerLink:
        """Return a link whose broker has accepted `hello`, with the proxy's credentials added.

        RefusedByBrokerError, ServiceNotReadyError.
        """
        own = pb.CommandConnect()
        own.CopyFrom(hello)
        own.ClearField("auth_method")
        own.auth_method_name = self._towards.method or "none"
        own.auth_data = await self._credentials()
        link = BrokerLink(own)
        target = LinkTarget(address.host, address.port, await self.tls_context())
        bounds = self._limits
        await open_link(
            link, target, self._memory, keep_alive_s=bounds.keep_alive_s, timeout_s=bounds.connect_timeout_s
        )
        return link
