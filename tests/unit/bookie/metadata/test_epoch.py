"""The epoch of the metadata: its node, and the next one."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from quire_bookie.errors import MetadataFormatError
from quire_bookie.metadata.epoch import (
    EPOCH_PATH,
    decode_epoch,
    encode_epoch,
    epoch_put,
    next_epoch,
    read_epoch,
    read_epoch_node,
)
from quire_bookie.metadata.local.store import LocalMetadataStore
from quire_bookie.metadata.store import ABSENT


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[LocalMetadataStore]:
    store = await LocalMetadataStore.open(str(tmp_path))
    yield store
    await store.close()


async def test_a_cluster_without_the_node_has_epoch_0(store: LocalMetadataStore) -> None:
    found = await read_epoch_node(store)
    assert (found.value, found.version) == (0, ABSENT)


async def test_the_epoch_is_that_of_the_last_transaction_that_sets_it(store: LocalMetadataStore) -> None:
    await store.transact([], [epoch_put(7)])
    assert await read_epoch(store) == 7


def test_the_next_epoch_is_above_every_known_one() -> None:
    assert next_epoch() == 1
    assert next_epoch(4, 9, 2) == 10
    assert next_epoch(4, now_ms=11_500) == 11


@pytest.mark.parametrize("value", [b"", b"7", b"{}", b'{"epoch": "7"}', b'{"epoch": -1}', b'{"epoch": true}', b"\xff"])
async def test_a_value_without_an_epoch_is_refused(store: LocalMetadataStore, value: bytes) -> None:
    with pytest.raises(MetadataFormatError):
        decode_epoch(value)
    await store.put(EPOCH_PATH, value)
    with pytest.raises(MetadataFormatError, match=EPOCH_PATH):
        await read_epoch(store)


def test_an_epoch_survives_its_encoding() -> None:
    assert decode_epoch(encode_epoch(7)) == 7
