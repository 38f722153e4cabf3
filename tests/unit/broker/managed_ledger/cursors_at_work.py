"""Helpers of cursor tests: a managed ledger with entries and one cursor, and the numbers that a cursor reads."""

from quire_broker.managed_ledger import Cursor, ManagedLedger
from tests.unit.broker.managed_ledger.world import Process, World, append, numbered


async def with_cursor(world: World, count: int, name: str = "sub") -> tuple[Process, ManagedLedger, Cursor]:
    process = world.process()
    ledger = await process.open()
    cursor: Cursor = await process.run(ledger.open_cursor(name))
    await append(ledger, *numbered(count))
    return process, ledger, cursor


async def read_numbers(cursor: Cursor, entries_max: int = 100) -> list[int]:
    """Return the numbers of the entries that the next read returns."""
    return [int(bytes(entry.data).split(b"-")[1]) for entry in await cursor.read(entries_max)]


async def crash(world: World, process: Process) -> ManagedLedger:
    process.kill()
    return await world.process().open()
