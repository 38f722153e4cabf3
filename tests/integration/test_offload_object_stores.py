"""Tests of segments in a real S3 service behind a relay that throttles, fails and cuts uploads, and of lost objects."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import obstore
import pytest
import pytest_asyncio
from obstore.store import S3Store

from quire_bookie.errors import ObjectStoreError
from quire_bookie.limits import KIB
from quire_bookie.model import EntryId, LedgerId
from quire_bookie.object_store.store import ObjectStore
from quire_broker.errors import SegmentMissingError
from quire_broker.offload.format import BLOCK_BYTES_MIN, data_key, index_key
from quire_broker.offload.segment_reader import SegmentReader
from quire_broker.offload.segment_writer import delete_segment, write_segment
from quire_broker.offload.settings import WindowSettings, WriteSettings
from quire_broker.offload.target import OffloadTarget, open_target
from quire_broker.offload.windows import WindowCache
from tests.support.s3_relay import Cut, Refuse, S3Relay
from tests.support.s3_server import S3Server, require_s3
from tests.unit.broker.offload.ledgers import UUID, ClosedLedger

pytestmark = pytest.mark.slow
SETTINGS = WriteSettings(block_bytes_max=BLOCK_BYTES_MIN, part_bytes=BLOCK_BYTES_MIN, read_bytes=1_000_000)


class Bucket:
    """A server, a relay in front of it, and an object store that uses both."""

    def __init__(self, server: S3Server, relay: S3Relay) -> None:
        self.server = server
        self.relay = relay
        self.objects: ObjectStore = self.placed(server.environment)

    def placed(self, environment: dict[str, str]) -> ObjectStore:
        target = OffloadTarget.from_url("s3://ledgers", region="us-east-1", endpoint=self.relay.endpoint)
        return open_target(target, environment)

    @property
    def files(self) -> list[str]:
        """The objects as the server stores them."""
        return sorted(path.name for path in (self.server.buckets / "ledgers").iterdir() if path.is_file())


@pytest_asyncio.fixture
async def bucket(tmp_path: Path) -> AsyncIterator[Bucket]:
    server = S3Server(require_s3(), tmp_path)
    server.start()
    server.make_bucket("ledgers")
    relay = S3Relay(server.port)
    await relay.open()
    yield Bucket(server, relay)
    await relay.close()
    server.stop()


def ledger() -> ClosedLedger:
    """Create a closed ledger of three blocks."""
    return ClosedLedger.random(7, 3000, 8000)


async def read_back(objects: ObjectStore, cache: WindowCache) -> list[bytes]:
    reader = await SegmentReader.open(objects, LedgerId(7), UUID, cache)
    return [bytes(entry.payload) async for run in reader.scan() for entry in run]


async def test_segment_is_written_in_parts_and_read_by_ranges(bucket: Bucket) -> None:
    source, cache = ledger(), WindowCache(WindowSettings(4 * 1024 * KIB, 256 * KIB, 2))
    summary = await write_segment(bucket.objects, source, UUID, SETTINGS)
    parts = [path for method, path in bucket.relay.seen if method == "PUT" and "partNumber" in path]
    assert summary.blocks == 3 and len(parts) == 3
    assert bucket.files == [data_key(UUID, 7), index_key(UUID, 7)]
    assert await read_back(bucket.objects, cache) == source.payloads
    # The index is one range, which ends at its limit.
    assert len(bucket.relay.ranges) == 1 + -(-summary.data_bytes // (256 * KIB))
    environment = bucket.server.environment
    store = S3Store(
        "ledgers",
        endpoint=bucket.server.endpoint,
        region="us-east-1",
        access_key_id=environment["AWS_ACCESS_KEY_ID"],
        secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
        client_options={"allow_http": True},
    )
    for name in bucket.files:  # the stock system checks these attributes before it reads
        attributes = (await obstore.get_async(store, name)).attributes
        assert attributes["s3managedledgeroffloaderformatversion"] == "1"
    await delete_segment(bucket.objects, 7, UUID)
    assert bucket.files == []
    await cache.close()


async def test_throttling_and_temporary_faults_only_cause_delay(bucket: Bucket) -> None:
    source, cache = ledger(), WindowCache()
    bucket.relay.fail(2, Refuse(503, "SlowDown"), "PUT", "partNumber")
    await write_segment(bucket.objects, source, UUID, SETTINGS)
    bucket.relay.fail(2, Refuse(500, "InternalError"), "GET", data_key(UUID, 7))
    assert await read_back(bucket.objects, cache) == source.payloads
    await cache.close()


@pytest.mark.parametrize("fault", [Refuse(500, "InternalError"), Cut(100_000)], ids=["5xx", "half uploads"])
async def test_failed_upload_leaves_no_object(bucket: Bucket, fault: Refuse | Cut) -> None:
    bucket.relay.fail(10_000, fault, "PUT", "partNumber=2")
    with pytest.raises(ObjectStoreError, match="could not be written") as caught:
        await write_segment(bucket.objects, ledger(), UUID, SETTINGS)
    assert "\n" not in str(caught.value)
    assert bucket.files == []


async def test_data_without_an_index_is_not_a_segment(bucket: Bucket) -> None:
    bucket.relay.fail(10_000, Refuse(500, "InternalError"), "PUT", "-index")
    with pytest.raises(ObjectStoreError):
        await write_segment(bucket.objects, ledger(), UUID, SETTINGS)
    assert bucket.files == [data_key(UUID, 7)]
    cache = WindowCache()
    with pytest.raises(SegmentMissingError, match="-index is missing"):
        await read_back(bucket.objects, cache)
    await cache.close()


async def test_error_names_an_object_that_was_deleted_during_a_read(bucket: Bucket) -> None:
    cache = WindowCache(WindowSettings(4 * 1024 * KIB, 256 * KIB, 0))
    await write_segment(bucket.objects, ledger(), UUID, SETTINGS)
    reader = await SegmentReader.open(bucket.objects, LedgerId(7), UUID, cache)
    await reader.read(EntryId(0), EntryId(0))
    (bucket.server.buckets / "ledgers" / data_key(UUID, 7)).unlink()
    with pytest.raises(SegmentMissingError, match="ledger-7 is missing"):
        await reader.read(EntryId(2999), EntryId(2999))
    await cache.close()


async def test_errors_for_wrong_credentials_and_a_missing_bucket_are_clear(bucket: Bucket) -> None:
    wrong = bucket.placed(bucket.server.environment | {"AWS_SECRET_ACCESS_KEY": "mistyped"})
    with pytest.raises(ObjectStoreError, match="credentials are not accepted"):
        await write_segment(wrong, ClosedLedger([b"x"]), UUID, SETTINGS)
    (bucket.server.buckets / "ledgers").rmdir()
    with pytest.raises(ObjectStoreError, match="the bucket does not exist"):
        await write_segment(bucket.objects, ClosedLedger([b"x"]), UUID, SETTINGS)


async def test_cancelled_upload_leaves_no_object(bucket: Bucket) -> None:
    held = asyncio.Event()

    async def pace(size_bytes: int) -> None:
        held.set()
        await asyncio.sleep(3600)

    task = asyncio.create_task(write_segment(bucket.objects, ledger(), UUID, SETTINGS, pace))
    await asyncio.wait_for(held.wait(), 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert bucket.files == []
