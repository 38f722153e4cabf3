"""The buckets to list, and the listing of a real folder."""

from pathlib import Path

from quire_broker.offload.target import OffloadTarget
from quire_jobs.analytics.object_tables import read_objects, targets_of


def properties(bucket: str, endpoint: str = "") -> tuple[tuple[str, str], ...]:
    return (("bucket", bucket), ("serviceEndpoint", endpoint))


def test_buckets_with_one_name_at_two_services_are_different() -> None:
    here, there = properties("b", "http://here"), properties("b", "http://there")
    named = [("aws-s3", here), ("S3", here), ("aws-s3", there), ("unheard-of", here), ("aws-s3", ())]
    found, wrong = targets_of(named, ["s3://b", "s3://c", "ftp://d"])
    assert [(one.url, one.endpoint) for one in found] == [
        ("s3://b", "http://here"),
        ("s3://b", "http://there"),
        ("s3://c", ""),
    ]
    assert set(wrong) == {"unheard-of", "aws-s3", "ftp://d"}


async def test_a_failed_listing_is_reported_beside_the_others(tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    (tmp_path / "bucket/object").write_bytes(b"12345")
    (tmp_path / "file").write_bytes(b"in the way")
    targets = [OffloadTarget.from_url(f"file://{tmp_path}/{name}") for name in ("bucket", "file")]
    rows, failed = await read_objects(targets, {})
    assert rows == [("object", 5)]
    assert list(failed) == [f"file://{tmp_path}/file"]
