"""Owns the node of the metadata's epoch: a number that rises whenever an operator restores or repairs the metadata.

/quire/epoch    JSON, {"epoch": n}; without the node the epoch is 0

Bookies remember the highest epoch that they saw. Metadata with a lower one is an older copy that was put in place
without the cluster's knowledge: see `server.upkeep.metadata_doubt`. A new epoch confirms that an operator has reviewed
the metadata, so the counters that bookies recorded under an older epoch no longer count.
"""

import json
from typing import Final

from quire_bookie.errors import MetadataFormatError
from quire_bookie.metadata.store import ABSENT, MetadataStore, Put, Versioned

EPOCH_PATH: Final = "/quire/epoch"
EPOCH_NONE: Final = 0
EPOCH_END: Final = 2**63


def encode_epoch(epoch: int) -> bytes:
    """Encode the node's value."""
    return json.dumps({"epoch": epoch}).encode()


def decode_epoch(value: bytes) -> int:
    """Decode a node's value. MetadataFormatError."""
    try:
        epoch = json.loads(value)["epoch"]
    except (ValueError, TypeError, KeyError) as error:
        raise MetadataFormatError(f"{EPOCH_PATH} does not parse: {error}") from error
    if type(epoch) is not int or not 0 <= epoch < EPOCH_END:
        raise MetadataFormatError(f"{EPOCH_PATH} is {epoch!r}, not an epoch")
    return epoch


def next_epoch(*known: int, now_ms: int = 0) -> int:
    """Return an epoch above all of `known`.

    `now_ms`: milliseconds since 1970. An older backup contains an older epoch, and bookies may have seen a later one
    since: the present time in seconds is above the epoch of every earlier restore.
    """
    return max(max(known, default=EPOCH_NONE) + 1, now_ms // 1000)


def epoch_put(epoch: int) -> Put:
    """Return the write of an epoch, for a transaction."""
    return Put(EPOCH_PATH, encode_epoch(epoch))


async def read_epoch(store: MetadataStore) -> int:
    """Return the epoch, linearizable. MetadataFormatError, MetadataUnavailableError."""
    return (await read_epoch_node(store)).value


async def read_epoch_node(store: MetadataStore) -> Versioned[int]:
    """Return the epoch with the version of its node, or ABSENT if there is none. Errors as `read_epoch`."""
    node = await store.get(EPOCH_PATH)
    return Versioned(EPOCH_NONE, ABSENT) if node is None else Versioned(decode_epoch(node.value), node.version)
