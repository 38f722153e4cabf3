"""The error tree of the ledger store. Every class says whether a retry helps.

QuireError
|- ConfigError                a value that a person set is wrong; no retry
|- StartupError              this process cannot serve (port in use, foreign folder, cookie mismatch); no retry
|- PeerProtocolError         a peer broke the protocol; close its connection
|- StorageError              of one bookie's disks
|  |- DamagedError           bytes that were durable are wrong: file and offset named; never data, never "no such entry"
|  |- DiskFullError          no space; reads go on; retry after space was freed
|  |- JournalPoisonedError   a write or sync of the journal failed; the process will exit; no retry
|- MetadataError
|  |- BadVersionError        compare-and-set lost; re-read before anything else
|  |- NodeMissingError       no such node
|  |- MetadataUnknownError   timed out: may or may not have happened; read back before acting
|  |- MetadataUnavailableError   certainly not done; retry helps
|  |- MetadataFormatError   the value of a node does not parse; no retry
|  |- MetadataOutdatedError  the metadata are an older copy of what bookies saw; no retry before an operator acted
|- LedgerError               of the ledger client and the bookie protocol
   |- NoSuchLedgerError
   |- NoSuchEntryError
   |- LedgerFencedError      another opener took the ledger over; this writer is finished
   |- LedgerClosedError
   |- LedgerExistsError
   |- LedgerIdInUseError     a bookie holds another ledger under the id of a new one; create another ledger
   |- UnauthorizedError      wrong master key
   |- DigestMismatchError    an entry that does not match its digest
   |- BookieReadOnlyError
   |- TooManyRequestsError   retry with back-off
   |- BookieUnavailableError no connection or no answer; retry on another replica
   |  |- NoEntryListError    it answers no lists of entries; read the entries instead
   |- BookieIoError          EIO; try another replica
   |- BookieProtocolError    EBADREQ, EBADVERSION
   |- UnknownLedgerStateError  limbo: neither data nor "no such entry"
   |- NotEnoughBookiesError  fewer than E writable bookies; retry when one registers
   |- QuorumError            too few replicas answered to decide; retry helps
"""


class QuireError(Exception):
    """Root of every error that Quire raises on purpose."""


class ConfigError(QuireError):
    """A setting is wrong. The message names the value, where it came from and what to do."""


class StartupError(QuireError):
    """This process cannot start to serve. The message is one line for a person."""


class PeerProtocolError(QuireError):
    """A peer sent bytes that the protocol does not allow. Close that connection, and only that one."""


class StorageError(QuireError):
    """Something about a bookie's disks."""


JOURNAL_REMEDY = (
    "put the right files back into the journal's folder, or start once with acceptLostVolumes=true "
    "(--accept-lost-volumes): the bookie then comes up in limbo with every intact entry"
)


class DamagedError(StorageError):
    """Durable bytes are wrong. Carries the file and offset; reads of them answer EIO."""

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
    """A journal write or sync failed. Nothing is acknowledged any more; the process must restart."""


class MetadataError(QuireError):
    """Something about the metadata store."""


class BadVersionError(MetadataError):
    """A compare-and-set found another version than expected (or a node that must not exist)."""


class NodeMissingError(MetadataError):
    """The node does not exist."""


class MetadataUnknownError(MetadataError):
    """The outcome of a write is unknown: it may have happened. Read back before acting."""


class MetadataUnavailableError(MetadataError):
    """The store cannot be reached; the operation certainly did not happen. Retry helps."""


class MetadataFormatError(MetadataError):
    """The value of a node is not in a format that we know. No retry; the node is left as it is."""


class MetadataOutdatedError(MetadataError):
    """The metadata went back in time: bookies saw a later state. Nothing is deleted and no ledger id is given out
    until an operator restores a backup, repairs the metadata or accepts them, which raises the epoch."""


class LedgerError(QuireError):
    """Something about a ledger."""


class NoSuchLedgerError(LedgerError):
    """The ledger does not exist here. From a bookie: this bookie never had it."""


class NoSuchEntryError(LedgerError):
    """The entry provably does not exist here."""


class LedgerFencedError(LedgerError):
    """Another opener fenced the ledger. This writer is finished."""


class LedgerClosedError(LedgerError):
    """The ledger is closed; or this handle was."""


class LedgerExistsError(LedgerError):
    """The ledger id is taken."""


class LedgerIdInUseError(LedgerError):
    """A bookie holds, or deleted, another ledger under the id of this new one. Create another ledger."""


class ForeignLedgerError(LedgerError):
    """The bookie holds another ledger under that id, so nothing that it says is used. Says nothing about the ledger."""


class UnauthorizedError(LedgerError):
    """The master key does not match the one the ledger was created with."""


class DigestMismatchError(LedgerError):
    """An entry does not match its digest or its ids."""


class BookieReadOnlyError(LedgerError):
    """The bookie takes no normal adds."""


class TooManyRequestsError(LedgerError):
    """The bookie is full for the moment. Retry with back-off."""


class BookieUnavailableError(LedgerError):
    """No connection to the bookie, or no answer in time. An add may still have happened."""


class NoEntryListError(BookieUnavailableError):
    """The bookie left a request for a ledger's list of entries without an answer, as Java's DbLedgerStorage does."""


class BookieIoError(LedgerError):
    """The bookie cannot read or write what was asked for (EIO)."""


class BookieProtocolError(LedgerError):
    """The bookie refused the request as malformed or of an unsupported version."""


class UnknownLedgerStateError(LedgerError):
    """The bookie lost its journal and does not know what it held (limbo)."""


class NotEnoughBookiesError(LedgerError):
    """Fewer writable bookies than the ensemble needs."""


class QuorumError(LedgerError):
    """Too few replicas answered to decide anything."""
