"""Appends while the metadata store is unavailable, and owners that cannot prove that they still are owners."""

import asyncio

import pytest

from quire_broker.limits import LEDGER_OVERGROWTH_MAX
from quire_broker.managed_ledger import ManagedLedgerState
from quire_broker.managed_ledger.errors import LedgerSwitchError, ManagedLedgerFencedError
from tests.unit.broker.managed_ledger.world import World, append, everything, numbered, run


def test_while_the_metadata_is_unavailable_appends_continue_and_the_roll_waits() -> None:
    async def scenario(world: World) -> None:
        ledger = await world.process().open()
        await append(ledger, *numbered(5))
        world.away(True)
        await append(ledger, *numbered(30, 5))
        assert len(ledger.ledgers) == 1, "the open ledger goes on, over its bound"
        await asyncio.sleep(20)
        await append(ledger, *numbered(5, 35))
        world.away(False)
        await asyncio.sleep(30)
        await append(ledger, *numbered(5, 40))
        assert [record.entries for record in ledger.ledgers] == [40, 5]
        assert await everything(ledger) == numbered(45)

    run(scenario, ledger_entries_max=10)


def test_an_overgrown_ledger_takes_nothing_more_until_the_metadata_is_back() -> None:
    async def scenario(world: World) -> None:
        ledger = await world.process().open()
        full = [b"x" * 100] * LEDGER_OVERGROWTH_MAX
        world.away(True)
        await append(ledger, *full)
        waiting = asyncio.ensure_future(append(ledger, b"one more"))
        await asyncio.sleep(10)
        assert not waiting.done()
        world.away(False)
        (position,) = await waiting
        assert position.entry_id == 0, "it is in the next ledger"
        assert await everything(ledger) == [*full, b"one more"]

    run(scenario, ledger_bytes_max=100)


def test_appends_behind_an_overgrown_ledger_fail_when_the_metadata_stays_away() -> None:
    async def scenario(world: World) -> None:
        ledger = await world.process().open()
        world.away(True)
        await append(ledger, *[b"x" * 100] * LEDGER_OVERGROWTH_MAX)
        with pytest.raises(LedgerSwitchError):
            await append(ledger, b"one more")
        world.away(False)
        await asyncio.sleep(10)
        await append(ledger, b"again")

    run(scenario, ledger_bytes_max=100)


def test_a_fenced_owner_that_cannot_reach_the_metadata_fails_at_once_and_recovers_nothing() -> None:
    async def scenario(world: World) -> None:
        first, second = world.process(), world.process()
        ledger = await first.open()
        await append(ledger, *numbered(3))
        first.store.cut = True
        await second.open()
        with pytest.raises(ManagedLedgerFencedError, match="fenced by another client"):
            await append(ledger, b"late")
        assert ledger.state is ManagedLedgerState.FENCED
        assert first.client.recoveries == 0

    run(scenario)


def test_a_handle_whose_list_another_owner_wrote_is_fenced_when_it_checks() -> None:
    async def scenario(world: World) -> None:
        first, second = world.process(), world.process()
        ledger = await first.open()
        await ledger.check_owner()
        await append(ledger, b"still ours")
        await (await second.open()).close()
        await ledger.check_owner()
        assert ledger.state is ManagedLedgerState.FENCED

    run(scenario)
