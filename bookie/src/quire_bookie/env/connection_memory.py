"""Limits the memory of all connections of a process: incomplete frames, waiting requests, reads, and unsent responses.

Owns the counts, the queue of waiters for memory, and the choice of the peers that are closed. Never reads or writes a
socket: it requests from each connection (`connection_account.Holder`) the number of unsent bytes, or to pause or to
close.

    class of bytes   counted from, and until
    receiving        a frame begins to arrive, by its announced length; it is complete
    requests         a request waits; its processing starts
    reads            a read is about to begin, by its largest response; the response is queued
    unsent           a response is queued; the socket has sent it

A frame whose announced length does not fit is not read further: its socket waits in the queue. So does every socket
that receives data while the budget is full, and every read that does not fit. Memory therefore stays below the budget
plus one socket buffer per connection. Two rules free memory:

    no progress      a peer that sends nothing of a started frame, or reads none of its responses, for `stalled_s`
                     is closed, and so is one that needs longer than `slow_s` for one frame or for one full buffer
    pressure         while a connection waits: peers that held bytes for `pressure_s`, or sent nothing of a frame or
                     read none of their responses for a quarter of it, are closed, the largest product of bytes and
                     time first, until a quarter of the budget and memory for the first waiter are free. A connection
                     that waits itself cannot proceed, whatever its peer does, and is not closed for that

What has arrived of the frames of waiting connections counts on top of the budget, up to a quarter of it. Beyond that
those of them with the most bytes are closed at once. If it filled the budget itself, the queue would hardly move.

Sockets do not report when they have sent data, so the counts of unsent bytes are upper bounds between two checks
(`_check`), which run only while memory is held.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from quire_bookie import limits
from quire_bookie.env.connection_account import Account, Closed, Holder, Waiter
from quire_bookie.settings.memory import MemorySettings

_log = logging.getLogger("quire.connections")
_PRESSED_CHECK_S: Final = 0.05
"""Interval of checks while a connection waits for memory."""
_AT_ONCE_CHECK_S: Final = 0.05
"""Shortest interval of reliefs due to the hard limit: each checks every connection."""


class ConnectionMemory:
    """Owns the budget; see the module's docstring. All methods run on the event loop."""

    def __init__(self, settings: MemorySettings | None = None) -> None:
        self.settings = settings or MemorySettings()
        self.bytes_max = self.settings.bytes_max
        self._queue_max = self.bytes_max // 4
        """Bytes that waiting connections may hold on top of the budget."""
        self._hard_max = self.bytes_max + self._queue_max
        self.used_bytes = 0
        self.receiving_bytes = 0
        self.request_bytes = 0
        self.read_bytes = 0
        self.unsent_bytes = 0
        self.waits = 0
        """How often a caller had to wait for memory."""
        self.closed = dict.fromkeys(Closed, 0)
        self._listed: dict[Account, None] = {}
        """Connections that may hold memory, in the order in which they began to."""
        self._waiting: deque[Waiter] = deque()
        self._amid: dict[Account, None] = {}
        """Connections that wait with an incomplete frame, in the order of the queue."""
        self._amid_bytes = 0
        """Bytes charged for these frames."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0
        self._granting = False
        self._relieved_s = float("-inf")
        self._logged_s = float("-inf")
        self._unlogged = 0

    # ---- accounts of connections
    def open(self, holder: Holder) -> Account:
        """Return the account of a new connection; `close` must follow."""
        return Account(holder)

    def close(self, account: Account) -> None:
        """Free the memory of a connection that is closed or about to be."""
        if account.closed:
            return
        account.closed = True
        self._listed.pop(account, None)
        if account.waits is not None:
            self._leave(account.waits)
            self._leave_queue(account)
        self.receiving_bytes -= account.receiving_bytes
        self.unsent_bytes -= account.kept_bytes
        self._freed(account.receiving_bytes + account.kept_bytes)
        account.receiving_bytes = account.held_bytes = account.unsent_bytes = account.kept_bytes = 0

    # ---- arriving bytes
    def received(self, account: Account, held_bytes: int, announced_bytes: int, began: bool) -> None:
        """Count a received buffer: `held_bytes` of an incomplete frame have arrived, of `announced_bytes` in total.

        `began`: the frame is not the one after the previous buffer. The connection may be paused by this call.
        """
        if account.closed:
            return
        account.frames += began
        account.held_bytes = held_bytes
        account.wanted_bytes = wanted = max(held_bytes, announced_bytes)
        more = wanted - account.receiving_bytes
        if more > 0 and (self._waiting or self._served_bytes() + more > self.bytes_max):
            account.completing = False
            self._charge(account, max(0, held_bytes - account.receiving_bytes))
            if account.waits is None:
                self._wait_in_line(account)
            else:
                self._waits_amid(account)
            self._shorten_queue()
            if self.used_bytes > self._hard_max:
                self._relieve_at_once()
        else:
            account.completing = held_bytes > 0 and not began
            self._charge(account, more)

    def _charge(self, account: Account, more: int) -> None:
        account.receiving_bytes += more
        self.receiving_bytes += more
        self.used_bytes += more
        if account in self._amid:
            self._amid_bytes += more
        if more < 0 and self._waiting:
            self._grant_soon()
        if not account.listed:
            self._list(account)

    def wait_if_full(self, account: Account) -> None:
        """Make a connection that received data wait while the budget is full."""
        if self.used_bytes < self.bytes_max or account.waits is not None or account.completing or account.closed:
            return
        if self.is_full:
            self._wait_in_line(account)
            self._shorten_queue()

    def _wait_in_line(self, account: Account) -> None:
        def grant() -> None:
            self._leave_queue(account)
            if account.held_bytes:
                self._charge(account, account.wanted_bytes - account.receiving_bytes)
                account.granted()
            account.holder.wait_for_memory(False)

        account.waits = self._line_up(max(0, account.wanted_bytes - account.receiving_bytes), grant, account)
        self._waits_amid(account)
        account.holder.wait_for_memory(True)

    def _waits_amid(self, account: Account) -> None:
        if account.held_bytes and account not in self._amid:
            self._amid[account] = None
            self._amid_bytes += account.receiving_bytes

    def _leave_queue(self, account: Account) -> None:
        account.waits = None
        if account in self._amid:
            del self._amid[account]
            self._amid_bytes -= account.receiving_bytes

    def _shorten_queue(self) -> None:
        """Close waiters while their incomplete frames hold too much: the most bytes first, of equal ones the newest.

        Otherwise these bytes would fill the budget, and the queue would move only when waiters are closed for that.
        """
        while self._amid_bytes > self._queue_max:
            largest = max(reversed(self._amid), key=lambda account: account.receiving_bytes)
            self._end(largest, Closed.PRESSURE_FRAME, asyncio.get_running_loop().time())

    # ---- waiting requests
    def hold(self, size_bytes: int) -> None:
        """Count a waiting request. Never refuses: it is in memory already."""
        self.request_bytes += size_bytes
        self.used_bytes += size_bytes

    def let_go(self, size_bytes: int) -> None:
        """Uncount a request that is being processed or was dropped."""
        self.request_bytes -= size_bytes
        self._freed(size_bytes)

    # ---- reads
    @property
    def is_full(self) -> bool:
        """Whether the budget is full, so that responses must wait."""
        return self._served_bytes() >= self.bytes_max

    def _served_bytes(self, next_waiter: Account | None = None) -> int:
        """Return the bytes held, without those that waiting connections may hold on top of the budget.

        `next_waiter`: count it as if it waited no longer.
        """
        amid_bytes = self._amid_bytes
        if next_waiter in self._amid:
            amid_bytes -= next_waiter.receiving_bytes
        return self.used_bytes - min(amid_bytes, self._queue_max)

    async def reserve(self, size_bytes: int) -> None:
        """Wait for memory for the result of a read, and reserve it; `give_back` must follow."""
        size_bytes = min(size_bytes, self.bytes_max)
        if self._waiting or self._served_bytes() + size_bytes > self.bytes_max:
            granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()

            def grant() -> None:
                if not granted.done():
                    self._reserve(size_bytes)
                    granted.set_result(None)

            waiter = self._line_up(size_bytes, grant)
            try:
                await granted
            except asyncio.CancelledError:
                self._leave(waiter)
                if granted.done() and not granted.cancelled():
                    self.give_back(size_bytes)
                raise
        else:
            self._reserve(size_bytes)

    def _reserve(self, size_bytes: int) -> None:
        self.read_bytes += size_bytes
        self.used_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Free the reservation: the response is queued, or there is none."""
        size_bytes = min(size_bytes, self.bytes_max)
        self.read_bytes -= size_bytes
        self._freed(size_bytes)

    def on_room(self, callback: Callable[[], None]) -> None:
        """Call `callback` once when the budget is not full."""
        self._line_up(0, callback)

    # ---- unsent bytes
    def queued(self, account: Account, size_bytes: int) -> None:
        """Charge bytes that are queued for the socket."""
        if account.closed:
            return
        if size_bytes >= limits.LARGE_ANSWER_BYTES:
            account.large.append((account.queued_bytes, account.queued_bytes + size_bytes))
        account.unsent_bytes += size_bytes
        account.kept_bytes += size_bytes
        account.queued_bytes += size_bytes
        self.unsent_bytes += size_bytes
        self.used_bytes += size_bytes
        if not account.listed:
            self._list(account)

    def settle(self, account: Account, unsent_bytes: int) -> None:
        """Update the unsent bytes; they may exceed the queued ones, because TLS adds some."""
        less = account.unsent_bytes - unsent_bytes
        if not less or account.closed:
            return
        if less < 0:
            account.queued_bytes -= less
        account.unsent_bytes = unsent_bytes
        kept = unsent_bytes + account.partly_sent_bytes() if account.large else unsent_bytes
        less, account.kept_bytes = account.kept_bytes - kept, kept
        self.unsent_bytes -= less
        self._freed(less)

    # ---- the queue of waiters
    def _line_up(self, size_bytes: int, grant: Callable[[], None], account: Account | None = None) -> Waiter:
        waiter = Waiter(size_bytes, grant, account)
        self._waiting.append(waiter)
        self.waits += 1
        self._check_within(_PRESSED_CHECK_S)
        return waiter

    def _leave(self, waiter: Waiter) -> None:
        waiter.grant = None
        if self._waiting:
            self._grant_soon()

    def _freed(self, size_bytes: int) -> None:
        self.used_bytes -= size_bytes
        if self._waiting:
            self._grant_soon()

    def _grant_soon(self) -> None:
        if not self._granting:
            self._granting = True
            asyncio.get_running_loop().call_soon(self._grant)

    def _grant(self) -> None:
        """Grant memory to the waiters that fit, in order."""
        self._granting = False
        waiting = self._waiting
        while waiting:
            first = waiting[0]
            if first.grant is not None:
                if self.is_full or self._served_bytes(first.account) + first.size_bytes > self.bytes_max:
                    return
                first.grant()
            waiting.popleft()

    # ---- checks
    def _list(self, account: Account) -> None:
        account.listed = True
        self._listed[account] = None
        self._check_within(limits.CONNECTION_CHECK_S)

    def _check_within(self, delay_s: float) -> None:
        if self._timer is not None:
            if self._timer_s <= delay_s:
                return
            self._timer.cancel()
        self._timer_s = delay_s
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._check)

    def _check(self) -> None:
        """Update the unsent bytes, close connections that hold memory too long, and schedule the next check."""
        self._timer = None
        now_s = asyncio.get_running_loop().time()
        for account in list(self._listed):
            self._check_account(account, now_s)
        if self._waiting:
            self._grant()
        if self._waiting:
            self._relieve(now_s, self.settings.pressure_s)
        if self._waiting:
            self._check_within(_PRESSED_CHECK_S)
        elif self._listed:
            self._check_within(limits.CONNECTION_CHECK_S)

    def _check_account(self, account: Account, now_s: float) -> None:
        if account.unsent_bytes:
            self.settle(account, account.holder.unsent_bytes())
        account.update(now_s)
        if not account.held_bytes and not account.unsent_bytes:
            account.listed = False
            self._listed.pop(account, None)
            return
        fault = account.fault(now_s, self.settings.stalled_s, self.settings.slow_s)
        if fault is not None:
            self._end(account, fault, now_s)

    def _relieve_at_once(self) -> None:
        """Relieve without waiting, because more has arrived than the hard limit allows."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._relieved_s >= _AT_ONCE_CHECK_S:
            self._relieved_s = now_s
            for account in list(self._listed):
                self._check_account(account, now_s)
            self._relieve(now_s, 0.0)

    def _relieve(self, now_s: float, held_s: float) -> None:
        """Close the connections that hold the most for the longest, among those that have held it for `held_s`."""
        first = next((waiter for waiter in self._waiting if waiter.grant is not None), None)
        wanted = 0 if first is None else first.size_bytes
        found: list[tuple[float, Account, Closed]] = []
        for account in self._listed:
            in_part, unsent = account.lingering(now_s, held_s)
            if in_part or unsent:
                why = Closed.PRESSURE_FRAME if in_part >= unsent else Closed.PRESSURE_READER
                found.append((max(in_part, unsent), account, why))
        self._end_first(found, self.bytes_max - max(self.bytes_max // 4, wanted), now_s)
        if self._waiting:
            self._grant_soon()

    def _end_first(self, found: list[tuple[float, Account, Closed]], enough: int, now_s: float) -> None:
        """Close connections, the largest first, until no more than `enough` is held."""
        found.sort(key=lambda each: each[0], reverse=True)
        for _, account, why in found:
            if self._served_bytes() <= enough:
                break
            self._end(account, why, now_s)

    def _end(self, account: Account, reason: Closed, now_s: float) -> None:
        held, unsent = account.held_bytes, account.unsent_bytes
        if reason in (Closed.STALLED_FRAME, Closed.PRESSURE_FRAME):
            what = f"{held} bytes of a frame arrived, but not the rest in {account.receive_age_s(now_s):.1f} s"
        else:
            what = f"the peer has not read {unsent} bytes in {account.send_age_s(now_s):.1f} s"
        if reason in (Closed.PRESSURE_FRAME, Closed.PRESSURE_READER):
            what += f", and others wait for memory ({self.used_bytes} bytes held by all)"
        self.closed[reason] += 1
        self.close(account)
        if now_s - self._logged_s >= limits.CONNECTION_REFUSED_LOG_S:
            self._logged_s = now_s
            if self._unlogged:
                what += f"; {self._unlogged} more were closed since the last such log line"
            self._unlogged = 0
            account.holder.close_at_once(what)
        else:
            self._unlogged += 1
            account.holder.close_at_once("")
