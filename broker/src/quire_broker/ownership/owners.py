"""Owns the bundles of this broker: ephemeral nodes, taken at the first lookup.

    /namespace/<t>/<ns>/<bundle>   {"nativeUrl", "httpUrl", "disabled", "advertisedListeners"}

A bundle is ours while our session has its node. When the session is lost, a bundle stays ours *in doubt*: its open
topics are served, because the next owner fences their ledgers first and a late write of ours then fails. No topic is
opened in it: that would fence the next owner. Our node can also vanish while the session lives: by a deletion of
unknown outcome, or by an administrator. `follow` watches for that, and `confirmed_tenure` reads the node before a
topic is opened, because the event of a deletion may be late.

    certain   --LOST-->                          in doubt
    certain   --node gone, or another's-->       in doubt   at once handled as after RENEWED
    in doubt  --CONNECTED-->                     certain
    in doubt  --RENEWED, node free-->            certain    `on_retaken`: its topics check for another owner meanwhile
    in doubt  --RENEWED, another broker's node--> lost      `on_lost`: its topics are closed

A planned move offers a bundle to one broker before it is released: the node stays ours, is `disabled`, and names the
next owner, which replaces it by a node of its own when the topics are closed (`offer`, `offered`). No other broker
takes it in between, and lookups wait.

Source: spec pulsar-wire, section 6; bookkeeper-metadata, sections 3.4 and 4.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from urllib.parse import urlsplit

from quire_bookie.dataclass import dataclass
from quire_bookie.errors import BadVersionError, MetadataError, MetadataUnknownError, NodeMissingError
from quire_bookie.metadata.joint_write import JointWrite
from quire_bookie.metadata.retrying import watch_with_retries, with_retries
from quire_bookie.metadata.store import ABSENT, Check, Event, EventKind, MetadataStore, Node, Put, SessionState
from quire_broker.errors import ConflictError, NotFoundError, ServiceNotReadyError
from quire_broker.names import NamespaceName, TopicName
from quire_broker.ownership.listeners import Listener, listeners_json, listeners_of
from quire_broker.ownership.offers import Arrivals, Offer, Readiness, encoded, offer_in, replacing
from quire_broker.policies.bundles import range_of
from quire_broker.policies.store import Json, PolicyStore, decode_json, encode_json

OWNERS = "/namespace"
ATTEMPTS_MAX = 5
CONFIRM_RETRY_S = 1.0
log = logging.getLogger("quire.broker.ownership")


@dataclass(frozen=True, slots=True)
class BrokerUrls:
    """Addresses of a broker: `pulsar://host:port`, `http://host:port`, and those with TLS. Empty: none of that kind."""

    native: str
    http: str
    native_tls: str = ""
    http_tls: str = ""
    listeners: tuple[Listener, ...] = ()
    """Further addresses for clients that ask for them by name."""

    def of_listener(self, name: str) -> "BrokerUrls":
        """Return the addresses of a listener, or the default ones if `name` is empty. ServiceNotReadyError."""
        if not name:
            return self
        found = next((one for one in self.listeners if one.name == name), None)
        if found is None:
            raise ServiceNotReadyError(f"the broker has no listener {name!r} in advertisedListeners")
        return replace(self, native=found.native, native_tls=found.native_tls)

    @property
    def clients(self) -> str:
        """The address for clients; plaintext if available, since that needs no certificate."""
        return self.native or self.native_tls

    @property
    def web(self) -> str:
        """The address for REST, likewise."""
        return self.http or self.http_tls

    @property
    def broker_id(self) -> str:
        """The id of the broker: host and port of REST, or without REST those for clients; see `Ports.broker_id`."""
        return urlsplit(self.web or self.clients).netloc


@dataclass(frozen=True, slots=True)
class Bundle:
    """One bundle of one namespace."""

    namespace: NamespaceName
    range: str

    @property
    def key(self) -> str:
        """The key of its owner node."""
        return f"{OWNERS}/{self}"

    def __str__(self) -> str:
        return f"{self.namespace}/{self.range}"


def bundle_named(name: str) -> Bundle:
    """Return the bundle `tenant/namespace/range`; for another text one that does not exist."""
    namespace, _, range_ = name.rpartition("/")
    tenant, _, local = namespace.partition("/")
    return Bundle(NamespaceName(tenant, local), range_)


class BundleMovesError(ServiceNotReadyError):
    """The bundle is changing its owner."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The answer to a lookup."""

    urls: BrokerUrls
    ours: bool


def _unloading(bundle: Bundle) -> BundleMovesError:
    return BundleMovesError(f"{bundle} is being unloaded; look up again")


def _owner_data(urls: BrokerUrls) -> Json:
    """Return the content of a bundle's node. An absent field means that the broker has no such address."""
    found = {
        "nativeUrl": urls.native,
        "nativeUrlTls": urls.native_tls,
        "httpUrl": urls.http,
        "httpUrlTls": urls.http_tls,
    }
    return {key: url for key, url in found.items() if url} | {
        "disabled": False,
        "advertisedListeners": listeners_json(urls.listeners),
    }


def owner_urls(data: Json) -> BrokerUrls:
    """Return the addresses in a bundle's node."""
    keys = ("nativeUrl", "httpUrl", "nativeUrlTls", "httpUrlTls")
    native, http, native_tls, http_tls = (str(data.get(key) or "") for key in keys)
    return BrokerUrls(native, http, native_tls, http_tls, listeners_of(data.get("advertisedListeners")))


class Owners:
    """Takes bundles and finds the owners of others."""

    def __init__(self, metadata: MetadataStore, policies: PolicyStore, urls: BrokerUrls, broker_id: str = "") -> None:
        """`broker_id`: under which other brokers offer bundles to this one; empty: none is accepted."""
        self._metadata = metadata
        self._policies = policies
        self._urls = urls
        self._broker_id = broker_id
        self.data = _owner_data(urls)
        """The content of the nodes of its bundles."""
        self.arrivals = Arrivals()
        self.readiness = Readiness(metadata)
        self._value = encode_json(self.data)
        self._held: set[Bundle] = set()
        self._doubted: set[Bundle] = set()
        """Those of `_held` whose node the session may have lost."""
        self._interrupted: set[Bundle] = set()
        """Those of `_doubted` that another broker may have owned meanwhile."""
        self._tenures: dict[Bundle, int] = {}
        """The tenures of `_held`; see `tenure`."""
        self._tenures_begun = 0
        self._deletions_seen = 0
        """Counts possible deletions of the nodes of bundles that are being taken."""
        self._session_lost = False
        self._doubts = asyncio.Event()
        self._leaving: set[Bundle] = set()
        self._unreleased: dict[Bundle, None] = {}
        """Bundles whose release failed, in order: their nodes keep other brokers away. See `release_again`."""
        self._release_failed = asyncio.Event()
        self._deleting: dict[Bundle, int] = {}
        """Bundles whose deletion by `release` is unknown and may still happen: the highest version it named."""
        self._taking: dict[Bundle, asyncio.Lock] = {}
        self._dividing: dict[Bundle, asyncio.Future[tuple[Bundle, ...]]] = {}
        """Running splits; see `parts_of`."""
        self._closed = False
        self._draining = False
        self._changes: dict[str, asyncio.Future[None]] = {}
        """Ended when the node of that key changes."""
        self._sessions_lost = 0
        self.on_lost: Callable[[Bundle], None] = lambda bundle: None
        """Called, without waiting, for each bundle that another broker took after our session or its node was lost."""
        self.on_retaken: Callable[[Bundle], None] = lambda bundle: None
        """Called, without waiting, for each bundle that is ours again and may have had another owner meanwhile."""
        self.on_modified: Callable[[Bundle], None] = lambda bundle: None
        """Called, without waiting, for each bundle of others that was rewritten, or changed while it is expected."""
        self._forget_session = metadata.on_session(self._session_changed)

    @property
    def urls(self) -> BrokerUrls:
        """The URLs of this broker."""
        return self._urls

    @property
    def held(self) -> frozenset[Bundle]:
        """The bundles that are ours, including those in doubt."""
        return frozenset(self._held)

    @property
    def left(self) -> int:
        """How many bundles a drain has not moved yet: those that are ours, and those that are on their way."""
        return len(self._held | self._leaving)

    @property
    def draining(self) -> bool:
        """Whether no bundle is taken any more."""
        return self._draining

    async def bundle_of(self, topic: TopicName) -> Bundle:
        """Return the bundle of a topic; NotFoundError if its namespace does not exist."""
        bundles = await self._policies.bundles(topic.namespace)
        if bundles is None:
            raise NotFoundError("Namespace not found")
        return Bundle(topic.namespace, bundles.bundle_of(str(topic)))

    def holds(self, bundle: Bundle) -> bool:
        """Return whether the bundle is ours, or was when the session was lost: its open topics are served."""
        return bundle in self._held

    def certain(self, bundle: Bundle) -> bool:
        """Return whether the bundle is ours beyond doubt, so that its topics may be opened."""
        return bundle in self._held and bundle not in self._doubted

    def tenure(self, bundle: Bundle) -> int:
        """Return a number for the period without another owner of the bundle; 0 if it is not ours beyond doubt."""
        return self._tenures[bundle] if self.certain(bundle) else 0

    async def confirmed_tenure(self, bundle: Bundle) -> int:
        """Read the bundle's node and return the tenure; 0 if it is not ours beyond doubt. MetadataError.

        A broker that was cut off from the store notices here that its node is gone, before an event of it arrives.
        """
        if self.certain(bundle):
            self.compare(bundle, self._tenures[bundle], await self._metadata.get(bundle.key))
        return self.tenure(bundle)

    async def owner_of(self, bundle: Bundle, *, take: bool = True, known: Node | None = None) -> Owner | None:
        """Return the owner of the bundle. With `take`, a free one or one of a dead run of ours is taken, else None.

        While the session is lost, a bundle in doubt counts as ours, without asking the store. `known`: the bundle's
        node, if it was just read.
        """
        if self.certain(bundle) or (self._session_lost and bundle in self._held):
            return Owner(self._urls, ours=True)
        lock = self._taking.setdefault(bundle, asyncio.Lock())
        async with lock:
            try:
                for _ in range(ATTEMPTS_MAX):
                    if self.certain(bundle):
                        return Owner(self._urls, ours=True)
                    if bundle in self._leaving:
                        raise _unloading(bundle)
                    node, known = known or await self._metadata.get(bundle.key), None
                    free = node is None or self._left_behind(node)
                    if free and (not take or self._draining) and bundle not in self._held:
                        return None
                    owner = await self._take(bundle, node)
                    if owner is not None:
                        return owner
            finally:
                self._taking.pop(bundle, None)
        raise BundleMovesError(f"the owner of {bundle} keeps changing; look up again")

    async def _take(self, bundle: Bundle, node: Node | None) -> Owner | None:
        """Try once; None if another broker changed the node meanwhile."""
        if self._closed:
            raise ServiceNotReadyError("this broker is shutting down")
        given = node is not None and not node.owned and self._is_given(node)
        if node is not None and not node.owned and not given:
            if not self._left_behind(node):
                self._drop_lost(bundle)
                return self._foreign(bundle, node)
            try:
                await self._metadata.delete(bundle.key, expected=node.version)
            except BadVersionError:
                return None
        losses, deletions = self._sessions_lost, self._deletions_seen
        version = ABSENT if node is None or not (node.owned or given) else node.version
        try:
            if node is None or version == ABSENT or node.value != self._value:  # also one with an offer of ours
                version = await self._metadata.put(bundle.key, self._value, expected=version, ephemeral=True)
            while version <= self._deleting.get(bundle, ABSENT):
                # A late deletion removes the node in the version that it names: ours must not have that version.
                version = await self._metadata.put(bundle.key, self._value, expected=version, ephemeral=True)
        except (BadVersionError, MetadataUnknownError):
            return None  # the next attempt reads the owner
        if losses != self._sessions_lost or deletions != self._deletions_seen:
            return None
        if bundle not in self._held or bundle in self._interrupted:
            self._tenures_begun += 1
            self._tenures[bundle] = self._tenures_begun
        self._held.add(bundle)
        self._doubted.discard(bundle)
        if bundle in self._interrupted:
            self._interrupted.discard(bundle)
            self.on_retaken(bundle)
        return Owner(self._urls, ours=True)

    def _forget(self, bundle: Bundle) -> bool:
        """Drop the bundle; False if it was not ours."""
        held = bundle in self._held
        for bundles in (self._held, self._doubted, self._interrupted):
            bundles.discard(bundle)
        self._tenures.pop(bundle, None)
        return held

    def _drop_lost(self, bundle: Bundle) -> None:
        if self._forget(bundle):
            log.warning("%s has another owner: its topics are closed here", bundle)
            self.on_lost(bundle)

    async def has_left_behind(self, bundle: Bundle) -> bool:
        """Return whether a dead run of ours owns the bundle: other brokers send clients here. MetadataError."""
        node = await self._metadata.get(bundle.key)
        return node is not None and self._left_behind(node)

    def _left_behind(self, node: Node) -> bool:
        """Return whether the node has our urls and an older session: a previous, dead run left it."""
        return not node.owned and node.value == self._value

    def _foreign(self, bundle: Bundle, node: Node) -> Owner:
        value = decode_json(bundle.key, node.value)
        urls = owner_urls(value)
        if value.get("disabled") or not urls.clients:
            raise _unloading(bundle)
        return Owner(urls, ours=False)

    async def split(self, bundle: Bundle, at: int) -> tuple[Bundle, Bundle]:
        """Divide a bundle of ours at a hash: both halves become ours, and open topics are served without a pause.

        Brokers that do not know the new bundles yet still find us by the node of the old one, which the caller removes
        with `remove_divided`. ConflictError if it is not ours beyond doubt or has changed meanwhile. MetadataError.
        """
        low, high = range_of(bundle.range)
        halves = (
            Bundle(bundle.namespace, f"0x{low:08x}_0x{at:08x}"),
            Bundle(bundle.namespace, f"0x{at:08x}_0x{high:08x}"),
        )
        check, put = await self._policies.split_of(bundle.namespace, bundle.range, at)
        node, tenure, losses = await self._metadata.get(bundle.key), self.tenure(bundle), self._sessions_lost
        if not tenure or self._draining or node is None or not node.owned:
            raise ConflictError(f"{bundle} is not owned by this broker, or is about to move")
        if bundle in self._dividing:
            raise ConflictError(f"{bundle} is being divided already")
        checks = [check, Check(bundle.key, node.version), *(Check(half.key, ABSENT) for half in halves)]
        puts = [put, *(Put(half.key, self._value, ephemeral=True) for half in halves)]
        self._dividing[bundle] = divided = asyncio.get_running_loop().create_future()
        parts: tuple[Bundle, ...] = (bundle,)
        try:
            await self._metadata.transact(checks, puts)
            self._hold_halves(bundle, halves, tenure, certain=losses == self._sessions_lost)
            parts = halves
        except BadVersionError as error:
            raise ConflictError(f"{bundle} has changed meanwhile; try again") from error
        finally:
            del self._dividing[bundle]
            divided.set_result(parts)
            self._policies.forget_bundles(bundle.namespace)
        return halves

    def _hold_halves(self, bundle: Bundle, halves: tuple[Bundle, Bundle], tenure: int, *, certain: bool) -> None:
        left = self.tenure(bundle) != tenure or not certain
        self._forget(bundle)
        for half in halves:
            self._held.add(half)
            self._tenures[half] = tenure
            if left:  # their nodes may have gone with the session
                self._doubted.add(half)
                self._interrupted.add(half)
        if left:
            self._doubts.set()

    async def parts_of(self, bundle: Bundle) -> tuple[Bundle, ...]:
        """Return the halves of a bundle that is just being divided, else the bundle itself.

        A bundle that moved during its split would have an owner that no lookup finds.
        """
        divided = self._dividing.get(bundle)
        return (bundle,) if divided is None else await asyncio.shield(divided)

    async def remove_divided(self, bundle: Bundle) -> None:
        """Remove the node of a bundle that `split` divided. MetadataError."""
        node = await self._metadata.get(bundle.key)
        if node is not None and node.owned and bundle not in self._held:
            try:
                await self._metadata.delete(bundle.key, expected=node.version)
            except BadVersionError:
                log.info("the node of %s has changed: it is left", bundle)

    def _is_given(self, node: Node) -> bool:
        offer = offer_in(node)
        return offer is not None and offer.closed and offer.to == self._broker_id and not self._draining

    async def offer(self, bundle: Bundle, offer: Offer, version: int | None = None) -> int:
        """Write an offer of a bundle that we left into its node, if known at `version`. Return the new one."""
        if version is None:
            node = await self._metadata.get(bundle.key)
            if node is None or not node.owned:
                raise BadVersionError(f"the node of {bundle} is not ours any more")
            version = node.version
        return await self._metadata.put(bundle.key, encoded(offer, self.data), expected=version, ephemeral=True)

    def offer_with(self, bundle: Bundle, offer: Offer, version: int) -> JointWrite:
        """Return a write that does the same together with what others write before: the end of the bundle's topics."""
        return JointWrite(self._metadata, replacing(bundle.key, version, encoded(offer, self.data)))

    async def offered(self, bundle: Bundle) -> tuple[Offer, Node] | None:
        """Return the offer of the bundle to this broker, if any, and the node that holds it. MetadataError.

        An offer of ours that was written after the bundle was released is withdrawn: else no broker could take it.
        """
        if bundle in self._held or bundle in self._leaving:
            return None
        node = await self._metadata.get(bundle.key)
        if node is not None and node.owned and node.value != self._value:
            await self._metadata.delete(bundle.key, expected=node.version)
        if self._draining:
            return None
        offer = None if node is None or node.owned else offer_in(node)
        return None if node is None or offer is None or offer.to != self._broker_id else (offer, node)

    async def take_offered(self, bundle: Bundle, node: Node) -> bool:
        """Take a closed bundle whose node was read with its offer. Return whether it is ours now. MetadataError."""
        owner = await self.owner_of(bundle, known=node)
        return owner is not None and owner.ours

    async def successor(self, bundle: Bundle, wait_s: float) -> Owner | None:
        """Return the broker that took a bundle which we offered; None if none did in that time. MetadataError."""
        try:
            async with asyncio.timeout(wait_s):
                while True:
                    change = self.change_of(bundle)
                    node = await self._metadata.get(bundle.key)
                    if node is None:
                        return None
                    if not node.owned:
                        return self._foreign(bundle, node)
                    await asyncio.shield(change)
        except TimeoutError:
            return None

    def change_of(self, bundle: Bundle) -> "asyncio.Future[None]":
        """Return a future that ends at the next change of the bundle's node; `follow` must run."""
        change = self._changes.get(bundle.key)
        if change is None:
            change = self._changes[bundle.key] = asyncio.get_running_loop().create_future()
        return change

    def drain(self) -> None:
        """Take no bundle any more that is not ours yet."""
        self._draining = True

    def leave(self, bundle: Bundle) -> bool:
        """Stop serving the bundle: none of its topics is loaded any more. False if it is not ours.

        The node stays until `release`, so that no other broker takes the bundle while its topics are being unloaded.
        """
        if not self._forget(bundle):
            return False
        self._leaving.add(bundle)
        return True

    async def release(self, bundle: Bundle) -> None:
        """Release a bundle that we left to others; does nothing for one that was lost or taken again meanwhile.

        After a MetadataError, `release_again` releases it.
        """
        if bundle not in self._leaving:
            return
        try:
            await self._remove_node(bundle)
        except (MetadataError, asyncio.CancelledError):
            self._unreleased[bundle] = None
            self._release_failed.set()
            raise
        finally:
            self._leaving.discard(bundle)

    async def _remove_node(self, bundle: Bundle) -> None:
        version = ABSENT
        try:
            while (node := await self._metadata.get(bundle.key)) is not None and node.owned:  # else the next owner's
                version = node.version
                with suppress(BadVersionError):  # a late write of an offer replaced the node: it is still ours
                    return await self._metadata.delete(bundle.key, expected=version)
        except NodeMissingError:
            log.info("the node of %s was already gone", bundle)
        except MetadataUnknownError:
            self._deleting[bundle] = max(version, self._deleting.get(bundle, ABSENT))
            raise

    async def release_again(self) -> None:
        """Release the bundles whose release failed, until cancelled: else their nodes stay as long as the session."""
        while True:
            await self._release_failed.wait()
            self._release_failed.clear()
            for bundle in list(self._unreleased):
                again = partial(self._release_again, bundle)
                await with_retries(again, f"release {bundle}", log.warning)

    async def _release_again(self, bundle: Bundle) -> None:
        async with self._taking.setdefault(bundle, asyncio.Lock()):  # no lookup finds the node that is being removed
            try:
                if bundle not in self._held and bundle not in self._leaving:  # else it was taken again
                    await self._remove_node(bundle)
            finally:
                self._taking.pop(bundle, None)
        self._unreleased.pop(bundle, None)

    async def close(self) -> None:
        """Release everything and take no bundles any more."""
        self._closed = True
        self._forget_session()
        for bundle in list(self._held):
            self.leave(bundle)
            await self.release(bundle)

    async def run(self, retry_s: float = CONFIRM_RETRY_S) -> None:
        """After each loss of the session or a node, take bundles in doubt again or drop them, until cancelled."""
        while True:
            await self._doubts.wait()
            self._doubts.clear()
            for bundle in sorted(self._doubted, key=lambda one: one.key):
                if bundle not in self._doubted:
                    continue  # a lookup was faster
                try:
                    await self.owner_of(bundle)
                except (MetadataError, ServiceNotReadyError) as error:
                    log.warning("cannot confirm %s yet: %s", bundle, error)
            if self._doubted and not self._session_lost:
                self._doubts.set()
                await asyncio.sleep(retry_s)

    async def follow(self) -> None:
        """Doubt a bundle whose node vanishes or becomes another broker's while the session lives, until cancelled.

        While the store does not answer nothing is doubted: the open topics are served.
        """
        watch = await watch_with_retries(self._metadata, f"{OWNERS}/", log.warning)
        try:
            for bundle in self.held:  # their nodes may have vanished before the watch began
                await self._check_node(bundle)
            async for event in watch:
                for bundle in self._concerned(event):
                    await self._check_node(bundle)
        finally:
            await watch.close()

    def _concerned(self, event: Event) -> list[Bundle]:
        """Return held bundles whose node may have changed."""
        lost_events = event.kind is EventKind.RESYNC
        for key in list(self._changes) if lost_events else [event.key]:
            change = self._changes.pop(key, None)
            if change is not None and not change.done():
                change.set_result(None)
        if event.kind is EventKind.DELETED or lost_events:
            self._deletions_seen += bool(self._taking)
        if lost_events:
            return list(self._held)
        bundle = bundle_named(event.key.removeprefix(f"{OWNERS}/"))
        rewritten = event.kind is EventKind.MODIFIED or self.arrivals.expects(bundle.key)
        if rewritten and bundle not in self._held:
            self.on_modified(bundle)
        return [bundle] if bundle in self._held else []

    async def _check_node(self, bundle: Bundle) -> None:
        tenure = self._tenures.get(bundle)
        read = partial(self._metadata.get, bundle.key)
        node = await with_retries(read, f"read the owner of {bundle}", log.warning)
        self.compare(bundle, tenure, node)

    def compare(self, bundle: Bundle, tenure: int | None, node: Node | None) -> None:
        """Doubt the bundle if its node, which was read during this tenure, is gone or another broker's."""
        if (node is not None and node.owned) or not self.certain(bundle) or self._tenures[bundle] != tenure:
            return
        log.warning("the node of %s is gone, or another broker's", bundle)
        self._doubted.add(bundle)
        self._interrupted.add(bundle)
        self._doubts.set()

    def _session_changed(self, state: SessionState) -> None:
        self._session_lost = state is SessionState.LOST
        if state is SessionState.LOST:
            self._sessions_lost += 1
            self._doubted |= self._held
            if self._held:
                log.warning("the metadata session is lost: the open topics of %d bundles are served", len(self._held))
            return
        if state is SessionState.RENEWED:
            self._sessions_lost += 1
            self._doubted |= self._held
            self._interrupted |= self._held
            self._leaving.clear()  # their topics are already being unloaded; the nodes vanished with the session
        if self._doubted:
            self._doubts.set()
