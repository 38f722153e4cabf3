"""Finds and removes objects that no managed ledger knows: left by crashes, by lost attempts, by hand.

An object is a leftover when the ledgers' metadata does not name its uuid and it is older than a bound that is far
above any attempt. `known` is asked after the listing, so that what was begun meanwhile is known.
"""

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field

from quire_bookie.places.place import Place
from quire_broker.offload.errors import OffloadError
from quire_broker.offload.format import parse_key

LEFTOVER_AGE_MIN_S = 3600.0


@dataclass(slots=True)
class Swept:
    """What a sweep saw. `removed`: names of objects; with a dry run those that would have gone."""

    seen: int = 0
    foreign: int = 0
    young: int = 0
    removed: list[str] = field(default_factory=list)
    removed_bytes: int = 0


async def sweep(
    place: Place,
    known: Callable[[], Awaitable[Collection[str]]],
    *,
    now_ms: int,
    age_min_s: float,
    dry_run: bool = False,
) -> Swept:
    """Remove leftovers of at least this age. `known()`: every uuid that any managed ledger's metadata names.

    OffloadError for an age below an hour; PlaceError, and the errors of `known`: what was removed by then stays so.
    """
    if age_min_s < LEFTOVER_AGE_MIN_S:
        raise OffloadError(f"leftovers of {age_min_s:.0f} s may be of attempts under way; the least is an hour")
    swept = Swept()
    candidates: list[tuple[str, str, int]] = []
    async for each in place.stored():
        swept.seen += 1
        name = parse_key(each.name)
        if name is None:
            swept.foreign += 1
        elif now_ms - each.modified_ms < age_min_s * 1000:
            swept.young += 1
        else:
            candidates.append((each.name, name.uuid, each.size_bytes))
    if not candidates:
        return swept
    listed = await known()
    for object_name, uuid, size_bytes in sorted(candidates, reverse=True):  # an index before its data
        if uuid in listed:
            continue
        if not dry_run:
            await place.delete(object_name)
        swept.removed.append(object_name)
        swept.removed_bytes += size_bytes
    return swept
