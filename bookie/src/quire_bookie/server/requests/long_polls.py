"""Handles long polls: reads that wait until the LAC of their ledger moves, or their timeout expires.

Owns the parked polls, by ledger and by connection, their timers and their bounds. Never reads an entry: an ended poll
is passed to `reads`. An add to a ledger without polls costs one dictionary lookup, and none if no poll is parked.

A poll ends when the LAC moves past the one it names (by an add, a recovery add or an explicit LAC), when its ledger is
fenced or deleted, when its timeout expires, when its client sends nothing more, and when the bookie stops.
"""

import asyncio

from quire_bookie.env.clock import WallClock
from quire_bookie.limits import LONG_POLL_S_MAX
from quire_bookie.model import EntryId, LedgerId
from quire_bookie.server.requests.connections import Connection
from quire_bookie.server.requests.ledger_loading import LedgerLoading
from quire_bookie.server.requests.read_answers import EndedPoll
from quire_bookie.server.requests.reads import Reads
from quire_bookie.server.settings import BookieStats
from quire_bookie.settings.service import ServiceSettings
from quire_bookie.storage.ledgers.ledger_states import LedgerInfo
from quire_bookie.wire.messages import ReadRequest, Status


class _Parked:
    """A waiting poll."""

    __slots__ = ("connection", "previous_lac", "request", "timer", "watch")

    def __init__(self, connection: Connection, request: ReadRequest, previous_lac: EntryId, watch: "_Watch") -> None:
        self.connection = connection
        self.request = request
        self.previous_lac = previous_lac
        self.watch = watch
        self.timer: asyncio.TimerHandle | None = None


class _Watch:
    """Holds the polls of one ledger, and its state, so that it sees the LAC that adds change."""

    __slots__ = ("due", "info", "lowest_lac", "polls", "update_ms")

    def __init__(self, info: LedgerInfo) -> None:
        self.info = info
        self.polls: dict[_Parked, None] = {}
        self.lowest_lac = EntryId((1 << 63) - 1)
        """No poll waits for a lower LAC; a higher one wakes some polls, unless they ended for another reason."""
        self.due = False
        self.update_ms = 0


class LongPolls:
    """Parks and ends long polls. Adds read `watched`."""

    def __init__(
        self,
        settings: ServiceSettings,
        stats: BookieStats,
        loading: LedgerLoading,
        reads: Reads,
        clock: WallClock,
    ) -> None:
        self._settings = settings
        self._stats = stats
        self._loading = loading
        self._reads = reads
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self.watched: dict[LedgerId, _Watch] = {}
        self._of_connection: dict[Connection, dict[_Parked, None]] = {}
        self._due: list[_Watch] = []

    def handle(self, connection: Connection, request: ReadRequest, previous_lac: EntryId, timeout_ms: int) -> None:
        """Answer at once if the LAC is already past `previous_lac`, otherwise park."""

        def known(info: LedgerInfo | None) -> None:
            self._reads.bound.count_out(connection)
            if info is None or info.deleted or info.lac > previous_lac or timeout_ms <= 0:
                self._reads.handle(connection, EndedPoll(request))
            else:
                self._park(connection, request, previous_lac, timeout_ms / 1000, info)

        def failed(status: Status) -> None:
            self._reads.bound.count_out(connection)
            self._reads.refuse(connection, EndedPoll(request), status)

        self._stats.long_polls += 1
        self._reads.bound.count_in(connection)
        self._loading.with_ledger(request.ledger, known, failed)

    def _park(
        self, connection: Connection, request: ReadRequest, previous_lac: EntryId, timeout_s: float, info: LedgerInfo
    ) -> None:
        mine = self._of_connection.get(connection, {})
        if (
            len(mine) >= self._settings.long_polls_per_connection_max
            or self._stats.long_polls_parked >= self._settings.long_polls_max
        ):
            self._reads.refuse(connection, EndedPoll(request), Status.TOO_MANY_REQUESTS)
            return
        if connection.is_gone:
            connection.send((), 1)
            return
        watch = self.watched.get(request.ledger)
        if watch is None:
            watch = self.watched[request.ledger] = _Watch(info)
        poll = _Parked(connection, request, previous_lac, watch)
        watch.polls[poll] = None
        watch.lowest_lac = min(watch.lowest_lac, previous_lac)
        mine[poll] = None
        self._of_connection[connection] = mine
        self._stats.long_polls_parked += 1
        poll.timer = self._loop.call_later(min(timeout_s, LONG_POLL_S_MAX), self._end, poll, None)

    # ---- what ends them
    def moved(self, info: LedgerInfo) -> None:
        """Schedule the polls of a ledger whose LAC may have moved. Called in the step of an add; they end after it."""
        watch = self.watched.get(info.ledger_id)
        if watch is None or watch.due or info.lac <= watch.lowest_lac:
            return
        watch.due = True
        watch.update_ms = self._clock.now_ms()
        if not self._due:
            self._loop.call_soon(self._end_due)
        self._due.append(watch)

    def _end_due(self) -> None:
        due, self._due = self._due, []
        for watch in due:
            watch.due = False
            lac = watch.info.lac
            for poll in [each for each in watch.polls if each.previous_lac < lac]:
                self._end(poll, watch.update_ms)
            watch.lowest_lac = min((each.previous_lac for each in watch.polls), default=watch.lowest_lac)

    def end_ledger(self, ledger: LedgerId) -> None:
        """End the polls of a ledger that was fenced or deleted: their clients should check its state again."""
        watch = self.watched.get(ledger)
        if watch is not None:
            for poll in list(watch.polls):
                self._end(poll, None)

    def end_connection(self, connection: Connection) -> None:
        """End the polls of a client that sends nothing more or is gone; answer them if it can still be reached."""
        for poll in list(self._of_connection.get(connection, ())):
            self._end(poll, None)

    def close(self) -> None:
        """Drop the parked polls without a response."""
        for watch in list(self.watched.values()):
            for poll in list(watch.polls):
                self._forget(poll)

    def _end(self, poll: _Parked, update_ms: int | None) -> None:
        self._forget(poll)
        if poll.connection.is_gone:
            poll.connection.send((), 1)
        else:
            self._reads.handle(poll.connection, EndedPoll(poll.request, update_ms))

    def _forget(self, poll: _Parked) -> None:
        assert poll.timer is not None
        assert self.watched.get(poll.watch.info.ledger_id) is poll.watch, "a ledger has one watch"
        poll.timer.cancel()
        del poll.watch.polls[poll]
        if not poll.watch.polls:
            del self.watched[poll.watch.info.ledger_id]
        mine = self._of_connection[poll.connection]
        del mine[poll]
        if not mine:
            del self._of_connection[poll.connection]
        self._stats.long_polls_parked -= 1
        assert self._stats.long_polls_parked >= 0
