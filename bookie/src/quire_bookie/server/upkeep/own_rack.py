"""Publishes the rack of a bookie before writers can select the bookie. Owns only its own entry of the rack map.

The rack is a setting, or the value of an annotation of its pod, which Kubernetes provides as a file. The annotation is
written once the pod is assigned to a node, possibly after the process began, or much later if the operator is away. A
bookie whose rack the cluster already knows starts with that one, because storage rarely moves, and publishes a late
annotation while it serves. A new bookie waits for the annotation, within a bound.
"""

import asyncio
import logging
import re
from functools import partial

from quire_bookie import limits
from quire_bookie.env.chance import Chance
from quire_bookie.env.disk import Disk
from quire_bookie.errors import MetadataFormatError, StartupError
from quire_bookie.metadata.rack_map import RACK_MAP, change_rack_map, decode_rack_map, with_place
from quire_bookie.metadata.retrying import with_retries
from quire_bookie.metadata.store import MetadataStore
from quire_bookie.model import BookieId
from quire_bookie.settings.rack import RackSettings

_log = logging.getLogger("quire.server.rack")
_LINE = re.compile(r'([^=\s]+)="((?:[^"\\]|\\.)*)"')


def place_of(rack: str) -> str | None:
    """Return the rack in the form of the rack map; None for no rack."""
    parts = [part for part in rack.strip().split("/") if part]
    return "/" + "/".join(parts) if parts else None


def annotation_in(text: str, key: str) -> str | None:
    """Return the value of an annotation in a file of the downward API; None if it is missing."""
    for line in text.splitlines():
        match = _LINE.fullmatch(line.strip())
        if match is not None and match[1] == key:
            return match[2].replace('\\"', '"').replace("\\\\", "\\")
    return None


async def publish_rack(
    settings: RackSettings, metadata: MetadataStore, disk: Disk, chance: Chance, bookie: BookieId, host: str
) -> bool:
    """Publish the rack. Return whether the bookie starts with its known rack, so that `publish_late_rack` must run.

    StartupError: the rack is unknown, and the cluster has no earlier rack of this bookie. MetadataUnavailableError,
    MetadataUnknownError: start again.
    """
    if not settings.rack and not settings.annotations_path:
        return False
    try:
        rack = settings.rack or await _annotated(settings, disk)
        if rack is None and await _keeps_known_rack(settings, metadata, bookie):
            return True
        if rack is None:
            rack = await _awaited(settings, disk, bookie)
        await _publish(metadata, chance, rack, bookie, host)
    except MetadataFormatError as error:
        _report(bookie, error)
    return False


async def publish_late_rack(
    settings: RackSettings, metadata: MetadataStore, disk: Disk, chance: Chance, bookie: BookieId, host: str
) -> None:
    """Publish the rack once its annotation appears, however late; the bookie serves meanwhile."""
    while True:
        rack = await _annotated(settings, disk)
        if rack is not None:
            break
        await asyncio.sleep(limits.RACK_LATE_POLL_S)
    publish = partial(_publish_or_report, metadata, chance, rack, bookie, host)
    await with_retries(publish, f"publish the rack of bookie {bookie}", _log.warning)


async def _publish(metadata: MetadataStore, chance: Chance, rack: str, bookie: BookieId, host: str) -> None:
    place = place_of(rack)
    if place is not None:
        await change_rack_map(metadata, chance, partial(_with_rack, bookie=bookie, place=place, host=host))


async def _publish_or_report(metadata: MetadataStore, chance: Chance, rack: str, bookie: BookieId, host: str) -> None:
    try:
        await _publish(metadata, chance, rack, bookie, host)
    except MetadataFormatError as error:
        _report(bookie, error)


def _report(bookie: BookieId, error: MetadataFormatError) -> None:
    """Log it only: an administrator must repair the rack map, but it must not prevent the start of a whole cluster."""
    _log.error("could not publish the rack of bookie %s: %s", bookie, error)


def _with_rack(value: bytes, *, bookie: BookieId, place: str, host: str) -> bytes:
    return with_place(value, bookie, place, host)


async def _annotated(settings: RackSettings, disk: Disk) -> str | None:
    """Return the annotation's value; None if it is missing."""
    try:
        text = (await disk.read_file(settings.annotations_path)).decode(errors="replace")
    except OSError:
        return None  # the volume is filled later, or the path is wrong
    return annotation_in(text, settings.annotation)


async def _awaited(settings: RackSettings, disk: Disk, bookie: BookieId) -> str:
    """Wait for the annotation of a bookie without a rack. StartupError if it does not appear in time."""
    _log.info("waiting up to %.0f s for %s", settings.wait_s, _annotation_text(settings))
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + settings.wait_s
    while (value := await _annotated(settings, disk)) is None:
        if loop.time() >= deadline_s:
            raise StartupError(
                f"{_annotation_text(settings)} did not appear within {settings.wait_s:.0f} s, and the cluster has no "
                f"rack of bookie {bookie}: check that the operator is running, or set bookieRack"
            )
        await asyncio.sleep(limits.RACK_POLL_S)
    return value


async def _keeps_known_rack(settings: RackSettings, metadata: MetadataStore, bookie: BookieId) -> bool:
    """Return whether the cluster already has a rack of this bookie. Raises MetadataFormatError."""
    node = await metadata.get(RACK_MAP)
    known = {} if node is None else decode_rack_map(node.value)
    if bookie not in known:
        return False
    _log.info("%s is missing: the bookie starts with its rack %s", _annotation_text(settings), known[bookie])
    return True


def _annotation_text(settings: RackSettings) -> str:
    return f"the annotation {settings.annotation} in {settings.annotations_path}"
