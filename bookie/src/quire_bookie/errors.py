"""The error tree of the ledger store. Every class says whether a retry helps.

QuireError
|- ConfigError                a configured value is wrong; no retry
|- StartupError              this process cannot serve (port in use, foreign folder, cookie mismatch); no retry
|- PeerProtocolError         a peer broke the protocol; close its connection
|- StorageError              concerns the disks of one bookie
|  |- DamagedError           durable bytes are wrong; names file and offset; never served as data or "no such entry"
|  |- DiskFullError          no space; reads continue; retry after space was freed
|  |- JournalPoisonedError   a write or sync of the journal failed; the process will exit; no retry
|- MetadataError
|  |- BadVersionError        compare-and-set lost; re-read before anything else
|  |- NodeMissingError       no such node
|  |- MetadataUnknownError   timed out: may or may not have happened; read back before acting
|  |- MetadataUnavailableError   the operation did not happen; retry helps
|  |- MetadataFormatError    the value of a node does not parse; no retry
|  |- MetadataOutdatedError  the metadata are older than what bookies saw; no retry before an administrator has acted
|- ObjectStoreError          a folder or bucket cannot be used; retry after the cause in its text is fixed
|  |- ObjectMissingError     no object has that name; no retry
|- LedgerError               raised by the ledger client and the bookie protocol
   |- NoSuchLedgerError
   |- NoSuchEntryError
   |- LedgerFencedError      another client took the ledger over; this writer cannot continue
   |- LedgerClosedError
   |- LedgerExistsError
   |- LedgerIdInUseError     a bookie holds another ledger under the id of a new one; create another ledger
   |- UnauthorizedError      wrong master key
   |- DigestMismatchError    an entry that does not match its digest
   |- BookieReadOnlyError
   |- TooManyRequestsError   retry with back-off
   |- BookieUnavailableError no connection or no response; retry on another replica
   |  |- NoEntryListError    the bookie does not answer requests for entry lists; read the entries instead
   |- BookieIoError          EIO; try another replica
   |- BookieProtocolError    EBADREQ, EBADVERSION
   |- UnknownLedgerStateError  limbo: neither data nor "no such entry"
   |- NotEnoughBookiesError  fewer than E writable bookies; retry when one registers
   |  |- PlacementError      enforced rules allow no ensemble; retry when bookies or settings change
   |- QuorumError            too few replicas responded for a decision; retry helps
"""


class QuireError(Exception):
    """Root of every error that Quire raises on purpose."""


class ConfigError(QuireError):
    """A setting is wrong. The message names the value, its source and the remedy."""


class StartupError(QuireError):
    """This process cannot start to serve. The message is one line that is shown to the user."""


class PeerProtocolError(QuireError):
    """A peer sent bytes that the protocol does not allow. Close that connection, and only that one."""


class StorageError(QuireError):
    """Base of errors that concern a bookie's disks."""


JOURNAL_REMEDY = (
    "put the right files back into the journal's folder, or start once with acceptLostVolumes=true "
    "(--accept-lost-volumes): the bookie then comes up in limbo with every intact entry"
)


class DamagedError(StorageError):
    """Durable bytes are wrong. Carries the file and offset; reads of these bytes fail with EIO."""

    def __init__(self, path: str, offset: int, what: str) -> None:
        super().__init__(f"{path}: damaged at offset {offset}: {what}")
        self.path = path
        self.offset = offset


class JournalDamagedError(DamagedError):
    """Durable bytes of a journal are wrong or missing. The message names the remedy."""

    def __init__(self, path: str, offset: int, what: str) -> None:
        super().__init__(path, offset, f"{what}; {JOURNAL_REMEDY}")


class DiskFullError(StorageError):
    """No space left. Not a failure of the device: the bookie turns read-only."""


class JournalPoisonedError(StorageError):
    """A journal write or sync failed. Nothing more is acknowledged; the process must restart."""


class MetadataError(QuireError):
    """Base of errors that concern the metadata store."""


class BadVersionError(MetadataError):
    """A compare-and-set found a version other than the expected one, or a node that must not exist."""


class NodeMissingError(MetadataError):
    """The node does not exist."""


class MetadataUnknownError(MetadataError):
    """The outcome of a write is unknown: it may have happened. Read back before acting."""


class MetadataUnavailableError(MetadataError):
    """The metadata store cannot be reached and the operation did not happen. Retry helps."""


class MetadataFormatError(MetadataError):
    """The value of a node is not in a known format. No retry; the node is left unchanged."""


class MetadataOutdatedError(MetadataError):
    """The metadata went back in time: bookies saw a later state.

    Nothing is deleted and no ledger id is allocated until an administrator restores a backup, repairs the metadata or
    accepts them, which raises the epoch.
    """


class ObjectStoreError(QuireError):
    """An operation on a folder or bucket failed. The text is one line and contains no credentials."""


class ObjectMissingError(ObjectStoreError):
    """No object has that name."""


class LedgerError(QuireError):
    """Base of errors that concern a ledger."""


class NoSuchLedgerError(LedgerError):
    """The ledger does not exist. From a bookie: this bookie never had it."""


class NoSuchEntryError(LedgerError):
    """The entry is known not to exist."""


class LedgerFencedError(LedgerError):
    """Another client fenced the ledger. This writer cannot continue."""


class LedgerClosedError(LedgerError):
    """The ledger is closed, or this handle was closed."""


class LedgerExistsError(LedgerError):
    """The ledger id is taken."""


class LedgerIdInUseError(LedgerError):
    """A bookie holds, or deleted, another ledger under the id of this new one. Create another ledger."""


class ForeignLedgerError(LedgerError):
    """The bookie holds another ledger under that id, so its response is ignored. Implies nothing about this ledger."""


class UnauthorizedError(LedgerError):
    """The master key differs from the one with which the ledger was created."""


class DigestMismatchError(LedgerError):
    """An entry does not match its digest or its ids."""


class BookieReadOnlyError(LedgerError):
    """The bookie is read-only: it refuses normal adds."""


class TooManyRequestsError(LedgerError):
    """The bookie is overloaded. Retry with back-off."""


class BookieUnavailableError(LedgerError):
    """No connection to the bookie, or no response in time. An add may still have happened."""


class NoEntryListError(BookieUnavailableError):
    """The bookie did not respond to a request for the entry list of a ledger, as Java's DbLedgerStorage does."""


class BookieIoError(LedgerError):
    """The bookie failed to read or write what the request asked for (EIO)."""


class BookieProtocolError(LedgerError):
    """The bookie refused the request because it is malformed or of an unsupported version."""


class UnknownLedgerStateError(LedgerError):
    """The bookie may have lost entries of the ledger, so it does not know which it had (limbo)."""


class NotEnoughBookiesError(LedgerError):
    """Fewer writable bookies than the ensemble needs."""


class PlacementError(NotEnoughBookiesError):
    """Enough bookies are writable, but no ensemble of them satisfies the enforced rules of placement."""


class QuorumError(LedgerError):
    """Too few replicas responded for a decision."""
