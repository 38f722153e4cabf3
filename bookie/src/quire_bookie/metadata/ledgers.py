"""Owns the ledger nodes: read, create, compare-and-set, delete, list. Decides nothing about a ledger's state.

Resolves a write of unknown outcome by reading back: the node has exactly the new value (done), or the previous version
(written again with the same expected version, so that at most one write takes effect), or something else
(BadVersionError). MetadataUnknownError reaches the caller only if reading back fails as well.
"""

from collections.abc import AsyncIterator

from quire_bookie.errors import (
    BadVersionError,
    LedgerExistsError,
    MetadataUnavailableError,
    MetadataUnknownError,
    NodeMissingError,
    NoSuchLedgerError,
)
from quire_bookie.limits import METADATA_PAGE_KEYS, METADATA_UNKNOWN_RETRIES
from quire_bookie.metadata import layout
from quire_bookie.metadata.joint_write import Transact
from quire_bookie.metadata.ledger_metadata import decode_ledger_metadata, encode_ledger_metadata
from quire_bookie.metadata.store import ABSENT, Check, MetadataStore, Node, Put, Versioned
from quire_bookie.model import LedgerId, LedgerMetadata


class LedgerNodes:
    """Reads and writes ledger metadata in a store."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def read(self, ledger: LedgerId) -> Versioned[LedgerMetadata]:
        """Return the metadata, linearizable. NoSuchLedgerError, MetadataFormatError, MetadataUnavailableError."""
        node = await self._store.get(layout.ledger_path(ledger))
        if node is None:
            raise NoSuchLedgerError(f"ledger {ledger} does not exist")
        return Versioned(decode_ledger_metadata(node.value), node.version)

    async def exists(self, ledger: LedgerId) -> bool:
        """Return whether the ledger exists, linearizable."""
        return await self._store.get(layout.ledger_path(ledger)) is not None

    async def create(self, ledger: LedgerId, metadata: LedgerMetadata) -> Versioned[LedgerMetadata]:
        """Write the node of a new ledger. LedgerExistsError if the id is taken; MetadataUnknownError."""
        try:
            version = await self._write(ledger, encode_ledger_metadata(metadata), ABSENT)
        except BadVersionError as error:
            raise LedgerExistsError(f"ledger {ledger} already exists") from error
        return Versioned(metadata, version)

    async def update(
        self, ledger: LedgerId, metadata: LedgerMetadata, expected: int, transact: Transact | None = None
    ) -> Versioned[LedgerMetadata]:
        """Replace the metadata read at version `expected`. `transact`: writes it, perhaps with nodes of others.

        BadVersionError: another client was faster, or the ledger was deleted; read it again first.
        MetadataUnknownError: may have been written. Returns the metadata with its new version.
        """
        version = await self._write(ledger, encode_ledger_metadata(metadata), expected, transact)
        return Versioned(metadata, version)

    async def delete(self, ledger: LedgerId, expected: int | None = None) -> None:
        """Remove the node. NoSuchLedgerError, BadVersionError (only with `expected`), MetadataUnknownError."""
        path = layout.ledger_path(ledger)
        try:
            await self._store.delete(path, expected=expected)
        except NodeMissingError as error:
            raise NoSuchLedgerError(f"ledger {ledger} does not exist") from error
        except MetadataUnknownError as error:
            if await self._read_back(path, error) is not None:
                raise

    async def _write(self, ledger: LedgerId, value: bytes, expected: int, transact: Transact | None = None) -> int:
        path = layout.ledger_path(ledger)
        unknown: MetadataUnknownError | None = None
        for _ in range(METADATA_UNKNOWN_RETRIES):
            try:
                if transact is None:
                    return await self._store.put(path, value, expected=expected)
                await transact([Check(path, expected)], [Put(path, value)])
                return expected + 1
            except MetadataUnknownError as error:
                unknown = error
            except BadVersionError:
                if unknown is None:
                    raise
            node = await self._read_back(path, unknown)
            if node is not None and node.version == expected + 1 and node.value == value:
                return node.version
            # Not our value. If it is still the old version, the first attempt may be in flight; a second one with the
            # same expected version can at most lose to it.
            if (ABSENT if node is None else node.version) != expected:
                raise BadVersionError(f"{path} was changed by another writer")
        assert unknown is not None
        raise unknown

    async def _read_back(self, path: str, unknown: MetadataUnknownError) -> Node | None:
        try:
            return await self._store.get(path)
        except MetadataUnavailableError as error:
            raise unknown from error

    async def ids(self, *, page_keys: int = METADATA_PAGE_KEYS) -> AsyncIterator[list[LedgerId]]:
        """Yield the ids of all ledgers at one revision, in pages. After an error the listing is incomplete."""
        async for page in self._store.scan(f"{layout.ROOT}/", page_keys=page_keys, keys_only=True):
            ids = [ledger for node in page if (ledger := layout.ledger_of_path(node.key)) is not None]
            if ids:
                yield ids

    async def scan(
        self, *, page_keys: int = METADATA_PAGE_KEYS
    ) -> AsyncIterator[list[tuple[LedgerId, Versioned[LedgerMetadata]]]]:
        """Yield ids and metadata of all ledgers at one revision, in pages. MetadataFormatError for an invalid value."""
        async for page in self._store.scan(f"{layout.ROOT}/", page_keys=page_keys):
            found = [
                (ledger, Versioned(decode_ledger_metadata(node.value), node.version))
                for node in page
                if (ledger := layout.ledger_of_path(node.key)) is not None
            ]
            if found:
                yield found
