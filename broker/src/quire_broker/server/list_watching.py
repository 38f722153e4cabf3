"""The watched lists of topics of one client's session."""

from collections.abc import Callable

from quire_broker.errors import NotAllowedError, ServiceNotReadyError, TooManyOperationsError, TopicNotFoundError
from quire_broker.names import NamespaceName, parse_namespace
from quire_broker.security.authorization import Rights
from quire_broker.server.connection import Connection
from quire_broker.server.parts import BrokerParts
from quire_broker.server.permission_watch import Opened
from quire_broker.server.topic_lists import Watcher, compiled, topics_hash
from quire_broker.wire import commands
from quire_broker.wire.proto import pulsar_pb2 as pb


class _OpenWatcher:
    """An `Opened` of PermissionWatch."""

    def __init__(self, rights: Rights, namespace: NamespaceName, end: Callable[[], None]) -> None:
        self._rights, self._namespace, self._end = rights, namespace, end

    async def require(self) -> None:
        await self._rights.require_list(self._namespace)

    async def revoke(self) -> None:
        self._end()


class ListWatching:
    """The watchers of one session."""

    def __init__(self, parts: BrokerParts, connection: Connection, rights: Callable[[], Rights]) -> None:
        self._lists, self._settings, self._policies = parts.topic_lists, parts.settings, parts.policies
        self._connection = connection
        self._rights = rights
        self._watchers: dict[int, tuple[NamespaceName, Watcher] | object] = {}
        """By the client's id; an object without meaning while one is set up."""
        self._is_lost = False

    async def watch(self, request: pb.CommandWatchTopicList) -> bytes:
        """Begin to watch; return the present topics, none if the client knows them by their hash."""
        if not self._settings.patterns_evaluated:
            raise NotAllowedError(
                "lists of topics are not watched: enableBrokerSideSubscriptionPatternEvaluation is off"
            )
        namespace = parse_namespace(request.namespace)
        pattern = compiled(request.topics_pattern, self._settings.pattern_characters_max)
        setup = self._begin(request.watcher_id)
        try:
            await self._rights().require_list(namespace)
            if await self._policies.policies(namespace) is None:
                raise TopicNotFoundError(f"namespace {namespace} does not exist")
            watcher = await self._lists.join(namespace, request.watcher_id, pattern, self._connection)
        except BaseException:
            if self._watchers.get(request.watcher_id) is setup:
                del self._watchers[request.watcher_id]
            raise
        if self._watchers.get(request.watcher_id) is not setup:
            self._lists.leave(namespace, watcher)
            raise self._closed(request.watcher_id)
        entry = self._watchers[request.watcher_id] = (namespace, watcher)
        found = await watcher.matching(watcher.names)
        if self._watchers.get(request.watcher_id) is not entry:
            raise self._closed(request.watcher_id)
        self._lists.begin(namespace, watcher)
        digest = topics_hash(found)
        topics = [] if request.topics_hash == digest else found
        return commands.topic_list(request.request_id, request.watcher_id, topics, digest)

    def _begin(self, watcher_id: int) -> object:
        """Take an id for a watcher that is being set up. It ends when the result is removed from the watchers."""
        if watcher_id in self._watchers:
            raise NotAllowedError(f"watcher_id={watcher_id} is in use on this connection; choose another one")
        if len(self._watchers) >= self._settings.topic_watchers_max:
            raise TooManyOperationsError(
                f"{len(self._watchers)} lists of topics are watched on this connection, which is the limit; "
                "close one, or raise maxTopicListWatchersPerConnection"
            )
        if self._is_lost:
            raise ServiceNotReadyError("the connection was lost")
        setup = self._watchers[watcher_id] = object()
        return setup

    @staticmethod
    def _closed(watcher_id: int) -> ServiceNotReadyError:
        return ServiceNotReadyError(f"watcher_id={watcher_id} was closed while it was set up")

    def close(self, request: pb.CommandWatchTopicListClose) -> bytes:
        """End a watcher; one that does not exist is ended already."""
        self.end(request.watcher_id)
        return commands.success(request.request_id)

    def lost(self) -> None:
        """End all watchers: the connection is gone."""
        self._is_lost = True
        for watcher_id in list(self._watchers):
            self.end(watcher_id)

    def opened(self) -> list[Opened]:
        """Return the watchers, for checks of their permissions."""
        return [
            _OpenWatcher(self._rights(), entry[0], lambda it=watcher_id: self.end(it))  # type: ignore[misc]
            for watcher_id, entry in self._watchers.items()
            if isinstance(entry, tuple)
        ]

    def end(self, watcher_id: int) -> None:
        """End a watcher, also one that is being set up: its client no longer waits for it."""
        entry = self._watchers.pop(watcher_id, None)
        if isinstance(entry, tuple):
            self._lists.leave(*entry)
