"""The rack map in Pulsar's format, and how it is followed."""

import asyncio
import json
import random

import pytest

from quire_bookie.errors import MetadataFormatError
from quire_bookie.metadata.rack_map import RACK_MAP, RackMap, decode_rack_map
from tests.sim.loop import SimLoop, simulate
from tests.sim.metadata import SimMetadata, SimMetadataStore

_PULSAR = (
    b'{"default":{"b1:3181":{"rack":"/zone-a/rack-1","hostname":"b1"},"b2:3181":{"rack":"rack-2","hostname":null}},'
    b'"group2":{"b3:3181":{"rack":"/","hostname":"b3"}}}'
)


def test_groups_are_merged_and_racks_begin_with_a_slash() -> None:
    assert decode_rack_map(_PULSAR) == {"b1:3181": "/zone-a/rack-1", "b2:3181": "/rack-2"}


@pytest.mark.parametrize(
    "value", [b"", b" ", b"{}", b'{"default":{}}', b'{"default":{"b":null}}', b'{"default":{"b":{}}}']
)
def test_an_empty_map_contains_no_rack(value: bytes) -> None:
    assert decode_rack_map(value) == {}


@pytest.mark.parametrize("value", [b"no json", b"[]", b'{"default":[]}', b'{"default":{"b":5}}', b"\xff"])
def test_a_value_that_is_not_a_rack_map_is_refused(value: bytes) -> None:
    with pytest.raises(MetadataFormatError, match=RACK_MAP):
        decode_rack_map(value)


def test_changes_are_followed_and_damage_is_ignored() -> None:
    async def scenario(loop: SimLoop) -> None:
        server = SimMetadata(random.Random(1))
        racks = await RackMap.open(SimMetadataStore(server))
        assert racks.places == {}
        for rack in ("/one", "/two"):
            server.write(RACK_MAP, json.dumps({"default": {"b": {"rack": rack}}}).encode(), None)
            await asyncio.sleep(1)
            assert racks.places == {"b": rack}
        server.write(RACK_MAP, b"damaged", None)
        await asyncio.sleep(1)
        assert racks.places == {"b": "/two"}
        server.away = True
        server.write(RACK_MAP, b"{}", None)
        await asyncio.sleep(1)
        server.away = False
        await asyncio.sleep(5)
        assert racks.places == {}
        await racks.close()
        assert loop.failures == []

    simulate(scenario, seed=1)
