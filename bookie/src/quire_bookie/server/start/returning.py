"""Restores the cookie of a bookie that restored metadata lacks or lists with fewer folders, if an administrator agreed.

Without that agreement (`quire metadata cookies accept`) its start is refused: a missing cookie means that the cluster
may have continued without the bookie.
"""

from collections.abc import Sequence

from quire_bookie.metadata.cookies import Cookie, Cookies
from quire_bookie.metadata.restoration import has_returned, may_return
from quire_bookie.metadata.store import MetadataStore, Versioned


async def returned(
    metadata: MetadataStore, cookies: Sequence[Cookie], stored: Versioned[Cookie] | None
) -> Versioned[Cookie] | None:
    """Return the cookie now in the metadata: `stored`, or that of the folders if it was accepted. MetadataError."""
    own = max(cookies, key=lambda cookie: len(cookie.journal_dirs) + len(cookie.ledger_dirs))
    if not await may_return(metadata, own.bookie):
        return stored
    if stored is None:
        await Cookies(metadata).create(own)
    elif stored.value != own:
        await Cookies(metadata).update(own, expected=stored.version)
    await has_returned(metadata, own.bookie)
    return await Cookies(metadata).read(own.bookie)
