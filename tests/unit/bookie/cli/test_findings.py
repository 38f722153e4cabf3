"""The verdicts of `quire doctor`: cases that must trigger advice, and cases that must not."""

from dataclasses import replace

import pytest

from quire_bookie.cli.findings import Verdict, of_disk, of_etcd, of_host
from quire_bookie.env.host_facts import DiskFacts, HostFacts

DISK = DiskFacts("/data", "ext4", 500 << 30, 1000 << 30, (0.5,) * 20)
HOST = HostFacts("Linux 6.1 x86_64", 1, "madvise", 1 << 20, True)


def test_a_good_host_gets_no_advice() -> None:
    found = [*of_disk(DISK), *of_host(HOST), of_etcd("etcd://e:1", [1.0] * 10)]
    assert len(found) == 9
    assert all(one.verdict is Verdict.OK and not one.advice for one in found)


@pytest.mark.parametrize(
    ("change", "check", "verdict"),
    [
        ({"free_bytes": 50 << 30}, "space of /data", Verdict.WARNING),
        ({"free_bytes": 1 << 30, "total_bytes": 5 << 30}, "space of /data", Verdict.WARNING),
        ({"total_bytes": 0}, "space of /data", Verdict.WARNING),
        ({"kind": "tmpfs"}, "file system of /data", Verdict.FAILED),
        ({"kind": "nfs4"}, "file system of /data", Verdict.WARNING),
        ({"sync_ms": (0.5,) * 9 + (12.0,) * 11}, "syncs of /data", Verdict.WARNING),
        ({"sync_ms": (150.0,) * 20}, "syncs of /data", Verdict.FAILED),
    ],
)
def test_a_bad_disk_gets_advice(change: dict[str, object], check: str, verdict: Verdict) -> None:
    [bad] = [one for one in of_disk(replace(DISK, **change)) if one.verdict is not Verdict.OK]  # type: ignore[arg-type]
    assert (bad.check, bad.verdict) == (check, verdict) and bad.advice


def test_one_slow_sync_among_fast_ones_is_no_reason() -> None:
    assert all(one.verdict is Verdict.OK for one in of_disk(replace(DISK, sync_ms=(0.5,) * 19 + (90.0,))))


@pytest.mark.parametrize(
    ("change", "check"),
    [
        ({"swappiness": 60}, "swapping"),
        ({"huge_pages": "always"}, "huge pages"),
        ({"open_files": 4096}, "open files"),
        ({"clock_is_synchronised": False}, "clock"),
    ],
)
def test_a_bad_host_gets_advice(change: dict[str, object], check: str) -> None:
    [bad] = [one for one in of_host(replace(HOST, **change)) if one.verdict is not Verdict.OK]  # type: ignore[arg-type]
    assert (bad.check, bad.verdict) == (check, Verdict.WARNING) and bad.advice


def test_what_the_system_does_not_tell_is_unknown_and_no_warning() -> None:
    found = of_host(HostFacts("Linux", None, None, None, None))
    assert {one.verdict for one in found} == {Verdict.OK, Verdict.UNKNOWN}


def test_a_slow_metadata_store_gets_advice() -> None:
    assert of_etcd("etcd://e:1", [1.0] * 9 + [900.0]).verdict is Verdict.OK
    assert of_etcd("etcd://e:1", [80.0] * 10).verdict is Verdict.WARNING
