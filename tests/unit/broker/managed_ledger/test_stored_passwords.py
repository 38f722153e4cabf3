"""Ledgers whose password differs from the configured one are opened if the managed ledger owns them."""

from dataclasses import replace

import pytest

from quire_bookie.errors import UnauthorizedError
from quire_bookie.model import BookieId, EntryId, LedgerMetadata, LedgerState, Segment
from quire_broker.managed_ledger.stored_passwords import MANAGED_LEDGER, to_read, to_recover
from quire_broker.settings.managed_ledger import ManagedLedgerSettings
from tests.unit.broker.managed_ledger.world import NAME, World, append, everything, numbered, run

OPEN = LedgerMetadata(1, 1, 1, (Segment(EntryId(0), (BookieId("b"),)),), password=b"old")


@pytest.mark.parametrize(
    ("metadata", "accepted"),
    [
        (replace(OPEN, custom={MANAGED_LEDGER: b"a/b/persistent/c"}), True),
        (replace(OPEN, custom={MANAGED_LEDGER: b"a/b/persistent/other"}), False),
        (replace(OPEN, custom={"component": b"schema"}), False),
        (replace(OPEN, password=b""), True),
        (replace(OPEN, password=b"", custom={MANAGED_LEDGER: b"a/b/persistent/other"}), False),
        (replace(OPEN, state=LedgerState.CLOSED), True),
    ],
)
def test_a_ledger_of_another_owner_is_not_fenced(metadata: LedgerMetadata, accepted: bool) -> None:
    assert to_recover("a/b/persistent/c")(metadata) is accepted
    assert to_read(metadata)


@pytest.mark.parametrize(("before", "after"), [(b"", b"sesame"), (b"sesame", b""), (b"one", b"two")])
def test_a_topic_and_its_cursors_outlive_a_change_of_the_password(before: bytes, after: bytes) -> None:
    async def scenario(world: World) -> None:
        former = world.process(ManagedLedgerSettings(password=before, rollover_age_min_s=0.0, ledger_entries_max=4))
        ledger = await former.open()
        positions = await former.run(append(ledger, *numbered(10)))
        cursor = await former.run(ledger.open_cursor("sub"))
        cursor.acknowledge(positions[:1])
        await former.run(cursor.flush())
        former.kill()
        process = world.process(ManagedLedgerSettings(password=after, rollover_age_min_s=0.0, ledger_entries_max=4))
        ledger = await process.open()
        assert ledger.cursors["sub"].mark_delete == positions[0]
        await process.run(append(ledger, *numbered(2, 10)))
        assert (await process.run(everything(ledger)))[-2:] == numbered(2, 10)
        made = [world.bookies.ledgers[one].metadata.password for one in world.bookies.created]
        assert {before, after} == set(made) and made[-1] == after

    run(scenario)


def test_a_ledger_whose_id_now_belongs_to_another_owner_is_not_fenced() -> None:
    async def scenario(world: World) -> None:
        former = world.process()
        ledger = await former.open()
        await former.run(append(ledger, b"mine"))
        former.kill()
        ours = world.bookies.ledgers[world.bookies.created[0]]
        ours.metadata = replace(ours.metadata, password=b"theirs", custom={MANAGED_LEDGER: NAME.encode() + b"-2"})
        with pytest.raises(UnauthorizedError):
            await world.process().open()
        assert not ours.fenced

    run(scenario)
