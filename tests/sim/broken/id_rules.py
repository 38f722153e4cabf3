"""Broken variants: rules that prevent the reuse of a ledger id, each removed."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from quire_bookie.client.fresh_ids import FreshIds
from quire_bookie.client.links.bound_links import Binding, BoundLinks
from quire_bookie.env.disk import Disk
from quire_bookie.env.index_store import IndexStore
from quire_bookie.journal import JournalRecord, MasterKeyRecord
from quire_bookie.model import BookieId, IdCounters, LedgerId
from quire_bookie.server.requests.repeated_adds import RepeatedAdds, Verdict
from quire_bookie.server.start.replaying import ReplayTarget
from quire_bookie.storage.index.index_commits import IndexCommits
from quire_bookie.storage.ledgers.id_marks import IdMarks
from tests.sim.broken.variant import Variant, replaced


def _without_asking() -> tuple[Any, ...]:
    async def broken(self: FreshIds, _: Iterable[BookieId]) -> LedgerId:
        return await self._ids.next_id()

    return (replaced(FreshIds, "next_id", broken),)


def _answers_outlive_the_connection() -> tuple[Any, ...]:
    def broken(self: FreshIds) -> tuple[int, int]:
        return self._sessions, 0

    return (replaced(FreshIds, "_link", broken),)


def _conflicting_add_taken() -> tuple[Any, ...]:
    def broken(self: RepeatedAdds, *_: Any) -> Verdict:
        return Verdict.REPEATED

    return (replaced(RepeatedAdds, "compare", broken),)


def _epoch_lost_at_a_restart() -> tuple[Any, ...]:
    proper = IdMarks.load.__func__  # type: ignore[attr-defined]

    async def broken(
        cls: type[IdMarks], disk: Disk, index: IndexStore, directory: str, commits: IndexCommits
    ) -> IdMarks:
        marks: IdMarks = await proper(cls, disk, index, directory, commits)
        marks._record = replace(marks._record, seen=replace(marks.seen, epoch=0))
        return marks

    return (replaced(IdMarks, "load", classmethod(broken)),)


def _epoch_not_compared() -> tuple[Any, ...]:
    proper = IdCounters.behind

    def broken(self: IdCounters, seen: IdCounters) -> str | None:
        return None if self.epoch < seen.epoch else proper(self, seen)

    return (replaced(IdCounters, "behind", broken),)


def _token_not_checked() -> tuple[Any, ...]:
    def broken(self: BoundLinks, bookie: BookieId, *_: Any) -> Binding:
        self._bound.add(bookie)
        return Binding.BOUND

    return (replaced(BoundLinks, "_verdict", broken),)


def _token_lost_at_a_restart() -> tuple[Any, ...]:
    proper = ReplayTarget._apply

    async def broken(self: ReplayTarget, record: JournalRecord) -> None:
        await proper(self, replace(record, token=b"") if isinstance(record, MasterKeyRecord) else record)

    return (replaced(ReplayTarget, "_apply", broken),)


ID_RULES = (
    Variant("ids given out without asking the bookies", "ids", 36, _without_asking),
    Variant("answers about ids outlive the connection", "ids", 36, _answers_outlive_the_connection),
    Variant("a bookie takes a conflicting first add", "ids", 0, _conflicting_add_taken),
    Variant("epoch not remembered over a restart", "ids", 0, _epoch_lost_at_a_restart),
    Variant("an older epoch is no doubt", "ids", 0, _epoch_not_compared),
    Variant("the token of a ledger is not checked", "ids", 1, _token_not_checked),
    Variant("the token of a ledger is lost at a restart", "ids", 29, _token_lost_at_a_restart),
)
