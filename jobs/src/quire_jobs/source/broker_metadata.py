"""Reads the metadata of a cluster through the HTTP port of a broker. Writes nothing.

For clusters whose metadata store a job does not reach: the embedded one of `quire standalone`, or an etcd that admits
only brokers and bookies. The broker serves the nodes that readers need (`quire_broker.admin.metadata_nodes`), to super
users. A watch asks for a new listing every few seconds, because the broker reports no changes.
"""

import asyncio
from base64 import b64decode
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Any, Final, NoReturn, TypeVar
from urllib.parse import urlencode

from quire_bookie.env.backoff import Backoff
from quire_bookie.errors import MetadataError, MetadataUnavailableError
from quire_bookie.limits import METADATA_RETRY_BACKOFF_S, METADATA_VALUE_BYTES_MAX
from quire_bookie.metadata import layout
from quire_bookie.metadata.event_queue import EventQueue
from quire_bookie.metadata.retrying import retry_unavailable
from quire_bookie.metadata.store import Check, Get, Node, Operation, Read, SessionState
from quire_jobs.errors import QuireJobError, SourceUnavailableError
from quire_jobs.source.broker_http import BrokerHttp, require_success

T = TypeVar("T")
_PATH: Final = "/admin/quire/metadata"
_RETRIES_S: Final = 20.0
"""Time for which a request is sent again while the broker does not answer, for instance while it starts again."""
_WATCH_S: Final = 10.0
_LINE_BYTES_MAX: Final = 2 * METADATA_VALUE_BYTES_MAX
_READ_ONLY: Final = "metadata that are read through a broker cannot be changed; use the URL of the metadata store"


class BrokerMetadata:
    """Implements `MetadataStore` for readers. Made by `open_broker_metadata`."""

    def __init__(self, brokers: BrokerHttp) -> None:
        self._brokers = brokers
        self._watches: list[_Polled] = []

    # ---- reads
    async def get(self, key: str) -> Node | None:
        """Return the node, or None."""
        ((*found,),) = await self.read([Get(key)])
        return found[0] if found else None

    async def read(self, reads: Sequence[Read]) -> list[list[Node]]:
        """Return the nodes of each read, all of one state. Only single nodes can be read: MetadataError otherwise."""
        keys = [read.key for read in reads if isinstance(read, Get)]
        if len(keys) < len(reads):
            raise MetadataError("a broker reads single nodes or whole folders, not the first nodes of a folder")
        found = await self._ask(f"{_PATH}/nodes?{urlencode([('key', key) for key in keys])}")
        return [[] if one is None else [_node(one)] for one in found]

    async def children(self, key: str) -> list[str]:
        """Return the names of the direct children, sorted."""
        return [str(name) for name in await self._ask(f"{_PATH}/children?{urlencode({'key': key})}")]

    async def count(self, prefix: str) -> int:
        """Return the number of nodes under the prefix."""
        return sum([len(page) async for page in self.scan(prefix, keys_only=True)])

    async def scan(self, prefix: str, *, page_keys: int = 1000, keys_only: bool = False) -> AsyncIterator[list[Node]]:
        """Yield pages of one state. MetadataUnavailableError if the broker ends the response early."""
        query = urlencode({"prefix": prefix, "keysOnly": str(keys_only).lower()})
        lines, first = await self._retried(lambda: self._begun(f"{_PATH}/scan?{query}"))
        async with aclosing(lines):
            page: list[Node] = []
            line: Any = first
            while line is not None and "key" in line:
                page.append(_node(line))
                if len(page) == page_keys:
                    yield page
                    page = []
                line = await _as_metadata_errors(anext(lines, None))
        if line is None or "nodes" not in line:
            reason = "the response is incomplete" if line is None else line.get("reason")
            raise MetadataUnavailableError(f"the listing of {prefix} ended early, try again: {reason}")
        if page:
            yield page

    async def _begun(self, path: str) -> tuple[Any, Any]:
        lines = self._brokers.lines(path, _LINE_BYTES_MAX)
        return lines, await _as_metadata_errors(anext(lines, None))

    async def _ask(self, path: str) -> Any:
        async def work() -> Any:
            return require_success(*await self._brokers.ask("GET", path), path)

        return await self._retried(lambda: _as_metadata_errors(work()))

    async def _retried(self, work: Callable[[], Awaitable[T]]) -> T:
        return await retry_unavailable(work, Backoff(METADATA_RETRY_BACKOFF_S), _RETRIES_S)

    async def watch(self, prefix: str) -> EventQueue:
        """Follow the nodes under the prefix: the reader lists them again every few seconds."""
        self._watches = [one for one in self._watches if not one.closed]
        watch = _Polled(prefix)
        self._watches.append(watch)
        return watch

    @property
    def connection_breaks(self) -> int:
        """Always 0: each request has its own outcome."""
        return 0

    def on_session(self, listener: Callable[[SessionState], None]) -> Callable[[], None]:
        """Do nothing: a reader has no session. Returns a function that does nothing."""
        return lambda: None

    async def close(self) -> None:
        """End the watches."""
        for watch in self._watches:
            await watch.close()

    # ---- writes
    async def put(self, key: str, value: bytes, *, expected: int | None = None, ephemeral: bool = False) -> int:
        """Refuse: MetadataError."""
        _refuse()

    async def put_sequential(self, prefix: str, value: bytes, *, ephemeral: bool = False) -> str:
        """Refuse: MetadataError."""
        _refuse()

    async def delete(self, key: str, *, expected: int | None = None) -> None:
        """Refuse: MetadataError."""
        _refuse()

    async def transact(
        self, checks: Sequence[Check], operations: Sequence[Operation], reads: Sequence[Read] = ()
    ) -> list[list[Node]]:
        """Refuse: MetadataError."""
        _refuse()


@asynccontextmanager
async def open_broker_metadata(http: str) -> AsyncIterator[BrokerMetadata]:
    """Open the metadata behind a broker. Raises JobOptionsError, SourceUnavailableError; QuireJobError if the broker
    does not permit it."""
    async with AsyncExitStack() as closing:
        brokers = await closing.enter_async_context(BrokerHttp(http))
        path = f"{_PATH}/nodes?{urlencode({'key': layout.INSTANCE_ID})}"
        require_success(*await brokers.ask("GET", path), f"metadata through {http}")
        metadata = BrokerMetadata(brokers)
        closing.push_async_callback(metadata.close)
        yield metadata


class _Polled(EventQueue):
    """A watch whose reader lists everything again every few seconds."""

    def __init__(self, prefix: str) -> None:
        super().__init__(prefix)
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(_WATCH_S, self._due)

    def _due(self) -> None:
        self.resync()
        self._timer = self._loop.call_later(_WATCH_S, self._due)

    async def close(self) -> None:
        """End the stream."""
        self._timer.cancel()
        await super().close()


async def _as_metadata_errors(work: Awaitable[T]) -> T:
    try:
        return await work
    except SourceUnavailableError as error:
        raise MetadataUnavailableError(str(error)) from error
    except QuireJobError as error:
        raise MetadataError(str(error)) from error


def _node(value: Any) -> Node:
    return Node(value["key"], b64decode(value.get("value", "")), value["version"])


def _refuse() -> NoReturn:
    raise MetadataError(_READ_ONLY)
