"""Tests of rebuilding a ledger's metadata from the entries on a real bookie with simulated disks."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import pytest

from quire_bookie.backup.adoption import Evidence, OtherPasswordError, adopt, adopt_with_any, gather_evidence
from quire_bookie.backup.format import BackupError
from quire_bookie.backup.holdings import BookieQuestions
from quire_bookie.backup.review import ADOPTED
from quire_bookie.client import LedgerClient
from quire_bookie.env.chance import SystemChance
from quire_bookie.env.clock import SystemClock
from quire_bookie.metadata.store import MetadataStore
from quire_bookie.model import (
    LEDGER_TOKEN,
    BookieId,
    DigestType,
    EntryId,
    LedgerId,
    LedgerMetadata,
    LedgerState,
    Segment,
)
from quire_bookie.recovery.access import ClusterAccess
from quire_bookie.settings.client import ClientSettings
from quire_bookie.settings.recovery import RecoverySettings
from tests.support.bookie_world import BookieWorld

PAYLOADS = [b"entry %d" % number * 3 for number in range(12)]


@dataclass
class Scene:
    """One bookie, a client, and the access for managing ledgers."""

    client: LedgerClient
    access: ClusterAccess
    questions: BookieQuestions
    bookie: BookieId
    metadata: MetadataStore

    async def lost_ledger(self, digest: DigestType, password: bytes, *, close: bool = False) -> LedgerId:
        """Create a ledger with entries and delete its metadata."""
        writer = await self.client.create_ledger(
            ensemble_size=1, write_quorum=1, ack_quorum=1, digest_type=digest, password=password
        )
        for payload in PAYLOADS:
            await writer.append(payload)
        if close:
            await writer.close()
        else:
            writer.abandon()
        await self.access.nodes.delete(writer.ledger_id)
        return writer.ledger_id

    async def evidence(self, ledger: LedgerId) -> Evidence:
        return await gather_evidence(self.access, self.questions, ledger, (), [self.bookie])

    async def read(self, ledger: LedgerId, password: bytes) -> list[bytes]:
        reader = await self.client.open_ledger(ledger, password=password, recover=False)
        entries = await reader.read(EntryId(0), reader.last_add_confirmed)
        return [bytes(entry.payload) for entry in entries]


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    world = BookieWorld()
    running = await world.start()
    assert world.session is not None
    client = await LedgerClient.open(world.session, clock=SystemClock(), chance=SystemChance())
    access = await ClusterAccess.open(
        world.session, RecoverySettings(), ClientSettings(), clock=SystemClock(), chance=SystemChance()
    )
    async with BookieQuestions(access) as questions:
        yield Scene(client, access, questions, running.bookie_id, world.session)
    await access.close()
    await client.close()
    await world.stop()


@pytest.mark.parametrize("password", [b"", b"sesame"])
@pytest.mark.parametrize("digest", [DigestType.CRC32C, DigestType.CRC32, DigestType.HMAC])
async def test_adoption_finds_digest_and_all_entries(scene: Scene, digest: DigestType, password: bytes) -> None:
    ledger = await scene.lost_ledger(digest, password)
    evidence = await scene.evidence(ledger)
    assert evidence.last == len(PAYLOADS) - 1 and not evidence.absent
    found = await adopt(scene.access, ledger, evidence, "the-backup", password)
    assert found.state is LedgerState.CLOSED and found.digest_type is digest
    assert found.custom == {ADOPTED: b"the-backup", LEDGER_TOKEN: found.token} and found.token
    assert (found.last_entry, found.length) == (len(PAYLOADS) - 1, sum(map(len, PAYLOADS)))
    assert await scene.read(ledger, password) == PAYLOADS
    again = await adopt(scene.access, ledger, evidence, "the-backup", password)
    assert again == found


@pytest.mark.parametrize("digest", [DigestType.CRC32C, DigestType.HMAC])
async def test_another_password_writes_nothing(scene: Scene, digest: DigestType) -> None:
    ledger = await scene.lost_ledger(digest, b"sesame")
    with pytest.raises(BackupError, match="--password-file"):
        await adopt(scene.access, ledger, await scene.evidence(ledger), "b", b"wrong")
    assert not await scene.access.nodes.exists(ledger)
    await adopt(scene.access, ledger, await scene.evidence(ledger), "b", b"sesame")
    assert await scene.read(ledger, b"sesame") == PAYLOADS


async def test_entries_without_a_digest_need_an_explicit_option(scene: Scene) -> None:
    ledger = await scene.lost_ledger(DigestType.DUMMY, b"")
    evidence = await scene.evidence(ledger)
    with pytest.raises(BackupError, match="--digest DUMMY"):
        await adopt(scene.access, ledger, evidence, "b", b"")
    await adopt(scene.access, ledger, evidence, "b", b"", digest=DigestType.DUMMY)
    assert await scene.read(ledger, b"") == PAYLOADS


async def test_missing_entries_need_an_explicit_option(scene: Scene) -> None:
    ledger = await scene.lost_ledger(DigestType.CRC32C, b"")
    holes = replace(await scene.evidence(ledger), absent=[(EntryId(3), EntryId(4))])
    with pytest.raises(BackupError, match=r"no bookie holds entries 3 to 4 .* --accept-missing"):
        await adopt(scene.access, ledger, holes, "b", b"")
    found = await adopt(scene.access, ledger, holes, "b", b"", accept_missing=True)
    assert found.state is LedgerState.CLOSED


async def test_error_names_a_ledger_without_holders_and_an_absent_bookie(scene: Scene) -> None:
    with pytest.raises(BackupError, match="no bookie holds an entry of ledger 999"):
        await scene.evidence(LedgerId(999))
    known = [scene.bookie, BookieId("away")]
    ledger = await scene.lost_ledger(DigestType.CRC32C, b"")
    with pytest.raises(BackupError, match="--without away"):
        await gather_evidence(scene.access, scene.questions, ledger, (), known)
    evidence = await gather_evidence(scene.access, scene.questions, ledger, [BookieId("away")], known)
    assert list(evidence.held) == [scene.bookie]


async def test_open_ledger_without_entries_is_closed_as_empty(scene: Scene) -> None:
    writer = await scene.client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
    writer.abandon()
    ledger = writer.ledger_id
    for _ in range(2):  # the second time it is already closed, which must not count as a loss
        found = await adopt(scene.access, ledger, await scene.evidence(ledger), "b", b"")
        assert (found.state, found.last_entry) == (LedgerState.CLOSED, -1)


@pytest.mark.parametrize("by_adoption", [True, False])
async def test_only_a_ledger_that_an_adoption_closed_early_is_adopted_again(scene: Scene, by_adoption: bool) -> None:
    """A bookie that was accepted after the first adoption holds more. An end that the writer set stays unchanged."""
    ledger = await scene.lost_ledger(DigestType.CRC32C, b"")
    evidence = await scene.evidence(ledger)
    whole = await adopt(scene.access, ledger, evidence, "b", b"")
    stored = await scene.access.nodes.read(ledger)
    custom = {LEDGER_TOKEN: whole.token} | ({ADOPTED: b"b"} if by_adoption else {})
    early = replace(whole, last_entry=EntryId(3), length=30, custom=custom)
    await scene.access.nodes.update(ledger, early, stored.version)
    found = await adopt(scene.access, ledger, evidence, "b", b"")
    assert found == (whole if by_adoption else early)


async def test_entries_of_two_ledgers_with_one_id_are_not_adopted_together(scene: Scene) -> None:
    ledger = await scene.lost_ledger(DigestType.CRC32C, b"")
    evidence = await scene.evidence(ledger)
    assert evidence.token
    other = LedgerMetadata(1, 1, 1, (Segment(EntryId(0), (scene.bookie,)),), custom={LEDGER_TOKEN: b"another"})
    await scene.access.nodes.create(ledger, other)
    with pytest.raises(BackupError, match="describes another ledger than the one on the bookies"):
        await adopt(scene.access, ledger, evidence, "b", b"")

    class Two(BookieQuestions):
        """Represents a second bookie, which holds another ledger."""

        async def ranges(self, bookie: BookieId, ledger: LedgerId) -> list[tuple[EntryId, EntryId]]:
            return await super().ranges(scene.bookie, ledger)

        async def token(self, bookie: BookieId, ledger: LedgerId) -> bytes:
            return b"another" if bookie == "second" else await super().token(bookie, ledger)

    with pytest.raises(BackupError, match="entries of 2 different ledgers with the id"):
        await gather_evidence(scene.access, Two(scene.access), ledger, (), [scene.bookie, BookieId("second")])


async def test_adoption_finds_the_matching_password_of_several(scene: Scene) -> None:
    ledger = await scene.lost_ledger(DigestType.CRC32C, b"")
    evidence = await scene.evidence(ledger)
    found = await adopt_with_any(scene.access, ledger, evidence, "b", [b"sesame", b""])
    assert found.password == b"" and await scene.read(ledger, b"") == PAYLOADS
    other = await scene.lost_ledger(DigestType.CRC32C, b"other")
    with pytest.raises(OtherPasswordError, match="--password-file"):
        await adopt_with_any(scene.access, other, await scene.evidence(other), "b", [b"sesame", b""])
