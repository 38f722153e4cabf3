"""Tests of long polls: when they park and wake, their responses, and their bounds."""

import asyncio
import gc
import weakref
from collections.abc import Callable

import pytest

from quire_bookie.errors import DamagedError
from quire_bookie.limits import LONG_POLL_S_MAX
from quire_bookie.model import NO_ENTRY, EntryId, LedgerId
from quire_bookie.settings.service import ServiceSettings
from quire_bookie.wire import client_codec
from quire_bookie.wire.messages import ReadResponse, Response, Status
from tests.unit.bookie.server.fakes import FakeConnection
from tests.unit.bookie.server.scene import DIGEST, KEY, LEDGER, Scene, adds, entry_bytes, fencing_read

A_MINUTE_MS = 60_000


def poll(
    previous_lac: int,
    *,
    transaction: int = 1,
    entry: int = NO_ENTRY,
    timeout_ms: int | None = A_MINUTE_MS,
    piggyback: bool = True,
    ledger: LedgerId = LEDGER,
) -> bytes:
    """Return a long poll of V3."""
    return client_codec.v3_read(
        transaction,
        ledger,
        EntryId(entry),
        previous_lac=EntryId(previous_lac),
        timeout_ms=timeout_ms,
        piggyback=piggyback,
    )


def answer_to(
    entry: int, *, data: bytes | None = None, lac: int | None = None, transaction: int = 1, update_ms: int | None = None
) -> ReadResponse:
    """Return an OK response."""
    max_lac = None if lac is None else EntryId(lac)
    return ReadResponse(Status.OK, LEDGER, EntryId(entry), data, max_lac, transaction, update_ms)


def parked(scene: Scene) -> int:
    """Return the number of parked polls."""
    return scene.bookie.stats.long_polls_parked


async def polls_of(scene: Scene, connection: FakeConnection, *frames: bytes) -> list[Response]:
    """Send polls on `connection`; return the immediate responses."""
    await scene.handle(b"".join(frames), connection)
    return connection.responses(3)


# Polls answered at once


async def test_a_poll_below_the_lac_is_answered_at_once_with_the_next_entry(scene: Scene) -> None:
    await scene.stored(adds(0, 3, lac=1))
    assert await scene.ask_v3(poll(-1)) == [answer_to(0, data=entry_bytes(0, lac=1), lac=1)]
    assert await scene.ask_v3(poll(0)) == [answer_to(1, data=entry_bytes(1, lac=1), lac=1)]
    assert parked(scene) == 0


async def test_an_entry_that_another_bookie_has_is_omitted_from_the_response(scene: Scene) -> None:
    await scene.stored(adds(3, lac=2))
    assert await scene.ask_v3(poll(1)) == [answer_to(NO_ENTRY, lac=2)]


async def test_without_piggyback_the_response_is_that_of_a_plain_read(scene: Scene) -> None:
    await scene.stored(adds(0, 3, lac=1))
    assert await scene.ask_v3(poll(0, entry=2, piggyback=False)) == [answer_to(2, data=entry_bytes(2, lac=1), lac=1)]
    (missing,) = await scene.ask_v3(poll(0, entry=7, piggyback=False))
    assert missing.status is Status.NO_ENTRY


async def test_a_poll_without_a_timeout_is_a_plain_read_whatever_its_flag(scene: Scene) -> None:
    await scene.stored(adds(0, 2, lac=0))
    assert await scene.ask_v3(poll(7, timeout_ms=None)) == [answer_to(-1, data=entry_bytes(1, lac=0), lac=0)]
    assert scene.bookie.stats.long_polls == 0


@pytest.mark.parametrize("timeout_ms", [0, -1])
async def test_a_timeout_of_zero_or_below_is_answered_at_once_without_an_entry(scene: Scene, timeout_ms: int) -> None:
    await scene.stored(adds(0, 2, lac=0))
    assert await scene.ask_v3(poll(0, timeout_ms=timeout_ms)) == [answer_to(-1, lac=0)]
    assert parked(scene) == 0


async def test_a_poll_of_an_unknown_or_deleted_ledger_is_answered_at_once(scene: Scene) -> None:
    assert [one.status for one in await scene.ask_v3(poll(-1))] == [Status.NO_LEDGER]
    await scene.stored(adds(0))
    scene.storage.infos[LEDGER].deleted = True
    assert [one.status for one in await scene.ask_v3(poll(-1))] == [Status.NO_LEDGER]
    assert parked(scene) == 0


async def test_piggyback_requires_the_last_entry_and_a_valid_ledger_id(scene: Scene) -> None:
    await scene.stored(adds(0))
    assert [one.status for one in await scene.ask_v3(poll(-1, entry=0))] == [Status.BAD_REQUEST]
    assert [one.status for one in await scene.ask_v3(poll(-1, ledger=LedgerId(-3)))] == [Status.BAD_REQUEST]


async def test_a_ledger_whose_state_cannot_be_read_is_an_io_error(scene: Scene) -> None:
    scene.storage.load_error = DamagedError("index", 0, "bits")
    assert [one.status for one in await scene.ask_v3(poll(-1))] == [Status.IO_ERROR]
    assert scene.connection.unanswered == 0


async def test_a_ledger_in_limbo_is_of_unknown_state_but_its_entries_are_served(scene: Scene) -> None:
    scene.storage.limbo.add(LEDGER)
    assert [one.status for one in await scene.ask_v3(poll(-1))] == [Status.UNKNOWN_LEDGER_STATE]
    await scene.stored(adds(1, recovery=True, lac=0))
    assert [one.status for one in await scene.ask_v3(poll(-1))] == [Status.UNKNOWN_LEDGER_STATE]
    await scene.stored(adds(0, recovery=True, lac=0))
    assert await scene.ask_v3(poll(-1)) == [answer_to(0, data=entry_bytes(0, lac=0), lac=0)]


# Wake-ups


async def test_an_add_that_moves_the_lac_ends_a_poll_with_the_entry_and_the_time_of_the_update(scene: Scene) -> None:
    await scene.stored(adds(0, 2, lac=0))
    reader = FakeConnection()
    assert await polls_of(scene, reader, poll(0, transaction=8)) == []
    assert (parked(scene), reader.unanswered) == (1, 1)
    scene.clock.ms += 5
    await scene.handle(adds(2, lac=1))
    assert reader.responses(3) == [
        answer_to(1, data=entry_bytes(1, lac=0), lac=1, transaction=8, update_ms=scene.clock.ms)
    ]
    assert (parked(scene), reader.unanswered) == (0, 0)


async def test_a_poll_stays_parked_if_an_add_does_not_move_the_lac_past_it(scene: Scene) -> None:
    await scene.stored(adds(0, 2, lac=0))
    await scene.handle(poll(0) + poll(1, transaction=2))
    await scene.handle(adds(2, lac=0))
    await scene.handle(adds(0, ledger=LedgerId(9), lac=5))
    assert parked(scene) == 2
    await scene.handle(adds(3, lac=1))
    assert [one.transaction for one in scene.connection.responses(3) if isinstance(one, ReadResponse)] == [1]
    assert parked(scene) == 1
    await scene.handle(adds(4, lac=2))
    assert [one.transaction for one in scene.connection.responses(3) if isinstance(one, ReadResponse)] == [2]


async def test_recovery_adds_end_a_poll_of_a_fenced_ledger(scene: Scene) -> None:
    await scene.stored(adds(0, 2, lac=0) + fencing_read())
    await scene.handle(poll(0))
    assert parked(scene) == 1
    await scene.handle(adds(2, lac=1, recovery=True))
    assert [one.status for one in scene.connection.responses(3)] == [Status.OK]


async def test_an_explicit_lac_ends_a_poll(scene: Scene) -> None:
    await scene.stored(adds(0, 2, lac=0))
    await scene.handle(poll(0))
    packet = DIGEST.encode_lac(LEDGER, EntryId(1))
    await scene.handle(client_codec.v3_write_lac(7, LEDGER, EntryId(1), KEY, packet))
    assert scene.connection.responses(3) == [answer_to(1, data=entry_bytes(1, lac=0), lac=1, update_ms=scene.clock.ms)]


async def test_a_fence_ends_a_poll_without_an_entry(scene: Scene) -> None:
    await scene.stored(adds(0, 2, lac=0))
    reader = FakeConnection()
    await polls_of(scene, reader, poll(0))
    await scene.handle(fencing_read())
    assert reader.responses(3) == [answer_to(-1, lac=0)]


async def test_a_deletion_ends_a_poll_with_no_ledger(scene: Scene) -> None:
    await scene.stored(adds(0, 2, lac=0))
    await scene.handle(poll(0))
    scene.storage.infos[LEDGER].deleted = True
    scene.bookie.ledger_deleted(LEDGER)
    await scene.turn()
    assert scene.statuses(3) == [Status.NO_LEDGER]


async def test_an_ended_poll_without_piggyback_reads_its_entry(scene: Scene) -> None:
    await scene.stored(adds(0, 2, lac=0))
    await scene.handle(poll(0, entry=1, piggyback=False))
    assert parked(scene) == 1
    await scene.handle(adds(2, lac=1))
    assert scene.connection.responses(3) == [answer_to(1, data=entry_bytes(1, lac=0), lac=1)]


async def test_an_ended_poll_is_answered_from_memory_without_a_task(scene: Scene) -> None:
    await scene.stored(adds(0, 2, lac=0))
    scene.storage.cached |= {(LEDGER, EntryId(1))}
    await scene.handle(poll(0))
    scene.storage.reads.clear()
    await scene.handle(adds(2, lac=1))
    assert len(scene.connection.responses(3)) == 1
    assert scene.storage.reads == []


# Time


class Timers:
    """Records calls of `call_later`, for tests to run."""

    def __init__(self) -> None:
        self.waiting: list[tuple[float, Callable[[], None]]] = []

    def call_later(self, delay_s: float, call: Callable[..., None], *arguments: object) -> "Timers.Handle":
        """Record the call."""
        entry = (delay_s, lambda: call(*arguments))
        self.waiting.append(entry)
        return Timers.Handle(self, entry)

    class Handle:
        """Cancels one call."""

        def __init__(self, timers: "Timers", entry: tuple[float, Callable[[], None]]) -> None:
            self._timers, self._entry = timers, entry

        def cancel(self) -> None:
            """Remove the call."""
            if self._entry in self._timers.waiting:
                self._timers.waiting.remove(self._entry)


def timers_of(monkeypatch: pytest.MonkeyPatch) -> Timers:
    """Replace the timers of the running loop."""
    timers = Timers()
    monkeypatch.setattr(asyncio.get_running_loop(), "call_later", timers.call_later)
    return timers


async def test_an_expired_poll_is_answered_without_an_entry(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    await scene.stored(adds(0, 2, lac=0))
    timers = timers_of(monkeypatch)
    await scene.handle(poll(0, timeout_ms=700))
    ((delay_s, expire),) = timers.waiting
    assert delay_s == pytest.approx(0.7)
    assert scene.connection.sent == []
    timers.waiting.clear()
    expire()
    await scene.turn()
    assert scene.connection.responses(3) == [answer_to(-1, lac=0)]
    assert parked(scene) == 0


async def test_an_ended_poll_leaves_no_timer(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    await scene.stored(adds(0, 2, lac=0))
    timers = timers_of(monkeypatch)
    await scene.handle(poll(0))
    await scene.handle(adds(2, lac=1))
    assert timers.waiting == []


async def test_no_poll_is_parked_for_longer_than_the_bound(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    await scene.stored(adds(0, 2, lac=0))
    timers = timers_of(monkeypatch)
    await scene.handle(poll(0, timeout_ms=(1 << 63) - 1))
    assert [delay_s for delay_s, _ in timers.waiting] == [LONG_POLL_S_MAX]


# Bounds and ends


async def test_above_the_bound_of_a_connection_polls_are_refused_and_other_connections_are_not() -> None:
    scene = Scene(ServiceSettings(long_polls_per_connection_max=2))
    await scene.stored(adds(0, 2, lac=0))
    await scene.handle(poll(0) + poll(0, transaction=2) + poll(0, transaction=3))
    (refused,) = scene.connection.responses(3)
    assert isinstance(refused, ReadResponse)
    assert (refused.status, refused.transaction) == (Status.TOO_MANY_REQUESTS, 3)
    assert await polls_of(scene, FakeConnection(), poll(0)) == []
    assert parked(scene) == 3
    await scene.bookie.close()


async def test_above_the_bound_of_the_bookie_polls_are_refused_until_one_ends() -> None:
    scene = Scene(ServiceSettings(long_polls_max=1))
    await scene.stored(adds(0, 2, lac=0))
    first, second = FakeConnection(), FakeConnection()
    await polls_of(scene, first, poll(0))
    assert [one.status for one in await polls_of(scene, second, poll(0))] == [Status.TOO_MANY_REQUESTS]
    await scene.handle(adds(2, lac=1))
    assert await polls_of(scene, second, poll(1)) == []
    assert parked(scene) == 1
    await scene.bookie.close()


async def test_the_polls_of_a_client_that_is_gone_are_removed(scene: Scene) -> None:
    await scene.stored(adds(0, 2, lac=0))
    reader, other = FakeConnection(), FakeConnection()
    await polls_of(scene, reader, poll(0), poll(1, transaction=2))
    await polls_of(scene, other, poll(0))
    reader.is_gone = True
    scene.bookie.leaving(reader.real)
    assert (parked(scene), reader.unanswered) == (1, 0)
    gone = weakref.ref(reader)
    del reader
    await scene.turn()
    gc.collect()
    assert gone() is None


async def test_a_client_that_sends_nothing_more_is_answered_at_once(scene: Scene) -> None:
    """Neither a client's EOF nor a stopping bookie waits for a writer."""
    await scene.stored(adds(0, 2, lac=0))
    await scene.handle(poll(0))
    scene.bookie.leaving(scene.connection.real)
    await scene.turn()
    assert scene.connection.responses(3) == [answer_to(-1, lac=0)]
    assert scene.connection.unanswered == 0


async def test_a_client_that_left_while_its_ledger_was_loaded_is_not_parked(scene: Scene) -> None:
    await scene.stored(adds(0, 2, lac=0))
    scene.storage.hidden.add(LEDGER)
    reader = FakeConnection()
    reader.is_gone = True
    assert await polls_of(scene, reader, poll(0)) == []
    assert (parked(scene), reader.unanswered) == (0, 0)


async def test_a_stopped_bookie_leaves_no_poll_parked(scene: Scene) -> None:
    await scene.stored(adds(0, 2, lac=0))
    await scene.handle(poll(0) + poll(1, transaction=2))
    await scene.bookie.close()
    assert parked(scene) == 0


async def test_a_poll_that_expires_just_before_its_wake_up_is_answered_once(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scene.stored(adds(0, 2, lac=0))
    timers = timers_of(monkeypatch)
    await scene.handle(poll(0))
    ((_, expire),) = timers.waiting
    scene.bookie.handle(FakeConnection().real, [])
    await_wake = scene.handle(adds(2, lac=1))
    expire()
    await await_wake
    assert len(scene.connection.responses(3)) == 1
    assert scene.connection.unanswered == 1  # the add


async def test_polls_are_counted_and_timed(scene: Scene) -> None:
    await scene.stored(adds(0, 2, lac=0))
    await scene.handle(poll(-1) + poll(0, transaction=2) + poll(0, transaction=3, ledger=LedgerId(99)))
    stats = scene.bookie.stats
    assert (stats.long_polls, stats.long_polls_failed, stats.long_poll_seconds.total) == (3, 1, 1)
    await scene.handle(adds(2, lac=1))
    assert stats.long_poll_seconds.total == 2
