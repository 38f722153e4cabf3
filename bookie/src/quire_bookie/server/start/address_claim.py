"""Decides when a bookie may serve its address, so that no client mistakes it for an earlier bookie of that address.

An id belongs to its storage, an address to a host: with new volumes another bookie comes up under the address of the
old one. Requests do not name their bookie, so a client that still maps the address to the old one would receive *no
such entry*, and recovery would truncate acknowledged entries. Therefore, before any request is answered:

* no other bookie is registered with the address: its lease ends first;
* if the host had other bookies that were not decommissioned, this bookie is first registered read-only, so that no
  client selects it, for long enough that every client sees the registration.
"""

import asyncio
import logging
import re

from quire_bookie.env.backoff import Backoff
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
    """Wait until no other bookie is registered with the address. StartupError after `timeout_s`."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + timeout_s
    backoff = Backoff(METADATA_RETRY_BACKOFF_S)
    while (other := await _other_bookie(metadata, bookie, address)) is not None:
        if loop.time() >= deadline_s:
            raise StartupError(
                f"{address.host}:{address.port} is registered for bookie {other}, whose clients would mistake this "
                f"bookie ({bookie}) for it; stop that process, or advertise another address"
            )
        _log.warning("waiting until bookie %s is no longer registered with this address", other)
        await backoff.wait()


async def _other_bookie(metadata: MetadataStore, bookie: BookieId, address: BookieAddress) -> BookieId | None:
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
        return None  # clients cannot find a bookie with an invalid node
    return None if endpoint is None else BookieAddress(endpoint.host, endpoint.port)


async def predecessors(metadata: MetadataStore, bookie: BookieId, address: BookieAddress) -> list[BookieId]:
    """Return earlier bookies of this host that are unregistered but not decommissioned: ledgers may name them.

    They have a generated id with this host's name, or are the Java bookie whose id is the address.
    """
    prefix, java = id_prefix(address.host), f"{address.host}:{address.port}"
    found = [
        other
        for other in await Cookies(metadata).bookies()
        if other != bookie and (other == java or (other.startswith(prefix) and _DRAWN.fullmatch(other[len(prefix) :])))
    ]
    if not found:
        return []
    # A registered bookie on another port of this host is not a predecessor: its clients know its address.
    there = {*await metadata.children(layout.AVAILABLE), *await metadata.children(layout.READ_ONLY)}
    return [other for other in found if other not in there]


async def hand_over(bookie: BookieId, before: list[BookieId]) -> None:
    """Wait until every client has seen that the address now belongs to this bookie."""
    _log.warning(
        "this host had %s before, which ledgers may name: bookie %s serves in %.0f s, when clients know the change",
        ", ".join(before),
        bookie,
        ADDRESS_HANDOVER_S,
    )
    await asyncio.sleep(ADDRESS_HANDOVER_S)
