"""Rebuilds the metadata of a ledger from the entries on the bookies, when an operator asks for it.

Known for certain are only the entries and which bookies hold them. The ensemble at the time of writing and its quorums
are unknown. So all holders become members of one ensemble, with a write quorum of all and an ack quorum of one: a read
finds an entry on any holder, and a recovery ends the ledger only where all of them report that they hold nothing more.
Auto-recovery then completes the copy on each of them. Bookies store neither digest type nor password. The digest type
is found by trying each one on an entry. The operator has to know the password (Pulsar's is empty; a standalone keeps
its own in its folder).

Adopting a ledger fences it: a client that still writes to it has to be stopped before.
"""

import contextlib
from collections.abc import Collection, Sequence
from dataclasses import field, replace

from quire_bookie.backup.format import BackupError
from quire_bookie.backup.holdings import BookieQuestions
from quire_bookie.backup.review import ADOPTED, missing
from quire_bookie.client.reading.ledger_reader import LedgerReader
from quire_bookie.client.recovery import recover_ledger
from quire_bookie.dataclass import dataclass
from quire_bookie.errors import LedgerError, NoSuchLedgerError, UnauthorizedError
from quire_bookie.metadata.store import Versioned
from quire_bookie.model import (
    LEDGER_TOKEN,
    NO_ENTRY,
    BookieId,
    DigestType,
    EntryId,
    LedgerId,
    LedgerMetadata,
    LedgerState,
    Segment,
)
from quire_bookie.recovery.access import ClusterAccess
from quire_bookie.storage.entry_ranges import EntryRange, join_ranges

_TRIED = (DigestType.CRC32C, DigestType.CRC32, DigestType.HMAC)
"""Excludes DUMMY (no digest), which fits every entry: an operator has to ask for it."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The certain facts about a ledger: the entries that each bookie holds, and the ids below the last that none holds.

    `token`: tells this ledger from others that had the same id; empty when no bookie stores it.
    """

    held: dict[BookieId, list[EntryRange]]
    last: EntryId
    absent: list[EntryRange]
    token: bytes = field(default=b"", repr=False)


async def gather_evidence(
    access: ClusterAccess,
    questions: BookieQuestions,
    ledger: LedgerId,
    without: Collection[BookieId],
    known: Collection[BookieId],
) -> Evidence:
    """Ask all bookies of `known` except those of `without`.

    BackupError when one does not answer, when bookies hold different ledgers with this id, or when none holds an entry.
    The last is accepted for a ledger that the metadata calls open or empty.
    """
    held: dict[BookieId, list[EntryRange]] = {}
    tokens: dict[bytes, BookieId] = {}
    for bookie in sorted(known):
        if bookie in without:
            continue
        try:
            ranges = await questions.ranges(bookie, ledger)
            if ranges and (token := await questions.token(bookie, ledger)):
                tokens[token] = bookie
        except LedgerError as error:
            raise BackupError(
                f"bookie {bookie} may hold entries of ledger {ledger} and did not answer ({error}); start it, or give "
                f"--without {bookie} when it is permanently lost"
            ) from error
        if ranges:
            held[bookie] = ranges
    if len(tokens) > 1:
        raise BackupError(
            f"bookies hold entries of {len(tokens)} different ledgers with the id {ledger} (one each on "
            f"{', '.join(tokens.values())}); give --without for each bookie whose entries must not be adopted"
        )
    if not held and await _may_be_empty(access, ledger):
        return Evidence({}, NO_ENTRY, [])  # it is closed as empty: later ledgers of its topic may wait for that
    if not held:
        raise BackupError(f"no bookie holds an entry of ledger {ledger}: nothing can be adopted; drop the ledger")
    joined = join_ranges(held.values())
    last = joined[-1][1]
    return Evidence(held, last, missing(EntryId(0), last, joined), next(iter(tokens), b""))


async def _may_be_empty(access: ClusterAccess, ledger: LedgerId) -> bool:
    try:
        metadata = (await access.nodes.read(ledger)).value
    except NoSuchLedgerError:
        return False
    return metadata.state is not LedgerState.CLOSED or metadata.last_entry < 0


class OtherPasswordError(BackupError):
    """As far as entries and bookies show, a ledger was written with another password. Retry with that password."""


async def adopt_with_any(
    access: ClusterAccess,
    ledger: LedgerId,
    evidence: Evidence,
    backup: str,
    passwords: Sequence[bytes],
    *,
    digest: DigestType | None = None,
    accept_missing: bool = False,
) -> LedgerMetadata:
    """Adopt with the first password that fits. Raises the errors of `adopt` for the last one."""
    for password in passwords[:-1]:
        with contextlib.suppress(OtherPasswordError):
            return await adopt(access, ledger, evidence, backup, password, digest=digest, accept_missing=accept_missing)
    return await adopt(access, ledger, evidence, backup, passwords[-1], digest=digest, accept_missing=accept_missing)


async def adopt(
    access: ClusterAccess,
    ledger: LedgerId,
    evidence: Evidence,
    backup: str,
    password: bytes,
    *,
    digest: DigestType | None = None,
    accept_missing: bool = False,
) -> LedgerMetadata:
    """Write the metadata, recover the ledger and close it; return the new metadata. May be repeated after an error.

    BackupError: entries are missing and `accept_missing` is false. OtherPasswordError: no digest type fits, or bookies
    refuse the password. QuorumError: a holder became unavailable.
    """
    if evidence.absent and not accept_missing:
        first, last = evidence.absent[0]
        raise BackupError(
            f"no bookie holds entries {first} to {last} of ledger {ledger}; give --accept-missing to adopt the other "
            "entries, or start the bookies that are down"
        )
    created = False
    try:
        stored = await access.nodes.read(ledger)
    except NoSuchLedgerError:
        digest = digest or await _find_digest(access, ledger, evidence, password)
        wanted = replace(
            _rebuilt(tuple(sorted(evidence.held))),
            digest_type=digest,
            password=password,
            custom={ADOPTED: backup.encode(), **_token(evidence)},
        )
        stored = await access.nodes.create(ledger, wanted)
        created = True
    else:
        if evidence.token and stored.value.token != evidence.token:
            raise BackupError(f"the metadata of ledger {ledger} describes another ledger than the one on the bookies")
        stored = await _refresh(access, ledger, stored, evidence, backup)
    try:
        return (await recover_ledger(access.handle(ledger, stored.value), stored)).value
    except UnauthorizedError as error:
        if not created:
            raise
        await access.nodes.delete(ledger)
        raise OtherPasswordError(
            f"ledger {ledger} was written with another password; give it with --password-file"
        ) from error


def _rebuilt(bookies: tuple[BookieId, ...]) -> LedgerMetadata:
    return LedgerMetadata(len(bookies), len(bookies), 1, (Segment(EntryId(0), bookies),))


def _token(evidence: Evidence) -> dict[str, bytes]:
    return {LEDGER_TOKEN: evidence.token} if evidence.token else {}


async def _refresh(
    access: ClusterAccess, ledger: LedgerId, stored: Versioned[LedgerMetadata], evidence: Evidence, backup: str
) -> Versioned[LedgerMetadata]:
    """Write the holders into metadata that is older than their entries.

    A ledger that was closed in the backup stays closed. One that an adoption closed is reopened when a bookie that was
    asked later holds more: no client reads it before the hold is released.
    """
    value = stored.value
    closed = value.state is LedgerState.CLOSED
    if closed and ADOPTED in value.custom:
        if evidence.last <= value.last_entry:
            return stored
        closed = False
    wanted = value if closed else replace(value, state=LedgerState.OPEN, last_entry=NO_ENTRY, length=0)
    if evidence.held:
        rebuilt = _rebuilt(tuple(sorted(evidence.held)))
        wanted = replace(
            wanted,
            ensemble_size=rebuilt.ensemble_size,
            write_quorum=rebuilt.write_quorum,
            ack_quorum=rebuilt.ack_quorum,
            segments=rebuilt.segments,
        )
    if not closed:
        wanted = replace(wanted, custom={**value.custom, ADOPTED: backup.encode()})
    return stored if wanted == value else await access.nodes.update(ledger, wanted, stored.version)


async def _find_digest(access: ClusterAccess, ledger: LedgerId, evidence: Evidence, password: bytes) -> DigestType:
    """Return the digest type that fits an entry. OtherPasswordError when none fits with this password."""
    reason = "no bookie answered"
    for digest in _TRIED:
        for bookie, ranges in sorted(evidence.held.items()):
            closed = LedgerMetadata(
                1,
                1,
                1,
                (Segment(EntryId(0), (bookie,)),),
                state=LedgerState.CLOSED,
                last_entry=evidence.last,
                digest_type=digest,
                password=password,
                custom=_token(evidence),
            )
            reader = LedgerReader(access.handle(ledger, closed), closed, evidence.last, 0)
            try:
                await reader.read(ranges[0][0], ranges[0][0])
                return digest
            except LedgerError as error:
                reason = str(error)  # another digest type, or another holder, may succeed
            finally:
                await reader.close()
    raise OtherPasswordError(
        f"no digest fits ledger {ledger} with this password ({reason}); give --password-file, or --digest DUMMY when "
        "it was written without any"
    )
