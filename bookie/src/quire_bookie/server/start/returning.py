"""A bookie that the restored metadata does not know, or knows with fewer folders, comes back on a person's word.

Without that word its start is refused, since a removed cookie means that the cluster may have gone on without it.
"""

from collections.abc import Sequence

from quire_bookie.metadata.cookies import Cookie, Cookies
from quire_bookie.metadata.restoration import has_returned, may_return
from quire_bookie.metadata.store import MetadataStore
from quire_bookie.metadata.versioned import Versioned


async def returned(
    metadata: MetadataStore, cookies: Sequence[Cookie], stored: Versioned[Cookie] | None
) -> Versioned[Cookie] | None:
    """The cookie that the store has by now: `stored`, or that of the folders where a person said so. MetadataError."""
    own = max(cookies, key=lambda cookie: len(cookie.journal_dirs) + len(cookie.ledger_dirs))
    if not await may_return(metadata, own.bookie):
        return stored
    if stored is None:
        await Cookies(metadata).create(own)
    elif stored.value != own:
        await Cookies(metadata).update(own, expected=stored.version)
    await has_returned(metadata, own.bookie)
    return await Cookies(metadata).read(own.bookie)
