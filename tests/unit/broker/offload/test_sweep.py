"""What a sweep takes away, and what it must leave."""

from pathlib import Path

import pytest

from quire_bookie.places.opening import open_place
from quire_broker.offload.errors import OffloadError
from quire_broker.offload.format import data_key, index_key
from quire_broker.offload.sweep import sweep
from tests.unit.broker.offload.ledgers import UUID

OTHER = "11111111-2222-4333-8444-555555555555"


async def test_only_old_objects_without_a_listed_uuid_go(tmp_path: Path) -> None:
    place = open_place(f"file://{tmp_path}", {})
    for name in (data_key(UUID, 1), index_key(UUID, 1), data_key(OTHER, 2), index_key(OTHER, 2), "notes.txt"):
        await place.put(name, b"12345")
    newest_ms = max([each.modified_ms async for each in place.stored()])

    async def known() -> set[str]:
        return {UUID}

    swept = await sweep(place, known, now_ms=newest_ms + 3_000_000, age_min_s=3600)
    assert (swept.seen, swept.young, swept.foreign, swept.removed) == (5, 4, 1, [])
    late_ms = newest_ms + 3_700_000
    swept = await sweep(place, known, now_ms=late_ms, age_min_s=3600, dry_run=True)
    assert swept.removed == [index_key(OTHER, 2), data_key(OTHER, 2)] and swept.removed_bytes == 10
    assert len(await place.names()) == 5
    await sweep(place, known, now_ms=late_ms, age_min_s=3600)
    assert await place.names() == sorted([data_key(UUID, 1), index_key(UUID, 1), "notes.txt"])


async def test_an_age_that_could_hit_an_attempt_is_refused(tmp_path: Path) -> None:
    async def known() -> set[str]:
        return set()

    with pytest.raises(OffloadError, match="the least is an hour"):
        await sweep(open_place(f"file://{tmp_path}", {}), known, now_ms=0, age_min_s=60)
