"""The cookie: which storage a bookie's id belongs to. Owns its codec and its nodes; the checks are the server's.

Format, in the store and as `<directory>/current/VERSION`: the line `5`, then CookieFormat in protobuf's text format.
A list of directories is its length and the paths, separated by TAB (journal directories: by a comma).
"""

from dataclasses import dataclass

from google.protobuf import text_format

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
from quire_bookie.metadata.store import ABSENT, Check, Delete, MetadataStore, Node
from quire_bookie.metadata.versioned import Versioned
from quire_bookie.model import BookieId

COOKIE_VERSION = 5
_COOKIE_VERSION_MIN = 3


@dataclass(frozen=True, slots=True)
class Cookie:
    """Identity of a bookie's storage. Directories are as written, with whatever prefix they carry."""

    bookie: BookieId
    journal_dirs: tuple[str, ...]
    ledger_dirs: tuple[str, ...]
    instance_id: str | None
    index_dirs: tuple[str, ...] | None = None
    format_version: int = COOKIE_VERSION


def encode_cookie(cookie: Cookie) -> bytes:
    """Bytes of a VERSION file and of the cookie's node. ValueError for a path with a TAB, or a comma in a journal's."""
    for path in (*cookie.journal_dirs, *cookie.ledger_dirs, *(cookie.index_dirs or ())):
        if "\t" in path or (path in cookie.journal_dirs and "," in path):
            raise ValueError(f"the folder name {path!r} holds a character that separates folders in a cookie")
    message = nodes_pb2.CookieFormat(
        bookieHost=cookie.bookie,
        journalDir=",".join(cookie.journal_dirs),
        ledgerDirs=_join(cookie.ledger_dirs),
        instanceId=cookie.instance_id,
        indexDirs=None if cookie.index_dirs is None else _join(cookie.index_dirs),
    )
    return f"{cookie.format_version}\n{text_format.MessageToString(message, as_utf8=True)}".encode()


def decode_cookie(value: bytes) -> Cookie:
    """The cookie in a file or node. MetadataFormatError when it is none, or of a version before 3."""
    first, _, body = value.partition(b"\n")
    if not first.isdigit() or len(first) > 9 or int(first) < _COOKIE_VERSION_MIN:
        raise MetadataFormatError(f"cookie of unknown version {first[:16]!r}")
    message = nodes_pb2.CookieFormat()
    try:
        text_format.Parse(body.decode(), message)
    except (UnicodeDecodeError, text_format.ParseError) as error:
        raise MetadataFormatError(f"cookie does not parse: {error}") from error
    if not message.IsInitialized():
        raise MetadataFormatError("cookie lacks bookieHost, journalDir or ledgerDirs")
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
        raise MetadataFormatError(f"cookie announces {count!r} folders and names {len(paths)}")
    return tuple(paths)


class CookieInUseError(MetadataError):
    """The cookie has to stay: its bookie runs, or ledgers name it. No retry before that has changed."""


class Cookies:
    """The cookies in the metadata store."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def read(self, bookie: BookieId) -> Versioned[Cookie] | None:
        """The cookie of a bookie, or None."""
        node = await self._store.get(layout.cookie_path(bookie))
        return None if node is None else Versioned(decode_cookie(node.value), node.version)

    async def create(self, cookie: Cookie) -> None:
        """Write the cookie of a new bookie. BadVersionError when there is another; the same one again is fine."""
        path, value = layout.cookie_path(cookie.bookie), encode_cookie(cookie)
        try:
            await self._store.put(path, value, expected=ABSENT)
        except (BadVersionError, MetadataUnknownError):
            node = await self._store.get(path)
            if node is None or node.value != value:
                raise

    async def update(self, cookie: Cookie, *, expected: int) -> None:
        """Replace the cookie that was read at version `expected`. BadVersionError when it is another one by now."""
        path, value = layout.cookie_path(cookie.bookie), encode_cookie(cookie)
        try:
            await self._store.put(path, value, expected=expected)
        except (BadVersionError, MetadataUnknownError):
            node = await self._store.get(path)
            if node is None or node.value != value:
                raise

    async def bookies(self) -> list[BookieId]:
        """Every bookie that was ever stamped and not deleted: *all known bookies*, registered or not."""
        return [BookieId(name) for name in await self._store.children(layout.COOKIES)]

    async def delete(self, bookie: BookieId, *provided: Check) -> None:
        """Forget a bookie for good, in one step with its being away, and with what else has to hold by then.

        NodeMissingError when it has no cookie, CookieInUseError as `check_free` or when `provided` does not hold.
        """
        path = layout.cookie_path(bookie)
        node = await self._store.get(path)
        if node is None:
            raise NodeMissingError(f"bookie {bookie} has no cookie")
        await self.check_free(bookie)
        # To go through all ledgers takes its time: it may have come back.
        away = [Check(one, ABSENT) for one in (layout.writable_path(bookie), layout.read_only_path(bookie))]
        try:
            await self._store.transact([Check(path, node.version), *away, *provided], [Delete(path)])
        except BadVersionError as error:
            raise CookieInUseError(f"bookie {bookie} or what is wanted of it changed meanwhile: {error}") from error

    async def check_free(self, bookie: BookieId) -> None:
        """CookieInUseError while the bookie is registered or any ledger names it.

        With its cookie gone an empty bookie could come up under its id and answer *no such entry* for entries that
        were acknowledged.
        """
        for path in (layout.writable_path(bookie), layout.read_only_path(bookie)):
            if await self._store.get(path) is not None:
                raise CookieInUseError(f"bookie {bookie} is running ({path}); stop it before its cookie is deleted")
        needle = bookie.encode()  # ids are ASCII in the value whatever its version
        async for page in self._store.scan(f"{layout.ROOT}/"):
            for node in page:
                if needle in node.value:
                    _check_unnamed(node, bookie)


def _check_unnamed(node: Node, bookie: BookieId) -> None:
    """CookieInUseError when the node is a ledger's that names the bookie, or may name it for all that can be read."""
    ledger = layout.ledger_of_path(node.key)
    if ledger is None:
        return
    try:
        metadata = decode_ledger_metadata(node.value)
    except MetadataFormatError as error:
        raise CookieInUseError(f"ledger {ledger} may name bookie {bookie}; its cookie stays: {error}") from error
    if any(bookie in segment.ensemble for segment in metadata.segments):
        raise CookieInUseError(f"ledger {ledger} still names bookie {bookie}; its cookie stays")
