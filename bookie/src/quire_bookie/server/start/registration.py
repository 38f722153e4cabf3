"""Owns a bookie's registration: an ephemeral node under `available/` or `available/readonly`. Keeps the metadata in
step with the bookie's mode; never decides whether the bookie is writable.

One task compares the registered node with the desired one and corrects it: after a change of mode, when the session
was renewed, when one of the bookie's own nodes was deleted, and when the node of the other mode appears. It reads
before it writes, so a write of unknown outcome is simply read again. A bookie whose cookie is gone is not registered:
a process that deletes a cookie checks in the same transaction that its bookie is not registered, so checking the
cookie after the registration leaves no gap.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable

from quire_bookie.dataclass import dataclass
from quire_bookie.env.background import start_background
from quire_bookie.env.backoff import Backoff
from quire_bookie.errors import (
    BadVersionError,
    MetadataError,
    MetadataUnavailableError,
    NodeMissingError,
    StartupError,
)
from quire_bookie.limits import METADATA_RETRY_BACKOFF_S, METADATA_SESSION_TIMEOUT_S
from quire_bookie.metadata import layout
from quire_bookie.metadata.service_info import BookieServiceInfo, encode_service_info
from quire_bookie.metadata.store import ABSENT, Event, EventKind, MetadataStore, SessionState, Watch
from quire_bookie.model import BookieId

_log = logging.getLogger("quire.server.registration")
_STOP_TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True)
class RegistrationSettings:
    """How long a start waits until another registration of the same id ends: its lease plus a margin."""

    takeover_timeout_s: float = METADATA_SESSION_TIMEOUT_S + 5.0


@dataclass(slots=True)
class RegistrationStats:
    """Counters for the metrics collector."""

    registrations: int = 0
    takeovers: int = 0
    sessions_lost: int = 0


class _OtherRegistrationError(MetadataError):
    """Another value is registered under this bookie's id."""


class _NoCookieError(MetadataError):
    """The bookie's cookie was deleted: its id no longer belongs to any storage."""


class BookieRegistration:
    """Keeps one bookie registered in its mode, from `start` to `stop`."""

    def __init__(
        self,
        store: MetadataStore,
        bookie: BookieId,
        info: BookieServiceInfo,
        settings: RegistrationSettings | None = None,
    ) -> None:
        self._store = store
        self._bookie = bookie
        self._value = encode_service_info(info)
        self._settings = settings or RegistrationSettings()
        self._read_only = False
        self._registered = False
        self._wake = asyncio.Event()
        self._settled = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._watch: Watch | None = None
        self._stopped = False
        self._removed = False
        self._forget_session: Callable[[], None] = lambda: None
        self.stats = RegistrationStats()

    @property
    def registered(self) -> bool:
        """Whether the metadata store held the right node when it was last read."""
        return self._registered

    @property
    def read_only(self) -> bool:
        """The mode that is registered, or about to be."""
        return self._read_only

    async def start(self, *, read_only: bool = False) -> None:
        """Register, taking over a stale registration of this bookie's previous run at once.

        StartupError when another address stays registered under this id; MetadataUnavailableError.
        """
        self._read_only = read_only
        self._watch = await self._store.watch(f"{layout.AVAILABLE}/")
        self._forget_session = self._store.on_session(self._on_session)
        async with contextlib.AsyncExitStack() as undo:
            undo.push_async_callback(self._watch.close)
            undo.callback(self._forget_session)
            # Before this call returns, our only node can be that of a write of unknown outcome: it ends with the lease.
            undo.callback(setattr, self, "_watch", None)
            await self._register_first()
            undo.pop_all()
        self._tasks = [
            start_background(self._keep(), f"registration {self._bookie}", _log),
            start_background(self._follow(self._watch), f"registration watch {self._bookie}", _log),
        ]

    async def set_read_only(self, read_only: bool) -> None:
        """Change the mode; return once the metadata has it, however long the metadata store is unavailable.

        After `stop` it returns at once.
        """
        if self._stopped:
            return
        if read_only != self._read_only:
            self._read_only = read_only
            self._poke()
        await self._settled.wait()

    async def stop(self) -> None:
        """Remove the registration and stop maintaining it. Never fails: the node ends with the lease at the latest.

        After it has returned, another call does nothing: the node may then belong to the bookie's next run.
        """
        if self._removed or self._watch is None:
            return
        self._stopped = True
        self._forget_session()
        await self._watch.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._registered = False
        self._settled.set()
        try:
            async with asyncio.timeout(_STOP_TIMEOUT_S):
                await self._remove(layout.writable_path(self._bookie))
                await self._remove(layout.read_only_path(self._bookie))
        except (MetadataError, TimeoutError) as error:
            _log.warning("the registration of %s could not be removed and ends with its lease: %s", self._bookie, error)
        self._removed = True

    async def _register_first(self) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settings.takeover_timeout_s
        backoff = Backoff(METADATA_RETRY_BACKOFF_S)
        logged = False
        while True:
            try:
                await self._reconcile()
                return
            except _OtherRegistrationError as error:
                if loop.time() >= deadline:
                    raise StartupError(str(error)) from error
                if not logged:
                    _log.warning("waiting up to %.0f s to register: %s", deadline - loop.time(), error)
                    logged = True
            except MetadataUnavailableError:
                raise
            except _NoCookieError as error:
                raise StartupError(str(error)) from error
            except MetadataError as error:
                if loop.time() >= deadline:
                    raise StartupError(f"bookie {self._bookie} could not be registered: {error}") from error
            await backoff.wait()

    async def _keep(self) -> None:
        """Reconcile the registration whenever something may have changed it. The root of a task."""
        backoff = Backoff(METADATA_RETRY_BACKOFF_S)
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._reconcile()
                backoff.reset()
            except MetadataError as error:
                _log.warning("bookie %s is not registered: %s", self._bookie, error)
                self._registered = False
                await backoff.wait()
                self._wake.set()

    async def _follow(self, watch: Watch) -> None:
        mine = (layout.writable_path(self._bookie), layout.read_only_path(self._bookie))
        async for event in watch:
            if event.kind is EventKind.RESYNC or (event.key in mine and self._is_wrong(event)):
                self._poke()

    def _is_wrong(self, event: Event) -> bool:
        """Whether an event of one of our nodes requires a reconciliation.

        A creation of unknown outcome may take effect after a change of mode: then the node of the other mode appears.
        """
        wanted = layout.read_only_path if self._read_only else layout.writable_path
        return event.kind is EventKind.DELETED or event.key != wanted(self._bookie)

    def _on_session(self, state: SessionState) -> None:
        if state is SessionState.LOST:
            self.stats.sessions_lost += 1
            self._registered = False
        else:
            self._poke()

    def _poke(self) -> None:
        self._settled.clear()
        self._wake.set()

    async def _reconcile(self) -> None:
        """Delete the node of the other mode, then create the one of this mode."""
        read_only = self._read_only
        wanted, other = layout.writable_path(self._bookie), layout.read_only_path(self._bookie)
        if read_only:
            wanted, other = other, wanted
        # Delete before creating: a client must never see the bookie in both modes.
        await self._remove(other)
        await self._check_cookie()
        await self._create(wanted)
        try:
            await self._check_cookie()
        except _NoCookieError:
            await self._remove(wanted)
            raise
        self._registered = True
        if read_only == self._read_only and not self._wake.is_set():
            self._settled.set()

    async def _check_cookie(self) -> None:
        if await self._store.get(layout.cookie_path(self._bookie)) is None:
            raise _NoCookieError(
                f"bookie {self._bookie} was removed from the cluster: its cookie is gone, and it is not registered "
                "without one; empty its folders, and it starts as a new bookie"
            )

    async def _remove(self, path: str) -> None:
        """Delete the node if it belongs to this bookie, to any of its runs."""
        node = await self._store.get(path)
        if node is None or node.value != self._value:
            return
        try:
            await self._store.delete(path, expected=node.version)
        except (BadVersionError, NodeMissingError):
            if await self._store.get(path) is not None:
                raise

    async def _create(self, path: str) -> None:
        node = await self._store.get(path)
        if node is not None:
            if node.value != self._value:
                raise _OtherRegistrationError(
                    f"bookie {self._bookie} is registered with another address; stop that process, "
                    "or wait until its lease ends"
                )
            if node.owned:
                return
        if self._stopped:
            return
        # A node of an earlier run may exist, and would vanish with its lease. It is replaced in one step: between a
        # deletion and a creation clients would find no address and give up the bookie.
        expected = ABSENT if node is None else node.version
        await self._store.put(path, self._value, expected=expected, ephemeral=True)
        self.stats.registrations += 1
        self.stats.takeovers += node is not None
