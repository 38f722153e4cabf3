"""A whole bookie over real sockets: damaged frames on many connections, beside a correct client.

After each round the bookie must be as before: it has exactly the entries of the correct client, nothing is queued, no
connection, byte or task is left over, and the loop has reported no error.
"""

import asyncio
import contextlib
import random
from dataclasses import dataclass, field
from typing import Any

from quire_bookie.client import LedgerClient
from quire_bookie.env.chance import SystemChance
from quire_bookie.env.clock import SystemClock
from quire_bookie.model import EntryId
from tests.fuzz.frames import conversation
from tests.support.bookie_world import BookieWorld

_CONNECTIONS = 8
_FRAMES_PER_CONNECTION = 50
ROUND_TIMEOUT_S = 60.0


@dataclass(slots=True)
class FuzzOutcome:
    """Counts the frames sent and the responses received."""

    frames: int = 0
    connections: int = 0
    answer_bytes: int = 0
    faults: list[str] = field(default_factory=list)


async def fuzz_bookie(seed: int, frames: int) -> FuzzOutcome:
    """Send `frames` damaged frames. AssertionError with the seed if the bookie's state is wrong afterwards."""
    rng = random.Random(seed)
    outcome = FuzzOutcome()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: outcome.faults.append(_fault(context)))
    world = BookieWorld()
    running = await world.start()
    assert world.session is not None
    client = await LedgerClient.open(world.session, clock=SystemClock(), chance=SystemChance())
    writer = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1, password=b"good")
    written: list[bytes] = []
    try:
        while outcome.frames < frames:
            async with asyncio.timeout(ROUND_TIMEOUT_S):
                await asyncio.gather(*(_attack(rng, running.port, outcome) for _ in range(_CONNECTIONS)))
                payload = rng.randbytes(rng.randrange(200))
                await writer.append(payload)
                written.append(payload)
                await _until_quiet(running)
            assert not outcome.faults, f"seed {seed}: {outcome.faults[:3]}"
        assert not running.failed.done(), f"seed {seed}: the bookie failed: {running.failed.result()}"
        found = await writer.read(EntryId(0), EntryId(len(written) - 1))
        assert [bytes(entry.payload) for entry in found] == written, f"seed {seed}: the good client's entries differ"
        await writer.close()
    finally:
        await client.close()
        await world.stop()
    return outcome


def _fault(context: dict[str, Any]) -> str:
    return f"{context.get('message')}: {context.get('exception')!r}"


async def _attack(rng: random.Random, port: int, outcome: FuzzOutcome) -> None:
    """Send frames on one connection and read the responses, until the bookie or the client closes it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    outcome.connections += 1
    taken = asyncio.ensure_future(_take(reader, outcome))
    try:
        for frame in conversation(rng, ">", _FRAMES_PER_CONNECTION, rng.choice((2, 3))):
            writer.write(frame)
            outcome.frames += 1
            if rng.random() < 0.2:
                await writer.drain()
        if rng.random() < 0.5:
            writer.write_eof()
    except (ConnectionError, RuntimeError):
        outcome.answer_bytes += 0  # the bookie closed the connection first, which is allowed
    if rng.random() < 0.2:
        writer.transport.abort()
    else:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                await asyncio.shield(taken)
    writer.close()
    await taken
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def _take(reader: asyncio.StreamReader, outcome: FuzzOutcome) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            outcome.answer_bytes += len(data)


async def _until_quiet(running: Any) -> None:
    """Wait until the bookie holds nothing of the attack; the correct client's connections stay."""
    stats = running.bookie.stats
    while True:
        if stats.connections_open <= 2 and not stats.adds_in_flight_bytes and not running.journal.queued_bytes:
            return
        await asyncio.sleep(0.005)
