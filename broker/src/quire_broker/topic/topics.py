"""The topics that this broker has loaded: loads each topic once, keeps it until it is unloaded, finds it by name.

Concurrent loads of one topic share one load. This module decides whether a missing topic may be created. The caller
makes sure that this broker owns the topic (`claims`). `unused` closes topics that are idle, `inactive` deletes them if
policies require it.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import field
from itertools import islice

from quire_bookie.dataclass import dataclass
from quire_bookie.env.background import Background
from quire_bookie.env.clock import WallClock
from quire_bookie.errors import QuireError
from quire_bookie.metadata.joint_write import Place
from quire_broker import limits
from quire_broker.compaction.topic_compaction import Compactions
from quire_broker.dispatch.entry_filters import BUILT_IN, EntryFilter, filters_of
from quire_broker.dispatch.limit import DispatchLimit
from quire_broker.errors import (
    ConflictError,
    NotAllowedError,
    NotFoundError,
    ServiceNotReadyError,
    TooManyOperationsError,
    TopicNotFoundError,
)
from quire_broker.managed_ledger.factory import ManagedLedgerFactory
from quire_broker.managed_ledger.list_store import node_path
from quire_broker.managed_ledger.managed_ledger import ManagedLedger
from quire_broker.managed_ledger.nodes.node_codec import SOURCE_PROPERTY
from quire_broker.names import NON_PERSISTENT, PERSISTENT, NamespaceName, TopicName, topic_of_ledger
from quire_broker.policies.inactivity import inactivity_rules
from quire_broker.policies.rates import limits_in_force
from quire_broker.policies.resource_groups import GROUP
from quire_broker.policies.store import Json, PolicyStore
from quire_broker.settings.compaction import CompactionSettings
from quire_broker.settings.managed_ledger import ManagedLedgerSettings
from quire_broker.settings.policies import DefaultPolicies
from quire_broker.settings.rates import RateSettings
from quire_broker.settings.topics import InactivitySettings, LoadSettings
from quire_broker.topic.added_partitions import take_subscriptions
from quire_broker.topic.changes import ChangedTopics, TopicChanges
from quire_broker.topic.claims import TopicClaim, TopicOwnership
from quire_broker.topic.non_persistent_topic import NonPersistentTopic
from quire_broker.topic.non_persistent_topics import NonPersistentSettings, NonPersistentTopics
from quire_broker.topic.policy_limits import use_message_rules
from quire_broker.topic.resource_groups import ResourceGroups
from quire_broker.topic.rules_in_force import RulesInForce
from quire_broker.topic.serving import ServedTopic
from quire_broker.topic.settings_in_force import filter_names, ledger_settings, topic_settings
from quire_broker.topic.shadows import SHADOWS, create_partition
from quire_broker.topic.topic import Topic, TopicSettings
from quire_broker.topic_steps import in_steps
from quire_broker.wire.kinds import Moved

log = logging.getLogger("quire.broker.topic")
_UNLOAD_PAUSE_S = 0.01


@dataclass(frozen=True, slots=True)
class TopicsSettings:
    """Defaults of a broker."""

    auto_create: bool = True
    defaults: DefaultPolicies = field(default_factory=DefaultPolicies)
    topic: TopicSettings = field(default_factory=TopicSettings)
    ledger: ManagedLedgerSettings = field(default_factory=ManagedLedgerSettings)
    loads: LoadSettings = field(default_factory=LoadSettings)
    loads_waiting_max: int = limits.TOPIC_LOADS_WAITING_MAX
    filters: str = ""  # names of the entry filters of topics without a policy for them
    rates: RateSettings = field(default_factory=RateSettings)
    inactivity: InactivitySettings = field(default_factory=InactivitySettings)
    compaction: CompactionSettings = field(default_factory=CompactionSettings)
    non_persistent: NonPersistentSettings = field(default_factory=NonPersistentSettings)


class Topics:
    """Registry of the loaded topics."""

    def __init__(
        self,
        factory: ManagedLedgerFactory,
        policies: PolicyStore,
        settings: TopicsSettings,
        background: Background,
        clock: WallClock,
        ownership: TopicOwnership,
        filters: Mapping[str, EntryFilter] = BUILT_IN,
    ) -> None:
        self.filters = filters  # by name
        self._factory = factory
        self._in_force = RulesInForce(policies, factory, settings.defaults.restrictions(settings.auto_create))
        self._policies = policies
        self._settings = settings
        self._background = background
        self._clock = clock
        self._ownership = ownership
        self.rates = settings.rates
        self.dispatch_limit = DispatchLimit(settings.rates.broker_dispatch)  # of all topics together
        self.groups = ResourceGroups()
        self._loaded: dict[TopicName, Topic] = {}
        self._changes = TopicChanges(self._in_steps)
        self._ruled: dict[Topic, None] = {}
        """Topics that may be deleted, or whose subscriptions may be, when they are inactive; in a fixed order."""
        self._loading: dict[TopicName, asyncio.Future[Topic]] = {}
        self._unloading: dict[TopicName, asyncio.Future[None]] = {}
        self._gate = asyncio.Semaphore(settings.loads.at_once_max)  # in a burst the first topics are ready soon
        self._settling = Background()
        self._compactions = Compactions(settings.compaction, clock)
        subscriptions = settings.topic.subscriptions
        self.non_persistent = NonPersistentTopics(
            self._in_force, settings.non_persistent, subscriptions, background, ownership, self._may_create, self.limit
        )
        self.on_loaded: Callable[[Topic], None] = lambda topic: None
        """Called after each load."""
        self.arriving: set[TopicName] = set()
        """Topics whose lists of ledgers were read before this broker took their bundles."""
        self._closed = False

    @property
    def loaded(self) -> list[Topic]:
        """All topics in memory."""
        return list(self._loaded.values())

    @property
    def count(self) -> int:
        """How many topics are in memory."""
        return len(self._loaded)

    @property
    def everything(self) -> list[Topic | NonPersistentTopic]:
        """The topics in memory, stored or not."""
        return [*self._loaded.values(), *self.non_persistent.loaded]

    def in_steps(self) -> AsyncIterator[Topic]:
        """Yield the topics that are in memory now, a few in each step of the event loop: other work goes on."""
        return self._in_steps(self.loaded)

    def changed(self, on_forgotten: Callable[[Topic], None] = lambda topic: None) -> ChangedTopics:
        """Return what a periodic check visits instead of all loaded topics; see `TopicChanges.check`."""
        return self._changes.check(self.loaded, on_forgotten)

    def with_rules(self) -> AsyncIterator[Topic]:
        """Do the same as `in_steps` for those that may be deleted, or whose subscriptions may be."""
        self._ruled = {topic: None for topic in self._ruled if self._loaded.get(topic.name) is topic}
        return self._in_steps(list(self._ruled))

    async def _in_steps(self, topics: Sequence[Topic]) -> AsyncIterator[Topic]:
        async for topic in in_steps(topics):
            if self._loaded.get(topic.name) is topic:
                yield topic

    def find(self, name: TopicName) -> Topic | None:
        """Return the topic if it is in memory and usable."""
        topic = self._loaded.get(name)
        return None if topic is None or topic.closing else topic

    async def serve(self, name: TopicName, *, create: bool = True) -> ServedTopic:
        """Return the topic for a client, stored or not; see `get`."""
        if name.persistent:
            return await self.get(name, create=create)
        return await self.non_persistent.get(name, create=create)

    async def get(self, name: TopicName, *, create: bool = True) -> Topic:
        """Return the topic, loaded if necessary. TopicNotFoundError if it does not exist and must not be created."""
        return await self._get(name, create=create, may_create=False)

    async def _get(self, name: TopicName, *, create: bool, may_create: bool) -> Topic:
        topic = self.find(name)
        if topic is not None:
            topic.used_at_s = asyncio.get_running_loop().time()
            return topic
        if not name.persistent:
            raise NotAllowedError(f"this needs stored messages, and {name} is non-persistent")
        if name in self._loaded or name in self._unloading:
            # Its ledger is open until the unload ends: a second topic on it would be closed together with the first.
            topic = await self._unloaded(name)
            if topic is not None:
                return topic
        if self._closed:
            raise ServiceNotReadyError("this broker is shutting down")
        future = shared = self._loading.get(name)
        if future is None:
            if len(self._loading) >= self._settings.loads_waiting_max:
                raise TooManyOperationsError(f"{self._settings.loads_waiting_max} topics are being loaded already")
            future = asyncio.get_running_loop().create_future()
            self._loading[name] = future
            # A separate task: the cancellation by one client must not cancel the load for the others.
            self._background.start(self._load_into(future, name, create, may_create), f"load {name}")
        try:
            return await asyncio.shield(future)
        except TopicNotFoundError:
            if shared is None or not create:
                raise
        return await self._get(name, create=create, may_create=may_create)  # the shared load was not to create it

    async def _load_into(
        self, future: "asyncio.Future[Topic]", name: TopicName, create: bool, may_create: bool
    ) -> None:
        failure: QuireError = ServiceNotReadyError(f"loading {name} failed")
        limit_s = self._settings.loads.timeout_s
        try:
            async with asyncio.timeout(limit_s):
                future.set_result(await self._load(name, create, may_create))
        except QuireError as error:
            failure = error
        except TimeoutError:
            log.warning("%s was not loaded within %g s", name, limit_s)
            failure = ServiceNotReadyError(f"{name} was not loaded within {limit_s:g} s (topicLoadTimeoutSeconds)")
        finally:
            self._loading.pop(name, None)
            if not future.done():
                future.set_exception(failure)
                future.exception()  # all waiters may be gone

    async def _load(self, name: TopicName, create: bool, may_create: bool) -> Topic:
        policies = await self._in_force.of_namespace(name.namespace, placed=True)
        if policies is None:
            raise TopicNotFoundError(f"Namespace {name.namespace} not found")
        claim = await self._ownership.claim(name)
        if not claim.tenure:
            raise ServiceNotReadyError(f"{name} is served by another broker; look it up again")
        async with self._gate:  # not before: a bundle that is on its way would keep the topics of others waiting
            return await self._load_claimed(name, claim, policies, create=create, may_create=may_create)

    async def _load_claimed(
        self, name: TopicName, claim: TopicClaim, policies: Json, *, create: bool, may_create: bool
    ) -> Topic:
        create = create and (may_create or await self._may_create(name, policies))
        if create and name.flaw is not None and not await self.exists(name):
            name.require_creatable()
        if create:
            await self._require_room(name, policies)
            await create_partition(name, self._factory, self._policies)
        settings = ledger_settings(self._settings.ledger, policies)
        ledger = await self._factory.open(name.ledger_name, create=create, settings=settings, claim=claim)
        policies = await self._in_force.over(policies, name, ledger.properties)
        wanted = topic_settings(self._settings.topic, policies)
        topic = Topic(name, ledger, wanted, self._background, self._clock, self._compactions, self._failed)
        self._use(topic, policies)
        usable = False
        try:
            await topic.load()
            await take_subscriptions(topic, self._factory, self._policies)
            # Another owner may have opened the ledger before this broker read its list; not if the list was read with
            # the node of the bundle, or before it was taken: the transaction that opened the ledger compares it.
            is_sure = claim.is_confirmed or (ledger.was_read_ahead and name in self.arriving)
            if await self._ownership.tenure(name, not is_sure) != claim.tenure:
                raise ServiceNotReadyError(f"{name} was taken over by another broker while it was loaded")
            usable = True
        finally:
            if not usable:
                await ledger.close()
        self._loaded[name] = topic
        self._note_rules(topic)
        self._changes.follow(topic)
        self.on_loaded(topic)
        return topic

    async def rules(self, topic: ServedTopic) -> Json:
        """Return the policies in force for a loaded topic. Do not change the result. Errors of the metadata store."""
        return await self._in_force.of(topic.name, topic.properties)

    async def rules_of(self, name: TopicName) -> Json:
        """Return the policies in force for a topic that need not be loaded, nor exist. Do not change the result."""
        loaded = self.find(name)
        return await self._in_force.of(name, None if loaded is None else loaded.properties)

    def _use(self, topic: Topic, policies: Json) -> None:
        """Apply the policies that do not need a new load."""
        topic.ledger.use(ledger_settings(self._settings.ledger, policies))
        topic.ledger.tell_lacs(active=bool(policies.get(SHADOWS)))
        self.limit(topic, policies)
        if not topic.name.is_system:
            topic.rules = inactivity_rules(policies, self._settings.inactivity.rules)

    def _note_rules(self, topic: Topic) -> None:
        self._ruled.pop(topic, None)
        if topic.rules.active:
            self._ruled[topic] = None

    def limit(self, topic: ServedTopic, policies: Json) -> None:
        """Apply rates, rules of messages and entry filters of its policies to a topic. System topics have none."""
        group = None if topic.name.is_system else policies.get(GROUP)
        topic.share_limits(self.groups.of(group), self.dispatch_limit)
        if not topic.name.is_system:
            use_message_rules(policies, topic)
            topic.use_limits(limits_in_force(policies, self._policies.cluster, self.rates.of_topics))
            topic.use_filters(filters_of(filter_names(policies, self._settings.filters), self.filters))

    async def apply(self, topic: Topic, here: Moved | None) -> None:
        """Apply changed policies to a loaded topic; it is loaded again if they change what it was loaded with.

        QuireError.
        """
        self._changes.note(topic)
        policies = await self._in_force.of(topic.name, topic.properties, placed=True)
        if self.find(topic.name) is not topic:
            return
        self._use(topic, policies)
        self._note_rules(topic)
        if topic_settings(self._settings.topic, policies) != topic.settings:
            await self.reload(topic.name, here)

    async def prepare(self, name: TopicName) -> None:
        """Prepare to open the ledger of a topic that another broker serves, or this one. QuireError."""
        policies = await self._policies.with_placement(name.namespace)
        if policies is not None:
            await self._factory.prepare(name.ledger_name, ledger_settings(self._settings.ledger, policies))

    async def look_ahead(self, name: TopicName) -> bool:
        """Read what opening a ledger needs, when the other broker has closed it. False if it is not prepared.

        QuireError.
        """
        return await self._factory.look_ahead(name.ledger_name)

    async def open_ahead(self, name: TopicName) -> ManagedLedger:
        """Open the ledger of a topic that was read ahead, while this broker takes its bundle; `get` uses it.

        If the bundle is not taken, the caller closes it. QuireError.
        """
        policies = await self._policies.with_placement(name.namespace)
        settings = ledger_settings(self._settings.ledger, policies or {})
        return await self._factory.open(name.ledger_name, create=False, settings=settings)

    async def _require_room(self, name: TopicName, policies: Json) -> None:
        """Raise NotAllowedError if the namespace has the most topics and this one is new."""
        limit = policies.get("max_topics_per_namespace")
        if not limit or name.is_system or await self._factory.exists(name.ledger_name):
            return
        present = await self.list(name.namespace)
        if name not in present and sum(not one.is_system for one in present) >= limit:
            raise NotAllowedError(f"Exceed maximum number of topics in namespace {name.namespace}: {limit}")

    async def _may_create(self, name: TopicName, policies: Json) -> bool:
        if name.partition >= 0:
            count = await self._policies.partitions(name.partitioned)
            if count:
                return name.partition < count
        override = policies.get("autoTopicCreationOverride")
        if isinstance(override, dict) and "allowAutoTopicCreation" in override:
            return bool(override["allowAutoTopicCreation"])
        return self._settings.auto_create

    def _failed(self, topic: Topic, error: QuireError) -> None:
        self._background.start(self._unload(topic), f"unload {topic.name} after: {error}")

    # existence

    async def exists(self, name: TopicName) -> bool:
        """Return whether the (plain) topic exists."""
        return self.find(name) is not None or await self._factory.exists(name.ledger_name)

    async def partitions_for_client(self, name: TopicName, *, auto_create: bool) -> int:
        """Return the number of partitions for clients: 0 for a plain topic. TopicNotFoundError if it does not exist."""
        if self.find(name) is not None or self.non_persistent.find(name) is not None:
            return 0
        policies = await self._in_force.of_namespace(name.namespace)
        if policies is None:
            raise TopicNotFoundError("Namespace not found")
        if name.partition >= 0:
            return 0
        if name.persistent:
            count, exists = await self._policies.partitions_beside(name, node_path(name.ledger_name))
        else:
            count, exists = await self._policies.partitions(name), False
        if count or exists:
            return count
        if not auto_create and not name.persistent:
            return 0  # whether it exists is known to its owner
        if not auto_create or not await self._may_create(name, policies):
            raise TopicNotFoundError("")
        name.require_creatable()
        override = policies.get("autoTopicCreationOverride")
        if isinstance(override, dict) and override.get("topicType") == "partitioned" and not name.is_system:
            wanted = override.get("defaultNumPartitions") or 1
            self._check_partitions(wanted)  # other programs also write namespaces, without a check
            try:
                await self._policies.create_partitions(name, wanted)
            except ConflictError:
                return await self._policies.partitions(name)
            return wanted
        return 0

    async def create(self, name: TopicName) -> Topic:
        """Create a plain topic for an administrator, regardless of whether clients may. This broker must own it."""
        return await self._get(name, create=True, may_create=True)

    async def create_shadow(self, name: TopicName, source: TopicName) -> Topic:
        """Create a plain topic that shows the entries of another one. ConflictError. This broker must own it."""
        name.require_creatable()
        await self._require_room(name, await self._policies.policies(name.namespace) or {})
        if not await self._factory.create(name.ledger_name, {SOURCE_PROPERTY: str(source)}):
            raise ConflictError("This topic already exists")
        return await self.get(name, create=False)

    async def create_partitioned(
        self, name: TopicName, count: int, properties: Mapping[str, str] | None = None
    ) -> None:
        """Record a partitioned topic. ConflictError if a topic of that name exists; InvalidTopicNameError."""
        name.require_creatable()
        self._check_partitions(count)
        if await self._policies.policies(name.namespace) is None:
            raise NotFoundError("Namespace not found")
        if name.partition >= 0:
            raise NotAllowedError("Partitioned Topic Name should not contain '-partition-'")
        if await self.exists(name):
            raise ConflictError("This topic already exists")
        await self._policies.create_partitions(name, count, properties)

    async def grow_partitioned(self, name: TopicName, count: int) -> None:
        """Increase the number of partitions; the new ones are created at their first use."""
        self._check_partitions(count)
        await self._policies.grow_partitions(name, count)

    @staticmethod
    def _check_partitions(count: object) -> None:
        if type(count) is not int or not 0 < count <= limits.PARTITIONS_MAX:
            raise NotAllowedError(f"Number of partitions should be between 1 and {limits.PARTITIONS_MAX}; got {count}")

    async def list_non_persistent(self, namespace: NamespaceName) -> list[TopicName]:
        """Return its non-persistent topics by name: those in the memory of this broker, and recorded partitions."""
        found = {str(one.name): one.name for one in self.non_persistent.loaded if one.name.namespace == namespace}
        async for partitioned in self._policies.partitioned_topics(namespace, NON_PERSISTENT):
            count = await self._policies.partitions(partitioned)
            found.update({str(name): name for name in partitioned.partitions(count)})
        return [found[name] for name in sorted(found)]

    async def list(self, namespace: NamespaceName) -> list[TopicName]:
        """Return the persistent topics of a namespace by name, including partitions of partitioned ones."""
        left = iter(await self._factory.list(f"{namespace}/{PERSISTENT}"))
        found: dict[str, TopicName] = {}
        while names := tuple(islice(left, limits.LIST_SLICE_NAMES)):
            found.update({str(name): name for name in map(topic_of_ledger, names)})
            await asyncio.sleep(0)  # a namespace of 100,000 topics takes half a second
        async for partitioned in self._policies.partitioned_topics(namespace, PERSISTENT):
            count = await self._policies.partitions(partitioned)
            found.update({str(name): name for name in partitioned.partitions(count)})
        return [found[name] for name in sorted(found)]

    # the end

    async def unload(self, name: TopicName) -> None:
        """Close a topic; does nothing if it is not loaded."""
        topic = self._loaded.get(name)
        if topic is not None:
            await self._unload(topic)

    async def reload(self, name: TopicName, here: Moved | None) -> None:
        """Close a topic, and load it again if it has clients: these return to this broker, at the address `here`."""
        topic = self._loaded.get(name)
        if topic is None or not topic.used:
            await self.unload(name)
            return
        await self._attempt(self.prepare(name), name)
        if await self.quiesce(topic):
            await self._attempt(self.look_ahead(name), name)
            self.let_go(topic, here)
            await self.load_again(name)

    @staticmethod
    async def _attempt(preparation: Awaitable[object], name: TopicName) -> None:
        """Wait for a step without which the topic only takes longer to load."""
        try:
            await preparation
        except QuireError as error:
            log.info("%s is loaded without preparation: %s", name, error)

    async def load_again(self, name: TopicName) -> None:
        """Load a topic that has clients, before they ask for it."""
        try:
            await self.get(name, create=False)
        except QuireError as error:
            log.info("%s is loaded when a client asks for it: %s", name, error)

    async def _unload(self, topic: Topic) -> None:
        if await self.quiesce(topic):
            self.let_go(topic)

    async def quiesce(self, topic: Topic, place: Place | None = None) -> bool:
        """Close a topic's ledger; its clients wait for `let_go`. False if it is already closed, or another call is.

        In that case returns when the other call is done. `place`: see `ManagedLedger.save`.
        """
        name = topic.name
        running = self._unloading.get(name)
        if running is not None:
            await asyncio.shield(running)
            return False
        if self._loaded.get(name) is not topic:
            return False
        self._unloading[name] = asyncio.get_running_loop().create_future()
        closed = False
        try:
            await topic.quiesce(place)
            closed = True
        except QuireError as error:
            log.warning("closed %s with an error: %s", name, error)
            closed = True
        finally:
            if closed:
                self._settling.start(topic.ledger.settle(), f"the end of {name}")
            else:
                topic.ledger.stop()
                self._settling.start(topic.ledger.release(), f"the end of {name}, which was not closed in order")
                self.let_go(topic)
        return True

    def let_go(self, topic: Topic, moved: Moved | None = None) -> None:
        """Forget a closed topic and disconnect its clients: they go to the new broker, or look it up."""
        self._forget(topic)
        topic.disconnect(moved)

    def _forget(self, topic: Topic) -> None:
        """Let others load a topic that is closed or deleted."""
        if self._loaded.get(topic.name) is topic:
            del self._loaded[topic.name]
        self._changes.forget(topic)
        if (future := self._unloading.pop(topic.name, None)) is not None:
            future.set_result(None)

    async def _unloaded(self, name: TopicName) -> Topic | None:
        """Wait until a topic is no longer being unloaded, and return it if another client has loaded it again.

        ServiceNotReadyError if that takes too long.
        """
        try:
            async with asyncio.timeout(limits.UNLOAD_WAIT_S):
                while self.find(name) is None and (name in self._loaded or name in self._unloading):
                    future = self._unloading.get(name)
                    if future is None:  # it has failed, and a task is about to unload it
                        await asyncio.sleep(_UNLOAD_PAUSE_S)
                    else:
                        await asyncio.shield(future)
        except TimeoutError as error:
            raise ServiceNotReadyError(f"{name} is being unloaded; look it up again") from error
        return self.find(name)

    async def delete(self, name: TopicName, *, force: bool = False) -> None:
        """Delete a topic with its data. TopicNotFoundError, ConflictError while it is in use."""
        if not await self.exists(name):
            raise TopicNotFoundError("Topic not found")
        topic = await self.get(name, create=False)
        topic.check_deletable(force=force)
        await self._delete(topic)

    async def delete_inactive(self, topic: Topic, is_active: Callable[[Topic], bool]) -> bool:
        """Delete a topic that is still inactive and ours. Return whether it was. QuireError."""
        name = topic.name
        if not await self._ownership.tenure(name, True):
            return False
        await topic.ledger.check_owner()  # which fences the topic of a broker that was stopped for too long
        # Without an await since this look at its clients: one that comes now waits for the end of the deletion.
        if self._loaded.get(name) is not topic or topic.closing or name in self._unloading or is_active(topic):
            return False
        await self._delete(topic)
        return True

    async def _delete(self, topic: Topic) -> None:
        self._unloading[topic.name] = asyncio.get_running_loop().create_future()
        try:
            await topic.prepare_delete()
            await self._factory.delete(topic.name.ledger_name)
        finally:  # also after a failure: the next client loads the rest again
            self._forget(topic)

    async def reload_namespace(self, namespace: NamespaceName) -> None:
        """Unload its topics, so that changed policies take effect; clients reconnect at once."""
        for topic in self.loaded:
            if topic.name.namespace == namespace:
                await self._unload(topic)

    async def tick(self) -> None:
        """Run the periodic work of the topics that have any."""
        self.non_persistent.tick()
        await self._changes.tick()

    async def close(self) -> None:
        """Unload everything, a bounded number at once: if it is cancelled, most topics that it has begun are closed."""
        self._closed = True
        self.non_persistent.close()
        left = iter(self.loaded)

        async def some() -> None:
            for topic in left:
                await self._unload(topic)

        await asyncio.gather(*(some() for _ in range(limits.TOPIC_CLOSES_MAX)))
        await self._settling.drain()
