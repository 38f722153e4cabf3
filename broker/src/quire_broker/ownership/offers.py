"""Offers of bundles to other brokers, and the bundles that this broker expects from others. Decides no owner.

    /namespace/<t>/<ns>/<bundle>          {..., "quireOffer": {"to", "closed", "topics"}}     of the old owner
    /quire/handovers/<t>/<ns>/<bundle>    {"offer": version, "nativeUrl", ...}   ephemeral    of the next owner

The second node answers the first: the next owner has prepared what it can for the offer of that version. It gives its
addresses, so that the old owner can send clients there before the bundle is taken.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict

from quire_bookie.dataclass import dataclass
from quire_bookie.metadata.joint_write import Part
from quire_bookie.metadata.store import Check, MetadataStore, Node, Put, Watch
from quire_broker.policies.store import Json, decode_json, encode_json

READY = "/quire/handovers"
OFFER = "quireOffer"
"""Field of a node whose bundle is handed over; other brokers ignore it."""
_VERSION = "offer"


@dataclass(frozen=True, slots=True)
class Offer:
    """A bundle that its owner hands to broker `to`; it may be taken once `closed`. `topics`: those with clients."""

    to: str
    closed: bool = False
    topics: tuple[str, ...] = ()


def offer_in(node: Node) -> Offer | None:
    """Return the offer in the node of another broker; None if it has none. MetadataFormatError."""
    data = decode_json(node.key, node.value).get(OFFER)
    if not isinstance(data, dict):
        return None
    topics = data.get("topics")
    names = tuple(str(name) for name in topics) if isinstance(topics, list) else ()
    return Offer(str(data.get("to") or ""), data.get("closed") is True, names)


def encoded(offer: Offer, owner: Json) -> bytes:
    """Return the content of the node of a bundle that its owner offers. `owner`: the data of the owner's nodes."""
    return encode_json(owner | {"disabled": True, OFFER: asdict(offer)})


def replacing(key: str, version: int, value: bytes) -> Part:
    """Return the write of a bundle's node, as a part of a transaction."""
    return Part([Check(key, version)], [Put(key, value, ephemeral=True)])


class Arrivals:
    """The bundles that are about to become this broker's: requests for their topics wait. Each has a time limit."""

    def __init__(self) -> None:
        self._expected: dict[str, tuple[asyncio.Future[None], asyncio.TimerHandle]] = {}

    def expects(self, bundle: str) -> bool:
        """Return whether this bundle is expected."""
        return bundle in self._expected

    def expect(self, bundle: str, wait_s: float) -> None:
        """Let requests wait for a bundle until `end`, but not longer than `wait_s`."""
        loop = asyncio.get_running_loop()
        self.end(bundle)
        self._expected[bundle] = loop.create_future(), loop.call_later(wait_s, self.end, bundle)

    def end(self, bundle: str) -> None:
        """End the wait: the bundle has arrived, or will not."""
        found = self._expected.pop(bundle, None)
        if found is not None:
            arrived, timer = found
            timer.cancel()
            arrived.set_result(None)

    async def wait(self, bundle: str) -> bool:
        """Wait for an expected bundle. Return whether there was anything to wait for."""
        found = self._expected.get(bundle)
        if found is None:
            return False
        await asyncio.shield(found[0])
        return True


class Readiness:
    """The nodes by which the next owners answer offers. MetadataError from all calls."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata

    async def announce(self, bundle: str, version: int, owner: Json) -> None:
        """Answer the offer of this version, with the data that this broker will write as the owner."""
        await self._metadata.put(f"{READY}/{bundle}", encode_json(owner | {_VERSION: version}), ephemeral=True)

    async def withdraw(self, bundle: str) -> None:
        """Remove our answer, if it is still ours."""
        node = await self._metadata.get(f"{READY}/{bundle}")
        if node is not None and node.owned:
            await self._metadata.delete(node.key, expected=node.version)

    @asynccontextmanager
    async def watching(self, bundle: str) -> AsyncIterator[Watch]:
        """Watch the answers for a bundle; begin before the offer is written."""
        watch = await self._metadata.watch(f"{READY}/{bundle}")
        try:
            yield watch
        finally:
            await watch.close()

    async def answer(self, watch: Watch, bundle: str, version: int) -> Json:
        """Wait for the answer to the offer of this version, without a time limit, and return its owner data."""
        async for _ in watch:
            node = await self._metadata.get(f"{READY}/{bundle}")
            data = {} if node is None else decode_json(node.key, node.value)
            if data.get(_VERSION) == version:
                return data
        raise AssertionError("a watch ends only when it is closed")
