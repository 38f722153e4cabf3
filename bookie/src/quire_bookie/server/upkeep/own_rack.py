"""Where a bookie stands, and telling it to the cluster before anybody places anything on it. Owns its own entry only.

The rack is a setting, or the value of an annotation of its pod, which Kubernetes shows as a file. That annotation is
written once the pod has a node, perhaps after the process began: it is waited for, within a bound.
"""

import asyncio
import logging
import re
from dataclasses import dataclass
from functools import partial

from quire_bookie import limits
from quire_bookie.env.chance import Chance
from quire_bookie.env.disk import Disk
from quire_bookie.errors import MetadataFormatError, StartupError
from quire_bookie.metadata.rack_map import RACK_MAP, change_rack_map, decode_rack_map, with_place
from quire_bookie.metadata.store import MetadataStore
from quire_bookie.model import BookieId

_log = logging.getLogger("quire.server.rack")
_LINE = re.compile(r'([^=\s]+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class RackSettings:
    """How a bookie learns where it stands; with neither rack nor file it says nothing of it."""

    rack: str = ""
    """`/zone/rack`, or a rack alone."""
    annotations_path: str = ""
    """File with a line `key="value"` for each annotation of the pod; counts when `rack` is empty."""
    annotation: str = limits.RACK_ANNOTATION
    """Key of the one that names the rack; an empty value says that the node has none."""
    wait_s: float = limits.RACK_WAIT_S
    """So long the annotation is waited for."""


def place_of(rack: str) -> str | None:
    """As the rack map has it; None for no rack."""
    parts = [part for part in rack.strip().split("/") if part]
    return "/" + "/".join(parts) if parts else None


def annotation_in(text: str, key: str) -> str | None:
    """The value of an annotation in a file of the downward API; None: it is not there (yet)."""
    for line in text.splitlines():
        match = _LINE.fullmatch(line.strip())
        if match is not None and match[1] == key:
            return match[2].replace('\\"', '"').replace("\\\\", "\\")
    return None


async def publish_rack(
    settings: RackSettings, metadata: MetadataStore, disk: Disk, chance: Chance, bookie: BookieId, host: str
) -> None:
    """Have the cluster know the rack. StartupError: it could not be found out, and the cluster knows none of before.

    MetadataUnavailableError, MetadataUnknownError: start again.
    """
    if not settings.rack and not settings.annotations_path:
        return
    try:
        rack = settings.rack or await _annotated(settings, disk)
        if rack is None:
            await _rely_on_before(settings, metadata, bookie)
        elif (place := place_of(rack)) is not None:
            await change_rack_map(metadata, chance, partial(_told, bookie=bookie, place=place, host=host))
    except MetadataFormatError as error:
        # A person's to mend, and no reason for a whole cluster not to come back.
        _log.error("nobody learns the rack of bookie %s: %s", bookie, error)


def _told(value: bytes, *, bookie: BookieId, place: str, host: str) -> bytes:
    return with_place(value, bookie, place, host)


async def _annotated(settings: RackSettings, disk: Disk) -> str | None:
    """The annotation's value; None when it did not come in time."""
    loop = asyncio.get_running_loop()
    deadline_s, said = loop.time() + settings.wait_s, False
    while True:
        try:
            text = (await disk.read_file(settings.annotations_path)).decode(errors="replace")
        except OSError:
            text = ""  # the volume is filled later, or the path is wrong: the end of the wait tells
        value = annotation_in(text, settings.annotation)
        if value is not None:
            return value
        if loop.time() >= deadline_s:
            return None
        if not said:
            said = True
            _log.info("waiting up to %.0f s for %s", settings.wait_s, _what(settings))
        await asyncio.sleep(limits.RACK_POLL_S)


async def _rely_on_before(settings: RackSettings, metadata: MetadataStore, bookie: BookieId) -> None:
    """Storage does not walk: what the cluster knew of this bookie is better than not to come up."""
    node = await metadata.get(RACK_MAP)
    known = {} if node is None else decode_rack_map(node.value)
    if bookie not in known:
        raise StartupError(
            f"{_what(settings)} did not come within {settings.wait_s:.0f} s, and the cluster does not know where "
            f"bookie {bookie} stands: is the operator running? (or set bookieRack)"
        )
    _log.warning(
        "%s did not come within %.0f s: the bookie stays at %s", _what(settings), settings.wait_s, known[bookie]
    )


def _what(settings: RackSettings) -> str:
    return f"the annotation {settings.annotation} in {settings.annotations_path}"
