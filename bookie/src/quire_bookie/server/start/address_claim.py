"""Sees to it that nobody asks this bookie for what another one had. Decides when an address may be served.

An id belongs to its storage, an address to a place: on new volumes another bookie comes up under the address of the
old one. Requests do not say whom they are for, so a client that still takes the address for the old one's would be
told *no such entry*, and recovery would truncate acknowledged entries. Hence, before anything is answered:

* no other bookie is registered with the address: its lease ends first;
* where the host had other bookies that the cluster has not forgotten, we are registered, read-only so that nobody
  chooses us, for long enough that every client has seen it: from then on the address is ours.
"""

import asyncio
import logging
import re

from quire_bookie.errors import MetadataFormatError, StartupError
from quire_bookie.limits import ADDRESS_HANDOVER_S, METADATA_RETRY_BACKOFF_S
from quire_bookie.metadata import layout
from quire_bookie.metadata.cookies import Cookies
from quire_bookie.metadata.registration import bookie_of_path
from quire_bookie.metadata.service_info import BookieAddress, decode_service_info
from quire_bookie.metadata.store import MetadataStore, Node
from quire_bookie.model import BookieId
from quire_bookie.server.start.storage_identity import id_prefix

_log = logging.getLogger("quire.server.address")
_DRAWN = re.compile(r"[0-9a-f]{8}")


async def wait_until_free(metadata: MetadataStore, bookie: BookieId, address: BookieAddress, timeout_s: float) -> None:
    """Until no other bookie is registered with the address. StartupError after `timeout_s`."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + timeout_s
    pause_s, pause_max_s = METADATA_RETRY_BACKOFF_S
    while (other := await _holder(metadata, bookie, address)) is not None:
        if loop.time() >= deadline_s:
            raise StartupError(
                f"{address.host}:{address.port} is registered for bookie {other}, whose clients would take this bookie "
                f"({bookie}) for it; stop that process, or advertise another address"
            )
        _log.warning("waiting until bookie %s is no longer registered with our address", other)
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, pause_max_s)


async def _holder(metadata: MetadataStore, bookie: BookieId, address: BookieAddress) -> BookieId | None:
    async for page in metadata.scan(f"{layout.AVAILABLE}/"):
        for node in page:
            other = bookie_of_path(node.key)
            if other is not None and other != bookie and _address(node, other) == address:
                return other
    return None


def _address(node: Node, bookie: BookieId) -> BookieAddress | None:
    try:
        endpoint = decode_service_info(node.value, bookie).bookie_endpoint
    except MetadataFormatError:
        return None  # nobody finds it with that
    return None if endpoint is None else BookieAddress(endpoint.host, endpoint.port)


async def predecessors(metadata: MetadataStore, bookie: BookieId, address: BookieAddress) -> list[BookieId]:
    """Other bookies that were drawn on this host, are away and not forgotten: ledgers may name them.

    And the Java bookie whose id is the address.
    """
    prefix, java = id_prefix(address.host), f"{address.host}:{address.port}"
    found = [
        other
        for other in await Cookies(metadata).bookies()
        if other != bookie and (other == java or (other.startswith(prefix) and _DRAWN.fullmatch(other[len(prefix) :])))
    ]
    if not found:
        return []
    # A neighbour on another port is no predecessor: its clients know where it is.
    there = {*await metadata.children(layout.AVAILABLE), *await metadata.children(layout.READ_ONLY)}
    return [other for other in found if other not in there]


async def hand_over(bookie: BookieId, before: list[BookieId]) -> None:
    """Let every client see that the address is ours now."""
    _log.warning(
        "this host had %s before, which ledgers may name: bookie %s serves in %.0f s, when nobody takes it for that",
        ", ".join(before),
        bookie,
        ADDRESS_HANDOVER_S,
    )
    await asyncio.sleep(ADDRESS_HANDOVER_S)
