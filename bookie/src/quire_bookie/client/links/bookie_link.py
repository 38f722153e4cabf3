"""The interfaces through which the client reaches bookies. `connection` implements them."""

from asyncio import TimerHandle
from collections.abc import Callable, Collection, Sequence
from enum import Enum
from typing import Protocol, TypeAlias

from quire_bookie.client.replica_health import ReplicaHealth
from quire_bookie.errors import LedgerError
from quire_bookie.model import BookieId, Buffer, EntryId, LedgerId
from quire_bookie.wire.messages import Response


class Purpose(Enum):
    """The purpose of a connection. Each has separate connections, because responses identify only ledger and entry.

    Adds of a recovery must never be confused with those of a writer in the same process that it fences, and reads must
    not wait behind adds when an overloaded bookie pauses a socket.
    """

    ADD = "add"
    READ = "read"
    RECOVERY = "recovery"
    V3 = "requests that V2 lacks"
    DEFERRED_ADD = "adds that a force makes durable, and the forces"


EntryAnswer: TypeAlias = Callable[[Buffer | LedgerError], None]
"""Called once with the stored entry or the error."""

BatchAnswer: TypeAlias = Callable[[Sequence[Buffer] | LedgerError], None]
"""Called once with consecutive stored entries (at least one) or the error."""


BuildRequest: TypeAlias = Callable[[int], bytes]
"""Builds the V3 frame of a transaction."""

V3Answer: TypeAlias = Callable[[Response | LedgerError], None]
"""Called once with the response of any status, or with the reason why there is none."""


class AddSink(Protocol):
    """Receives the responses to adds of one ledger. Called on the event loop and never from within `send_adds`."""

    def adds_stored(self, bookie: BookieId, first: EntryId, count: int) -> None:
        """The bookie stored `count` entries from `first` on. `adds_answered` follows at the end of the buffer."""
        ...

    def adds_refused(self, bookie: BookieId, first: EntryId, count: int, error: LedgerError) -> None:
        """The bookie answered these adds with an error."""
        ...

    def adds_answered(self) -> None:
        """All responses of one buffer were passed on."""
        ...

    def link_lost(self, bookie: BookieId, error: LedgerError) -> None:
        """The connection broke: unanswered adds will not be answered, but may have been stored."""
        ...

    def check_overdue(self, bookie: BookieId, now_s: float) -> bool:
        """Check whether the bookie is overdue; called periodically while it owes responses.

        Return True if the sink gave it up now.
        """
        ...

    def owes(self, bookie: BookieId) -> bool:
        """Whether the sink waits for responses of the bookie."""
        ...


class BookieLink(Protocol):
    """A link to one bookie for one purpose. Connects when a request is made; responses arrive on the event loop."""

    bookie: BookieId

    def send_adds(self, ledger: LedgerId, frames: Buffer, sink: AddSink) -> None:
        """Send complete ADD frames. Their responses go to `sink` until `forget_sink`."""
        ...

    def forget_sink(self, ledger: LedgerId, sink: AddSink) -> None:
        """Drop responses about that ledger from now on."""
        ...

    def read(
        self, ledger: LedgerId, entry: EntryId, answer: EntryAnswer, *, fence_key: bytes | None, high_priority: bool
    ) -> None:
        """Read one entry (NO_ENTRY: the last one of the bookie). With `fence_key`, fence the ledger first."""
        ...

    def read_batch(
        self, ledger: LedgerId, first: EntryId, entries_max: int, bytes_max: int, answer: BatchAnswer
    ) -> None:
        """Read consecutive entries; `bytes_max` limits the frame of the response."""
        ...


class V3Link(Protocol):
    """A link to one bookie for requests that V2 lacks."""

    def ask(self, build: BuildRequest, answer: V3Answer, timeout_s: float | None = None) -> int:
        """Send a request and return its transaction."""
        ...

    def forget(self, transaction: int) -> None:
        """Drop the response to that transaction."""
        ...


class Links(Protocol):
    """Provides links to bookies."""

    def link(self, bookie: BookieId, purpose: Purpose) -> BookieLink:
        """Return the link to a bookie; it exists as long as the client."""
        ...

    def v3_link(self, bookie: BookieId, purpose: Purpose = Purpose.V3) -> V3Link:
        """Return the V3 link to a bookie, created at first use. `purpose`: V3 or DEFERRED_ADD."""
        ...

    @property
    def suspects(self) -> Collection[BookieId]:
        """Bookies that were recently unreachable."""
        ...

    @property
    def health(self) -> ReplicaHealth:
        """Read latencies and failures of the bookies."""
        ...

    def note_failure(self, bookie: BookieId) -> None:
        """Count a replica that a ledger lost at the bookie; too many put the bookie into quarantine."""
        ...

    def now_s(self) -> float:
        """Return the time of the event loop."""
        ...

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> TimerHandle:
        """Start a timer of the event loop."""
        ...
