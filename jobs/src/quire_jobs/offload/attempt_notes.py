"""Notes in the bucket of attempts that were begun, and the sweep of what attempts that came to nothing left there.

    .quire/attempts/<uuid>-ledger-<ledger id>    JSON {"cluster", "topic", "ledgerId", "owner", "begunMs", "asked"}

A note is written before the first byte of an attempt and goes when the attempt is complete, or its objects are gone.
Before the owner is asked to believe an attempt its note says so, `asked`: from then on it may be complete, whatever the
metadata say later, and no sweep touches its objects. So even metadata that were restored to an earlier day lead to no
deletion of the only copy of a ledger: a sweep removes only what no metadata, of whichever day, can ever have believed.
"""

import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from quire_bookie.places.place import Place
from quire_broker.offload.format import data_key, parse_key
from quire_broker.offload.segment_writer import delete_segment

FOLDER = ".quire/attempts"
NOTE_KEPT_MS = 24 * 3600 * 1000
"""How long a note outlives its attempt: a task that was given up may still write."""
log = logging.getLogger("quire.jobs.offload")


@dataclass(frozen=True, slots=True)
class AttemptNote:
    """One attempt. `cluster`: the instance id of the cluster's metadata. `asked`: it may be complete, or have been."""

    cluster: str
    topic: str
    ledger_id: int
    uuid: str
    owner: str
    begun_ms: int
    asked: bool = False

    @property
    def name(self) -> str:
        """Of the object."""
        return f"{FOLDER}/{data_key(self.uuid, self.ledger_id)}"

    def encode(self) -> bytes:
        """The object."""
        value = {"cluster": self.cluster, "topic": self.topic, "ledgerId": self.ledger_id}
        return json.dumps(value | {"owner": self.owner, "begunMs": self.begun_ms, "asked": self.asked}).encode()


def decode_note(name: str, value: bytes) -> AttemptNote | None:
    """The note in an object; None when it is none of ours."""
    found = parse_key(name.removeprefix(f"{FOLDER}/"))
    try:
        fields = json.loads(value)
        if found is None or found.is_index or fields["ledgerId"] != found.ledger_id:
            return None
        texts = [str(fields[key]) for key in ("cluster", "topic", "owner")]
        begun_ms, asked = int(fields["begunMs"]), fields.get("asked") is not False  # in doubt it was
        return AttemptNote(texts[0], texts[1], found.ledger_id, found.uuid, texts[2], begun_ms, asked)
    except (ValueError, KeyError, TypeError):
        return None


async def write_note(place: Place, note: AttemptNote) -> None:
    """Durable before the attempt writes anything, and again before its completion is asked for. PlaceError."""
    await place.put(note.name, note.encode(), overwrite=True)


async def drop_note(place: Place, note: AttemptNote) -> None:
    """The attempt is settled. PlaceError."""
    await place.delete(note.name)


@dataclass(frozen=True, slots=True)
class Swept:
    """`segments`: attempts whose objects were removed; `under_way`: attempts that a broker still holds."""

    segments: int = 0
    under_way: int = 0
    settled: int = 0


async def sweep(
    place: Place, cluster: str, is_noted: Callable[[AttemptNote], Awaitable[bool | None]], now_ms: int
) -> Swept:
    """Remove the objects of attempts that can never count any more.

    `is_noted`: what the managed ledger's metadata say of the attempt by now: True complete, False begun, None unknown
    to them. Unknown is final: metadata name the uuid before its note is written. Objects of one whose completion was
    asked for are left to the broker, which removes those of attempts that it drops. PlaceError, MetadataError.
    """
    segments = under_way = settled = 0
    for name in await place.names(FOLDER):
        note = decode_note(name, await place.get(name) or b"")
        if note is None or note.cluster != cluster:
            continue
        state = await is_noted(note)
        if state is False:
            under_way += 1
            continue
        if state is None:
            if not note.asked:
                await delete_segment(place, note.ledger_id, note.uuid)
                segments += 1
                log.info("removed what attempt %s of ledger %d left", note.uuid, note.ledger_id)
            if now_ms - note.begun_ms < NOTE_KEPT_MS:
                continue
        await drop_note(place, note)
        settled += 1
    return Swept(segments, under_way, settled)
