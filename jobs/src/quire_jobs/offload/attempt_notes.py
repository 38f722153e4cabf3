"""Keeps notes of begun attempts in the bucket, and sweeps objects that failed attempts left there.

    .quire/attempts/<uuid>-ledger-<ledger id>    JSON {"cluster", "topic", "ledgerId", "owner", "begunMs", "asked"}

A note is written before the first byte of an attempt, and removed when the attempt is complete or its objects are gone.
Before the owner is asked to complete an attempt, its note is marked `asked`. From then on the attempt may be complete,
whatever the metadata say later, and no sweep touches its objects. So even metadata restored to an earlier day never
cause the deletion of a ledger's only copy: a sweep removes only objects that no metadata, of any day, can refer to.
"""

import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from quire_bookie.object_store.store import ObjectStore
from quire_broker.offload.format import data_key, parse_key
from quire_broker.offload.segment_writer import delete_segment

FOLDER = ".quire/attempts"
NOTE_KEPT_MS = 24 * 3600 * 1000
"""Time for which a note is kept after its attempt: a task that was abandoned may still write."""
log = logging.getLogger("quire.jobs.offload")


@dataclass(frozen=True, slots=True)
class AttemptNote:
    """One attempt. `cluster`: the instance id of the metadata. `asked`: its completion was requested, so may have
    happened."""

    cluster: str
    topic: str
    ledger_id: int
    uuid: str
    owner: str
    begun_ms: int
    asked: bool = False

    @property
    def name(self) -> str:
        """Name of the object."""
        return f"{FOLDER}/{data_key(self.uuid, self.ledger_id)}"

    def encode(self) -> bytes:
        """Return the content of the object."""
        value = {"cluster": self.cluster, "topic": self.topic, "ledgerId": self.ledger_id}
        return json.dumps(value | {"owner": self.owner, "begunMs": self.begun_ms, "asked": self.asked}).encode()


def decode_note(name: str, value: bytes) -> AttemptNote | None:
    """Return the note in an object; None if the object is not a valid note."""
    found = parse_key(name.removeprefix(f"{FOLDER}/"))
    try:
        fields = json.loads(value)
        if found is None or found.is_index or fields["ledgerId"] != found.ledger_id:
            return None
        texts = [str(fields[key]) for key in ("cluster", "topic", "owner")]
        begun_ms, asked = (
            int(fields["begunMs"]),
            fields.get("asked") is not False,
        )  # without the field, assume that it was
        return AttemptNote(texts[0], texts[1], found.ledger_id, found.uuid, texts[2], begun_ms, asked)
    except (ValueError, KeyError, TypeError):
        return None


async def write_note(objects: ObjectStore, note: AttemptNote) -> None:
    """Write the note durably: before the attempt writes data, and again before its completion is requested.
    ObjectStoreError."""
    await objects.put(note.name, note.encode(), overwrite=True)


async def drop_note(objects: ObjectStore, note: AttemptNote) -> None:
    """Remove the note of a finished attempt. ObjectStoreError."""
    await objects.delete(note.name)


@dataclass(frozen=True, slots=True)
class Swept:
    """Result of a sweep. `segments`: attempts whose objects were removed; `under_way`: attempts that a broker still
    lists."""

    segments: int = 0
    under_way: int = 0
    settled: int = 0


async def sweep(
    objects: ObjectStore, cluster: str, is_noted: Callable[[AttemptNote], Awaitable[bool | None]], now_ms: int
) -> Swept:
    """Remove the objects of attempts that can never become complete.

    `is_noted`: the state of the attempt in the managed ledger's metadata: True complete, False begun, None unknown.
    Unknown is final, because the metadata contain the uuid before the note is written. If the completion of such an
    attempt was requested, its objects are left to the broker, which removes objects of attempts that it drops.
    ObjectStoreError, MetadataError.
    """
    segments = under_way = settled = 0
    for name in await objects.names(FOLDER):
        note = decode_note(name, await objects.get(name) or b"")
        if note is None or note.cluster != cluster:
            continue
        state = await is_noted(note)
        if state is False:
            under_way += 1
            continue
        if state is None:
            if not note.asked:
                await delete_segment(objects, note.ledger_id, note.uuid)
                segments += 1
                log.info("removed the objects of attempt %s of ledger %d", note.uuid, note.ledger_id)
            if now_ms - note.begun_ms < NOTE_KEPT_MS:
                continue
        await drop_note(objects, note)
        settled += 1
    return Swept(segments, under_way, settled)
