"""Quorums by the number of bookies, and the number kept with the data."""

import asyncio
import json
from dataclasses import replace

import pytest

from quire_bookie.env.background import Background
from quire_bookie.env.chance import SystemChance
from quire_bookie.env.clock import SystemClock
from quire_bookie.errors import BookieUnavailableError, StartupError
from quire_bookie.metadata.drains import Drain, Drains, Wish
from quire_bookie.model import BookieId
from quire_bookie.server.process import BookieState
from quire_bookie.server.upkeep.read_only import ReadOnlyReason
from quire_bookie.settings.recovery import RecoverySettings
from quire_broker.settings.managed_ledger import ManagedLedgerSettings
from quire_broker.standalone import RunningStandalone, StandaloneSettings, quorums, with_quorums
from tests.sim.disk import SimDisk
from tests.support.bookie_world import BookieWorld


@pytest.mark.parametrize(
    ("bookies", "expected"), [(1, (1, 1, 1)), (2, (2, 2, 2)), (3, (3, 3, 2)), (4, (3, 3, 2)), (9, (3, 3, 2))]
)
def test_quorums_suit_the_number_of_bookies(bookies: int, expected: tuple[int, int, int]) -> None:
    assert quorums(bookies) == expected
    settings = with_quorums(ManagedLedgerSettings(), bookies)
    assert (settings.ensemble_size, settings.write_quorum, settings.ack_quorum) == expected


async def test_fewer_bookies_than_those_with_data_are_refused() -> None:
    disk = SimDisk()

    async def check(bookies: int) -> None:
        settings = StandaloneSettings("/data", bookies)
        await RunningStandalone(settings, None, disk, None, None)._check_count()  # type: ignore[arg-type]

    await check(3)
    await check(3)
    with pytest.raises(StartupError, match="--bookies 3 or more, not 2"):
        await check(2)
    await check(5)
    assert json.loads(await disk.read_file("/data/standalone.json")) == {"bookies": 5}
    await disk.replace_file("/data/standalone.json", b"nonsense")
    with pytest.raises(StartupError, match="damaged"):
        await check(5)


async def test_background_work_ends_with_its_owner_and_failures_are_counted() -> None:
    background = Background()
    done: list[str] = []

    async def fail() -> None:
        raise RuntimeError("on purpose")

    async def work() -> None:
        done.append("work")

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            done.append("cancelled")

    background.start(fail(), "fail")
    background.start(work(), "work")
    await background.drain()
    assert (background.failures, done, len(background)) == (1, ["work"], 0)
    background.start(forever(), "forever")
    await asyncio.sleep(0)
    await background.close()
    background.start(work(), "too late")
    assert done == ["work", "cancelled"]


async def test_a_drain_makes_the_bookies_of_this_process_read_only_without_an_http_port() -> None:
    world = BookieWorld()
    bookie = await world.start()
    metadata = world.session
    assert metadata is not None
    settings = StandaloneSettings("/data", recovery=None)
    standalone = RunningStandalone(settings, metadata, world.disk, SystemClock(), SystemChance())
    standalone.bookies.append(bookie)
    recovering = asyncio.ensure_future(standalone._recover(RecoverySettings(workers=0)))
    drains = Drains(metadata)

    async def until(read_only: bool) -> None:
        async with asyncio.timeout(20):
            while (bookie.state is BookieState.READ_ONLY) is not read_only:  # noqa: ASYNC110  it has no event
                await asyncio.sleep(0.01)

    wish = Drain(bookie.bookie_id, Wish.DRAIN, 1)
    await drains.change(lambda _: (wish,))
    await until(read_only=True)
    assert bookie.read_only_mode.reasons == {ReadOnlyReason.OPERATOR}
    await drains.change(lambda found: tuple(replace(one, wish=Wish.CANCEL) for one in found))
    await until(read_only=False)
    with pytest.raises(BookieUnavailableError, match="no HTTP port"):
        await standalone._set_read_only(BookieId("elsewhere"), True)
    recovering.cancel()
    await asyncio.gather(recovering, return_exceptions=True)
    assert standalone.recovery is not None
    await standalone.recovery.stop()
    await world.stop()
