"""Tracks which bookies are registered, and their addresses, with a watch. Never writes.

One task reads the watch. A change is only a hint: the node is read again, so the registry converges to the content of
the store whatever the order of events; a RESYNC, or an unavailable store, causes everything to be read again.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from functools import partial

from quire_bookie.env.background import start_background
from quire_bookie.errors import MetadataFormatError
from quire_bookie.metadata import layout
from quire_bookie.metadata.retrying import with_retries
from quire_bookie.metadata.service_info import BookieAddress, BookieServiceInfo, decode_service_info
from quire_bookie.metadata.store import Event, EventKind, MetadataStore, Node, Watch
from quire_bookie.model import BookieId

_log = logging.getLogger("quire.metadata.registration")
_PREFIX = f"{layout.AVAILABLE}/"
_READ_ONLY_PREFIX = f"{layout.READ_ONLY}/"


def bookie_of_path(path: str) -> BookieId | None:
    """Return the bookie registered at `path`, writable or read-only; None for any other path."""
    for prefix in (_READ_ONLY_PREFIX, _PREFIX):
        if path.startswith(prefix):
            name = path[len(prefix) :]
            return BookieId(name) if name and "/" not in name and path != layout.READ_ONLY else None
    return None


class BookieRegistry:
    """Tracks the registered bookies. Open it, read its sets at any time, close it."""

    def __init__(self, store: MetadataStore, watch: Watch) -> None:
        """Use `open`."""
        self._store = store
        self._watch = watch
        self._writable: dict[BookieId, BookieServiceInfo] = {}
        self._read_only: dict[BookieId, BookieServiceInfo] = {}
        self._last_known: dict[BookieId, BookieServiceInfo] = {}
        self._last_users: dict[BookieAddress, BookieId] = {}
        """The bookie that registered last with each address."""
        self._machines: dict[BookieId, str] | None = None
        """Derived from the registrations when it is asked for; None after a change."""
        self._listeners: list[Callable[[], None]] = []
        self._behind = False
        """Whether a change has not been applied yet."""
        self._task: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, store: MetadataStore) -> "BookieRegistry":
        """Read all registrations and follow them. MetadataUnavailableError if the store is unavailable."""
        # Watch first, then list: a change between the two is seen twice instead of missed.
        registry = cls(store, await store.watch(_PREFIX))
        async with contextlib.AsyncExitStack() as undo:
            undo.push_async_callback(registry._watch.close)
            await registry._load()
            undo.pop_all()
        registry._task = start_background(registry._follow(), "bookie-registry", _log)
        return registry

    @property
    def writable(self) -> frozenset[BookieId]:
        """Bookies that accept adds."""
        return frozenset(self._writable)

    @property
    def read_only(self) -> frozenset[BookieId]:
        """Bookies that are only readable."""
        return frozenset(self._read_only.keys() - self._writable.keys())

    def service_info(self, bookie: BookieId) -> BookieServiceInfo | None:
        """Return the endpoints of a bookie; for an unregistered one, its last known endpoints."""
        return self._writable.get(bookie) or self._read_only.get(bookie) or self._last_known.get(bookie)

    @property
    def machines(self) -> Mapping[BookieId, str]:
        """The machine of each bookie that is registered, or was since this registry was opened."""
        if self._machines is None:
            known = self._last_known | self._read_only | self._writable
            self._machines = {bookie: machine for bookie, info in known.items() if (machine := info.machine)}
        return self._machines

    def address_of(self, bookie: BookieId) -> BookieAddress | None:
        """Return the bookie's current or last known address of the BookKeeper protocol; None if it was never seen.

        An address outlives its registration because a bookie that lost its lease may still answer reads. It does not if
        another bookie has registered with the address since, even if that one is unregistered too: it would answer *no
        such entry* for entries that it never had.
        """
        info = self.service_info(bookie)
        address = None if info is None else _address(info)
        if address is None or bookie in self._writable or bookie in self._read_only:
            return address
        return address if self._last_users.get(address) == bookie else None

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after each change of the sets or of an address. Returns a function that removes it."""
        self._listeners.append(listener)

        def remove() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return remove

    async def close(self) -> None:
        """Stop following."""
        await self._watch.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _follow(self) -> None:
        async for event in self._watch:
            await with_retries(partial(self._apply, event), "read registrations", _log.warning)

    async def _apply(self, event: Event) -> None:
        # After a failed attempt read everything, which includes all other changes made meanwhile.
        behind, self._behind = self._behind, True
        if behind or event.kind is EventKind.RESYNC:
            await self._load()
        elif bookie_of_path(event.key) is not None:
            node = None if event.kind is EventKind.DELETED else await self._store.get(event.key)
            changed = self._set(event.key, node)
            if changed:
                self._notify()
        self._behind = False

    async def _load(self) -> None:
        found: dict[str, Node] = {}
        async for page in self._store.scan(_PREFIX):
            found.update((node.key, node) for node in page)
        gone = [layout.writable_path(bookie) for bookie in self._writable]
        gone += [layout.read_only_path(bookie) for bookie in self._read_only]
        changed = [self._set(path, None) for path in gone if path not in found]
        changed += [self._set(path, node) for path, node in found.items()]
        if any(changed):
            self._notify()

    def _set(self, path: str, node: Node | None) -> bool:
        """Apply one registration (None: it was removed); return whether anything changed."""
        bookie = bookie_of_path(path)
        if bookie is None:
            return False
        known = self._read_only if path.startswith(_READ_ONLY_PREFIX) else self._writable
        info: BookieServiceInfo | None = None
        if node is not None:
            try:
                info = decode_service_info(node.value, bookie)
            except MetadataFormatError as error:
                _log.warning("invalid registration ignored: %s", error)
        if info == known.get(bookie):
            return False
        self._machines = None
        if info is None:
            del known[bookie]
        else:
            known[bookie] = self._last_known[bookie] = info
            address = _address(info)
            if address is not None:
                self._last_users[address] = bookie
        return True

    def _notify(self) -> None:
        for listener in list(self._listeners):
            listener()


def _address(info: BookieServiceInfo) -> BookieAddress | None:
    endpoint = info.bookie_endpoint
    return None if endpoint is None else BookieAddress(endpoint.host, endpoint.port)
