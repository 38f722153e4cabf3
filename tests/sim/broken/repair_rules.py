"""Broken variants: rules of auto-recovery, each removed."""

from typing import Any

from quire_bookie.client import ledger_client
from quire_bookie.client.links.single_requests import ask_entries
from quire_bookie.errors import (
    BadVersionError,
    BookieUnavailableError,
    DamagedError,
    LedgerError,
    NoEntryListError,
)
from quire_bookie.metadata.ledgers import LedgerNodes
from quire_bookie.model import BookieId, EntryId, LedgerId, LedgerMetadata
from quire_bookie.quorum.wanted_copies import missing_copies
from quire_bookie.recovery import access, drain_plan, ledger_repair
from quire_bookie.recovery.ensemble_update import EnsembleUpdate, update_copies, update_ensemble, with_replaced
from quire_bookie.recovery.fragment_check import LedgerCheck
from quire_bookie.recovery.fragment_copy import Copied, copy_fragment
from quire_bookie.recovery.fragments import Fragment
from quire_bookie.recovery.ledger_repair import LedgerRepair
from quire_bookie.server.upkeep.damage_report import DamageReport
from quire_bookie.storage.ledger_storage import LedgerStorage
from quire_bookie.storage.scrub import ScrubbedLog
from tests.sim.broken.variant import Variant, replaced


def _timeout_is_missing() -> tuple[Any, ...]:
    async def broken(*rest: Any, **named: Any) -> Copied:
        copied = await copy_fragment(*rest, **named)
        for entry, error in list(copied.unreadable.items()):
            if isinstance(error, BookieUnavailableError):
                del copied.unreadable[entry]
        return copied

    return (replaced(ledger_repair, "copy_fragment", broken),)


def _silent_bookies_are_read_entry_by_entry() -> tuple[Any, ...]:
    async def no_list(*rest: Any, **named: Any) -> Any:
        try:
            return await ask_entries(*rest, **named)
        except BookieUnavailableError as error:
            raise NoEntryListError(str(error)) from error

    read_all = LedgerCheck.read_all

    async def broken(self: LedgerCheck, bookie: BookieId, entries: list[EntryId]) -> dict[EntryId, LedgerError]:
        failures = await read_all(self, bookie, entries)
        self._silent.clear()
        return failures

    return (replaced(access, "ask_entries", no_list), replaced(LedgerCheck, "read_all", broken))


def _without_compare() -> tuple[Any, ...]:
    async def broken(
        nodes: LedgerNodes,
        ledger: LedgerId,
        copied_from: LedgerMetadata,
        fragment: Fragment,
        replacements: dict[int, BookieId],
        may_go_on: Any,
    ) -> EnsembleUpdate:
        wanted = with_replaced(copied_from, fragment, replacements)
        while True:
            try:
                await nodes.update(ledger, wanted, (await nodes.read(ledger)).version)  # type: ignore[arg-type]
            except BadVersionError:
                continue
            return EnsembleUpdate.DONE

    return (replaced(ledger_repair, "update_ensemble", broken),)


def _named_before_it_has_a_copy() -> tuple[Any, ...]:
    proper = LedgerRepair._copy

    async def broken(
        self: LedgerRepair, handle: Any, metadata: LedgerMetadata, report: Any, bookie: BookieId, **named: Any
    ) -> Any:
        async def may() -> bool:
            return True

        if bookie not in report.fragment.ensemble:
            where = {report.position: bookie}
            await update_ensemble(self._access.nodes, handle.ledger, metadata, report.fragment, where, may)
        return await proper(self, handle, metadata, report, bookie, **named)

    return (replaced(LedgerRepair, "_copy", broken),)


def _logs_still_written_not_scrubbed() -> tuple[Any, ...]:
    proper = LedgerStorage.scrubbed_logs

    def broken(self: LedgerStorage[Any]) -> dict[int, ScrubbedLog]:
        return {log: scrubbed for log, scrubbed in proper(self).items() if scrubbed.durable_bytes is None}

    return (replaced(LedgerStorage, "scrubbed_logs", broken),)


def _damage_met_by_a_read_not_reported() -> tuple[Any, ...]:
    def broken(self: DamageReport, ledger: LedgerId, entry: EntryId, error: DamagedError) -> None:
        return

    return (replaced(DamageReport, "read_failed", broken),)


def _narrow_is_safe() -> tuple[Any, ...]:
    return (replaced(ledger_repair, "missing_copies", lambda *_: 0),)


def _narrow_is_not_marked() -> tuple[Any, ...]:
    return (replaced(ledger_client, "missing_copies", lambda *_: 0),)


def _narrow_needs_no_further_bookie() -> tuple[Any, ...]:
    return (replaced(drain_plan, "wanted_copies", lambda metadata, _: metadata.write_quorum),)


def _joins_before_it_has_a_copy() -> tuple[Any, ...]:
    proper = LedgerRepair._copy

    async def broken(
        self: LedgerRepair, handle: Any, metadata: LedgerMetadata, report: Any, bookie: BookieId, **named: Any
    ) -> Any:
        async def may() -> bool:
            return True

        if missing_copies(metadata) == 1 and bookie not in report.fragment.ensemble and report.position == 0:
            plan = {segment.first_entry: (bookie,) for segment in metadata.segments}
            await update_copies(self._access.nodes, handle.ledger, metadata, plan, may)
        return await proper(self, handle, metadata, report, bookie, **named)

    return (replaced(LedgerRepair, "_copy", broken),)


REPAIR_RULES = (
    Variant("logs still written are not scrubbed", "damage", 0, _logs_still_written_not_scrubbed),
    Variant("damage that a read meets is not reported", "damage", 2, _damage_met_by_a_read_not_reported),
    Variant("worker writes metadata without compare", "autorecovery", 0, _without_compare),
    Variant("bookie named before it has its copy", "autorecovery", 0, _named_before_it_has_a_copy),
    Variant("ledgers with too few copies count as safe", "narrow", 0, _narrow_is_safe),
    Variant("a new ledger with too few copies is not marked", "narrow", 0, _narrow_is_not_marked),
    Variant("a drain counts the copies of a ledger, not those wanted", "narrow", 0, _narrow_needs_no_further_bookie),
    Variant("a further bookie joins a ledger before it has its copy", "narrow", 0, _joins_before_it_has_a_copy),
    Variant("worker takes a timeout for a missing entry", "silence", 0, _timeout_is_missing),
    Variant("silent bookies are read entry by entry", "unanswered", 0, _silent_bookies_are_read_entry_by_entry),
)
