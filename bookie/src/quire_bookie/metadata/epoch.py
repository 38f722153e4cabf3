"""The epoch of the metadata: a number that rises whenever an operator restores or repairs them. Owns one node of ours.

/quire/epoch    JSON, {"epoch": n}; without the node the epoch is 0

Bookies remember the highest epoch that they saw. Metadata with a lower one are an older copy that was put back
behind the cluster's back: see `server.metadata_doubt`. A new epoch says that an operator has looked, so what bookies
noted of the counters under an older epoch no longer counts.
"""

import json
from typing import Final

from quire_bookie.errors import MetadataFormatError
from quire_bookie.metadata.store import ABSENT, MetadataStore, Put
from quire_bookie.metadata.versioned import Versioned

EPOCH_PATH: Final = "/quire/epoch"
EPOCH_NONE: Final = 0
EPOCH_END: Final = 2**63


def encode_epoch(epoch: int) -> bytes:
    """The node's value."""
    return json.dumps({"epoch": epoch}).encode()


def decode_epoch(value: bytes) -> int:
    """The epoch in a node's value. MetadataFormatError."""
    try:
        epoch = json.loads(value)["epoch"]
    except (ValueError, TypeError, KeyError) as error:
        raise MetadataFormatError(f"{EPOCH_PATH} does not parse: {error}") from error
    if type(epoch) is not int or not 0 <= epoch < EPOCH_END:
        raise MetadataFormatError(f"{EPOCH_PATH} holds {epoch!r}, not an epoch")
    return epoch


def next_epoch(*known: int, now_ms: int = 0) -> int:
    """An epoch above all of `known`.

    `now_ms`: milliseconds since 1970. An older backup holds an older epoch, and bookies may have seen a later one
    since: the present time in seconds is above the epoch of any earlier restore.
    """
    return max(max(known, default=EPOCH_NONE) + 1, now_ms // 1000)


def epoch_put(epoch: int) -> Put:
    """The write of an epoch, for a transaction."""
    return Put(EPOCH_PATH, encode_epoch(epoch))


async def read_epoch(store: MetadataStore) -> int:
    """The epoch, linearizable. MetadataFormatError, MetadataUnavailableError."""
    return (await read_epoch_node(store)).value


async def read_epoch_node(store: MetadataStore) -> Versioned[int]:
    """The epoch with the version of its node, ABSENT without one. Errors as `read_epoch`."""
    node = await store.get(EPOCH_PATH)
    return Versioned(EPOCH_NONE, ABSENT) if node is None else Versioned(decode_epoch(node.value), node.version)
