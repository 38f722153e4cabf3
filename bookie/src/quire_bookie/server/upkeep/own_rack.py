"""Publishes the rack of a bookie before writers can select the bookie. Owns only its own entry of the rack map.

The rack is a setting, or the value of an annotation of its pod, which Kubernetes provides as a file. The annotation is
written once the pod is assigned to a node, possibly after the process began: the start waits for it, within a bound.
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
) -> None:
    """Publish the rack. StartupError: the rack is unknown, and the cluster has no earlier rack of this bookie.

    MetadataUnavailableError, MetadataUnknownError: start again.
    """
    if not settings.rack and not settings.annotations_path:
        return
    try:
        rack = settings.rack or await _annotated(settings, disk)
        if rack is None:
            await _keep_known_rack(settings, metadata, bookie)
        elif (place := place_of(rack)) is not None:
            await change_rack_map(metadata, chance, partial(_with_rack, bookie=bookie, place=place, host=host))
    except MetadataFormatError as error:
        # An administrator must repair the rack map, but it must not prevent the start of a whole cluster.
        _log.error("could not publish the rack of bookie %s: %s", bookie, error)


def _with_rack(value: bytes, *, bookie: BookieId, place: str, host: str) -> bytes:
    return with_place(value, bookie, place, host)


async def _annotated(settings: RackSettings, disk: Disk) -> str | None:
    """Return the annotation's value; None if it did not appear in time."""
    loop = asyncio.get_running_loop()
    deadline_s, logged = loop.time() + settings.wait_s, False
    while True:
        try:
            text = (await disk.read_file(settings.annotations_path)).decode(errors="replace")
        except OSError:
            text = ""  # the volume is filled later, or the path is wrong: wait until the deadline
        value = annotation_in(text, settings.annotation)
        if value is not None:
            return value
        if loop.time() >= deadline_s:
            return None
        if not logged:
            logged = True
            _log.info("waiting up to %.0f s for %s", settings.wait_s, _annotation_text(settings))
        await asyncio.sleep(limits.RACK_POLL_S)


async def _keep_known_rack(settings: RackSettings, metadata: MetadataStore, bookie: BookieId) -> None:
    """Continue with the rack that the cluster already has: storage rarely moves, so this beats a failed start."""
    node = await metadata.get(RACK_MAP)
    known = {} if node is None else decode_rack_map(node.value)
    if bookie not in known:
        raise StartupError(
            f"{_annotation_text(settings)} did not appear within {settings.wait_s:.0f} s, and the cluster has no rack "
            f"of bookie {bookie}: check that the operator is running, or set bookieRack"
        )
    _log.warning(
        "%s did not appear within %.0f s: the bookie keeps the rack %s",
        _annotation_text(settings),
        settings.wait_s,
        known[bookie],
    )


def _annotation_text(settings: RackSettings) -> str:
    return f"the annotation {settings.annotation} in {settings.annotations_path}"
