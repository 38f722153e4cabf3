"""One start on a damaged folder: determines its outcome by the content of every acknowledged entry and every fence."""

import random
import shutil
from collections import Counter
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from quire_bookie.errors import DamagedError, QuireError, StartupError
from quire_bookie.storage.index.index_commits import PROOF_NAME
from quire_bookie.wire.messages import Status
from tests.damage.corpus import Image, files_of, kind_of
from tests.damage.place import Known, Place


class Outcome(Enum):
    """The allowed outcomes."""

    NO_LOSS = "no loss"
    REFUSED = "refused"
    EIO = "EIO"
    LIMBO = "limbo"


class Damage(Enum):
    """The kinds of damage to a file."""

    REMOVED = "removed"
    OLDER = "older copy"
    SWAPPED = "another bookie's"
    TRUNCATED = "truncated"
    FLIPPED = "bit flipped"


class LossError(AssertionError):
    """An acknowledged entry was denied or changed, a fenced ledger accepted an add, or a start failed unexpectedly."""


REMEDIES = (
    "put it back",
    "put the file back",
    "put the right files back",
    "rebuild-index",
    "swap them back",
    "configure the folders",
    "repair or remove",
    "put them back",
)


@dataclass
class Applied:
    """A damage that was applied; `undo` restores the file."""

    path: Path
    before: bytes

    def undo(self) -> None:
        """Restore the file."""
        self.path.write_bytes(self.before)


def apply(damage: Damage, image: Image, folder: Path, name: str, kind: str, chance: random.Random) -> Applied | None:
    """Damage a file of `folder`, a copy of the image. Returns None if the damage changes nothing here."""
    path = folder / name
    before = path.read_bytes()
    after: bytes | None
    if damage is Damage.REMOVED:
        path.unlink()
        return Applied(path, before)
    if damage is Damage.OLDER:
        copies = [(each / name).read_bytes() for each in image.older if (each / name).exists()]
        after = next((copy for copy in copies if copy != before), None)
    elif damage is Damage.SWAPPED:
        after = _of_other(image, name, kind)
    elif damage is Damage.TRUNCATED:
        after = before[: chance.choice((0, len(before) // 2, max(0, len(before) - 1)))]
    else:
        after = _flipped(before, chance)
    if after is None or after == before:
        return None
    path.write_bytes(after)
    return Applied(path, before)


def _of_other(image: Image, name: str, kind: str) -> bytes | None:
    assert image.other is not None
    for each in files_of(image.other):
        if kind_of(image.other, each) == kind:
            return (image.other / each).read_bytes()
    return None


def _flipped(content: bytes, chance: random.Random) -> bytes | None:
    """Flip one bit, half of the time within the nonzero bytes."""
    if not content:
        return None
    at = chance.randrange(len(content))
    if chance.random() < 0.5:
        used = [each for each in range(0, len(content), 61) if content[each]]
        at = chance.choice(used) if used else at
    return content[:at] + bytes([content[at] ^ 1 << chance.randrange(8)]) + content[at + 1 :]


async def outcome_of(place: Place, known: Known, applied: Applied) -> Outcome:
    """Start on the damaged folder and return the outcome. LossError if it is not allowed."""
    try:
        await place.start()
    except (StartupError, DamagedError) as error:
        _check_refusal(str(error), applied)
        await _remedy(place, known, applied, str(error))
        return Outcome.REFUSED
    except QuireError as error:
        raise LossError(f"the start ended with {type(error).__name__}: {error}") from error
    found = await _observe(place, known)
    await place.stop()
    return found


async def _remedy(place: Place, known: Known, applied: Applied, refusal: str) -> None:
    """Apply the remedy of a refusal. LossError unless all entries can be read afterwards."""
    rebuild = "rebuildIndexOnDamage" in refusal and applied.path.name != PROOF_NAME
    if not rebuild:
        applied.undo()
    try:
        await place.start(rebuild_index_on_damage=rebuild)
    except QuireError as error:
        raise LossError(f"the remedy does not work: {error}; it was refused with: {refusal}") from error
    if await _observe(place, known) is not Outcome.NO_LOSS and not _in_limbo(place):
        raise LossError(f"after the remedy entries are missing; it was refused with: {refusal}")
    await place.stop()


def _in_limbo(place: Place) -> bool:
    return place.running is not None and place.running.storage.in_limbo


def _check_refusal(text: str, applied: Applied) -> None:
    folder = applied.path.parent
    names = (applied.path.name, str(folder), str(folder.parent)) if folder.name == "index" else (applied.path.name,)
    if not any(name in text for name in (*names, str(folder.parent) if folder.name == "current" else str(folder))):
        raise LossError(f"the refusal names neither {applied.path} nor its folder: {text}")
    if not any(remedy in text for remedy in REMEDIES):
        raise LossError(f"the refusal names no remedy: {text}")


async def _observe(place: Place, known: Known) -> Outcome:
    """Read every acknowledged entry, and try to add to every fenced ledger."""
    client = await place.client()
    seen: Counter[Status] = Counter()
    try:
        for ledger, count in known.entries.items():
            statuses = await client.read_all(known.tag, ledger, count)
            for entry, status in enumerate(statuses):
                if status in (Status.NO_ENTRY, Status.NO_LEDGER):
                    raise LossError(f"entry {entry} of ledger {ledger} is denied: {status.value}")
            seen.update(statuses)
        for ledger in known.fenced:
            (status,) = await client.add(known.tag, ledger, known.entries[ledger] + 1000, 1)
            if status is Status.OK:
                raise LossError(f"the fenced ledger {ledger} accepted an add")
    finally:
        await client.close()
    if unexpected := set(seen) - {Status.OK, Status.IO_ERROR, Status.UNKNOWN_LEDGER_STATE}:
        raise LossError(f"unexpected responses to reads: {unexpected}")
    if seen[Status.IO_ERROR]:
        return Outcome.EIO
    return Outcome.LIMBO if seen[Status.UNKNOWN_LEDGER_STATE] else Outcome.NO_LOSS


async def trial(image: Image, name: str, kind: str, damage: Damage, seed: int, folder: Path) -> Outcome | None:
    """Damage one file in a copy of the image at `folder`, start, and remove the copy.

    Returns the outcome, or None if the damage changes nothing.
    """
    chance = random.Random(f"{image.name}/{kind}/{damage.value}/{seed}")
    shutil.rmtree(folder, ignore_errors=True)  # an interrupted run may have left it
    shutil.copytree(image.folder, folder)
    place = image.place(folder)
    try:
        applied = apply(damage, image, folder, name, kind, chance)
        if applied is None:
            return None
        return await outcome_of(place, image.known, applied)
    except LossError as error:
        raise LossError(f"{image.name} {name} ({kind}) {damage.value}, seed {seed}: {error}") from error
    finally:
        await place.stop()
        shutil.rmtree(folder)
