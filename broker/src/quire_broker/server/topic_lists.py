"""Follows the topics of namespaces for clients that subscribe by a pattern.

One task follows each namespace that a client of this broker watches, from the first watcher to the last one. A topic
that is created or deleted makes it list the namespace again, at most once in `TOPIC_LIST_PAUSE_S` and for at most 5 %
of the time, so a burst of new topics in a large namespace costs little. Each watcher gets the difference from the list
that its client knows. A client that does not read gets one difference for all changes as soon as it reads again.

Patterns take bounded time (`quire_broker.patterns`): none of a client can stop the broker.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable

from quire_bookie.crc import crc32c
from quire_bookie.env.background import RESTART_PAUSE_S, Background
from quire_bookie.metadata.retrying import watch_with_retries, with_retries
from quire_bookie.metadata.store import EventKind, MetadataStore
from quire_broker.errors import NotAllowedError, ServiceNotReadyError
from quire_broker.limits import LIST_SLICE_NAMES, TOPIC_LIST_PAUSE_S, TOPIC_LIST_WAIT_S
from quire_broker.managed_ledger.list_store import node_path
from quire_broker.names import PERSISTENT, NamespaceName, TopicName
from quire_broker.patterns import Pattern
from quire_broker.policies.store import PARTITIONED_TOPICS
from quire_broker.server.connection import Connection
from quire_broker.topic.topics import Topics
from quire_broker.wire import commands

log = logging.getLogger("quire.broker.topic_lists")
Names = dict[str, str]
"""Complete names of topics, and what patterns are compared with: tenant, namespace and name without a partition."""
_LISTING_SHARE = 20
"""A listing is followed by a pause of this many times its duration."""


def compiled(pattern: str, characters_max: int) -> Pattern:
    """Return the pattern for names without `persistent://`. NotAllowedError for one that is too long or wrong."""
    if len(pattern) > characters_max:
        raise NotAllowedError(
            f"a pattern of topics of {len(pattern)} characters: the limit is {characters_max}; "
            "choose a shorter one, or raise subscriptionPatternMaxLength"
        )
    head, found, rest = pattern.partition("://")
    try:
        return Pattern(("^" if head.startswith("^") else "") + rest if found else pattern, characters_max)
    except ValueError as error:
        raise NotAllowedError(
            f"the pattern of topics {pattern!r}: RE2 does not accept it: {error}; "
            "correct it, and use no look-around and no references"
        ) from error


def topics_hash(names: Iterable[str]) -> str:
    """Return the CRC-32C of the sorted names, as stock brokers print it."""
    return crc32c(",".join(sorted(names)).encode()).to_bytes(4, "little").hex()


async def _of_patterns(topics: list[TopicName]) -> Names:
    found: Names = {}
    for at in range(0, len(topics), LIST_SLICE_NAMES):
        for name in topics[at : at + LIST_SLICE_NAMES]:
            if not name.is_system:
                found[str(name)] = str(name.partitioned).partition("://")[2]
        await asyncio.sleep(0)
    return found


class _Followed:
    """The topics of one namespace as last listed, and the watchers that follow them."""

    def __init__(self) -> None:
        self.names: Names | None = None
        self.listed = asyncio.Event()
        self.wake = asyncio.Event()
        """A topic was created or deleted, or a client reads again."""
        self.is_stale = True
        self.users = 0
        self.watchers: dict[Watcher, None] = {}


class Watcher:
    """A pattern of a client. `names`: the list of the namespace whose topics its client knows."""

    def __init__(self, watcher_id: int, pattern: Pattern, connection: Connection, wake: Callable[[], None]) -> None:
        self._id = watcher_id
        self._pattern = pattern
        self._connection = connection
        self._wake = wake
        self.names: Names = {}

    async def matching(self, names: Names) -> list[str]:
        """Return the names that match, sorted."""
        found = []
        for number, (name, compared) in enumerate(names.items(), 1):
            if self._pattern.matches(compared):
                found.append(name)
            if number % LIST_SLICE_NAMES == 0:
                await asyncio.sleep(0)
        return sorted(found)

    async def advance(self, names: Names) -> None:
        """Send the difference between `names` and what the client knows; later, if it does not read."""
        if names is self.names:
            return
        if not self._connection.writable:
            self._connection.on_writable(self._wake)
            return
        former, self.names = self.names, names
        added = await self.matching({name: names[name] for name in names.keys() - former.keys()})
        gone = await self.matching({name: former[name] for name in former.keys() - names.keys()})
        if added or gone:
            digest = topics_hash(await self.matching(names))
            self._connection.write(commands.topic_update(self._id, added, gone, digest))


class TopicLists:
    """Follows namespaces for all clients of a broker."""

    def __init__(self, metadata: MetadataStore, topics: Topics, background: Background) -> None:
        self._metadata = metadata
        self._topics = topics
        self._background = background
        self._followed: dict[NamespaceName, _Followed] = {}
        self._tasks: dict[NamespaceName, asyncio.Task[None]] = {}

    def __len__(self) -> int:
        """Return the number of namespaces that are followed."""
        return len(self._followed)

    async def join(
        self, namespace: NamespaceName, watcher_id: int, pattern: Pattern, connection: Connection
    ) -> Watcher:
        """Return a watcher that knows the present topics. `begin` and `leave` must follow. ServiceNotReadyError."""
        followed = self._enter(namespace)
        watcher = Watcher(watcher_id, pattern, connection, followed.wake.set)
        try:
            async with asyncio.timeout(TOPIC_LIST_WAIT_S):
                await followed.listed.wait()
        except TimeoutError as error:
            self._exit(namespace, followed)
            raise ServiceNotReadyError(f"the topics of {namespace} cannot be listed now; try again") from error
        except BaseException:
            self._exit(namespace, followed)
            raise
        assert followed.names is not None
        watcher.names = followed.names
        return watcher

    def begin(self, namespace: NamespaceName, watcher: Watcher) -> None:
        """Send updates from now on. The client must get the topics that the watcher knows first."""
        followed = self._followed[namespace]
        followed.watchers[watcher] = None
        followed.wake.set()

    def leave(self, namespace: NamespaceName, watcher: Watcher) -> None:
        """End a watcher."""
        followed = self._followed[namespace]
        followed.watchers.pop(watcher, None)
        self._exit(namespace, followed)

    def _enter(self, namespace: NamespaceName) -> _Followed:
        followed = self._followed.get(namespace)
        if followed is None:
            followed = self._followed[namespace] = _Followed()
            self._start(namespace, followed)
        followed.users += 1
        return followed

    def _start(self, namespace: NamespaceName, followed: _Followed) -> None:
        if self._followed.get(namespace) is not followed:
            return
        followed.is_stale = True
        task = self._background.spawn(self._follow(namespace, followed), f"following the topics of {namespace}")
        task.add_done_callback(lambda ended: self._restart(namespace, followed, ended))
        self._tasks[namespace] = task

    def _restart(self, namespace: NamespaceName, followed: _Followed, ended: "asyncio.Task[None]") -> None:
        """Begin again after an error, which the owner of the task logs."""
        if not ended.cancelled():
            asyncio.get_running_loop().call_later(RESTART_PAUSE_S, self._start, namespace, followed)

    def _exit(self, namespace: NamespaceName, followed: _Followed) -> None:
        followed.users -= 1
        if not followed.users:
            del self._followed[namespace]
            self._tasks.pop(namespace).cancel()

    async def _follow(self, namespace: NamespaceName, followed: _Followed) -> None:
        prefixes = (
            f"{node_path(f'{namespace}/{PERSISTENT}')}/",
            f"{PARTITIONED_TOPICS}/{namespace}/{PERSISTENT}/",
        )
        async with asyncio.TaskGroup() as group:
            for prefix in prefixes:
                watching = asyncio.Event()
                group.create_task(self._notice(prefix, followed, watching), name=f"changes below {prefix}")
                await watching.wait()  # before the list, so that no change falls between them
            loop = asyncio.get_running_loop()
            while True:
                followed.wake.clear()
                begun_s = loop.time()
                if followed.is_stale:
                    followed.is_stale = False
                    names = await with_retries(
                        lambda: self._list(namespace), f"list the topics of {namespace}", log.info
                    )
                    if followed.names is None or followed.names.keys() != names.keys():
                        followed.names = names
                    followed.listed.set()
                assert followed.names is not None
                for watcher in list(followed.watchers):
                    await watcher.advance(followed.names)
                took_s = loop.time() - begun_s
                await followed.wake.wait()
                await asyncio.sleep(max(TOPIC_LIST_PAUSE_S, _LISTING_SHARE * took_s))

    async def _list(self, namespace: NamespaceName) -> Names:
        return await _of_patterns(await self._topics.list(namespace))

    async def _notice(self, prefix: str, followed: _Followed, watching: asyncio.Event) -> None:
        """Wake the follower after changes of the direct children of a prefix. Nodes below them are cursors."""
        watch = await watch_with_retries(self._metadata, prefix, log.info)
        watching.set()
        try:
            async for event in watch:
                is_child = "/" not in event.key[len(prefix) :]
                if event.kind is EventKind.RESYNC or (event.kind is not EventKind.MODIFIED and is_child):
                    followed.is_stale = True
                    followed.wake.set()
        finally:
            await watch.close()
