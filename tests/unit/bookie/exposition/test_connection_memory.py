"""The memory of connections as metrics."""

from quire_bookie.env.connection_memory import ConnectionMemory
from quire_bookie.exposition.connection_memory import add_connection_memory
from quire_bookie.exposition.families import Families
from quire_bookie.settings.memory import MemorySettings


async def test_held_bytes_and_reasons_of_closed_connections_are_shown() -> None:
    memory, families = ConnectionMemory(MemorySettings(1000)), Families()
    memory.hold(7)
    add_connection_memory(families, memory, {"cluster": "c"})
    values = {(s.name, *list(s.labels.values())[1:]): s.value for family in families for s in family.samples}
    assert values["quire_connection_memory_bytes", "requests"] == 7
    assert values["quire_connection_memory_max_bytes",] == 1000
    assert values["quire_connections_closed_for_memory", "stalled_frame"] == 0
