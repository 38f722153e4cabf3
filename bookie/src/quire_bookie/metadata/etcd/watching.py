"""A watch on etcd that survives its stream: it continues from its revision, and sends a RESYNC after compaction.

`_next_revision` is the first revision whose events the reader has not received. A broken stream is reopened from there,
on any member. If that revision is compacted, or the cluster's revision went backwards (a restored backup), events are
lost: the watch restarts from the present, and the reader receives a RESYNC.
"""

import asyncio
import contextlib
import logging

from quire_bookie.env.background import start_background
from quire_bookie.errors import MetadataError, MetadataUnavailableError
from quire_bookie.limits import METADATA_ATTEMPT_TIMEOUT_S, METADATA_RETRY_BACKOFF_S
from quire_bookie.metadata.contract import prefix_end
from quire_bookie.metadata.etcd.connection import WATCH, EtcdConnection, EtcdStream
from quire_bookie.metadata.etcd.proto import rpc_pb2 as rpc
from quire_bookie.metadata.event_queue import EventQueue
from quire_bookie.metadata.store import Event, EventKind, MetadataStats

_REVISION_MAX = (1 << 63) - 1
_log = logging.getLogger("quire.metadata.etcd")


class EtcdWatch(EventQueue):
    """Implements `Watch` with a task that reads the stream."""

    def __init__(self, connection: EtcdConnection, prefix: str, stats: MetadataStats) -> None:
        super().__init__(prefix)
        self._connection = connection
        self._stats = stats
        self._next_revision = 0
        self._stream: EtcdStream | None = None
        self._task: asyncio.Task[None] | None = None
        self._events_lost = False

    async def open(self, timeout_s: float) -> None:
        """Start watching; the watch is active on return. MetadataUnavailableError."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        backoff = self._connection.backoff()
        while True:
            try:
                await self._start(max(0.0, min(METADATA_ATTEMPT_TIMEOUT_S, deadline - loop.time())))
                break
            except MetadataUnavailableError:
                pause_s = backoff.grow()
                if loop.time() + pause_s >= deadline:
                    raise
                await asyncio.sleep(pause_s)
        self._task = start_background(self._run(), f"etcd-watch {self.prefix}", _log)

    async def close(self) -> None:
        """End the stream and its task."""
        await super().close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._stream is not None:
            self._stream.cancel()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        backoff = self._connection.backoff()
        while not self.closed:
            opened_at = loop.time()
            try:
                await self._read()
            except MetadataError as error:
                _log.info("watch of %s broke, opening it again: %s", self.prefix, error)
            if loop.time() - opened_at >= METADATA_RETRY_BACKOFF_S[1]:
                backoff.reset()
            # Also before a first attempt: etcd may accept each stream and break it at once.
            await backoff.wait()
            await self._reopen()

    async def _reopen(self) -> None:
        try:
            await self._start(METADATA_ATTEMPT_TIMEOUT_S)
        except MetadataError as error:
            _log.info("could not open the watch of %s: %s", self.prefix, error)
            return
        self._stats.watches_reopened += 1

    async def _start(self, timeout_s: float) -> None:
        """Open a stream from the next revision (0: from the present); it is in use once etcd has accepted it."""
        if self._stream is not None:
            self._stream.cancel()
            self._stream = None
        with contextlib.ExitStack() as undo:
            stream: EtcdStream | None = None
            try:
                async with asyncio.timeout(timeout_s):
                    stream = await self._connection.stream(WATCH, timeout_s=timeout_s)
                    undo.callback(stream.cancel)
                    await stream.send(self._create_request())
                    answer = await stream.receive()
            except TimeoutError as error:
                if stream is not None:
                    stream.timed_out()
                raise MetadataUnavailableError("etcd did not accept the watch in time") from error
            self._accept(answer)
            self._stream = stream
            undo.pop_all()

    def _create_request(self) -> rpc.WatchRequest:
        key = self.prefix.encode()
        create = rpc.WatchCreateRequest(
            key=key, range_end=prefix_end(key), start_revision=self._next_revision, progress_notify=True
        )
        return rpc.WatchRequest(create_request=create)

    def _accept(self, answer: rpc.WatchResponse) -> None:
        """Check the first response of a stream. MetadataUnavailableError: open another one."""
        if answer.canceled:
            self._refused(answer)
        if answer.header.revision < self._next_revision - 1:
            self._lost("the cluster's revision went backwards")
        if self._next_revision == 0:
            self._next_revision = _after(answer.header.revision)
        if self._events_lost:
            # From now on nothing is missed; the reader must list earlier changes.
            self._events_lost = False
            self.resync()

    async def _read(self) -> None:
        """Queue the events of the stream until it breaks."""
        if self._stream is None:
            return
        while True:
            answer = await self._stream.receive()
            if answer.canceled:
                self._refused(answer)
            for event in answer.events:
                self.offer(_event(event))
            # A progress notification has no events, and follows all events up to its revision.
            if answer.events:
                self._next_revision = _after(answer.events[-1].kv.mod_revision)
            elif answer.header.revision >= self._next_revision and not answer.created:
                self._next_revision = _after(answer.header.revision)

    def _refused(self, answer: rpc.WatchResponse) -> None:
        if answer.compact_revision > 0:
            self._lost(f"events before revision {answer.compact_revision} are compacted")
        raise MetadataUnavailableError(f"etcd cancelled the watch: {answer.cancel_reason[:200]}")

    def _lost(self, reason: str) -> None:
        """Restart from the present with the next stream, and send a RESYNC once it is open."""
        self._next_revision = 0
        self._events_lost = True
        raise MetadataUnavailableError(reason)


def _after(revision: int) -> int:
    """Return the next revision. MetadataUnavailableError if etcd cannot have sent it: no stream could begin there."""
    if not 0 <= revision < _REVISION_MAX:
        raise MetadataUnavailableError(f"etcd sent revision {revision}")
    return revision + 1


def _event(event: rpc.Event) -> Event:
    key = event.kv.key.decode("utf-8", "replace")
    if event.type == rpc.Event.DELETE:
        return Event(EventKind.DELETED, key)
    return Event(EventKind.CREATED if event.kv.version == 1 else EventKind.MODIFIED, key)
