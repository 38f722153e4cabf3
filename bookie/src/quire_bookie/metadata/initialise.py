"""Initialises an empty metadata store in one transaction, and never modifies one that contains anything.

The nodes are those that BookKeeper's set-up tools create: `/ledgers`, `/ledgers/available`,
`/ledgers/available/readonly` (all empty) and `/ledgers/INSTANCEID` (a random UUID as text).
"""

import asyncio
from collections.abc import Callable

from quire_bookie.env.chance import Chance
from quire_bookie.errors import BadVersionError, MetadataUnknownError, StartupError
from quire_bookie.limits import METADATA_UNKNOWN_RETRIES
from quire_bookie.metadata import layout
from quire_bookie.metadata.store import ABSENT, Check, MetadataStore, Put

_POLL_S, _LOG_EVERY_S = 0.5, 30.0


async def initialise(store: MetadataStore, chance: Chance) -> str:
    """Return the instance id of the cluster; if the store is empty, initialise it first.

    Several processes may call it at once; all receive the same id. StartupError if the store contains foreign data.
    """
    for _ in range(METADATA_UNKNOWN_RETRIES):
        instance_id = await read_instance_id(store)
        if instance_id is not None:
            return instance_id
        await _refuse_foreign(store)
        instance_id = _random_uuid(chance)
        puts = [
            Put(layout.ROOT, b""),
            Put(layout.AVAILABLE, b""),
            Put(layout.READ_ONLY, b""),
            Put(layout.INSTANCE_ID, instance_id.encode()),
        ]
        try:
            await store.transact([Check(put.key, ABSENT) for put in puts], puts)
            return instance_id
        except (BadVersionError, MetadataUnknownError):
            continue  # another process was faster, or our write succeeded: the next attempt reads the id
    raise StartupError("the metadata store could not be initialised: the outcomes stay unknown; try again")


async def wait_until_initialised(store: MetadataStore, say: Callable[..., None]) -> None:
    """Wait until a bookie has initialised the store. Earlier writes would keep bookies out: it must be empty."""
    logged_s: float | None = None
    while await read_instance_id(store) is None:
        now_s = asyncio.get_running_loop().time()
        if logged_s is None or now_s - logged_s >= _LOG_EVERY_S:
            logged_s = now_s
            say("waiting: the metadata store contains no cluster yet; the first bookie that starts creates it")
        await asyncio.sleep(_POLL_S)


async def read_instance_id(store: MetadataStore) -> str | None:
    """Return the instance id of an initialised store, or None."""
    node = await store.get(layout.INSTANCE_ID)
    return None if node is None else node.value.decode("utf-8", "replace")


async def _refuse_foreign(store: MetadataStore) -> None:
    async for page in store.scan("/", page_keys=10, keys_only=True):
        keys = [node.key for node in page]
        if keys and layout.INSTANCE_ID not in keys:
            if await read_instance_id(store) is not None:
                return  # initialised by another process meanwhile
            raise StartupError(
                f"the metadata store is not empty (it contains {keys[0]}) and has no {layout.INSTANCE_ID}: "
                "it belongs to another system, or was initialised only partly; use an empty store"
            )
        return


def _random_uuid(chance: Chance) -> str:
    """Return a random UUID (version 4) as text."""
    token = bytearray(chance.token(16))
    token[6] = token[6] & 0x0F | 0x40
    token[8] = token[8] & 0x3F | 0x80
    digits = token.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
