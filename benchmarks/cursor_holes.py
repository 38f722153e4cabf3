"""Measures a cursor with many holes: `python -m benchmarks.cursor_holes`. Prints a Markdown table.

Every other entry of ledgers of 50,000 entries is acknowledged, one at a time. CPU time of an acknowledgment, of the
first save, of a save after one more acknowledgment in each of ten ledgers, and of loading. Without bookies: the save
is what a broker's event loop does, and the bytes are what it then writes.
"""

import time
from collections.abc import Callable

from quire_broker.managed_ledger.cursors.cursor_state import (
    CursorState,
    StateBounds,
    decode_position,
    encode_position,
)
from quire_broker.managed_ledger.position import Position
from quire_broker.settings.managed_ledger import ManagedLedgerSettings

LEDGER_ENTRIES = 50_000
COUNTS = (10_000, 100_000, 500_000, 1_000_000)
LEDGERS_CHANGED = 10
ROUNDS = 5


def cpu_ms(work: Callable[[], object], rounds: int = 1) -> float:
    """Return the least CPU time of some runs, in milliseconds."""
    times = []
    for _ in range(rounds):
        start_s = time.process_time()
        work()
        times.append(time.process_time() - start_s)
    return min(times) * 1000


def measure(holes: int) -> str:
    """Return the row of the table for a cursor with `holes` holes."""
    settings = ManagedLedgerSettings()
    bounds = StateBounds(settings.unacked_ranges_max, settings.batch_acks_max, settings.cursor_state_bytes_max)
    state = CursorState(Position(1, -1))

    def acknowledge() -> None:
        for entry in range(0, 2 * holes, 2):
            ledger, at = divmod(entry, LEDGER_ENTRIES)
            state.ranges.add(ledger + 2, at, at)

    def change() -> None:
        for ledger in state.ranges.ledgers()[:LEDGERS_CHANGED]:
            free = next(at for at in range(1, LEDGER_ENTRIES, 2) if (ledger, at) not in state.ranges)
            state.ranges.add(ledger, free, free)

    acked_ms = cpu_ms(acknowledge)
    first_ms = cpu_ms(lambda: encode_position(state, bounds))
    again = []
    for _ in range(ROUNDS):
        change()
        again.append(cpu_ms(lambda: encode_position(state, bounds)))
    data = encode_position(state, bounds)
    loaded_ms = cpu_ms(lambda: decode_position(data), ROUNDS)
    saves = f"{first_ms:.2f} | {min(again):.2f}"
    return f"| {holes:,} | {acked_ms / holes * 1000:.2f} | {saves} | {loaded_ms:.1f} | {len(data):,} |"


def main() -> None:
    """Print the table."""
    print("| holes | ack, us | first save, ms | save after an ack in ten ledgers, ms | load, ms | bytes of a save |")
    print("|---|---|---|---|---|---|")
    for holes in COUNTS:
        print(measure(holes))


if __name__ == "__main__":
    main()
