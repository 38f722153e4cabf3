"""That the metadata was restored from a backup and a person has not settled yet what follows. Owns these nodes of ours.

/quire/restoration                    JSON as `Restoration`; while it is there brokers wait
/quire/restoration/given-up/<ledger>  a person's word: what bookies hold beyond the restored metadata may go
/quire/returning/<bookie>             a person's word: this bookie, which the restored metadata does not know, or knows
                                      as it was, belongs to the cluster with its storage; used up by its start
"""

import asyncio
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import Enum

from quire_bookie.errors import MetadataFormatError, NodeMissingError
from quire_bookie.metadata.store import MetadataStore
from quire_bookie.metadata.versioned import Versioned
from quire_bookie.model import BookieId, LedgerId

RESTORATION = "/quire/restoration"
GIVEN_UP = f"{RESTORATION}/given-up"
RETURNING = "/quire/returning"
_LOOK_EVERY_S = 2.0
_SAY_EVERY_S = 60.0


class RestorationState(Enum):
    """How far a restore is."""

    WRITING = "writing"
    """Nodes are being written: no cluster is visible yet."""
    REVIEW = "review"
    """All is there; a person looks at what the bookies hold beyond it."""


@dataclass(frozen=True, slots=True)
class Restoration:
    """A restore. `reserved_high`: the high half of the long ids that are given out meanwhile."""

    backup: str
    cluster: str
    state: RestorationState
    since_ms: int
    reserved_high: int
    short_ids_given: int
    """What the counter of short ids said in the backup."""
    recovery_was_off: bool
    """Auto-recovery was switched off in the backup, so it stays so afterwards."""


def encode_restoration(restoration: Restoration) -> bytes:
    """The node's value."""
    return json.dumps(asdict(restoration) | {"state": restoration.state.value}).encode()


def decode_restoration(value: bytes) -> Restoration:
    """The node's value. MetadataFormatError."""
    try:
        fields = json.loads(value)
        return Restoration(**fields | {"state": RestorationState(fields["state"])})
    except (ValueError, TypeError, KeyError) as error:
        raise MetadataFormatError(f"{RESTORATION} is none that is known here: {error}") from error


async def read_restoration(store: MetadataStore) -> Versioned[Restoration] | None:
    """The restore that is not settled; None when there is none. MetadataFormatError."""
    node = await store.get(RESTORATION)
    return None if node is None else Versioned(decode_restoration(node.value), node.version)


async def wait_until_settled(store: MetadataStore, say: Callable[..., None]) -> None:
    """Until no restore is under way or under review: whoever opens ledgers before could cut off what is newer."""
    said_s: float | None = None
    while (found := await read_restoration(store)) is not None:
        now_s = asyncio.get_running_loop().time()
        if said_s is None or now_s - said_s >= _SAY_EVERY_S:
            said_s = now_s
            say(
                "waiting: the metadata was restored from backup %s and what is newer on the bookies is not settled; "
                "`quire metadata orphans list` shows it, `quire metadata release-hold` ends this",
                found.value.backup,
            )
        await asyncio.sleep(_LOOK_EVERY_S)


async def give_up(store: MetadataStore, ledger: LedgerId) -> None:
    """Note a person's word about what is held of a ledger beyond the restored metadata."""
    await store.put(f"{GIVEN_UP}/{ledger}", b"")


async def given_up(store: MetadataStore) -> frozenset[LedgerId]:
    """The ledgers about which that was said."""
    return frozenset(LedgerId(int(name)) for name in await store.children(GIVEN_UP) if name.isdigit())


async def let_return(store: MetadataStore, bookie: BookieId) -> None:
    """Note a person's word that a bookie belongs to the cluster with the storage that it has."""
    await store.put(f"{RETURNING}/{bookie}", b"")


async def may_return(store: MetadataStore, bookie: BookieId) -> bool:
    """Whether that was said of a bookie."""
    return await store.get(f"{RETURNING}/{bookie}") is not None


async def returning(store: MetadataStore) -> list[BookieId]:
    """The bookies of which that was said and which did not start since."""
    return [BookieId(name) for name in await store.children(RETURNING)]


async def forget_returns(store: MetadataStore) -> None:
    """Whoever did not come back so far needs the word again."""
    for bookie in await returning(store):
        await has_returned(store, bookie)


async def has_returned(store: MetadataStore, bookie: BookieId) -> None:
    """The word is used up."""
    try:
        await store.delete(f"{RETURNING}/{bookie}")
    except NodeMissingError:
        return
