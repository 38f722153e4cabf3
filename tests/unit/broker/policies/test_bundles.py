"""The ring against the spec's vector and by random search."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire_bookie.errors import MetadataFormatError
from quire_broker.policies.bundles import RING_END, Bundles, hash_of


def test_the_hash_of_the_specs_topic() -> None:
    assert hash_of("persistent://public/default/a") == 0xEFE13DC2
    assert Bundles.even(16).bundle_of("persistent://public/default/a") == "0xe0000000_0xf0000000"


def test_sixteen_even_bundles_are_the_stock_ones() -> None:
    bundles = Bundles.even(16).to_json()
    assert bundles["numBundles"] == 16
    boundaries = bundles["boundaries"]
    assert isinstance(boundaries, list)
    assert boundaries[:2] == ["0x00000000", "0x10000000"]
    assert boundaries[-2:] == ["0xf0000000", "0xffffffff"]


@given(st.sets(st.integers(1, RING_END - 1), max_size=20), st.text(max_size=30))
def test_every_topic_is_in_exactly_one_bundle(inner: set[int], topic: str) -> None:
    bundles = Bundles([0, *sorted(inner), RING_END])
    value = hash_of(topic)
    holding = []
    for name in bundles.names:
        low, high = (int(part, 16) for part in name.split("_"))
        if low <= value < high or value == high == RING_END:
            holding.append(name)
    assert holding == [bundles.bundle_of(topic)]


def test_a_ring_survives_json() -> None:
    bundles = Bundles.even(5)
    assert Bundles.from_json(bundles.to_json()).names == bundles.names


@pytest.mark.parametrize(
    "value",
    [None, {}, {"boundaries": []}, {"boundaries": ["0x0", "nonsense"]}, {"boundaries": ["0x1", "0xffffffff"]}],
)
def test_invalid_rings_are_refused(value: object) -> None:
    with pytest.raises(MetadataFormatError):
        Bundles.from_json(value)
