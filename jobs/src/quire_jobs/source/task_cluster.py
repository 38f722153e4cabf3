"""Shares one open cluster between consecutive tasks of a process. Owns when it is opened and closed.

Opening a cluster costs as much as reading many megabytes, and a Spark worker runs hundreds of tasks. A cluster in which
a task failed is not used again, nor one older than a few minutes, because certificates and tokens are renewed. It is
closed when no task uses it, at most some seconds after the last task. An opening is cancelled when its last waiting
task is cancelled. A forked process has no shared cluster: clusters belong to an event loop, and a fork has none.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from quire_jobs.source.cluster import Cluster, ClusterAddress, open_cluster


class SharedAddress(ClusterAddress, Protocol):
    """Address of a cluster, and how long a process keeps it open."""

    @property
    def connection_idle_s(self) -> float:
        """Seconds after the last task until the cluster is closed."""
        ...

    @property
    def connection_age_max_s(self) -> float:
        """Age in seconds from which no new task uses the cluster."""
        ...


_Address = tuple[str, str, float, float]


class _Shared:
    """An open cluster with its users. Its own asyncio task opens and closes it: contexts must end where they began."""

    def __init__(self, where: SharedAddress) -> None:
        self._where = where
        self._loop = asyncio.get_running_loop()
        self._until_s = self._loop.time() + where.connection_age_max_s
        self._opened: asyncio.Future[Cluster] = self._loop.create_future()
        self._over = asyncio.Event()
        self._users = 0
        self._is_given_up = False
        self._idle: asyncio.TimerHandle | None = None
        self._holding = self._loop.create_task(self._hold(), name="the cluster of this process")

    async def _hold(self) -> None:
        try:
            async with open_cluster(self._where) as cluster:
                self._opened.set_result(cluster)
                await self._over.wait()
        except Exception as error:  # a task's root: pass the error to the waiting tasks
            if self._opened.done():
                raise
            self._opened.set_exception(error)
        finally:
            self._is_given_up = True
            self._opened.cancel()  # no effect if it was opened; otherwise waiting tasks must not wait forever

    @property
    def is_usable(self) -> bool:
        """Whether another task may use it."""
        return not self._is_given_up and self._loop.time() < self._until_s

    async def take(self) -> Cluster:
        """Return the cluster and count a user, until `leave`. Errors of `open_cluster`."""
        self._users += 1
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        return await asyncio.shield(self._opened)

    def leave(self, *, failed: bool) -> None:
        """Count a user less. `failed`: the next task should open another cluster."""
        self._users -= 1
        self._is_given_up = self._is_given_up or failed
        if self._users:
            return
        if not self._opened.done():
            self._is_given_up = True
            self._holding.cancel()  # all waiting tasks were cancelled: do not retry an unreachable store
        elif not self.is_usable:
            self._end()
        else:
            self._idle = self._loop.call_later(self._where.connection_idle_s, self._end)

    def _end(self) -> None:
        self._is_given_up = True
        self._over.set()

    def retire(self) -> None:
        """Give it to no further task, because it is too old."""
        self._is_given_up = True
        if not self._users:
            self._over.set()


_shared: dict[tuple[asyncio.AbstractEventLoop, _Address], _Shared] = {}


@asynccontextmanager
async def task_cluster(where: SharedAddress) -> AsyncIterator[Cluster]:
    """Open the cluster like `open_cluster`, or reuse the one that an earlier task opened with the same options."""
    loop = asyncio.get_running_loop()
    for gone in [key for key in _shared if key[0].is_closed()]:
        del _shared[gone]
    key = (loop, (where.metadata, where.config, where.connection_idle_s, where.connection_age_max_s))
    shared = _shared.get(key)
    if shared is None or not shared.is_usable:
        if shared is not None:
            shared.retire()
        shared = _shared[key] = _Shared(where)
    failed = True
    try:
        yield await shared.take()
        failed = False
    except (GeneratorExit, asyncio.CancelledError):
        failed = False  # a task that stops early, as with a limit, did not fail
        raise
    finally:
        shared.leave(failed=failed)
