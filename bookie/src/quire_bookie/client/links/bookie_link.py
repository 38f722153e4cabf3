"""What the rest of the client asks of the way to one bookie. Interfaces only; `connection` implements them."""

from asyncio import TimerHandle
from collections.abc import Callable, Collection, Sequence
from enum import Enum
from typing import Protocol, TypeAlias

from quire_bookie.client.replica_health import ReplicaHealth
from quire_bookie.errors import LedgerError
from quire_bookie.model import BookieId, Buffer, EntryId, LedgerId
from quire_bookie.wire.messages import Response


class Purpose(Enum):
    """Each purpose has connections of its own, because answers name only ledger and entry.

    Adds of a recovery must never be taken for those of a writer in this very process that it fences, and reads must
    not wait behind adds for which a full bookie pauses a socket.
    """

    ADD = "add"
    READ = "read"
    RECOVERY = "recovery"
    V3 = "what V2 lacks"
    DEFERRED_ADD = "adds that a force makes durable, and the forces"


EntryAnswer: TypeAlias = Callable[[Buffer | LedgerError], None]
"""Called once with the stored entry or the error."""

BatchAnswer: TypeAlias = Callable[[Sequence[Buffer] | LedgerError], None]
"""Called once with consecutive stored entries (at least one) or the error."""


BuildRequest: TypeAlias = Callable[[int], bytes]
"""Makes the V3 frame for a transaction."""

V3Answer: TypeAlias = Callable[[Response | LedgerError], None]
"""Called once with the answer, whatever its status, or with the reason why there is none."""


class AddSink(Protocol):
    """Who sent adds of one ledger. Called on the loop; never from inside `send_adds`."""

    def adds_stored(self, bookie: BookieId, first: EntryId, count: int) -> None:
        """The bookie has `count` entries from `first` on, durably. `adds_answered` follows for the whole buffer."""
        ...

    def adds_refused(self, bookie: BookieId, first: EntryId, count: int, error: LedgerError) -> None:
        """The bookie answered these adds with an error."""
        ...

    def adds_answered(self) -> None:
        """One buffer of answers was handed on."""
        ...

    def link_lost(self, bookie: BookieId, error: LedgerError) -> None:
        """Adds that the bookie has not answered will not be answered; they may have been stored."""
        ...

    def check_overdue(self, bookie: BookieId, now_s: float) -> bool:
        """Called now and then, so that a sink can give up a bookie that does not answer; True: it just did."""
        ...


class BookieLink(Protocol):
    """The way to one bookie for one purpose. Connects when asked for something; answers come on the loop."""

    bookie: BookieId

    def send_adds(self, ledger: LedgerId, frames: Buffer, sink: AddSink) -> None:
        """Send complete ADD frames. Their answers go to `sink` until it is forgotten."""
        ...

    def forget_sink(self, ledger: LedgerId, sink: AddSink) -> None:
        """Drop answers for that ledger from now on."""
        ...

    def read(
        self, ledger: LedgerId, entry: EntryId, answer: EntryAnswer, *, fence_key: bytes | None, high_priority: bool
    ) -> None:
        """Read one entry (NO_ENTRY: the last held). With `fence_key` fence the ledger first."""
        ...

    def read_batch(
        self, ledger: LedgerId, first: EntryId, entries_max: int, bytes_max: int, answer: BatchAnswer
    ) -> None:
        """Read consecutive entries; `bytes_max` counts the answer's frame."""
        ...


class V3Link(Protocol):
    """The way to one bookie for what V2 lacks."""

    def ask(self, build: BuildRequest, answer: V3Answer, timeout_s: float | None = None) -> int:
        """Send a request; returns its transaction."""
        ...

    def forget(self, transaction: int) -> None:
        """Drop that answer."""
        ...


class Links(Protocol):
    """Where links come from."""

    def link(self, bookie: BookieId, purpose: Purpose) -> BookieLink:
        """The link to a bookie; it exists as long as the client."""
        ...

    def v3_link(self, bookie: BookieId, purpose: Purpose = Purpose.V3) -> V3Link:
        """The V3 link to a bookie, made when first asked for. `purpose`: V3 or DEFERRED_ADD."""
        ...

    @property
    def suspects(self) -> Collection[BookieId]:
        """Bookies that could not be reached a moment ago."""
        ...

    @property
    def health(self) -> ReplicaHealth:
        """What reads know of the bookies."""
        ...

    def note_failure(self, bookie: BookieId) -> None:
        """A ledger lost its replica there: too many of these put the bookie into quarantine."""
        ...

    def now_s(self) -> float:
        """The loop's time."""
        ...

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> TimerHandle:
        """A timer of the loop."""
        ...
