"""Which objects the metadata names: every uuid of every managed ledger, complete or not. Reads only, opens nothing.

For sweeps of a bucket (`quire_broker.offload.sweep`). One pass over one listing; a value that cannot be read ends it:
objects that it may name must not go.
"""

from quire_bookie.metadata.store import MetadataStore
from quire_broker.managed_ledger.list_store import ROOT
from quire_broker.managed_ledger.node_codec import decode_list

_TOPIC_DEPTH = 4  # tenant, namespace, domain, topic; a cursor is one deeper


async def named_uuids(store: MetadataStore) -> frozenset[str]:
    """The uuids. MetadataError, MetadataFormatError: nothing may be swept."""
    found: set[str] = set()
    prefix = f"{ROOT}/"
    async for page in store.scan(prefix):
        for node in page:
            if node.key.removeprefix(prefix).count("/") != _TOPIC_DEPTH - 1:
                continue
            for record in decode_list(node.value).ledgers:
                if record.offload is not None and record.offload.uuid:
                    found.add(record.offload.uuid)
    return frozenset(found)
