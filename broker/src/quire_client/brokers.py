"""Finds the topics of one cluster. Owns the connections to its brokers."""

import asyncio
import ssl
from collections.abc import Callable
from urllib.parse import urlsplit

from quire_bookie.cli.client_access import ClientAccess
from quire_bookie.env.chance import Chance, SystemChance
from quire_bookie.env.clock import SystemClock, WallClock
from quire_bookie.errors import ConfigError
from quire_broker.wire.kinds import Kind, LookupType
from quire_broker.wire.proto import pulsar_pb2 as pb
from quire_client.connection import Connection
from quire_client.errors import (
    BrokerRefusedError,
    ClosedError,
    NoBrokerError,
    error_of,
)
from quire_client.options import ClientOptions

REDIRECTS_MAX = 20
_TLS_SCHEME = "pulsar+ssl"


class Brokers:
    """The brokers of one cluster, starting from the address of one of them or of a proxy."""

    def __init__(
        self,
        url: str,
        access: ClientAccess | Callable[[], ClientAccess] | None = None,
        options: ClientOptions | None = None,
        *,
        clock: WallClock | None = None,
        chance: Chance | None = None,
    ) -> None:
        """`url`: pulsar://host:port or pulsar+ssl://host:port.

        `access`: credentials and trusted certificates, or a function that returns the present ones: each new connection
        calls it, and so does a broker's request for fresh credentials.
        """
        self.url = url
        self.options = options or ClientOptions()
        self.clock = clock or SystemClock()
        self.chance = chance or SystemChance()
        fixed = ClientAccess() if access is None else access
        self._access = fixed if callable(fixed) else lambda: fixed
        self._connections: dict[tuple[str, str], Connection] = {}
        self._opening: dict[tuple[str, str], asyncio.Lock] = {}
        self._tls: ssl.SSLContext | None = None
        self._closed = False

    def close(self) -> None:
        """Close all connections. Producers and consumers fail; close them first."""
        self._closed = True
        for connection in list(self._connections.values()):
            connection.close()
        self._connections.clear()

    async def connection(self, url: str, proxied_to: str = "") -> Connection:
        """Return the connection to a broker, opening it if needed. BrokerRefusedError, ConfigError."""
        host, port = _address(url)
        place = (url, proxied_to)
        async with self._opening.setdefault(place, asyncio.Lock()):
            if self._closed:
                raise ClosedError("the client is closed")
            found = self._connections.get(place)
            if found is None or not found.is_open:
                found = self._connections[place] = await self._connect(url, host, port, proxied_to)
        return found

    async def _connect(self, url: str, host: str, port: int, proxied_to: str) -> Connection:
        tls = None
        if url.startswith(_TLS_SCHEME):
            tls = self._tls = self._tls or self._access().context()
        made = Connection(self._access, self.options, proxied_to)
        try:
            async with asyncio.timeout(self.options.answer_timeout_s):
                await asyncio.get_running_loop().create_connection(lambda: made, host, port, ssl=tls)
                await made.connected
        except TimeoutError as error:  # also of the operating system
            silent = "does not speak Pulsar's protocol" if made.is_made else "does not answer"
            made.close()
            raise NoBrokerError(f"the server at {url} {silent}") from error
        except ssl.SSLError as error:
            raise BrokerRefusedError(f"no TLS with {url}: {error.reason or error}") from error
        except OSError as error:
            raise NoBrokerError(
                f"no broker answers at {url} ({error.strerror or error}); is `quire standalone` running?"
            ) from error
        except UnicodeError as error:
            raise ConfigError(f"'{url}' is not a broker address: {host[:80]} is no name of a host") from error
        except BaseException:
            made.close()
            raise
        if self._closed:  # meanwhile
            made.close()
            raise ClosedError("the client is closed")
        return made

    async def partitions(self, topic: str, *, create: bool) -> list[str]:
        """Return the topics to use: the partitions, or the topic itself. NoSuchTopicError if it may not be created."""
        body = pb.CommandPartitionedTopicMetadata(topic=topic, metadata_auto_creation_enabled=create)
        reply = await (await self.connection(self.url)).ask(Kind.PARTITIONED_METADATA, "partition_metadata", body)
        if reply.response == 1:
            raise error_of(reply.error, reply.message, topic)
        return [f"{topic}-partition-{k}" for k in range(reply.partitions)] or [topic]

    async def owner(self, topic: str) -> Connection:
        """Return the connection to the broker that owns a topic. BrokerRefusedError."""
        url, authoritative = self.url, False
        connection = await self.connection(url)
        for _ in range(REDIRECTS_MAX):
            body = pb.CommandLookupTopic(topic=topic, authoritative=authoritative)
            reply = await connection.ask(Kind.LOOKUP, "lookup", body)
            if reply.response == LookupType.FAILED:
                raise error_of(reply.error, reply.message, topic)
            url = reply.brokerServiceUrlTls
            if not self.url.startswith(_TLS_SCHEME):
                url = reply.brokerServiceUrl or url
            elif not url.startswith(_TLS_SCHEME):  # never redirect to a plaintext port: it would receive our token
                raise BrokerRefusedError(f"{topic}: its broker has no port with TLS")
            authoritative = reply.authoritative
            if reply.response == LookupType.CONNECT and reply.proxy_through_service_url:
                return await self.connection(self.url, urlsplit(url).netloc)
            connection = await self.connection(url)
            if reply.response == LookupType.CONNECT:
                return connection
        raise BrokerRefusedError(f"{topic}: redirected {REDIRECTS_MAX} times")


def _address(url: str) -> tuple[str, int]:
    """Return host and port. ConfigError."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or (6651 if parts.scheme == _TLS_SCHEME else 6650)
    except ValueError:  # an invalid port, or a bracket without its other one
        host = None
    if host is None or parts.scheme not in ("pulsar", _TLS_SCHEME):
        raise ConfigError(f"'{url}' is not a broker address; use pulsar://host:port or {_TLS_SCHEME}://host:port")
    return host, port
