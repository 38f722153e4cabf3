"""Switches and times of auto-recovery: BookKeeper's nodes byte for byte, and unknown outcomes."""

import random

import pytest

from quire_bookie.errors import MetadataFormatError, MetadataUnknownError
from quire_bookie.metadata.recovery_controls import DISABLE, LAYOUT, LOST_BOOKIE_DELAY, CheckKind, RecoveryControls
from tests.sim.metadata import SimMetadata, SimMetadataStore
from tests.support.golden_etcd import history


@pytest.fixture
def server() -> SimMetadata:
    return SimMetadata(random.Random(1), delay_s=(0.0, 0.0))


@pytest.fixture
def controls(server: SimMetadata) -> RecoveryControls:
    return RecoveryControls(SimMetadataStore(server))


def golden(key: str) -> bytes:
    return next(change.value for change in history() if change.key == key)


async def test_the_layout_is_created_once_and_is_that_of_bookkeeper(
    server: SimMetadata, controls: RecoveryControls
) -> None:
    await controls.ensure_layout()
    await controls.ensure_layout()
    assert server.nodes[LAYOUT].value == golden(LAYOUT)
    assert server.nodes[LAYOUT].version == 0


async def test_a_foreign_layout_is_not_changed(server: SimMetadata, controls: RecoveryControls) -> None:
    server.write(LAYOUT, b'type: "FANCY"\nversion: 7\n', None)
    with pytest.raises(MetadataFormatError, match="is not a known layout"):
        await controls.ensure_layout()


async def test_recovery_is_switched_off_and_on(server: SimMetadata, controls: RecoveryControls) -> None:
    assert await controls.is_enabled()
    await controls.disable()
    await controls.disable()
    assert server.nodes[DISABLE].value == b""
    assert not await controls.is_enabled()
    await controls.enable()
    await controls.enable()
    assert await controls.is_enabled()


async def test_switches_survive_lost_responses(server: SimMetadata, controls: RecoveryControls) -> None:
    for seed in range(30):
        server.chance = random.Random(seed)
        server.unknown_chance = 0.3
        wanted = seed % 2 == 0
        try:
            await (controls.enable() if wanted else controls.disable())
            answered = True
        except MetadataUnknownError:
            answered = False
        server.unknown_chance = 0.0
        assert not answered or await controls.is_enabled() is wanted


async def test_the_delay_is_decimal_text_and_the_default_is_set_once(
    server: SimMetadata, controls: RecoveryControls
) -> None:
    assert golden(LOST_BOOKIE_DELAY) == b"0"
    assert await controls.lost_bookie_delay_s() is None
    assert await controls.ensure_lost_bookie_delay_s(600) == 600
    assert server.nodes[LOST_BOOKIE_DELAY].value == b"600"
    await controls.set_lost_bookie_delay_s(30)
    assert await controls.ensure_lost_bookie_delay_s(600) == 30
    server.write(LOST_BOOKIE_DELAY, b"soon", None)
    with pytest.raises(MetadataFormatError, match="not a number of seconds"):
        await controls.lost_bookie_delay_s()


async def test_the_time_of_a_check_is_protobuf(server: SimMetadata, controls: RecoveryControls) -> None:
    assert await controls.last_check_ms(CheckKind.ALL_LEDGERS) is None
    await controls.set_last_check_ms(CheckKind.ALL_LEDGERS, 300)
    assert server.nodes["/ledgers/underreplication/checkallledgersctime"].value == b"\x08\xac\x02"
    assert await controls.last_check_ms(CheckKind.ALL_LEDGERS) == 300
    assert await controls.last_check_ms(CheckKind.REPLICAS) is None
    server.write("/ledgers/underreplication/replicascheckctime", b"\xff", None)
    assert await controls.last_check_ms(CheckKind.REPLICAS) is None
