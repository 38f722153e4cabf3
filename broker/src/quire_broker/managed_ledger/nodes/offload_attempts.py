"""The rules of offloading one ledger: when to begin, to complete and to delete. Pure.

An attempt pins its ledger: while the attempt is alive, the ledger is neither trimmed nor deleted from the bookies. An
attempt ends by `complete`, by `abort`, when it is replaced after it was abandoned, or with its ledger.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from quire_broker.errors import ConflictError
from quire_broker.managed_ledger.errors import ManagedLedgerError
from quire_broker.managed_ledger.nodes.ledger_list import LedgerRecord
from quire_broker.managed_ledger.nodes.offload_context import BEGUN, OWNER, OffloadContext
from quire_broker.offload.settings import OFF, OffloadSettings
from quire_broker.offload.target import OffloadTarget

OWN: Final = "broker"
"""Owner name of the broker's own attempts. The next owner of the topic replaces them at once."""


class OffloadRefusedError(ManagedLedgerError, ConflictError):
    """The metadata do not allow this step; nothing changed. The text is the reason."""


def alive(context: OffloadContext | None, now_ms: int, settings: OffloadSettings) -> bool:
    """Return whether an attempt may still be running. One without a begin time is of a former owner and has ended."""
    if context is None or context.complete or not context.begun_ms:
        return False
    return now_ms - context.begun_ms < settings.abandoned_after_s * 1000


def new_attempt(
    record: LedgerRecord | None,
    ledger_id: int,
    *,
    tail: int | None,
    uuid: str,
    target: OffloadTarget,
    extra: Mapping[str, str],
    owner: str,
    now_ms: int,
    settings: OffloadSettings,
) -> OffloadContext:
    """Return the offload context of a new attempt. OffloadRefusedError.

    `owner` may replace its own attempt at once, because it knows that it no longer works on that attempt.
    """
    if record is None:
        raise OffloadRefusedError(f"ledger {ledger_id} is not listed")
    if ledger_id == tail or not record.closed_ms:
        raise OffloadRefusedError(f"ledger {ledger_id} is open")
    if not record.entries:
        raise OffloadRefusedError(f"ledger {ledger_id} is empty")
    known = record.offload
    if known is not None and known.complete:
        raise OffloadRefusedError(f"ledger {ledger_id} is already offloaded")
    if known is not None and alive(known, now_ms, settings) and not (owner and owner == known.owner):
        age_s = (now_ms - known.begun_ms) // 1000
        raise OffloadRefusedError(
            f"ledger {ledger_id}: an attempt of {known.owner or 'an unknown owner'} is in progress for {age_s} s; "
            f"it may be replaced after {settings.abandoned_after_s:.0f} s"
        )
    properties = target.properties | {key: value for key, value in extra.items() if key not in target.properties}
    properties |= {BEGUN: str(now_ms)} | ({OWNER: owner} if owner else {})
    return OffloadContext(uuid, target.driver, tuple(properties.items()), extra=b"" if known is None else known.extra)


def check_complete(record: LedgerRecord | None, ledger_id: int, uuid: str, counts: tuple[int, int]) -> bool:
    """Return whether `complete` must change the list; False if it was completed before. OffloadRefusedError.

    `counts`: entries and bytes in the objects.
    """
    if record is None:
        raise OffloadRefusedError(f"ledger {ledger_id} is no longer listed")
    if record.offload is None or record.offload.uuid != uuid:
        other = "there is no attempt" if record.offload is None else f"the attempt is {record.offload.uuid}"
        raise OffloadRefusedError(f"ledger {ledger_id}: {uuid} was aborted or replaced: {other}")
    if counts != (record.entries, record.size_bytes):
        raise OffloadRefusedError(
            f"ledger {ledger_id} has {record.entries} entries of {record.size_bytes} bytes; "
            f"the offload has {counts[0]} of {counts[1]}"
        )
    return not record.offload.complete


def with_offload(
    records: Sequence[LedgerRecord], changes: Mapping[int, OffloadContext | None]
) -> tuple[LedgerRecord, ...]:
    """Return the list with other offload contexts for some ledgers."""
    return tuple(
        replace(record, offload=changes[record.ledger_id]) if record.ledger_id in changes else record
        for record in records
    )


def expired_copies(
    records: Sequence[LedgerRecord], *, tail: int | None, now_ms: int, settings: OffloadSettings
) -> list[LedgerRecord]:
    """Return ledgers whose bookie copy may be deleted: offloaded for longer than the lag, never the newest ledger."""
    if settings.deletion_lag_s == OFF:
        return []
    return [
        record
        for record in records[:-1]
        if record.offload is not None
        and record.offload.complete
        and not record.offload.bookies_deleted
        and record.ledger_id != tail
        and now_ms - record.offload.offloaded_ms >= settings.deletion_lag_s * 1000
    ]


def due(records: Sequence[LedgerRecord], *, tail: int | None, now_ms: int, settings: OffloadSettings) -> list[int]:
    """Return ledgers that the thresholds require to be offloaded, oldest first.

    Bytes are summed from the newest ledger.
    """
    found: list[int] = []
    total = 0
    for record in reversed(records):
        if not record.closed_ms or record.ledger_id == tail:
            continue
        total += record.size_bytes
        by_size = settings.threshold_bytes != OFF and total > settings.threshold_bytes
        by_age = settings.threshold_s != OFF and now_ms - record.closed_ms >= settings.threshold_s * 1000
        if (by_size or by_age) and _open_to_offload(record, now_ms, settings):
            found.append(record.ledger_id)
    return found[::-1]


def up_to(
    records: Sequence[LedgerRecord], ledger_id: int, *, tail: int | None, now_ms: int, settings: OffloadSettings
) -> list[int]:
    """Return the ledgers before `ledger_id` that are not offloaded, oldest first."""
    return [
        record.ledger_id
        for record in records
        if record.ledger_id < ledger_id
        and record.closed_ms
        and record.ledger_id != tail
        and _open_to_offload(record, now_ms, settings)
    ]


def _open_to_offload(record: LedgerRecord, now_ms: int, settings: OffloadSettings) -> bool:
    """Return whether the ledger can be offloaded. Valid only while no own offload runs.

    Own attempts then have ended.
    """
    known = record.offload
    dead = known is None or known.owner == OWN or not alive(known, now_ms, settings)
    return record.entries > 0 and not record.offloaded and dead


def unreferenced_objects(
    before: Sequence[LedgerRecord], after: Sequence[LedgerRecord]
) -> list[tuple[int, OffloadContext]]:
    """Return ledger and context of the objects in `before` that `after` does not name: they may be deleted."""
    kept = {record.offload.uuid for record in after if record.offload is not None}
    return [
        (record.ledger_id, record.offload)
        for record in before
        if record.offload is not None and record.offload.uuid and record.offload.uuid not in kept
    ]
