"""Decides which ledgers may be deleted. Pure: decides from the list, performs nothing.

A ledger is a candidate when every durable cursor has passed it. It is deleted when neither the retention by time nor
the retention by size keeps it (0 keeps nothing by that rule, -1 everything). The ledger being written always stays, and
so does the newest one. A ledger that is being offloaded stays with all later ones. Without a durable cursor nothing is
deleted unless a retention is set: a client that publishes first and subscribes later finds the messages. (Pulsar
deletes them.)
"""

from collections.abc import Iterable, Sequence

from quire_broker.managed_ledger.nodes.ledger_list import LedgerRecord
from quire_broker.managed_ledger.nodes.offload_attempts import alive
from quire_broker.managed_ledger.position import Position
from quire_broker.settings.managed_ledger import ManagedLedgerSettings


def trimmable(
    ledgers: Sequence[LedgerRecord],
    *,
    tail: int | None,
    slowest: Position | None,
    now_ms: int,
    settings: ManagedLedgerSettings,
) -> list[int]:
    """Return the ids of the ledgers that may be deleted, oldest first.

    `ledgers`: all, oldest first, with counts; `slowest`: the lowest mark-delete position of the durable cursors.
    """
    if not ledgers or (slowest is None and not _retention_set(settings)):
        return []
    keep_from = min(ledgers[-1].ledger_id, tail if tail is not None else ledgers[-1].ledger_id)
    total = sum(ledger.size_bytes for ledger in ledgers)
    gone: list[int] = []
    freed = 0
    for ledger in ledgers:
        pinned = alive(ledger.offload, now_ms, settings.offload)
        if ledger.ledger_id >= keep_from or pinned or not _passed(ledger, slowest):
            break
        freed += ledger.size_bytes
        if not _expired(ledger, total - freed, now_ms, settings):
            break
        gone.append(ledger.ledger_id)
    assert len(gone) < len(ledgers), "the newest ledger stays"
    return gone


def trimmable_from_ms(
    ledgers: Sequence[LedgerRecord], *, tail: int | None, slowest: Position | None, settings: ManagedLedgerSettings
) -> int | None:
    """Return the time from which the oldest ledger may be deleted, in ms since the epoch; 0: at once.

    None: not before a cursor moves or the list changes. Takes the same arguments as `trimmable`.
    """
    if not ledgers or (slowest is None and not _retention_set(settings)):
        return None
    oldest, newest = ledgers[0], ledgers[-1].ledger_id
    if oldest.ledger_id >= (newest if tail is None else min(newest, tail)) or not _passed(oldest, slowest):
        return None
    if settings.retention_bytes >= 0:
        kept_bytes = sum(ledger.size_bytes for ledger in ledgers) - oldest.size_bytes
        if kept_bytes >= settings.retention_bytes:
            return 0
    return None if settings.retention_s < 0 else oldest.closed_ms + int(settings.retention_s * 1000)


def slowest_mark_delete(marks: Iterable[Position]) -> Position | None:
    """Return the lowest mark-delete position of the durable cursors; None if there are none."""
    return min(marks, default=None)


def _passed(ledger: LedgerRecord, slowest: Position | None) -> bool:
    if slowest is None:
        return True
    return slowest >= Position(ledger.ledger_id, ledger.entries - 1)


def _retention_set(settings: ManagedLedgerSettings) -> bool:
    return settings.retention_s != 0 or settings.retention_bytes != 0


def _expired(ledger: LedgerRecord, kept_bytes: int, now_ms: int, settings: ManagedLedgerSettings) -> bool:
    too_old = settings.retention_s >= 0 and now_ms - ledger.closed_ms >= settings.retention_s * 1000
    too_much = settings.retention_bytes >= 0 and kept_bytes >= settings.retention_bytes
    return too_old or too_much
