"""Owns the codec and the nodes of cookies, which bind a bookie's id to its storage. The server checks them.

Format, in the store and as `<directory>/current/VERSION`: the line `5`, then CookieFormat in protobuf's text format.
A list of directories is its length and the paths, separated by TAB (journal directories: by a comma).
"""

from google.protobuf import text_format

from quire_bookie.dataclass import dataclass
from quire_bookie.errors import (
    BadVersionError,
    MetadataError,
    MetadataFormatError,
    MetadataUnknownError,
    NodeMissingError,
)
from quire_bookie.metadata import layout
from quire_bookie.metadata.ledger_metadata import decode_ledger_metadata
from quire_bookie.metadata.proto import nodes_pb2
from quire_bookie.metadata.store import ABSENT, Check, Delete, MetadataStore, Node, Versioned
from quire_bookie.model import BookieId

COOKIE_VERSION = 5
_COOKIE_VERSION_MIN = 3


@dataclass(frozen=True, slots=True)
class Cookie:
    """Identity of a bookie's storage. Directories are unmodified, including any prefix."""

    bookie: BookieId
    journal_dirs: tuple[str, ...]
    ledger_dirs: tuple[str, ...]
    instance_id: str | None
    index_dirs: tuple[str, ...] | None = None
    format_version: int = COOKIE_VERSION


def encode_cookie(cookie: Cookie) -> bytes:
    """Encode a VERSION file or cookie node. ValueError for a path with a TAB, or a journal path with a comma."""
    for path in (*cookie.journal_dirs, *cookie.ledger_dirs, *(cookie.index_dirs or ())):
        if "\t" in path or (path in cookie.journal_dirs and "," in path):
            raise ValueError(f"the folder name {path!r} contains a separator of cookies; rename the folder")
    message = nodes_pb2.CookieFormat(
        bookieHost=cookie.bookie,
        journalDir=",".join(cookie.journal_dirs),
        ledgerDirs=_join(cookie.ledger_dirs),
        instanceId=cookie.instance_id,
        indexDirs=None if cookie.index_dirs is None else _join(cookie.index_dirs),
    )
    return f"{cookie.format_version}\n{text_format.MessageToString(message, as_utf8=True)}".encode()


def decode_cookie(value: bytes) -> Cookie:
    """Decode a file or node. MetadataFormatError if it is not a cookie, or a version before 3."""
    first, _, body = value.partition(b"\n")
    if not first.isdigit() or len(first) > 9 or int(first) < _COOKIE_VERSION_MIN:
        raise MetadataFormatError(f"cookie has unknown version {first[:16]!r}")
    message = nodes_pb2.CookieFormat()
    try:
        text_format.Parse(body.decode(), message)
    except (UnicodeDecodeError, text_format.ParseError) as error:
        raise MetadataFormatError(f"cookie does not parse: {error}") from error
    if not message.IsInitialized():
        raise MetadataFormatError("bookieHost, journalDir or ledgerDirs is missing in the cookie")
    return Cookie(
        bookie=BookieId(message.bookieHost),
        journal_dirs=tuple(message.journalDir.split(",")),
        ledger_dirs=_split(message.ledgerDirs),
        instance_id=message.instanceId if message.HasField("instanceId") else None,
        index_dirs=_split(message.indexDirs) if message.HasField("indexDirs") else None,
        format_version=int(first),
    )


def _join(paths: tuple[str, ...]) -> str:
    return "\t".join([str(len(paths)), *paths])


def _split(field: str) -> tuple[str, ...]:
    count, *paths = field.split("\t")
    if not count.isdigit() or int(count) != len(paths):
        raise MetadataFormatError(f"cookie declares {count!r} folders but contains {len(paths)}")
    return tuple(paths)


class CookieInUseError(MetadataError):
    """The cookie must stay: its bookie is running, or ledgers name it. Retry only after that has changed."""


class Cookies:
    """Reads and writes the cookies in the metadata store."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def read(self, bookie: BookieId) -> Versioned[Cookie] | None:
        """Return the cookie of a bookie, or None."""
        node = await self._store.get(layout.cookie_path(bookie))
        return None if node is None else Versioned(decode_cookie(node.value), node.version)

    async def create(self, cookie: Cookie) -> None:
        """Write the cookie of a new bookie. BadVersionError if a different one exists; an identical one is accepted."""
        path, value = layout.cookie_path(cookie.bookie), encode_cookie(cookie)
        try:
            await self._store.put(path, value, expected=ABSENT)
        except (BadVersionError, MetadataUnknownError):
            node = await self._store.get(path)
            if node is None or node.value != value:
                raise

    async def update(self, cookie: Cookie, *, expected: int) -> None:
        """Replace the cookie that was read at version `expected`. BadVersionError if it has changed since."""
        path, value = layout.cookie_path(cookie.bookie), encode_cookie(cookie)
        try:
            await self._store.put(path, value, expected=expected)
        except (BadVersionError, MetadataUnknownError):
            node = await self._store.get(path)
            if node is None or node.value != value:
                raise

    async def bookies(self) -> list[BookieId]:
        """Return all known bookies: every bookie that has a cookie, registered or not."""
        return [BookieId(name) for name in await self._store.children(layout.COOKIES)]

    async def delete(self, bookie: BookieId, *provided: Check) -> None:
        """Remove a bookie permanently, provided that it is not registered and that the checks in `provided` hold.

        NodeMissingError if it has no cookie; CookieInUseError as `check_free`, or if `provided` does not hold.
        """
        path = layout.cookie_path(bookie)
        node = await self._store.get(path)
        if node is None:
            raise NodeMissingError(f"bookie {bookie} has no cookie")
        await self.check_free(bookie)
        # Reading all ledgers takes time: the bookie may have registered meanwhile.
        away = [Check(one, ABSENT) for one in (layout.writable_path(bookie), layout.read_only_path(bookie))]
        try:
            await self._store.transact([Check(path, node.version), *away, *provided], [Delete(path)])
        except BadVersionError as error:
            raise CookieInUseError(f"bookie {bookie} or its requested drain changed meanwhile: {error}") from error

    async def check_free(self, bookie: BookieId) -> None:
        """Raise CookieInUseError while the bookie is registered or a ledger names it.

        Without its cookie, a bookie with empty storage could start under this id and answer *no such entry* for
        acknowledged entries.
        """
        for path in (layout.writable_path(bookie), layout.read_only_path(bookie)):
            if await self._store.get(path) is not None:
                raise CookieInUseError(f"bookie {bookie} is running ({path}); stop it before its cookie is deleted")
        needle = bookie.encode()  # ids are ASCII in the value in every format version
        async for page in self._store.scan(f"{layout.ROOT}/"):
            for node in page:
                if needle in node.value:
                    _check_unnamed(node, bookie)


def _check_unnamed(node: Node, bookie: BookieId) -> None:
    """Raise CookieInUseError if the node is a ledger's and names the bookie, or cannot be decoded."""
    ledger = layout.ledger_of_path(node.key)
    if ledger is None:
        return
    try:
        metadata = decode_ledger_metadata(node.value)
    except MetadataFormatError as error:
        raise CookieInUseError(f"ledger {ledger} may name bookie {bookie}; its cookie stays: {error}") from error
    if any(bookie in segment.ensemble for segment in metadata.segments):
        raise CookieInUseError(f"ledger {ledger} still names bookie {bookie}; its cookie stays")
