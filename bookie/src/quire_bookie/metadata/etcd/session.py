"""Owns the lease of a store's ephemeral nodes: grants it, keeps it alive and replaces it. Never writes nodes.

The lease is granted when the first ephemeral node needs it, and renewed after each third of its time. It is LOST when
etcd no longer knows it, when etcd's data was replaced by an older copy, or after 5/6 of its time without a response:
from then on the nodes may be removed. A lost lease is renewed only after etcd has answered that it knows it: where
etcd hears this process and is not heard, renewals would keep the nodes of a process that cannot work. If etcd answers
with the same lease the state is CONNECTED, otherwise a new lease is granted and the state is RENEWED.
"""

import asyncio
import logging
import math
from collections.abc import Callable
from functools import partial

from quire_bookie.env.background import start_background
from quire_bookie.errors import MetadataError, MetadataUnavailableError
from quire_bookie.metadata.etcd.connection import (
    LEASE_GRANT,
    LEASE_KEEP_ALIVE,
    LEASE_REVOKE,
    LEASE_TIME_TO_LIVE,
    EtcdConnection,
    LeaseGoneError,
)
from quire_bookie.metadata.etcd.proto import rpc_pb2 as rpc
from quire_bookie.metadata.store import MetadataStats, SessionState

_log = logging.getLogger("quire.metadata.etcd")
_LOST_AFTER = 5 / 6
_REVOKE_TIMEOUT_S = 3.0
_RENEWAL_TIMEOUT_MIN_S = 0.2


class EtcdSession:
    """Keeps one lease at a time."""

    def __init__(self, connection: EtcdConnection, timeout_s: float, stats: MetadataStats) -> None:
        self._connection = connection
        self._stats = stats
        self._ttl_s = max(1, math.ceil(timeout_s))
        self._lease = 0
        self._state = SessionState.CONNECTED
        self._granting = asyncio.Lock()
        self._heard_at = 0.0
        self._listeners: list[Callable[[SessionState], None]] = []
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._closed = False

    @property
    def lease(self) -> int:
        """The lease's id, 0 while there is none."""
        return self._lease

    def on_state(self, listener: Callable[[SessionState], None]) -> Callable[[], None]:
        """Call `listener` on each change of the state; returns a function that removes it."""
        self._listeners.append(listener)

        def remove() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return remove

    async def ensure(self) -> int:
        """Return the lease; grant one first if there is none. MetadataUnavailableError."""
        if self._lease == 0 or self._task is None:
            async with self._granting:
                if self._lease == 0:
                    await self._grant()
                if self._task is None and not self._closed:
                    # Without the task the lease would expire, and with it the registrations.
                    lost = partial(self._set_state, SessionState.LOST)
                    self._task = start_background(self._run(), "etcd-lease", _log, lost)
        return self._lease

    def lease_gone(self, lease: int) -> None:
        """Replace `lease` at once: a write failed because etcd does not know it."""
        if lease == self._lease and lease != 0:
            self._lease = 0
            self._set_state(SessionState.LOST)
            self._wake.set()

    def went_back(self) -> None:
        """Report the session as lost: an older copy of the data may lack nodes of the lease, and may reuse its id."""
        _log.error("the data of etcd went back in time: it was replaced by an older copy")
        if self._lease:
            self.lease_gone(self._lease)
        else:
            self._set_state(SessionState.LOST)
            self._set_state(SessionState.CONNECTED)

    async def close(self) -> None:
        """Stop renewals and revoke the lease, so that its nodes are removed at once. Never fails."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._lease:
            try:
                request = rpc.LeaseRevokeRequest(ID=self._lease)
                await self._connection.call(LEASE_REVOKE, request, timeout_s=_REVOKE_TIMEOUT_S)
            except MetadataError as error:
                _log.warning("could not revoke the lease, it will expire: %s", error)
            self._lease = 0

    async def _run(self) -> None:
        while not self._closed:
            await self._wait()
            await self._renew()

    async def _wait(self) -> None:
        """Wait until the next renewal is due or the lease is known to be lost."""
        try:
            async with asyncio.timeout(self._ttl_s / 3):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    async def _renew(self) -> None:
        """Keep the lease alive or grant another; return once there is one."""
        backoff = self._connection.backoff(self._ttl_s / 6)
        while True:
            lease = self._lease
            try:
                if lease == 0:
                    async with self._granting:
                        if self._lease == 0:
                            await self._grant()
                else:
                    if self._state is SessionState.LOST:
                        await self._ask(lease)
                    await self._keep_alive(lease)
                    if self._lease != lease:
                        continue  # a write has replaced it meanwhile
                    self._set_state(SessionState.CONNECTED)
                return
            except LeaseGoneError:
                if self._lease == lease:
                    self._lease = 0
                    self._set_state(SessionState.LOST)
            except MetadataError as error:
                _log.warning("could not renew the session with etcd, will try again: %s", error)
                self._check_lost()
                await backoff.wait()

    async def _grant(self) -> None:
        sent_at = asyncio.get_running_loop().time()
        answer = await self._connection.call(LEASE_GRANT, rpc.LeaseGrantRequest(TTL=self._ttl_s))
        if answer.ID == 0 or answer.TTL <= 0:
            # Lease 0 means none: nodes of this session would outlive it.
            raise MetadataUnavailableError(f"etcd granted lease {answer.ID:x} for {answer.TTL} s")
        self._lease = answer.ID
        self._heard_at = sent_at
        self._stats.leases_granted += 1
        if self._state is SessionState.LOST:
            # Here and not in `_renew`: a write that needs a lease may be the one that replaces it.
            self._set_state(SessionState.RENEWED)

    async def _ask(self, lease: int) -> None:
        """Ask whether etcd knows the lease, which renews nothing. LeaseGoneError."""
        request = rpc.LeaseTimeToLiveRequest(ID=lease)
        answer = await self._connection.call(LEASE_TIME_TO_LIVE, request, timeout_s=self._ttl_s / 3)
        if answer.TTL <= 0:
            raise LeaseGoneError(f"the lease {lease:x} expired")

    async def _keep_alive(self, lease: int) -> None:
        """Renew once, on a separate stream, with a time limit so that LOST is detected in time."""
        loop = asyncio.get_running_loop()
        sent_at = loop.time()
        left = self._heard_at + self._ttl_s * _LOST_AFTER - sent_at
        timeout_s = min(self._ttl_s / 3, left) if left > _RENEWAL_TIMEOUT_MIN_S else self._ttl_s / 3
        stream = None
        try:
            async with asyncio.timeout(timeout_s):
                stream = await self._connection.stream(LEASE_KEEP_ALIVE, timeout_s=timeout_s)
                await stream.send(rpc.LeaseKeepAliveRequest(ID=lease))
                answer = await stream.receive()
        except TimeoutError as error:
            if stream is not None:
                stream.timed_out()
            raise MetadataUnavailableError("etcd did not renew the lease in time") from error
        finally:
            if stream is not None:
                stream.cancel()
        if answer.TTL <= 0:
            raise LeaseGoneError(f"the lease {lease:x} expired")
        self._heard_at = sent_at

    def _check_lost(self) -> None:
        if asyncio.get_running_loop().time() >= self._heard_at + self._ttl_s * _LOST_AFTER:
            self._set_state(SessionState.LOST)

    def _set_state(self, state: SessionState) -> None:
        """Notify the listeners of a change. RENEWED is an event: afterwards the state is CONNECTED."""
        if self._closed or state is self._state:
            return
        _log.info("session with etcd: %s", state.value)
        if state is SessionState.LOST:
            self._stats.sessions_lost += 1
        self._state = SessionState.CONNECTED if state is SessionState.RENEWED else state
        for listener in list(self._listeners):
            listener(state)
