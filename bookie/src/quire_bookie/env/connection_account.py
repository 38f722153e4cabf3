"""The memory that one connection holds, and since when it makes no progress. Decides about this connection alone.

Owns the account of a connection and the interfaces to it. `connection_memory` has the budget of all connections, the
rules, and the choice of the peers that are closed. Never reads a clock: the caller passes the time.
"""

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Protocol


class Closed(Enum):
    """Why a connection was closed."""

    STALLED_FRAME = "stalled_frame"
    STALLED_READER = "stalled_reader"
    PRESSURE_FRAME = "pressure_frame"
    PRESSURE_READER = "pressure_reader"


class Holder(Protocol):
    """A connection."""

    @property
    def listening(self) -> bool:
        """False while its socket is not read for reasons that the peer did not cause."""
        ...

    def unsent_bytes(self) -> int:
        """Return the bytes queued for the socket plus those that the socket has not sent."""
        ...

    def wait_for_memory(self, waits: bool, /) -> None:
        """Stop reading the socket, or continue."""
        ...

    def close_at_once(self, why: str, /) -> None:
        """Abort the connection; `why` completes *closing the connection of <peer>:*."""
        ...


class Account:
    """Tracks the memory that one connection holds. Created by `ConnectionMemory.open`; changed only by its methods."""

    __slots__ = (
        "_drained_mark",
        "_frame_seen",
        "_queued_mark",
        "_receive_since_s",
        "_received_mark",
        "_received_s",
        "_send_since_s",
        "_sent_s",
        "closed",
        "completing",
        "frames",
        "held_bytes",
        "holder",
        "kept_bytes",
        "large",
        "listed",
        "queued_bytes",
        "receiving_bytes",
        "unsent_bytes",
        "waits",
        "wanted_bytes",
    )

    def __init__(self, holder: Holder) -> None:
        self.holder = holder
        self.closed = False
        self.listed = False
        self.waits: Waiter | None = None
        self.completing = False
        """Whether the last buffer only continued a frame that is charged in full: the rest needs no more memory."""
        self.held_bytes = 0
        """Received bytes of the incomplete frame."""
        self.receiving_bytes = 0
        """Bytes charged for that frame."""
        self.wanted_bytes = 0
        """Announced length of that frame."""
        self.frames = 0
        """Number of frames started."""
        self.unsent_bytes = 0
        self.kept_bytes = 0
        """Bytes charged for responses: the unsent ones, and the sent part of a large one, which is freed as a whole."""
        self.large: deque[tuple[int, int]] = deque()
        """Large responses that are not fully sent: `queued_bytes` before and after each."""
        self.queued_bytes = 0
        """Total since the connection opened."""
        self._frame_seen = -1
        self._received_mark = 0
        self._receive_since_s = self._received_s = 0.0
        self._drained_mark = self._queued_mark = -1
        self._send_since_s = self._sent_s = 0.0

    def update(self, now_s: float) -> None:
        """Record the progress since the last check."""
        if not self.held_bytes:
            self._frame_seen = -1
        elif self._frame_seen != self.frames or not self.holder.listening:
            self._frame_seen = self.frames
            self._received_mark, self._receive_since_s, self._received_s = self.held_bytes, now_s, now_s
        elif self.held_bytes != self._received_mark or (self.waits is not None and self.wanted_bytes > self.held_bytes):
            self._received_mark, self._received_s = self.held_bytes, now_s
        if not self.unsent_bytes:
            self._queued_mark = -1
            return
        drained = self.queued_bytes - self.unsent_bytes
        if self._queued_mark < 0 or drained >= self._queued_mark:
            # Everything queued at the last mark has been sent: restart the times.
            self._queued_mark, self._send_since_s, self._sent_s = self.queued_bytes, now_s, now_s
        elif drained > self._drained_mark:
            self._sent_s = now_s
        self._drained_mark = drained

    def partly_sent_bytes(self) -> int:
        """Return how many bytes of the large response that is being sent have been sent."""
        sent = self.queued_bytes - self.unsent_bytes
        while self.large and self.large[0][1] <= sent:
            self.large.popleft()
        return max(0, sent - self.large[0][0]) if self.large else 0

    def lingering(self, now_s: float, held_s: float) -> tuple[float, float]:
        """Return byte-seconds of a stalled frame, and of responses that are not read; 0 before `held_s`."""
        received_s, sent_s = self.receive_age_s(now_s), self.send_age_s(now_s)
        stays = received_s >= held_s or self.silence_s(now_s) >= held_s / 4
        in_part = self.receiving_bytes * (received_s + 0.001) if stays and self.waits is None else 0.0
        clings = sent_s >= held_s or self.untaken_s(now_s) >= held_s / 4
        return in_part, self.kept_bytes * (sent_s + 0.001) if clings else 0.0

    def granted(self) -> None:
        """Restart the times, because the connection was kept waiting and continues."""
        self._frame_seen = -1

    def silence_s(self, now_s: float) -> float:
        """Return how long no byte of the incomplete frame has arrived."""
        return now_s - self._received_s if self._frame_seen >= 0 else 0.0

    def receive_age_s(self, now_s: float) -> float:
        """Return how long the incomplete frame has been arriving."""
        return now_s - self._receive_since_s if self._frame_seen >= 0 else 0.0

    def untaken_s(self, now_s: float) -> float:
        """Return how long no byte of the queued responses has been sent."""
        return now_s - self._sent_s if self._queued_mark >= 0 else 0.0

    def send_age_s(self, now_s: float) -> float:
        """Return how long responses have been queued."""
        return now_s - self._send_since_s if self._queued_mark >= 0 else 0.0

    def fault(self, now_s: float, stalled_s: float, slow_s: float) -> Closed | None:
        """Return why the connection must be closed regardless of free memory, or None. The times: `MemorySettings`."""
        if self._frame_seen >= 0 and (
            0 < stalled_s <= now_s - self._received_s or 0 < slow_s <= now_s - self._receive_since_s
        ):
            return Closed.STALLED_FRAME
        if self._queued_mark >= 0 and (
            0 < stalled_s <= now_s - self._sent_s or 0 < slow_s <= now_s - self._send_since_s
        ):
            return Closed.STALLED_READER
        return None


class Waiter:
    """A caller that waits for `size_bytes` of memory; 0: until the budget is not full."""

    __slots__ = ("account", "grant", "size_bytes")

    def __init__(self, size_bytes: int, grant: Callable[[], None], account: Account | None = None) -> None:
        self.size_bytes = size_bytes
        self.account = account
        self.grant: Callable[[], None] | None = grant
