"""Stores resource groups as nodes of the metadata store, in Pulsar's JSON; see `policies.resource_groups`.

Nothing is cached: each call reads the nodes. Errors of the metadata store are passed on unchanged.
"""

import logging

from quire_bookie.errors import MetadataFormatError, NodeMissingError
from quire_bookie.metadata.store import MetadataStore, Node
from quire_broker.errors import NotFoundError
from quire_broker.policies.resource_groups import GROUP
from quire_broker.policies.store import POLICIES, RESOURCE_GROUPS, Json, change_json, decode_json

_log = logging.getLogger("quire.broker.policies")


class ResourceGroupNodes:
    """Reads and writes the groups of the cluster."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata

    async def all(self) -> dict[str, Json]:
        """Return all groups by name. One that is not readable has no rates."""
        found: dict[str, Json] = {}
        async for page in self._metadata.scan(f"{RESOURCE_GROUPS}/"):
            for node in page:
                found[node.key.removeprefix(f"{RESOURCE_GROUPS}/")] = _group_in(node)
        return found

    async def get(self, name: str) -> Json | None:
        """Return a group, None if there is none. One that is not readable has no rates."""
        node = await self._metadata.get(f"{RESOURCE_GROUPS}/{name}")
        return None if node is None else _group_in(node)

    async def put(self, name: str, rates: Json) -> None:
        """Create a group, or change the rates that are given; null keeps the present one."""
        given = {field: rate for field, rate in rates.items() if rate is not None}
        await change_json(self._metadata, f"{RESOURCE_GROUPS}/{name}", lambda group: group.update(given))

    async def delete(self, name: str) -> None:
        """Delete a group; NotFoundError."""
        try:
            await self._metadata.delete(f"{RESOURCE_GROUPS}/{name}")
        except NodeMissingError as error:
            raise NotFoundError("ResourceGroup does not exist") from error

    async def member_of(self, name: str) -> str | None:
        """Return a namespace that belongs to a group; None: there is none."""
        async for page in self._metadata.scan(f"{POLICIES}/"):
            for node in page:
                if GROUP.encode() in node.value and decode_json(node.key, node.value).get(GROUP) == name:
                    return node.key.removeprefix(f"{POLICIES}/")
        return None


def _group_in(node: Node) -> Json:
    try:
        return decode_json(node.key, node.value)
    except MetadataFormatError as error:
        _log.warning("a resource group limits nothing: %s", error)
        return {}
