"""One open cluster for the tasks that follow one another in a process. Owns when it is opened and when it goes.

Opening costs as much as reading many megabytes, and a worker of Spark runs hundreds of tasks. What failed somebody is
not used again, nor what is older than a few minutes (certificates and tokens are renewed); it is closed when nobody
uses it, at the latest some seconds after the last task. An opening that nobody waits for any more is given up at once.
A fork has none: it is kept by the loop, which a fork lacks.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from quire_jobs.source.cluster import Cluster, ClusterAddress, open_cluster


class SharedAddress(ClusterAddress, Protocol):
    """Where the cluster is, and how long a process keeps it open."""

    @property
    def connection_idle_s(self) -> float:
        """After its last task."""
        ...

    @property
    def connection_age_max_s(self) -> float:
        """No task takes one that is older."""
        ...


_Address = tuple[str, str, float, float]


class _Shared:
    """Open until it is given up and nobody uses it. A task of its own holds it: contexts end where they began."""

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
        except Exception as error:  # a task's root: whoever waits is told
            if self._opened.done():
                raise
            self._opened.set_exception(error)
        finally:
            self._is_given_up = True
            self._opened.cancel()  # unless it was opened: whoever waits for it must not wait for ever

    @property
    def is_fit(self) -> bool:
        """Whether another task may have it."""
        return not self._is_given_up and self._loop.time() < self._until_s

    async def take(self) -> Cluster:
        """Use it, until `leave`. Errors of `open_cluster`."""
        self._users += 1
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        return await asyncio.shield(self._opened)

    def leave(self, *, failed: bool) -> None:
        """A user is done; `failed`: the next one had better open another."""
        self._users -= 1
        self._is_given_up = self._is_given_up or failed
        if self._users:
            return
        if not self._opened.done():
            self._is_given_up = True
            self._holding.cancel()  # whoever waited was cancelled: a store that is away must not be asked on and on
        elif not self.is_fit:
            self._end()
        else:
            self._idle = self._loop.call_later(self._where.connection_idle_s, self._end)

    def _end(self) -> None:
        self._is_given_up = True
        self._over.set()

    def retire(self) -> None:
        """It is too old: nobody takes it any more."""
        self._is_given_up = True
        if not self._users:
            self._over.set()


_shared: dict[tuple[asyncio.AbstractEventLoop, _Address], _Shared] = {}


@asynccontextmanager
async def task_cluster(where: SharedAddress) -> AsyncIterator[Cluster]:
    """The cluster that options name, as `open_cluster` does; open already where a task before used the same."""
    loop = asyncio.get_running_loop()
    for gone in [key for key in _shared if key[0].is_closed()]:
        del _shared[gone]
    key = (loop, (where.metadata, where.config, where.connection_idle_s, where.connection_age_max_s))
    shared = _shared.get(key)
    if shared is None or not shared.is_fit:
        if shared is not None:
            shared.retire()
        shared = _shared[key] = _Shared(where)
    failed = True
    try:
        yield await shared.take()
        failed = False
    except (GeneratorExit, asyncio.CancelledError):
        failed = False  # who stops early, as a limit does, has nothing against it
        raise
    finally:
        shared.leave(failed=failed)
