"""Owns the nodes that record a restore of the metadata whose consequences the operator has not settled yet.

/quire/restoration                    JSON as `Restoration`; while it exists brokers wait
/quire/restoration/given-up/<ledger>  operator's decision: entries unknown to the restored metadata may be deleted
/quire/returning/<bookie>             operator's decision: this bookie belongs to the cluster with its storage,
                                      although its cookie is missing or outdated; consumed by its start
"""

import asyncio
import json
from collections.abc import Callable
from dataclasses import asdict
from enum import Enum

from quire_bookie.dataclass import dataclass
from quire_bookie.errors import MetadataFormatError, NodeMissingError
from quire_bookie.metadata.store import MetadataStore, Versioned
from quire_bookie.model import BookieId, LedgerId

RESTORATION = "/quire/restoration"
GIVEN_UP = f"{RESTORATION}/given-up"
RETURNING = "/quire/returning"
_POLL_S = 2.0
_LOG_EVERY_S = 60.0


class RestorationState(Enum):
    """Phase of a restore."""

    WRITING = "writing"
    """Nodes are being written: the cluster is not visible yet."""
    REVIEW = "review"
    """Everything is written; the operator reviews the entries on bookies that are newer than the backup."""


@dataclass(frozen=True, slots=True)
class Restoration:
    """A restore. `reserved_high`: the high half of the long ids that are allocated meanwhile."""

    backup: str
    cluster: str
    state: RestorationState
    since_ms: int
    reserved_high: int
    short_ids_given: int
    """Value of the counter of short ids in the backup."""
    recovery_was_off: bool
    """Whether auto-recovery was switched off in the backup; if so, it stays off."""


def encode_restoration(restoration: Restoration) -> bytes:
    """Encode the node's value."""
    return json.dumps(asdict(restoration) | {"state": restoration.state.value}).encode()


def decode_restoration(value: bytes) -> Restoration:
    """Decode the node's value. MetadataFormatError."""
    try:
        fields = json.loads(value)
        made = Restoration(**fields | {"state": RestorationState(fields["state"])})
        if any(type(number) is not int for number in (made.since_ms, made.reserved_high, made.short_ids_given)):
            raise ValueError("a number is not an integer")
        return made
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise MetadataFormatError(f"{RESTORATION} is not a known restore: {error}") from error


async def read_restoration(store: MetadataStore) -> Versioned[Restoration] | None:
    """Return the unsettled restore, or None. MetadataFormatError."""
    node = await store.get(RESTORATION)
    return None if node is None else Versioned(decode_restoration(node.value), node.version)


async def wait_until_settled(store: MetadataStore, say: Callable[..., None]) -> None:
    """Wait until no restore is in progress or under review: opening ledgers earlier could truncate newer entries."""
    logged_s: float | None = None
    while (found := await read_restoration(store)) is not None:
        now_s = asyncio.get_running_loop().time()
        if logged_s is None or now_s - logged_s >= _LOG_EVERY_S:
            logged_s = now_s
            say(
                "waiting: the metadata was restored from backup %s and newer entries on the bookies are not settled; "
                "`quire metadata orphans list` lists them, `quire metadata release-hold` ends this",
                found.value.backup,
            )
        await asyncio.sleep(_POLL_S)


async def give_up(store: MetadataStore, ledger: LedgerId) -> None:
    """Record that a ledger's entries unknown to the restored metadata may be deleted."""
    await store.put(f"{GIVEN_UP}/{ledger}", b"")


async def given_up(store: MetadataStore) -> frozenset[LedgerId]:
    """Return the ledgers with that decision."""
    return frozenset(LedgerId(int(name)) for name in await store.children(GIVEN_UP) if name.isdigit())


async def let_return(store: MetadataStore, bookie: BookieId) -> None:
    """Record that a bookie belongs to the cluster with its present storage."""
    await store.put(f"{RETURNING}/{bookie}", b"")


async def may_return(store: MetadataStore, bookie: BookieId) -> bool:
    """Return whether that is recorded for a bookie."""
    return await store.get(f"{RETURNING}/{bookie}") is not None


async def returning(store: MetadataStore) -> list[BookieId]:
    """Return the bookies with that decision that have not started since."""
    return [BookieId(name) for name in await store.children(RETURNING)]


async def forget_returns(store: MetadataStore) -> None:
    """Remove the decisions of all bookies that have not started yet; they then need a new one."""
    for bookie in await returning(store):
        await has_returned(store, bookie)


async def has_returned(store: MetadataStore, bookie: BookieId) -> None:
    """Remove the decision, because the bookie has started."""
    try:
        await store.delete(f"{RETURNING}/{bookie}")
    except NodeMissingError:
        return
